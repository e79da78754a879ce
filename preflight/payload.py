"""What is sent to a node: the line that starts the agent, its first file, and all other modules.

These are our own modules that the selected checks need, psutil and pynvml; they follow once the
first file has said what machine and what Python it is (`modules`). They go as code if it is ours:
to compile them takes a node longer than to run them.
"""

from __future__ import annotations

import ast
import base64
import importlib.util
import json
import marshal
import re
import sys
import threading
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import CodeType
from typing import Any

from preflight import psutil_builds
from preflight.cache import kept
from preflight.errors import ConfigError
from preflight.node import boot
from preflight.trim import defined, trimmed, used

BOOT = boot.__name__
"""Run by `STAGE_0`; what it imports follows."""
FOREIGN = (
    "preflight.node.interpreter",
    "preflight.node.linker",
    "preflight.node.torch_interpreter",
    "preflight.node.torch_rank",
)
"""Modules whose text is handed to another Python, the training interpreter."""
CODE_CAP = 150_000
"""Bytes, compressed. Code is twice as large as text: so much is more than what a quick run sends,
and leaves all that goes to a node within 250 KB.
"""
PSUTIL = ("psutil", "psutil._common", "psutil._ntuples", "psutil._pslinux", "psutil._psposix")
"""What psutil imports on Linux, besides its compiled part; `_ntuples` since 7.2."""
PYTHONS = (
    "python3 python3.13 python3.12 python3.11 python3.10 python3.9 python3.8 python3.14 python"
)
"""Looked for in this order where the inventory names none: `python3` is the admin's choice."""
MINIMUM = "3.8"
POSITIONED = (ast.stmt, ast.expr, ast.excepthandler, ast.arg, ast.keyword, ast.alias)
"""Nodes of a syntax tree that say where they stand."""

# Parses on Python 2.7, so that an old interpreter can hand over to a newer one, or refuse in
# words. No single quote, backslash, newline or exclamation mark: bash, dash, csh and fish must
# all pass it on unharmed inside single quotes. Its argv: itself, length, tag, life, python, others.
# Others are tried before they are trusted: a shim of pyenv is there, and may stand for nothing.
# It reads exactly `length` bytes with os.read: a buffered reader would swallow requests behind it.
STAGE_0 = (
    "import sys;sys.path[:]=[p for p in sys.path if p];import os,json;"
    "a=sys.argv;n,t=int(a[2]),a[3];o=sys.version_info<(3,8);"
    'f=["-E","-s","-S","-B","-c"];r="import sys;sys.exit(sys.version_info<(3,8))";'
    'h="{0}$@{0} </dev/null >/dev/null 2>&1".format(chr(34));'
    "w=o and next((p for p in [os.path.join(d,p) for p in a[6].split() for d in os.environ.get("
    '"PATH",os.defpath).split(":")] if os.access(p,os.X_OK) and '
    '__import__("subprocess").call(["sh","-c",h,"sh",p]+f+[r])==0),0);'
    'w and os.execv(w,[w]+f+["import sys;exec(sys.argv[1])"]+a[1:]);'
    'o and (sys.stdout.write(chr(10)+t+json.dumps({"old":sys.version.split()[0],'
    '"executable":sys.executable})+chr(10)),sys.stdout.flush(),os._exit(3));'
    "import zlib,signal;signal.alarm(int(a[4]));os.set_blocking(0,True);d=[];"
    "list(iter(lambda:d.append(os.read(0,min(65536,n-sum(map(len,d)))))or d[-1],bytes()));"
    'exec(compile(zlib.decompress(bytes().join(d)),"<preflight.node.boot>","exec"),'
    '{"__name__":"preflight.node.boot","TAG":t,"LIFE_S":int(a[4])})'
)


