"""Where psutil's compiled part for a node's machine comes from.

The controller's own build where it fits; else one that pip downloads once into the cache, so
that a Mac can drive x86_64 and aarch64 nodes.
"""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
import sys
import zipfile
from pathlib import Path

import platformdirs

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
        libc: name and version as `platform.libc_ver()` says them, empty for musl.
    """
    here = own_folder() / LIBRARY
    if here.exists() and (machine, family(libc)) == (platform.machine(), own_family()):
        return here.read_bytes()
    return downloaded(machine, family(libc))


def own_folder() -> Path:
    """Return where this controller's psutil is."""
    return Path(str(importlib.metadata.distribution("psutil").locate_file("psutil")))


def family(libc: str) -> str:
    """Return `glibc`, or nothing for musl."""
    return libc.partition(" ")[0]


def own_family() -> str:
    """Return the same for this machine."""
    return platform.libc_ver()[0]


def downloaded(machine: str, libc: str) -> bytes | None:
    """Return the library out of a wheel in the cache, which pip fills at first need."""
    version = importlib.metadata.version("psutil")
    folder = platformdirs.user_cache_path("preflight") / "psutil" / f"{version}-{libc}-{machine}"
    if not list(folder.glob("*.whl")):
        platforms = [p.format(machine) for p in PLATFORMS.get(libc, ())]
        tags = [word for p in platforms for word in ("--platform", p)]
        fetch = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:"]
        try:
            subprocess.run(
                [*fetch, *tags, "-d", str(folder), f"psutil=={version}"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=DOWNLOAD_TIMEOUT_S,
                check=True,
            )
        except (OSError, subprocess.SubprocessError):
            return None
    return from_wheel(next(folder.glob("*.whl")))


def from_wheel(wheel: Path) -> bytes | None:
    """Return the library in a wheel; a broken wheel is removed, so that it is fetched again."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            return archive.read(f"psutil/{LIBRARY}")
    except (KeyError, zipfile.BadZipFile):
        wheel.unlink()
        return None
