"""Folders for files that a program insists on, in memory: gone after the call, or with the agent.

A call may be killed before it can remove what it has; the agent outlives its calls.
Sent to nodes: stdlib only, Python 3.8.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Iterator

from preflight.api import Unobservable

MEMORY = "/dev/shm"
"""On no disk."""
root = ""
"""In which all of an agent's are; it names it, and clears it at its end."""


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """Make one, and remove it with all that is in it then.

    Raises:
        Unobservable: there is no room for it, or it may not be made.
    """
    path = Path(root or MEMORY, f"preflight-{os.urandom(8).hex()}")
    try:
        path.mkdir(0o700, parents=True)
    except OSError as error:
        raise Unobservable(f"no folder can be made in {MEMORY}: {error.strerror}") from error
    try:
        yield path
    finally:
        remove(path)


def clear() -> None:
    """Remove what calls have left."""
    if root and os.path.isdir(root):
        remove(root)


def remove(path: str | Path) -> None:
    """Remove a folder, as far as that goes."""
    import shutil

    shutil.rmtree(path, ignore_errors=True)
