"""What is cut off a source, and that the rest works as before."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import psutil
import pytest

from preflight.payload import PSUTIL, psutil_text, pynvml_text
from preflight.psutil_builds import LIBRARY, own_folder
from preflight.trim import trimmed

MODULE = '''"""A module."""
from __future__ import annotations
import math
from typing import (
    Any,
    TypedDict,
)
USED = 1
UNUSED = 2
BOTH = ALSO = USED

def decorator(f):
    return f

@decorator
def wanted(x: Never = BOTH) -> Never:
    """Speaks of unwanted."""
    return assistant(x)

def assistant(x):
    own = [other for other in (1,)]
    return math.sqrt(x) + Class.a
def own(): return USED
def other(): return USED
class Class:
    """Has an attribute."""
    a = USED
class Idle(Class): pass
class Never(TypedDict):
    a: Any
USED = 4
if USED:
    try:
        FIRST, (SECOND, *_) = 1, (2, 3)
    except ValueError:
        import json as LOADED
USED.x = USED[1:] = 3
LISTED = []
LISTED.append(UNUSED)
print("said")
'''


def cut(text: str, *words: str) -> str:
    return trimmed({"m": text}.get, words)["m"]


def kept(text: str, *words: str) -> list[str]:
    """Return the lines that are left."""
    return [line for line in cut(text, *words).splitlines() if line.strip()]


def test_what_is_kept() -> None:
    text = cut(MODULE, "m.wanted")
    assert [(number, line) for number, line in enumerate(text.splitlines(), 1) if line] == [
        (2, "from __future__ import annotations"),
        (3, "import math"),
        (8, "USED = 1"),
        (10, "BOTH = ALSO = USED"),
        (12, "def decorator(f):"),
        (13, "    return f"),
        (15, "@decorator"),
        (16, "def wanted(x = BOTH):"),
        (18, "    return assistant(x)"),
        (20, "def assistant(x):"),
        (21, "    own = [other for other in (1,)]"),
        (22, "    return math.sqrt(x) + Class.a"),
        (24, "def other(): return USED"),
        (25, "class Class:"),
        (27, "    a = USED"),
        (31, "USED = 4"),
        (37, "USED.x = USED[1:] = 3"),
        (40, 'print("said")'),
    ]
    assert cut(MODULE, "m.*").splitlines()[27:30] == ["class Idle(Class): pass", "Never = dict", ""]


def test_if_and_try_are_kept_whole_and_changes_too() -> None:
    for name in ("FIRST", "SECOND", "LOADED"):
        assert "    try:" in kept(MODULE, f"m.{name}"), name
    assert kept(MODULE, "m.LISTED") == [
        "from __future__ import annotations",
        *("UNUSED = 2", "LISTED = []", "LISTED.append(UNUSED)", 'print("said")'),
    ]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("def f(): g()", "fg"),
        ("def f(g): return g", "f"),
        ("def f(x=g): pass", "fg"),
        ("def f(g=g): return g", "fg"),
        ("def f():\n g = 1\n return lambda: g", "f"),
        ("def f():\n for g in []: pass\n def x(h): return h\n return h", "fh"),
        ("def f():\n global g\n g = 1", "fg"),
        ("def f(): return x.g", "f"),
        ("def f(): return 'g'", "f"),
        ("class f(g):\n def x(self, h): return h", "fg"),
        ("class f:\n g = 1\n def x(self): return g", "fg"),
        ("async def f(): return g", "fg"),
        ("@g\ndef f(): pass", "fg"),
        ("f = lambda: g", "fg"),
        ("f: h = g", "fg"),
        ("with g as f: pass", "fg"),
        ("for f in g: pass", "fg"),
    ],
)
def test_what_is_used(text: str, names: str) -> None:
    module = f"from __future__ import annotations\n{text}\ndef g(): pass\ndef h(): pass\n"
    found: dict[str, Any] = {}
    wanted = cut(module, "m.f")
    exec(compile(wanted.replace(text, ""), "m", "exec"), found)
    assert text in wanted
    assert {n for n in found if n in "gh"} == set(names) - {"f"}


def test_annotations_go_where_they_are_not_evaluated() -> None:
    text = """from __future__ import annotations
class f:
    a: g = 1
    def x(self, a: g, *b: "h", c: list[g] = 3, d: (g) = 4, e: dict[
        g, h] = 5) -> list[g]:
        own: g = lambda: a[1:]
        def inner(a: g)->h: return own
        def said(a: g) -> h: return "é"
