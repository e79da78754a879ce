"""What is sent: complete, small, and in words that every login shell passes on."""

from __future__ import annotations

import ast
import base64
import json
import os
import shutil
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight import catalog, payload
from preflight.errors import ConfigError
from preflight.payload import CORE, STAGE_0, Payload, calls, command, imports, pack, quote
from preflight.trim import trim

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


def test_what_goes_along() -> None:
    text = "from preflight.node.kernel import kernel\nimport preflight.node.mounts\n"
    found = sources(Payload({"preflight.checks.a.b": text}, ["preflight.node.net"]))
    named = {"preflight.checks.a.b", *(f"preflight.node.{m}" for m in ("kernel", "mounts", "net"))}
    assert set(found) >= {*CORE, *named}
    assert found["preflight.checks.a.b"] == text
    assert found["preflight.node.kernel"] == Path(payload.__file__).with_name("node").joinpath(
        "kernel.py"
    ).read_text(encoding="utf-8")
    assert set(sources(Payload({}))) == set(CORE)


def test_imports_are_followed() -> None:
    text = (
        "from preflight.node import mounts, no_such, toolbox as door\nfrom preflight.api import ok"
    )
    assert imports(text) == {"preflight.node.mounts", "preflight.node.toolbox"}
    assert "preflight.node.launch" in imports("def f():\n    from preflight.node.launch import x")
    every = sources(Payload({"c": "from preflight.node.launch import x"}))
    for name, source in every.items():
        assert imports(source) <= set(every), name


def test_calls() -> None:
    assert calls(["x = 1", "node.psutil('cpu_count')"], "psutil")
    assert not calls(["psutil = 'node.psutil'"], "psutil")


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
def test_what_no_shell_can_be_given(word: str) -> None:
    with pytest.raises(ConfigError) as caught:
        quote(word)
    assert str(caught.value) == f"ssh.python: {word!r} cannot be passed to every login shell"


def test_become() -> None:
    assert command(None, 1, "t:", 1, "sudo").startswith("sudo -n -- sh -c '")
    assert command(None, 1, "t:", 1, None).startswith("exec sh -c '")


def test_unknown_module() -> None:
    with pytest.raises(LookupError, match=r"preflight\.node\.no_such"):
        Payload({}, ["preflight.node.no_such"])


MODULE = '''"""A module."""
import math
USED = 1
UNUSED = 2
BOTH = ALSO = USED

def decorator(f):
    return f

@decorator
def wanted(x=BOTH):
    """Speaks of unwanted."""
    return helper(x)

def helper(x): return math.sqrt(x) + Class.a
def unwanted(): return USED
class Class:
    a = USED
class Idle(Class): pass
USED = 4
if USED:
    KEPT = UNUSED
'''


def test_trim() -> None:
    text = trim(MODULE, {"wanted", "no_such", "Class"})
    module: dict[str, Any] = {}
    exec(text, module)
    assert module["wanted"]() == 2
    assert {"unwanted", "Idle"} & set(module) == set()
    assert module["KEPT"] == 2
    assert module["ALSO"] == 1
    assert text.startswith(
        '"""A module."""\nimport math\nUSED = 1\nUNUSED = 2\nBOTH = ALSO = USED\n'
    )


def test_trimmed_pynvml_works() -> None:
    names = (
        "nvmlInit",
        "NVMLError",
        "NVML_ERROR_NOT_SUPPORTED",
        "nvmlDeviceGetHandleByIndex",
        "nvmlDeviceGetMemoryInfo",
        "nvmlDeviceGetPciInfo_v3",
        "nvmlSystemGetDriverVersion",
    )
    whole = payload.source("pynvml")
    text = trim(whole, names)
    assert len(text) < len(whole) / 10
    program = f"""
import sys, types
module = sys.modules["pynvml"] = types.ModuleType("pynvml")
exec(sys.stdin.read(), module.__dict__)
assert not [name for name in {names!r} if not hasattr(module, name)]
try:
    module.nvmlDeviceGetMemoryInfo(None)
except module.NVMLError as error:
    sys.stdout.write(str(error))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], input=text, capture_output=True, text=True, check=True
    )
    assert done.stdout == "Uninitialized"
