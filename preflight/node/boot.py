"""The first file that runs on a node: says hello, and makes the others importable from memory.

They come once it is known what Python this is: to compile them takes a node longer than to run
them, so one that has the controller's Python gets code. Nothing is written to the node's disk: it
may be full, read-only or broken, which is just the kind of machine a diagnostic tool meets.
`payload.STAGE_0` has refused an old Python before this file is compiled, and runs it with `TAG` in
its globals.
Sent to nodes: stdlib only, Python 3.8.
"""

from __future__ import annotations

import gc
import importlib.machinery
import importlib.util
import json
import marshal
import os
import sys
import zlib
from typing import Any, Mapping, Sequence

SIZE_DIGITS = 8
"""In which it is said how many bytes of modules follow."""


class Importer:
    """Imports modules from memory; a name that others begin with is a package.

    Finder and loader in one; not an heir of those of `importlib.abc`, which takes 13 ms to import.

    Args:
        codes: modules by name, compiled.
        texts: sources of others.
    """

    def __init__(self, codes: Mapping[str, Any], texts: Mapping[str, str]) -> None:
        self.codes, self.texts = codes, texts
        self.names = {*codes, *texts}

    def is_package(self, fullname: str) -> bool:
        """Whether modules live below this name."""
        return any(name.startswith(fullname + ".") for name in self.names)

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002 - the protocol of importlib
        target: Any = None,  # noqa: ARG002
    ) -> importlib.machinery.ModuleSpec | None:
        """Answer for our own modules only."""
        package = self.is_package(fullname)
        if fullname not in self.names and not package:
            return None
        origin = place(fullname)
        loader: Any = self  # typeshed wants an heir of importlib.abc.Loader
        return importlib.machinery.ModuleSpec(fullname, loader, origin=origin, is_package=package)

    def get_source(self, fullname: str) -> str | None:
        """Return a module's text, None if it came as code; tracebacks show its lines by this."""
        return self.texts.get(fullname)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        """Leave it to the import system, as the protocol has it."""

    def exec_module(self, module: Any) -> None:
        """Run a module."""
        name = module.__name__
        text = self.texts.get(name, "")
        exec(self.codes.get(name) or compile(text, place(name), "exec"), module.__dict__)


def place(name: str) -> str:
    """Return a module's file name for tracebacks: not in <>, or they would not show its lines."""
    return name.replace(".", "/") + ".py"


def hello() -> dict[str, Any]:
    """Return what the controller must know before it calls anything."""
    return {
        "python": ".".join(str(number) for number in sys.version_info[:3]),
        "code": code(),
        "executable": sys.executable,
        "machine": os.uname().machine,
        "system": sys.platform,
        "libc": libc(),
        "uid": os.getuid(),
        "pid": os.getpid(),
    }


def code() -> str:
    """Return what Pythons have in common that run each other's code."""
    return f"{sys.implementation.cache_tag} {importlib.util.MAGIC_NUMBER.hex()}"


def libc() -> str:
    """Return name and version of the GNU C library, nothing for another one."""
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (OSError, ValueError):
        return ""


def taken(size: int) -> bytes:
    """Return so many bytes of standard input; where that ends before, this process does too.

    No buffer reads on: requests follow.
    """
    data = b""
    while len(data) < size:
        part = os.read(0, size - len(data))
        if not part:
            os._exit(0)
        data += part
    return data


def main(tag: str, life_s: int) -> None:
    """Serve until standard input ends."""
    sys.dont_write_bytecode = True
    gc.disable()  # for the agent: it makes no garbage in cycles, and passes over modules cost 3 ms
    for fd in (0, 1):
        os.set_blocking(fd, True)  # sudo with I/O logging leaves them non-blocking
    os.write(1, f"\n{tag}{json.dumps({'hello': hello()})}\n".encode())
    # Whoever sends this has started this process and can have it run anything: `marshal` and its
    # dangers add nothing to that.
    importer = Importer(*marshal.loads(zlib.decompress(taken(int(taken(SIZE_DIGITS))))))
    sys.meta_path.insert(0, importer)
    from preflight.node import agent

    agent.Agent(tag, importer.names).serve(life_s)


if __name__ == "preflight.node.boot" and "TAG" in globals():
    main(globals()["TAG"], globals()["LIFE_S"])
