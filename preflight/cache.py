"""What takes long to make, kept until something that it is made of has changed.

What is kept here runs on nodes, as root too. So nothing is believed that another user could have
written, and whatever is odd is as good as nothing: it is made anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import platformdirs

KEPT = 16
"""Files, of 500 KB at most. A run has two; those of another choice of checks stay for next time."""
DIGEST_BYTES = 32


def kept(made_of: bytes, make: Callable[[], bytes]) -> bytes:
    """Return what `make` returns, from the cache if it has been made of the same before.

    Args:
        made_of: all that the result depends on.
        make: makes it.
    """
    folder = place("sent")
    if folder is None:
        return make()
    path = folder / hashlib.sha256(made_of).hexdigest()
    found = read(path)
    if found is None:
        found = make()
        with contextlib.suppress(OSError):
            write(path, found)
            for old in sorted(folder.iterdir(), key=lambda one: -one.stat().st_mtime)[KEPT:]:
                old.unlink()
    return found


def place(name: str) -> Path | None:
    """Return a folder of this user's cache, None for a user without a home."""
    try:
        folder = platformdirs.user_cache_path("preflight") / name
    except RuntimeError:
        return None
    return folder if folder.is_absolute() else None  # of older platformdirs: ~/.cache


def read(path: Path) -> bytes | None:
    """Return what a file keeps, None where there is none, or one not to be believed."""
    try:
        if not is_ours(path.parent.lstat()):
            return None
        with path.open("rb") as file:
            digest, data = file.read(DIGEST_BYTES), file.read()
            believed = is_ours(os.fstat(file.fileno()))
    except OSError:
        return None
    return data if believed and hashlib.sha256(data).digest() == digest else None


def write(path: Path, data: bytes) -> None:
    """Put a whole file in its place at once.

    Raises:
        OSError: it cannot be written, or another user could write there too.
    """
    path.parent.mkdir(0o700, parents=True, exist_ok=True)
    if not is_ours(path.parent.lstat()):
        raise PermissionError(path.parent)
    part = path.with_suffix(f".{os.getpid()}")
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(hashlib.sha256(data).digest() + data)
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise


def is_ours(status: os.stat_result) -> bool:
    """Whether a file or folder is this user's, and closed to all others."""
    return status.st_uid == os.geteuid() and not status.st_mode & 0o077
