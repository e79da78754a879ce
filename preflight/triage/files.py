"""Logs as blocks of whole lines, whatever they are packed in; memory does not grow with them."""

from __future__ import annotations

import glob
import gzip
import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import zstandard

from preflight.errors import ConfigError

BLOCK = 4 << 20
"""Bytes that are looked at in one go; a line that is longer is cut."""
GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
STDIN = "-"
BROKEN = (EOFError, zlib.error, gzip.BadGzipFile, zstandard.ZstdError)
"""What is raised where a packed file is cut off or damaged."""
MOST_FILES = 100_000
"""In folders; a job of 16,384 ranks has two files a rank."""


@dataclass(frozen=True)
class Log:
    """A file to be read; its name is as the user wrote it."""

    name: str
    path: Path | None
    """None: standard input."""

    def head(self) -> bytes:
        """Return the first bytes, unpacked; none of standard input.

        Raises:
            ConfigError: it cannot be read.
        """
        if self.path is None:
            return b""
        with self.open() as stream:
            try:
                return stream.read(256)
            except (*BROKEN, OSError):
                return b""

    def open(self) -> IO[bytes]:
        """Open it, unpacked.

        Raises:
            ConfigError: it cannot be read.
        """
        if self.path is None:
            return sys.stdin.buffer
        try:
            file = self.path.open("rb")
            magic = file.read(4)
            file.seek(0)
        except OSError as error:
            raise ConfigError(f"{self.name}: cannot be read: {error.strerror}") from error
        if magic[:2] == GZIP:
            return gzip.GzipFile(fileobj=file)  # type: ignore[return-value]
        if magic == ZSTD:
            import zstandard

            return zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
        return file

    def blocks(self) -> Iterator[bytes]:
        """Yield it in blocks that end with a line's end; what is packed and broken ends early.

        Raises:
            ConfigError: it cannot be read.
        """
        with self.open() as stream:
            rest = b""
            while data := read(stream, self.name):
                end = data.rfind(b"\n") + 1
                if not end and len(rest) < BLOCK:
                    rest += data
                    continue
                end = end or len(data)
                yield rest + data[:end]
                rest = data[end:]
            if rest:
                yield rest


def read(stream: IO[bytes], name: str) -> bytes:
    """Return the next bytes; none at the end, or where a packed file is broken."""
    try:
        return stream.read(BLOCK)
    except BROKEN:
        return b""
    except OSError as error:
        raise ConfigError(f"{name}: cannot be read: {error.strerror or error}") from error


def find(names: Sequence[str]) -> list[Log]:
    """Return the logs that files, folders, patterns and `-` name, each once, in order.

    Raises:
        ConfigError: there is nothing of a name, or it cannot be read.
    """
    found: dict[str, Log] = {}
    for name in names:
        for log in named(name):
            found.setdefault(log.name, log)
    return list(found.values())


def named(name: str) -> Iterator[Log]:
    """Yield the logs of one name."""
    if name == STDIN:
        yield Log("stdin", None)
        return
    path = Path(name)
    if path.is_dir():
        files = [one for one in sorted(path.rglob("*")) if one.is_file()]
        if not files:
            raise ConfigError(f"{name}: there is no file in this folder")
    elif path.exists():
        files = [path]
    else:
        matches = sorted(glob.glob(name, recursive=True))  # noqa: PTH207 - of absolute names too
        files = [Path(one) for one in matches if Path(one).is_file()]
        if not files:
            raise ConfigError(f"{name}: there is no such file")
    if len(files) > MOST_FILES:
        raise ConfigError(f"{name}: {len(files)} files are more than {MOST_FILES}; name a part")
    for one in files:
        yield Log(str(one), one)
