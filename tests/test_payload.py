"""What is sent: complete, small, and in words that every login shell passes on."""

from __future__ import annotations

import ast
import base64
import importlib.util
import marshal
import os
import shutil
import socket
import subprocess
import sys
import traceback
import zlib
from collections.abc import Mapping
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight import catalog
from preflight.errors import ConfigError
from preflight.node import boot, collective, software
from preflight.payload import BOOT, CODE_CAP, FOREIGN, STAGE_0, Payload, command, pack, quote
from tests.messages.aloud import Aloud

BLOB_CAP = 250_000
"""Bytes to each node in all, compressed: 1,000 nodes take 2 s of a gigabit link."""


HERE = {"system": "linux", "machine": os.uname().machine, "libc": "glibc 2.31"}
"""Of another Python: what it is given is text."""
ALIKE = {**HERE, "code": boot.code()}


def sources(made: Payload) -> dict[str, str]:
    return {BOOT: zlib.decompress(made.blob).decode(), **made.sources}


def modules(packed: bytes) -> tuple[dict[str, CodeType], dict[str, str]]:
    size, rest = int(packed[: boot.SIZE_DIGITS]), packed[boot.SIZE_DIGITS :]
    assert size == len(rest)
    codes, texts = marshal.loads(zlib.decompress(rest))
    return codes, texts


def texts(made: Payload, hello: Mapping[str, str] = HERE) -> dict[str, str]:
    codes, found = modules(made.modules(hello)[0])
    assert codes == {}
    return found


CORE = {
    f"preflight.node.{name}"
    for name in ("agent", "boot", "child", "children", "psutil_loader", "scratch", "toolbox")
}
CHECK = '''"""A claim."""

from __future__ import annotations

from preflight.api import Check, Verdict, ok
from preflight.node import mounts
from preflight.node.kernel import identity


def probe(node):
    """Look."""
    return looked(node)


def looked(node):
    return mounts.table(node)


def judge(facts, want) -> Verdict:
    return ok(identity.__name__)


CHECK = Check(probe=probe, judge=judge)
'''


def test_of_a_check_its_probe_goes_along() -> None:
    found = sources(Payload({"preflight.checks.a.b": CHECK}))
    assert set(found) == CORE | {"preflight.api", "preflight.checks.a.b", "preflight.node.mounts"}
    assert found["preflight.checks.a.b"].splitlines() == [
        *("", "", "from __future__ import annotations", "", ""),
        *("from preflight.node import mounts", "", "", ""),
        *("def probe(node):", "", "    return looked(node)", "", ""),
        *("def looked(node):", "    return mounts.table(node)"),
    ]
    mounts = found["preflight.node.mounts"]
    assert "def table(" in mounts
    assert "def mounts(" not in mounts


@pytest.mark.parametrize(
    "last", ["", "CHECK = Check(probe, judge=judge)", "CHECK = Check(**{'probe': probe})"]
)
def test_all_goes_along_where_it_cannot_be_told(last: str) -> None:
    text = CHECK[: CHECK.index("CHECK = ")] + last
    found = sources(Payload({"preflight.checks.a.b": text}))["preflight.checks.a.b"]
    assert "def judge(" in found


def test_exercises_and_imported_probes() -> None:
    text = """
from preflight.api import Check
from preflight.node.kernel import identity

def exercise(fleet, want): return fleet.map(there, {})
def there(node): return 1
def judge(facts, want): pass
CHECK: Check = Check(exercise=exercise, judge=judge)
"""
    found = sources(Payload({"c": text}))
    assert "def there(" in found["c"]
    assert "def judge(" not in found["c"]
    text = text.replace("exercise=exercise", "probe=identity")
    found = sources(Payload({"c": text}))
    assert found["c"].strip() == "from preflight.node.kernel import identity"
    assert "def identity(" in found["preflight.node.kernel"]


def test_modules_that_are_sent_whole() -> None:
    assert set(sources(Payload({}))) == CORE | {"preflight.api"}
    found = sources(Payload({}, ["preflight.node.mounts"]))
    assert "def mounts(" in found["preflight.node.mounts"]


@pytest.mark.parametrize(
    ("text", "psutil", "nvml"),
    [
        ("def f(node): return node.psutil('cpu_count')", True, False),
        ("def f(node): return node.process(1)", True, False),
        ("def f(node): return node.nvml('nvmlDeviceGetName', 0)", False, True),
        ("def f(node): return node.read('/etc/hostname')", False, False),
    ],
)
def test_only_what_is_used(text: str, psutil: bool, nvml: bool) -> None:
    made = Payload({"preflight.checks.a.b": text})
    found = texts(made)
    assert ("psutil" in found, "pynvml" in found) == (psutil, nvml)
    assert (made.modules(HERE)[1] is not None) == psutil
    assert made.modules(HERE) is made.modules(HERE)


@pytest.mark.parametrize(
    ("text", "connections", "process"),
    [
        ("def f(node): return node.psutil('boot_time')", False, False),
        ("def f(node): return node.psutil(\n'boot_time')", False, False),
        ("def f(node): return node.process(1)", True, True),
        ("def f(node): return node.psutil('net_connections')", True, False),
        ("def f(node):\n for g in ['net_connections']: node.psutil(g)", True, True),
    ],
)
def test_of_psutil_only_what_is_used(text: str, connections: bool, process: bool) -> None:
    found = texts(Payload({"preflight.checks.a.b": text}))
    assert ("def net_connections(" in found["psutil"]) == connections
    assert ("class Process" in found["psutil"]) == process
    assert "class Error" in found["psutil._common"]