def command(python: str | None, length: int, tag: str, life_s: int, become: str | None) -> str:
    """Return the line that starts the agent, for whatever login shell the node has.

    Args:
        python: the interpreter that the inventory names, None to look for one.
        length: bytes of the blob that follows on standard input.
        tag: the run's tag.
        life_s: seconds after which an agent that lost its controller ends.
        become: `sudo`, or None.

    Raises:
        ConfigError: no shell could be given this path of an interpreter.
    """
    names, others = (python, "") if python else (PYTHONS, PYTHONS.split(" ", 1)[1])
    listed = '"$5"' if python else "$5"
    script = (
        f"t=$3; for p in {listed}; do "
        'q=$(command -v "$p") && '
        'exec "$p" -E -s -S -B -c "import sys;exec(sys.argv[1])" "$@"; done; '
        'echo; echo "$t{}"; exit 3'
    )
    words = (STAGE_0, str(length), tag, str(life_s), names, others)
    line = f"sh -c {quote(script)} sh {' '.join(quote(word) for word in words)}"
    return f"sudo -n -- {line}" if become else f"exec {line}"


def quote(word: str) -> str:
    """Return a word that sh, bash, csh, tcsh and fish all read as itself.

    Raises:
        ConfigError: there is no such spelling.
    """
    if set(word) & set("'\\!\n"):
        raise ConfigError(
            f"ssh.python: {word!r} has a character that not every login shell passes on"
        )
    return f"'{word}'"


def psutil_text(word: str) -> str | None:
    """Return the text of a module of the controller's psutil, None if it is none of those sent."""
    if word not in PSUTIL:
        return None
    path = psutil_builds.own_folder() / f"{word.partition('.')[2] or '__init__'}.py"
    return path.read_text(encoding="utf-8") if path.exists() else None


def pynvml_text(word: str) -> str | None:
    """Return the text of pynvml, which is not imported here; None for any other word."""
    spec = importlib.util.find_spec(word) if word == "pynvml" else None
    return Path(spec.origin).read_text(encoding="utf-8") if spec and spec.origin else None


def ours() -> dict[str, str]:
    """Return the texts of all modules of ours that may go to nodes, by name."""
    folder = Path(__file__).parent
    names = {f"preflight.node.{path.stem}": path for path in sorted(folder.glob("node/*.py"))}
    names["preflight.api"] = folder / "api.py"
    return {name: path.read_text(encoding="utf-8") for name, path in names.items()}


def key(*parts: Any) -> bytes:
    """Return parts, and all else that what is trimmed of them depends on, as the cache wants it."""
    folder = Path(__file__).parent
    tools = [(folder / one).read_text() for one in ("payload.py", "trim.py", "node/boot.py")]
    return json.dumps([sys.version, tools, parts]).encode()


def called(module: str, text: str) -> set[str]:
    """Return the words for what of a check file runs on nodes: the probe or the exercise.

    All of it where that cannot be told.
    """
    for one in ast.parse(text).body:
        value = getattr(one, "value", None)
        if "CHECK" in defined(one) and isinstance(value, ast.Call) and not value.args:
            given = {keyword.arg: keyword.value for keyword in value.keywords}
            found = [given[key] for key in ("probe", "exercise") if key in given]
            if found:
                return {word for tree in found for word in used(tree, module, lazy=True)}
    return {f"{module}.*"}


def psutil_words(text: str) -> set[str]:
    """Return what of psutil is used by sources; all of it where a function is not named there."""
    if re.search(r"\.psutil\(\s*[^\"'\s]", text):
        return {f"{module}.*" for module in PSUTIL}
    words = {"Error", "version_info", *re.findall(r"[\"'](\w+)[\"']", text)}
    if re.search(r"\.process\(", text):
        words |= {"Process", "NoSuchProcess"}
    return {*PSUTIL, *(f".{word}" for word in words)}


