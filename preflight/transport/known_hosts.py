"""Host keys that are known, read from `known_hosts` files as sshd(8) describes them.

Not the SSH library's own reader: that one rejects a whole file for one marked line, computes a
thousand HMACs by a slow path for each look-up, and loses lines when it saves. Here a file is read
once for a whole run, a line that cannot be read costs only itself, and a file is only appended to.
"""

from __future__ import annotations

import base64
import binascii
import fcntl
import hashlib
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

from preflight.errors import ConfigError
from preflight.transport.patterns import WILD, matches

DEFAULT_PORT = 22
MARKERS = (b"@revoked", b"@cert-authority")
SHA1_BLOCK = 64
_INNER = bytes(byte ^ 0x36 for byte in range(256))
_OUTER = bytes(byte ^ 0x5C for byte in range(256))


class HostKey(NamedTuple):
    """A public key: its type, such as `ssh-ed25519`, and its blob as sent on the wire."""

    type: str
    blob: bytes

    def __str__(self) -> str:
        return f"{self.type} {fingerprint(self.blob)}"


class Entry(NamedTuple):
    """One line of a file."""

    where: str
    """`file:line`."""
    marker: str
    key: HostKey


class Known(NamedTuple):
    """What the files say of one host."""

    keys: tuple[Entry, ...] = ()
    revoked: tuple[Entry, ...] = ()
    authorities: tuple[Entry, ...] = ()


def fingerprint(blob: bytes) -> str:
    """Return a key's fingerprint as `ssh-keygen -l` writes it."""
    digest = base64.b64encode(hashlib.sha256(blob).digest()).decode()
    return f"SHA256:{digest.rstrip('=')}"


def host_name(name: str, port: int) -> str:
    """Return a host as it stands in the files: `name`, or `[name]:port` off port 22."""
    return name.lower() if port == DEFAULT_PORT else f"[{name.lower()}]:{port}"


class _Hashed(NamedTuple):
    inner: bytes
    outer: bytes
    digest: bytes
    entry: Entry


class KnownHostsFile:
    """One file, indexed: plain names by dictionary, the rest by the cheapest walk there is."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.broken: list[str] = []
        """`file:line` of each line that could not be read."""
        self._plain: dict[str, list[Entry]] = defaultdict(list)
        self._wild: list[tuple[tuple[str, ...], Entry]] = []
        self._hashed: list[_Hashed] = []
        self._found: dict[str, list[Entry]] = {}
        self._lock = threading.Lock()
        for number, line in enumerate(_read(path).splitlines(), 1):
            self._add(line, f"{path}:{number}")

    def entries(self, name: str) -> list[Entry]:
        """Return the lines that speak of a host, by its `host_name`."""
        with self._lock:
            wild = [entry for patterns, entry in self._wild if matches(patterns, name)]
            return [*self._plain.get(name, ()), *wild, *self._unhash(name)]

    def append(self, name: str, key: HostKey) -> bool:
        """Add a line for a host, here and in the file; False if it is there already.

        Raises:
            OSError: the file cannot be written; the key is known for this run all the same.
        """
        with self._lock:
            if same(self._plain.get(name, ()), key):
                return False
            self._plain[name].append(Entry(str(self.path), "", key))
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
            with os.fdopen(descriptor, "ab+") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                line = f"{name} {key.type} {base64.b64encode(key.blob).decode()}\n".encode()
                file.write(b"\n" + line if _lacks_newline(file) else line)
            return True

    def _unhash(self, name: str) -> list[Entry]:
        if name not in self._found:
            encoded, sha1 = name.encode(), hashlib.sha1
            found, others = [], []
            for line in self._hashed:
                if sha1(line.outer + sha1(line.inner + encoded).digest()).digest() == line.digest:
                    found.append(line.entry)
                else:
                    others.append(line)
            # a line hashes one name, so what was found need never be tried again
            self._hashed, self._found[name] = others, found
        return self._found[name]

    def _add(self, line: bytes, where: str) -> None:
        fields = line.split()
        if not fields or fields[0].startswith(b"#"):
            return
        marker = fields.pop(0) if fields[0] in MARKERS else b""
        try:
            names, kind, blob = fields[0], fields[1].decode("ascii"), _blob(fields[2], fields[1])
            entry = Entry(where, marker.decode(), HostKey(kind, blob))
            if names.startswith(b"|"):
                self._hashed.append(_hashed(names, entry))
            else:
                self._name(names.decode("utf-8", "replace").lower(), entry)
        except (ValueError, IndexError):
            self.broken.append(where)

    def _name(self, names: str, entry: Entry) -> None:
        patterns = tuple(name for name in names.split(",") if name)
        if WILD.isdisjoint(names):
            for name in patterns:
                self._plain[name].append(entry)
        else:
            self._wild.append((patterns, entry))


class KnownHosts:
    """All files of a run, each read once, however many nodes use it."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._files: dict[str, KnownHostsFile] = {}
        self._lock = threading.Lock()

    def file(self, path: str) -> KnownHostsFile:
        """Return a file's index; a file that does not exist is an empty one.

        Raises:
            ConfigError: it cannot be read.
        """
        with self._lock:
            if path not in self._files:
                self._files[path] = found = KnownHostsFile(Path(path))
                if found.broken:
                    lines = ", ".join(found.broken[:3])
                    more = f" and {len(found.broken) - 3} more" if len(found.broken) > 3 else ""
                    self._warn(f"{lines}{more}: not a known_hosts line, ignored")
            return self._files[path]

    def lookup(self, paths: Iterable[str], name: str) -> Known:
        """Return what the files say of a host, by its `host_name`.

        Raises:
            ConfigError: a file cannot be read.
        """
        entries = [entry for path in paths for entry in self.file(path).entries(name)]
        plain, revoked, authorities = (
            tuple(entry for entry in entries if entry.marker == marker)
            for marker in ("", "@revoked", "@cert-authority")
        )
        return Known(plain, revoked, authorities)


def same(entries: Sequence[Entry], key: HostKey) -> Entry | None:
    """Return the line that has exactly this key."""
    return next((entry for entry in entries if entry.key.blob == key.blob), None)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        message = f"known_hosts: {str(path)!r} cannot be read: {(error.strerror or '').lower()}"
        raise ConfigError(message) from error


def _lacks_newline(file: BinaryIO) -> bool:
    if file.seek(0, os.SEEK_END) == 0:
        return False
    file.seek(-1, os.SEEK_END)
    return file.read(1) != b"\n"


def _blob(encoded: bytes, kind: bytes) -> bytes:
    blob = base64.b64decode(encoded, validate=True)
    if not blob.startswith(len(kind).to_bytes(4, "big") + kind):
        raise binascii.Error("the key is of another type than the line says")
    return blob


def _hashed(names: bytes, entry: Entry) -> _Hashed:
    _, version, salt, digest = names.split(b"|")
    if version != b"1":
        raise ValueError(version)
    key = base64.b64decode(salt, validate=True).ljust(SHA1_BLOCK, b"\0")
    return _Hashed(key.translate(_INNER), key.translate(_OUTER), base64.b64decode(digest), entry)
