"""What is kept between runs: believed only if it is whole and this user's alone."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import platformdirs
import pytest

from preflight.cache import KEPT, kept
from preflight.payload import Payload, key

NOBODY, UNKNOWN = 65534, 54321


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return where things are kept in this test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return platformdirs.user_cache_path("preflight") / "sent"


def makes(*answers: bytes) -> Callable[[], bytes]:
    """Return what gives one answer after the other, and fails when there is none left."""
    left = iter(answers)
    return lambda: next(left)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_made_once(folder: Path) -> None:
    make = makes(b"first", b"other")
    assert [kept(b"a", make), kept(b"a", make), kept(b"b", make)] == [b"first", b"first", b"other"]
    assert [kept(b"b", make), kept(b"a", make)] == [b"other", b"first"]
    assert [mode(folder), *map(mode, folder.iterdir())] == [0o700, 0o600, 0o600]


@pytest.mark.parametrize("damage", [b"", b"garbage", None], ids=["empty", "garbage", "cut"])
def test_what_is_broken_is_made_anew(folder: Path, damage: bytes | None) -> None:
    make = makes(b"first", b"second")
    kept(b"a", make)
    (path,) = folder.iterdir()
    path.write_bytes(path.read_bytes()[:-1] if damage is None else damage)
    assert [kept(b"a", make), kept(b"a", make)] == [b"second", b"second"]


@pytest.mark.parametrize("bits", [0o644, 0o620, 0o602])
def test_a_file_that_others_get_at_is_replaced(folder: Path, bits: int) -> None:
    make = makes(b"first", b"second")
    kept(b"a", make)
    (path,) = folder.iterdir()
    path.chmod(bits)
    assert [kept(b"a", make), kept(b"a", make)] == [b"second", b"second"]
    assert mode(path) == 0o600


@pytest.mark.parametrize("bits", [0o755, 0o770, 0o707])
def test_a_folder_that_others_get_at_is_left_alone(folder: Path, bits: int) -> None:
    make = makes(b"first", b"second", b"third")
    kept(b"a", make)
    folder.chmod(bits)
    assert [kept(b"a", make), kept(b"b", make)] == [b"second", b"third"]
    assert len([*folder.iterdir()]) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")
@pytest.mark.parametrize("whose", ["file", "folder"])
def test_what_another_user_has_put_there_is_not_believed(folder: Path, whose: str) -> None:
    make = makes(b"first", b"second")
    kept(b"a", make)
    (path,) = folder.iterdir()
    os.chown(path if whose == "file" else folder, NOBODY, NOBODY)
    assert kept(b"a", make) == b"second"


@pytest.mark.parametrize("place", ["/proc/no", "file"])
def test_no_place_to_keep_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / place))
    make = makes(b"first", b"second")
    assert [kept(b"a", make), kept(b"a", make)] == [b"first", b"second"]


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_a_user_without_a_home(tmp_path: Path) -> None:
    code = f"import os; from preflight.cache import kept, place; os.setuid({UNKNOWN}); "
    code += "print(kept(b'a', lambda: b'made'), place('b'))"
    command = [sys.executable, "-c", code]
    tmp_path.chmod(0o777)
    done = subprocess.run(
        command, cwd=tmp_path, env={}, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("b'made' None\n", "")
    assert [*tmp_path.iterdir()] == []


def test_a_folder_in_the_place_of_the_file(folder: Path) -> None:
    make = makes(b"first", b"second", b"third")
    kept(b"a", make)
    (path,) = folder.iterdir()
    path.unlink()
    path.mkdir()
    assert [kept(b"a", make), kept(b"a", make)] == [b"second", b"third"]
    assert [*folder.iterdir()] == [path]


def test_only_the_newest_stay(folder: Path) -> None:
    for number in range(KEPT + 3):
        name = str(number).encode()
        kept(name, makes(name))
        for path in folder.iterdir():  # a clock of seconds would not tell them apart
            age = path.stat().st_mtime - 10
            os.utime(path, (age, age))
    found = [kept(str(number).encode(), makes(b"anew")) for number in range(KEPT + 3)[3:]]
    assert found == [str(number).encode() for number in range(KEPT + 3)[3:]]
    assert len([*folder.iterdir()]) == KEPT


PROBE = "def probe(node): return node.psutil('cpu_count'), node.nvml('nvmlInit'), {}"


def test_payloads(folder: Path) -> None:
    hello = {"system": "linux", "machine": os.uname().machine, "libc": "glibc 2.31"}
    first, again = (Payload({"c": PROBE.format(1)}) for _ in range(2))
    assert (first.blob, first.modules(hello)) == (again.blob, again.modules(hello))
    assert len([*folder.iterdir()]) == 2
    edited = Payload({"c": PROBE.format(2)})
    assert edited.sources["c"] == f"{PROBE.format(2)}\n"
    assert len([*folder.iterdir()]) == 3
    plain = Payload({"c": "def probe(node): return node.psutil('cpu_count')"})
    assert plain.modules(hello) != first.modules(hello)


def test_a_key_has_all_that_is_sent_and_what_trims_it() -> None:
    assert key("one", "two") != key("onetwo")
    for word in ("def trimmed(", "class Payload:", "class Importer:"):
        assert word in key().decode()