class Payload:
    """All that goes to the nodes in one run; the same for every node.

    Args:
        checks: source texts of the selected check files by module name.
        modules: modules of `preflight.node` that are sent whole, to be called by other names.

    Raises:
        LookupError: there is no such module.
    """

    def __init__(self, checks: Mapping[str, str], modules: Iterable[str] = ()) -> None:
        own, whole = ours(), sorted(modules)
        for module in whole:
            if module not in own:
                raise LookupError(module)

        def make() -> bytes:
            wanted = {BOOT}.union(*(called(module, text) for module, text in checks.items()))
            wanted.update(f"{module}.*" for module in whole)
            return json.dumps(trimmed({**own, **checks}.get, wanted)).encode()

        self.sources: dict[str, str] = json.loads(kept(key(own, dict(checks), whole), make))
        """The texts of our own modules that go to nodes, by name."""
        self.blob = zlib.compress(self.sources.pop(BOOT).encode())
        text = "".join(self.sources.values())
        calls = set(re.findall(r"\.(\w+)\(", text))
        self.wants_psutil, self.wants_nvml = bool(calls & {"psutil", "process"}), "nvml" in calls
        self._nvml = {f".{word}" for word in re.findall(r"\w+", text)}
        self._psutil = psutil_words(text)
        self._packed: dict[tuple[str, str, bool], tuple[bytes, str | None]] = {}
        self._locks: dict[tuple[str, str, bool], threading.Lock] = {}

    def modules(self, hello: Mapping[str, Any]) -> tuple[bytes, str | None]:
        """Return what this node needs besides: modules, and psutil's compiled part, both packed.

        Of many nodes that ask at once, the first of a kind has it made and fetched.
        """
        linux = hello.get("system") == "linux"
        machine = (str(hello.get("machine")), str(hello.get("libc"))) if linux else ("", "")
        kind = (*machine, hello.get("code") == boot.code())
        with self._locks.setdefault(kind, threading.Lock()):
            if kind not in self._packed:
                self._packed[kind] = self._pack(*kind)
            return self._packed[kind]

    def _pack(self, machine: str, libc: str, as_code: bool) -> tuple[bytes, str | None]:
        psutil = sorted(self._psutil) if self.wants_psutil and machine else []
        nvml = sorted(self._nvml | {"pynvml"}) if self.wants_nvml else []

        def make() -> bytes:
            theirs = {**trimmed(psutil_text, psutil), **trimmed(pynvml_text, nvml)}
            texts = {**self.sources, **theirs}
            coded = code_of(texts) if as_code else b""
            return coded if 0 < len(coded) <= CODE_CAP else marshalled({}, texts)

        theirs = [*map(psutil_text, PSUTIL), pynvml_text("pynvml")]
        modules = kept(key(self.sources, theirs, psutil, nvml, as_code), make)
        library = psutil_builds.find(machine, libc) if psutil else None
        size = f"{len(modules):{boot.SIZE_DIGITS}}".encode()
        return size + modules, None if library is None else pack(library)


def code_of(texts: Mapping[str, str]) -> bytes:
    """Return modules as code of this Python; as text those that another one is given."""
    own = texts.keys() - set(FOREIGN)
    codes = {name: compiled(texts[name], boot.place(name)) for name in sorted(own)}
    return marshalled(codes, {name: text for name, text in texts.items() if name not in own})


def compiled(text: str, place: str) -> CodeType:
    """Return the code of a source, without columns, which would be a third of it.

    A traceback on a node names file and line; of what stands there it has no text to show. Asserts
    are kept, whatever options the controller's Python was started with: so the agent's are.
    """
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, POSITIONED):
            node.end_lineno, node.col_offset, node.end_col_offset = node.lineno, -1, -1
    return compile(tree, place, "exec", dont_inherit=True, optimize=0)


def marshalled(codes: dict[str, CodeType], texts: dict[str, str]) -> bytes:
    """Return modules as `boot.main` takes them; texts alone are for every Python."""
    return zlib.compress(marshal.dumps((codes, texts), marshal.version if codes else 4))


def pack(data: bytes) -> str:
    """Return bytes as they travel in a frame; `preflight.node.agent.unpack` undoes it."""
    return base64.b64encode(zlib.compress(data)).decode("ascii")
