"""Says where the dynamic linker finds a library, by its own rules as far as they matter for NCCL.

Nothing is loaded. Runs in the training interpreter, as `interpreter.py` does, whose environment
counts. Source: ld.so(8), elf(5).
Sent to nodes: stdlib only, Python 3.7.
"""

from __future__ import annotations

import os
import struct
from typing import Sequence

CACHE = "/etc/ld.so.cache"
CACHE_MAGIC = b"glibc-ld.so.cache1.1"
CACHE_HEADER, CACHE_ENTRY = 48, "=iIIIQ"
"""glibc's sysdeps/generic/dl-cache.h: struct cache_file_new and file_entry_new."""
DEFAULT_FOLDERS = ("/lib64", "/usr/lib64", "/lib", "/usr/lib")
SEGMENT = "<IIQQQQQQ"
"""Elf64_Phdr: type, flags, offset, address, (physical), size in the file, ... ; elf(5)."""
LOAD, DYNAMIC = 1, 2
PROGRAM = "/proc/self/exe"
STRINGS, TEXTS = 5, {1: "NEEDED", 15: "RPATH", 29: "RUNPATH"}
"""Tags of the dynamic section: where its strings are, and those that are strings."""


def sections(path: str) -> dict[str, list[str]]:
    """Return `dynamic` of a file, with nothing in it where the file is damaged or gone."""
    try:
        return dynamic(path)
    except (OSError, struct.error, StopIteration):
        return {name: [] for name in TEXTS.values()}


def library(name: str, users: Sequence[str] = (), program: str = PROGRAM) -> dict[str, str] | None:
    """Return where the dynamic linker finds a library, links resolved, and by what rule.

    `users` are the library that needs it, the one that loaded that one, and so on. DT_RPATH of
    all of them and of the program goes before LD_LIBRARY_PATH; that of a file with DT_RUNPATH
    does not count, and none does if the first has it. DT_RUNPATH goes behind, of the first alone.
    """
    chain = [(user, sections(user)) for user in [*users, os.path.realpath(program)]]
    user, first = chain[0]
    runpath = folders(":".join(first["RUNPATH"]), user) if users else []
    rpath = [
        folder
        for user, section in ([] if runpath else chain)
        for folder in ([] if section["RUNPATH"] else folders(":".join(section["RPATH"]), user))
    ]
    preload = os.environ.get("LD_PRELOAD", "").replace(":", " ").split(" ")
    stem = name.rsplit(".", 1)[0]
    places = [("LD_PRELOAD", path) for path in preload if os.path.basename(path).startswith(stem)]
    for rule, where in (
        ("RPATH", rpath),
        ("LD_LIBRARY_PATH", folders(os.environ.get("LD_LIBRARY_PATH", ""), chain[-1][0])),
        ("RUNPATH", runpath),
    ):
        places += [(rule, os.path.join(folder, name)) for folder in where]
    places += [("ld.so.cache", path) for path in cached(name)]
    places += [("default", os.path.join(folder, name)) for folder in DEFAULT_FOLDERS]
    for rule, path in places:
        if os.path.exists(path):
            return {"path": os.path.realpath(path), "by": rule}
    return None


def folders(text: str, user: str) -> list[str]:
    """Return the folders of a search path.

    $ORIGIN is the folder of the file that has it, by the path under which it was loaded: a link
    to a library is not followed, while the kernel has followed those to the program.
    """
    origin = os.path.dirname(user)
    parts = [part for part in text.replace(";", ":").split(":") if part]
    return [part.replace("$ORIGIN", origin).replace("${ORIGIN}", origin) for part in parts]


def cached(name: str) -> list[str]:
    """Return the paths that ld.so.cache has for a library."""
    try:
        with open(CACHE, "rb") as file:
            data = file.read()
    except OSError:
        return []
    start = data.find(CACHE_MAGIC)  # an older format may go before it
    if start < 0:
        return []
    data = data[start:]
    count, size = struct.unpack_from("=I", data, len(CACHE_MAGIC))[0], struct.calcsize(CACHE_ENTRY)
    entries = struct.iter_unpack(CACHE_ENTRY, data[CACHE_HEADER : CACHE_HEADER + count * size])
    sought = name.encode() + b"\0"
    return [string_at(data, value) for _, key, value, *_ in entries if data.startswith(sought, key)]


def string_at(data: bytes, offset: int) -> str:
    """Return the string that begins at an offset and ends with a NUL."""
    return data[offset : data.find(b"\0", offset)].decode("utf-8", "replace")


def dynamic(path: str) -> dict[str, list[str]]:
    """Return NEEDED, RPATH and RUNPATH of a 64-bit ELF file; torch's has gigabytes, so it seeks."""
    found: dict[str, list[str]] = {name: [] for name in TEXTS.values()}
    with open(path, "rb") as file:
        head = file.read(64)
        if head[:5] != b"\x7fELF\x02":
            return found
        size, count = struct.unpack_from("<HH", head, 54)
        file.seek(struct.unpack_from("<Q", head, 32)[0])
        data = file.read(size * count)
        segments = [struct.unpack_from(SEGMENT, data, i * size) for i in range(count)]
        loads = [s for s in segments if s[0] == LOAD]
        for segment in segments:
            if segment[0] == DYNAMIC:
                file.seek(segment[2])
                entries = list(struct.iter_unpack("<qQ", file.read(segment[5])))
                strings = next(value for tag, value in entries if tag == STRINGS)
                start = next(s[2] - s[3] for s in loads if s[3] <= strings < s[3] + s[5]) + strings
                for tag, value in entries:
                    if tag in TEXTS:
                        file.seek(start + value)
                        found[TEXTS[tag]].append(string_at(file.read(1 << 14), 0))
    return found