def g(): pass
def h(): pass
"""
    left = cut(text, "m.f")
    assert left.splitlines() == [
        "from __future__ import annotations",
        "class f:",
        "    a: g = 1",
        "    def x(self, a, *b, c = 3, d: (g) = 4, e: dict[",
        "        g, h] = 5):",
        "        own: g = lambda: a[1:]",
        "        def inner(a)->h: return own",
        '        def said(a: g) -> h: return "é"',
    ]
    compile(left, "m", "exec")


def test_annotations_count_where_they_are_evaluated() -> None:
    assert kept("def g(): pass\ndef f(x: g): pass", "m.f") == ["def g(): pass", "def f(x: g): pass"]


def test_modules() -> None:
    texts = {
        "m": "import a\nfrom b import x, y as z\nfrom . import d\ndef f():\n from c import x\n"
        " return a.one, z, d.two\n",
        "a": "def one(): pass\ndef two(): pass\ndef three(): pass\n",
        "b": "from e import *\ndef x(): pass\ndef y(): return 'three'\ndef one(): pass\n",
        "c": "x, y = 1, 2\nz = 3\n",
        "m.d": "def x(): pass\ndef two(): pass\ndef three(): pass\n",
        "e": "unknown = 1\n",
        "f": "never = 1\n",
    }
    assert trimmed(texts.get, ["m.f"]) == {
        "m": "import a\nfrom b import y as z\nfrom . import d\ndef f():\n from c import x\n"
        " return a.one, z, d.two\n",
        "a": "def one(): pass\ndef two(): pass\ndef three(): pass\n",
        "b": "from e import *\n\ndef y(): return 'three'\n",
        "c": "x, y = 1, 2\n",
        "m.d": "\ndef two(): pass\ndef three(): pass\n",
        "e": "unknown = 1\n",
    }


def test_a_module_that_is_named_by_a_string() -> None:
    texts = {"m": "f = load('a')\n", "a": "x = 1\nprint(x)\n"}
    assert trimmed(texts.get, ["m.f"]) == texts


def test_new_types() -> None:
    text = """from typing import NewType
Address = NewType("Address", str)
Others = NewType("Others", "list[Address]")
odd = made = NewType("odd", str)
"""
    assert kept(text, "m.Address") == ["Address = str"]
    assert kept(text, "m.Others") == ["Others = 'list[Address]'"]
    assert kept(text, "m.odd") == text.splitlines()[::3]


def test_named_tuples() -> None:
    text = """from typing import NamedTuple
ONE = 1
class Plain(NamedTuple):
    '''Two fields.'''
    a: int
    '''The first.'''
    b: int = ONE
class Own(NamedTuple):
    a: int
    def twice(self): return 2 * self.a
"""
    assert kept(text, "m.Plain") == [
        "ONE = 1",
        'Plain = __import__("collections").namedtuple("Plain", "a b", defaults=[ONE])',
    ]
    assert kept(text, "m.Own") == [
        "from typing import NamedTuple",
        *("class Own(NamedTuple):", "    a: int", "    def twice(self): return 2 * self.a"),
    ]
    module: dict[str, Any] = {}
    exec(cut(text, "m.Plain"), module)
    assert module["Plain"](3) == module["Plain"](a=3, b=1) == (3, 1)


def test_statements_on_one_line() -> None:
    assert kept("a = 1; b = 2\nimport os; c = os\n", "m.a", "m.c") == [
        "a = 1",
        "import os",
        "c = os",
    ]
    text = 'def f(): "said"; return 1\ndef g():\n    "said"\n'
    assert cut(text, "m.f", "m.g") == text


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
    text = trimmed(pynvml_text, {"pynvml", *(f".{name}" for name in names)})["pynvml"]
    assert len(text) < len(pynvml_text("pynvml") or "") / 10
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


PSUTILS = """
import importlib.util, json, sys
library, asked, texts = sys.argv[1], sys.argv[2:], json.load(sys.stdin)

class Importer:
    def find_spec(self, name, path, target=None):
        if name in texts:
            return importlib.util.spec_from_loader(name, self, is_package=name == "psutil")
        if name == "psutil._psutil_linux":
            return importlib.util.spec_from_file_location(name, library)
    def create_module(self, spec): pass
    def exec_module(self, module): exec(texts[module.__name__], module.__dict__)

sys.meta_path.insert(0, Importer())
import psutil
for function in asked:
    print(getattr(psutil, function)())
"""


@pytest.mark.parametrize("asked", [["net_if_addrs", "net_if_stats"], ["boot_time"], ["cpu_count"]])
def test_trimmed_psutil_works(asked: list[str]) -> None:
    words = {".Error", ".version_info", *PSUTIL, *(f".{function}" for function in asked)}
    texts = trimmed(psutil_text, words)
    whole = sum(len(psutil_text(name) or "") for name in texts)
    assert sum(map(len, texts.values())) < whole / 4
    done = subprocess.run(
        [sys.executable, "-S", "-c", PSUTILS, str(own_folder() / LIBRARY), *asked],
        input=json.dumps(texts),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == [str(getattr(psutil, function)()) for function in asked]


def test_trimmed_psutil_has_processes() -> None:
    words = {".Error", ".Process", ".NoSuchProcess", *PSUTIL}
    assert "class Process" in trimmed(psutil_text, words)["psutil"]
    assert "class Process" not in trimmed(psutil_text, {*PSUTIL})["psutil"]


@pytest.mark.parametrize("base", ["TypedDict", "Never", "Never, Other"])
def test_a_typed_dict_whose_keys_may_be_left_out_is_a_dict(base: str) -> None:
    assert kept(f"class Some({base}, total=False):\n a: int\n", "m.Some") == ["Some = dict"]