def test_a_node_that_is_not_linux() -> None:
    made = Payload({"c": "def f(node): return node.psutil('cpu_count')"})
    darwin = {"system": "darwin", "machine": "arm64", "libc": ""}
    assert "psutil" not in texts(made, darwin)
    assert made.modules(darwin)[1] is None


def test_a_node_with_our_python_is_given_code() -> None:
    text = "\n\ndef f(node): return 1 / 0\n"
    made = Payload({"preflight.checks.a.b": text}, ["preflight.node.interpreter"])
    codes, found = modules(made.modules(ALIKE)[0])
    assert set(found) == {"preflight.node.interpreter", "preflight.node.linker"}
    assert codes.keys() | set(found) == made.sources.keys()
    place: dict[str, Any] = {}
    exec(codes["preflight.checks.a.b"], place)
    with pytest.raises(ZeroDivisionError) as caught:
        place["f"](None)
    last = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert (last.filename, last.lineno) == ("preflight/checks/a/b.py", 3)


def test_code_does_not_depend_on_the_options_of_our_python() -> None:
    script = "from preflight.payload import compiled; exec(compiled('assert 0', 'x'))"
    done = subprocess.run([sys.executable, "-OO", "-c", script], capture_output=True, text=True)
    assert done.stderr.splitlines()[-2:] == ['  File "x", line 1, in <module>', "AssertionError"]


@pytest.mark.parametrize(
    "theirs",
    ["", "cpython-38 550d0d0a", boot.code().replace("cpython", "pypy"), "garbage", 7, None],
)
def test_a_node_with_another_python_is_given_text(theirs: Any) -> None:
    made = Payload({"preflight.checks.a.b": "def f(node): return 1"})
    found = modules(made.modules({**HERE, "code": theirs})[0])
    assert found == ({}, made.sources)


def test_modules_that_another_python_is_given_are_sent_as_text() -> None:
    asked = {name for name in FOREIGN if importlib.util.find_spec(name)}
    assert asked == {software.MAIN.rpartition(".")[0], software.LINKER} | {
        collective.MAIN.rpartition(".")[0],
        collective.RANK,
    }


def test_what_a_quick_run_sends_is_code() -> None:
    loaded = catalog.load().select([], "quick")
    codes, _ = modules(Payload({one.module: one.text for one in loaded}).modules(ALIKE)[0])
    assert "psutil" in codes


@pytest.mark.parametrize("hello", [HERE, ALIKE])
def test_all_checks_together_are_small(hello: dict[str, str]) -> None:
    loaded = catalog.load().values()
    made = Payload({one.module: one.text for one in loaded})
    found, library = made.modules(hello)
    assert library
    assert len(made.blob) + len(found) + len(library) < BLOB_CAP
    # a smaller choice of checks has less text, and may go as code
    assert len(made.blob) + boot.SIZE_DIGITS + CODE_CAP + len(library) < BLOB_CAP


@given(st.binary())
def test_pack(data: bytes) -> None:
    assert zlib.decompress(base64.b64decode(pack(data))) == data
    assert pack(data).isascii()


def test_stage_0_is_for_every_shell_and_every_python() -> None:
    assert not set(STAGE_0) & set("'\\!\n")
    assert STAGE_0.isascii()
    ast.parse(STAGE_0, feature_version=(3, 4))
    line = command(None, 1, "preflight-0:", 1, None)
    assert "\n" not in line
    assert len(line) < 4096  # a line of a terminal or of an old sh


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can put something in /dev/null's place")
def test_a_python_is_found_where_dev_null_cannot_be_opened(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as place:
        place.bind(str(tmp_path / "socket"))
        line = command(None, 0, "preflight-0:", 1, None)
        script = 'mount --bind "$0" /dev/null && eval "$1"'
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-c", script, str(tmp_path / "socket"), line],
            capture_output=True,
            text=True,
            input="",
        )
    assert "zlib.error" in done.stderr  # it was started, and got nothing to run
    assert "preflight-0:{}" not in done.stdout


@pytest.mark.parametrize("shell", ["sh", "bash", "dash", "tcsh", "fish"])
@pytest.mark.parametrize("word", ["plain", "a b", '$HOME "x" `id` ~ * ? ; & | < > ( ) { } #', "ü"])
def test_quote(shell: str, word: str) -> None:
    found = shutil.which(shell)
    if found is None:
        pytest.skip(f"no {shell} on this machine")
    line = f"{quote(sys.executable)} -c {quote('import sys; sys.stdout.write(sys.argv[1])')}"
    done = subprocess.run(
        [found, "-c", f"{line} {quote(word)}"],
        capture_output=True,
        check=True,
        env={**os.environ, "LC_ALL": "C.UTF-8"},
    )
    assert done.stdout.decode() == word


@pytest.mark.parametrize("word", ["it's", "back\\slash", "bang!", "new\nline"])
def test_what_no_shell_can_be_given(word: str, aloud: Aloud) -> None:
    with pytest.raises(ConfigError) as caught:
        quote(word)
    aloud(caught.value, about=repr(word))


def test_become() -> None:
    assert command(None, 1, "t:", 1, "sudo").startswith("sudo -n -- sh -c '")
    assert command(None, 1, "t:", 1, None).startswith("exec sh -c '")


def test_unknown_module() -> None:
    with pytest.raises(LookupError, match=r"preflight\.node\.no_such"):
        Payload({}, ["preflight.node.no_such"])
