"""What is sent: complete, small, and in words that every login shell passes on."""

from __future__ import annotations

import ast
import base64
import json
import os
import shutil
import socket
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight import catalog
from preflight.errors import ConfigError
from preflight.payload import STAGE_0, Payload, command, pack, quote
from tests.messages.aloud import Aloud

BLOB_CAP = 250_000
"""Bytes to each node in all, compressed: 1,000 nodes take 2 s of a gigabit link."""


def sources(made: Payload) -> dict[str, str]:
    found: dict[str, str] = json.loads(zlib.decompress(made.blob))
    return found


def unpacked(made: Payload, **hello: str) -> tuple[dict[str, str], bytes | None]:
    extras = made.extras(hello)
    assert extras is not None
    modules, library = (zlib.decompress(base64.b64decode(p)) if p else None for p in extras)
    assert modules is not None
    return json.loads(modules), library


HERE = {"system": "linux", "machine": os.uname().machine, "libc": "glibc 2.31"}


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
    if not (psutil or nvml):
        assert made.extras(HERE) is None
        return
    modules, library = unpacked(made, **HERE)
    assert ("psutil" in modules, "pynvml" in modules) == (psutil, nvml)
    assert (library is not None) == psutil
    assert made.extras(HERE) is made.extras(HERE)


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
    modules, _ = unpacked(Payload({"preflight.checks.a.b": text}), **HERE)
    assert ("def net_connections(" in modules["psutil"]) == connections
    assert ("class Process" in modules["psutil"]) == process
    assert "class Error" in modules["psutil._common"]


def test_a_node_that_is_not_linux() -> None:
    made = Payload({"c": "def f(node): return node.psutil('cpu_count')"})
    assert made.extras({"system": "darwin", "machine": "arm64", "libc": ""}) is None


def test_all_checks_together_are_small() -> None:
    loaded = catalog.load().values()
    made = Payload({one.module: one.text for one in loaded})
    extras = made.extras(HERE) or ("", "")
    assert len(made.blob) + len(extras[0]) + len(extras[1] or "") < BLOB_CAP


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
