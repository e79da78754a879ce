"""Logs as blocks of whole lines, whatever they are packed in; memory does not grow with them."""

from __future__ import annotations

import functools
import glob
import io
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import zstandard

from preflight.errors import ConfigError

BLOCK = 4 << 20
"""Bytes that are looked at in one go; a line that is longer is cut."""
GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
STDIN = "-"
HEAD = 256
"""Bytes by which it is told what a file is."""
CHUNK = 64 << 10
"""Packed bytes that are unpacked in one go; they become a thousand times as many at most."""
GZIP_FORMAT = 16 + zlib.MAX_WBITS
BROKEN = (EOFError, zlib.error, zstandard.ZstdError)
"""What is raised where a packed file is cut off or damaged."""
MOST_FILES = 100_000
"""In folders; a job of 16,384 ranks has two files a rank."""


class Unpacked(io.RawIOBase):
    """A packed file, readable up to where it is cut off or damaged.

    Args:
        file: what is packed, in one part or several.
        unpacker: makes what unpacks a part.
    """

    def __init__(self, file: IO[bytes], unpacker: Callable[[], Any]) -> None:
        self._file, self._unpacker = file, unpacker
        self._part = unpacker()
        self._left = b""

    def readable(self) -> bool:
        """It is."""
        return True

    def close(self) -> None:
        """Close it, and the file."""
        self._file.close()
        super().close()

    def readinto(self, buffer: Any) -> int:
        """Read the next bytes.

        Raises:
            EOFError: it is cut off; others of BROKEN: it is damaged.
        """
        while not self._left:
            packed = self._part.unused_data if self._part.eof else b""
            packed = packed.lstrip(b"\0") or self._file.read(
                CHUNK
            )  # tapes are filled up with zeros
            if not packed and self._part.eof:
                return 0
            if not packed:
                raise EOFError
            if self._part.eof:
                self._part = self._unpacker()
            self._left = self._part.decompress(packed)
        count = min(len(buffer), len(self._left))
        buffer[:count], self._left = self._left[:count], self._left[count:]
        return count


@dataclass(frozen=True)
class Log:
    """A file to be read; its name is as the user wrote it."""

    name: str
    path: Path | None
    """None: it is no file."""
    flaws: list[str] = field(default_factory=list, compare=False)
    """What was found to be wrong with it while it was read."""

    def head(self) -> bytes:
        """Return the first bytes, unpacked.

        Raises:
            ConfigError: it cannot be read.
        """
        with self.open() as stream:
            try:
                return stream.read(HEAD)
            except (*BROKEN, OSError):
                return b""

    def open(self) -> IO[bytes]:
        """Open it, unpacked.

        Raises:
            ConfigError: it cannot be read.
        """
        assert self.path
        try:
            return unpacked(self.path.open("rb"))
        except OSError as error:
            raise ConfigError(self.unreadable(error)) from error

    def blocks(self) -> Iterator[bytes]:
        """Yield it in blocks that end with a line's end; what is packed and broken ends early.

        Raises:
            ConfigError: it cannot be read.
        """
        with self.open() as stream:
            rest = b""
            while data := self.more(stream):
                end = data.rfind(b"\n") + 1
                if not end and len(rest) < BLOCK:
                    rest += data
                    continue
                end = end or len(data)
                yield rest + data[:end]
                rest = data[end:]
            if rest:
                yield rest

    def more(self, stream: IO[bytes]) -> bytes:
        """Return the next bytes; none at the end, or where a packed file is broken.

        Raises:
            ConfigError: it cannot be read.
        """
        try:
            data: bytes = stream.read1(BLOCK)  # type: ignore[attr-defined]
        except BROKEN:
            self.flaws.append(f"{self.name} is cut off or damaged: what comes after is not known")
            return b""
        except OSError as error:
            raise ConfigError(self.unreadable(error)) from error
        return data

    def unreadable(self, error: OSError) -> str:
        """Return what is said of it if it cannot be read."""
        return f"{self.name}: cannot be read: {(error.strerror or str(error)).lower()}"


@dataclass(frozen=True)
class Stdin(Log):
    """Standard input, which is read once: its first bytes are looked at before they are taken."""

    @functools.cached_property
    def stream(self) -> io.BufferedReader:
        """What is read, unpacked.

        Raises:
            ConfigError: it cannot be read.
        """
        try:
            return unpacked(open(0, "rb", closefd=False))
        except OSError as error:
            raise ConfigError(self.unreadable(error)) from error

    def head(self) -> bytes:
        """Return the first bytes, unpacked.

        Raises:
            ConfigError: it cannot be read.
        """
        try:
            return self.stream.peek(HEAD)[:HEAD]
        except (*BROKEN, OSError):
            return b""

    def open(self) -> IO[bytes]:
        """Return it from its beginning, once."""
        return self.stream


def unpacked(file: io.BufferedReader) -> io.BufferedReader:
    """Return what a file holds, unpacked.

    Raises:
        OSError: it cannot be read.
    """
    magic = file.peek(len(ZSTD))[: len(ZSTD)]
    if magic.startswith(GZIP):
        return io.BufferedReader(Unpacked(file, lambda: zlib.decompressobj(GZIP_FORMAT)), BLOCK)
    if magic == ZSTD:
        unpacker = zstandard.ZstdDecompressor().decompressobj
        return io.BufferedReader(Unpacked(file, unpacker), BLOCK)
    return file


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
        yield Stdin("stdin", None)
        return
    try:
        files = paths(name)
    except OSError as error:
        raise ConfigError(f"{name}: cannot be read: {(error.strerror or '').lower()}") from error
    if len(files) > MOST_FILES:
        raise ConfigError(f"{name}: {len(files)} files are more than {MOST_FILES}; name a part")
    for one in files:
        yield Log(str(one), one)


def paths(name: str) -> list[Path]:
    """Return the files of a name; pipes, sockets and devices in folders are no logs.

    Raises:
        ConfigError: there is none.
        OSError: it cannot be told.
    """
    path = Path(name)
    if path.is_file():
        return [path]
    if path.is_dir():
        files = [one for one in sorted(path.rglob("*")) if one.is_file()]
        if not files:
            raise ConfigError(f"{name}: there is no file in this folder")
        return files
    if path.exists():
        raise ConfigError(f"{name}: is a pipe, socket or device: COMMAND | preflight triage -")
    matches = sorted(glob.glob(name, recursive=True))  # noqa: PTH207 - of absolute names too
    files = [Path(one) for one in matches if Path(one).is_file()]
    if not files:
        raise ConfigError(f"{name}: there is no such file")
    return files
