"""psutil for nodes of another kind than the controller's machine."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
import zipfile
from pathlib import Path

import platformdirs
import pytest

from preflight import psutil_builds
from preflight.psutil_builds import LIBRARY, find

ELF_MACHINES = {"x86_64": 62, "aarch64": 183}
"""e_machine of the ELF header, from elf.h."""
VERSION = importlib.metadata.version("psutil")


@pytest.fixture(scope="module")
def _index(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skip where the package index can't be had; asked once."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--no-deps"]
    command += ["--retries=0", "--timeout=10", "--dest", str(tmp_path_factory.mktemp("index"))]
    done = subprocess.run(
        [*command, f"psutil=={VERSION}"], capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode:
        pytest.skip(f"no package index: {done.stderr.strip().splitlines()[-1]}")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return where wheels are kept in this test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return platformdirs.user_cache_path("preflight") / "psutil"


@pytest.fixture
def unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have pip find no index."""
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)


def own_libc() -> str:
    return " ".join(platform.libc_ver())


def machine_of(library: bytes) -> int:
    assert library[:4] == b"\x7fELF"
    return int.from_bytes(library[18:20], "little")


def wheel(folder: Path, content: bytes = b"library") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"psutil-{VERSION}-cp36-abi3-made.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"psutil/{LIBRARY}", content)
    return path


def test_own_build(cache: Path) -> None:
    found = find(platform.machine(), own_libc())
    assert found == (psutil_builds.own_folder() / LIBRARY).read_bytes()
    assert machine_of(found) == ELF_MACHINES[platform.machine()]
    assert find(platform.machine(), "glibc 2.17") == found  # whatever its version
    assert not cache.exists()


@pytest.mark.parametrize(
    ("machine", "libc", "folder"),
    [("riscv64", "glibc 2.39", "glibc-riscv64"), ("x86_64", "", "musl-x86_64")],
)
def test_cached_build(cache: Path, machine: str, libc: str, folder: str) -> None:
    wheel(cache / f"{VERSION}-{folder}", b"kept")
    assert find(machine, libc) == b"kept"


@pytest.mark.usefixtures("unreachable")
def test_no_build_to_be_had(cache: Path) -> None:
    assert find("riscv64", "glibc 2.39") is None
    assert list(cache.rglob("*.whl")) == []


@pytest.mark.usefixtures("unreachable")
@pytest.mark.parametrize("fault", ["garbage", "truncated", "without"])
def test_broken_wheel_is_removed(cache: Path, fault: str) -> None:
    path = wheel(cache / f"{VERSION}-glibc-riscv64", os.urandom(1000))
    if fault == "garbage":
        path.write_bytes(b"garbage")
    elif fault == "truncated":
        path.write_bytes(path.read_bytes()[:500])
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("psutil/other.so", b"")
    assert find("riscv64", "glibc 2.39") is None
    assert not path.exists()


@pytest.mark.parametrize(
    ("machine", "libc"),
    [("../../../etc", "glibc 2.31"), ("x86_64;id", "glibc 2.31"), ("", "glibc 2.31"),
     ("aarch64", "bionic 1"), ("aarch64", "../x 1"), ("--help", "")],
)  # fmt: skip
def test_what_a_node_says_is_not_trusted(cache: Path, machine: str, libc: str) -> None:
    assert find(machine, libc) is None
    assert not cache.exists()


@pytest.mark.usefixtures("_index")
@pytest.mark.parametrize(
    ("machine", "libc"), [("aarch64", "glibc 2.31"), ("x86_64", ""), ("aarch64", "")]
)
def test_download(cache: Path, machine: str, libc: str) -> None:
    broken = cache / f"{VERSION}-{libc.split(' ')[0] or 'musl'}-{machine}" / "psutil-broken.whl"
    broken.parent.mkdir(parents=True)
    broken.write_bytes(b"broken")
    found = find(machine, libc)
    assert found is not None
    assert machine_of(found) == ELF_MACHINES[machine]
    (kept,) = cache.rglob("*.whl")
    assert kept != broken
    assert find(machine, libc) == found
