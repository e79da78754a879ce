"""Where psutil's compiled part for a node's machine comes from.

The controller's own build where it fits; else one that pip downloads once into the cache, so
that a Mac can drive x86_64 and aarch64 nodes.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform
import re
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path

from preflight.cache import place

LIBRARY = "_psutil_linux.abi3.so"
PLATFORMS = {
    "glibc": ("manylinux2014_{}", "manylinux_2_17_{}", "manylinux_2_28_{}"),
    "": ("musllinux_1_2_{}",),
}
"""pip's platform tags by the C library that the node reports; musl reports none."""
DOWNLOAD_TIMEOUT_S = 30
"""A laptop without a way out must not keep the run waiting long; nodes then use their own."""


def find(machine: str, libc: str) -> bytes | None:
    """Return the library for such a machine, None if it can't be had.

    Args:
        machine: as `uname -m` says it.
        libc: name and version as `confstr(3)` says them, empty for musl.
    """
    here = own_folder() / LIBRARY
    family = libc.partition(" ")[0]
    if here.exists() and (machine, family) == (platform.machine(), platform.libc_ver()[0]):
        return here.read_bytes()
    # A node's words become a file name and an option of pip.
    if family not in PLATFORMS or not re.fullmatch(r"\w+", machine, re.ASCII):
        return None
    return downloaded(machine, family)


def own_folder() -> Path:
    """Return where this controller's psutil is."""
    return Path(str(importlib.metadata.distribution("psutil").locate_file("psutil")))


def downloaded(machine: str, family: str) -> bytes | None:
    """Return the library out of a wheel in the cache, which pip fills at first need."""
    version = importlib.metadata.version("psutil")
    cache = place("psutil")
    if cache is None:
        return None
    folder = cache / f"{version}-{family or 'musl'}-{machine}"
    return cached(folder) or (cached(folder) if fetch(version, machine, family, folder) else None)


def fetch(version: str, machine: str, family: str, folder: Path) -> bool:
    """Have pip put the wheel into a folder; whether it did."""
    platforms = [word for p in PLATFORMS[family] for word in ("--platform", p.format(machine))]
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "download"]
    command += ["--no-deps", "--only-binary=:all:", *platforms, "--dest", str(folder)]
    try:
        done = subprocess.run(
            [*command, f"psutil=={version}"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=DOWNLOAD_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def cached(folder: Path) -> bytes | None:
    """Return the library in a folder's wheel, None if there is no wheel that has it."""
    return next(filter(None, map(from_wheel, folder.glob("*.whl"))), None)


def from_wheel(wheel: Path) -> bytes | None:
    """Return the library in a wheel; a broken wheel is removed."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            return archive.read(f"psutil/{LIBRARY}")
    except (KeyError, OSError, zipfile.BadZipFile, zlib.error):
        with contextlib.suppress(OSError):
            wheel.unlink()
        return None
