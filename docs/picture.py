"""Draw the picture in the README: `preflight demo` as a terminal of 80 columns shows it.

python docs/picture.py docs/demo.svg
"""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from rich.console import Console
from rich.text import Text

WIDTH = 80
FONT_FACES = re.compile(r"\s*@font-face \{.*?\}", re.DOTALL)
"""Of rich's, which a reader's browser would fetch from elsewhere; its monospace does."""


def shown() -> str:
    """Return what the terminal is given."""
    ours, theirs = pty.openpty()
    env = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
    env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}"
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(
            ["preflight", "demo"],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=subprocess.DEVNULL,
            env={**env, "TERM": "xterm-256color", "COLUMNS": str(WIDTH)},
        ),
    ):
        os.close(theirs)
        found = b""
        with suppress(OSError):  # EIO is the end
            while part := os.read(ours, 1 << 16):
                found += part
    os.close(ours)
    return found.decode().replace("\r", "")


def drawn(text: str) -> str:
    """Return the picture; `text` with the escapes of a terminal."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(f"$ preflight demo\n{text.rstrip()}"), soft_wrap=True)
    return FONT_FACES.sub("", console.export_svg(title="preflight", unique_id="demo"))


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(drawn(shown()))
