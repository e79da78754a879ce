"""What stands in the documents in fences: files to write and commands to run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
_BLOCK = re.compile(
    r"(?:^`(?P<path>[^`\n]+)`:\n\n)?^```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.M | re.S
)


class Block(NamedTuple):
    """One fence; `path` is the file that the line before it names."""

    kind: str
    text: str
    path: str | None


def blocks(name: str) -> Iterator[Block]:
    """Yield the fences of a document of this project."""
    for match in _BLOCK.finditer((ROOT / name).read_text()):
        yield Block(match["kind"], match["text"], match["path"])
