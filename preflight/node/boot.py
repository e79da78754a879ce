"""The first file that runs on a node: makes the others importable from memory.

Nothing is written to the node's disk: it may be full, read-only or broken, which is just the
kind of machine a diagnostic tool meets. `payload.STAGE_0` has refused an old Python before this
file is compiled, and runs it with `SOURCES` and `TAG` in its globals.
Sent to nodes: stdlib only, Python 3.8.
"""

from __future__ import annotations

import gc
import importlib.machinery
import sys
from typing import Any, Sequence


class Importer:
    """Imports modules from a dict of sources; a name that others begin with is a package.

    Finder and loader in one; not an heir of those of `importlib.abc`, which takes 13 ms to import.
    """

    def __init__(self, sources: dict[str, str]) -> None:
        self.sources = sources

    def is_package(self, fullname: str) -> bool:
        """Whether modules live below this name."""
        return any(name.startswith(fullname + ".") for name in self.sources)

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002 - the protocol of importlib
        target: Any = None,  # noqa: ARG002
    ) -> importlib.machinery.ModuleSpec | None:
        """Answer for our own modules only."""
        package = self.is_package(fullname)
        if fullname not in self.sources and not package:
            return None
        origin = place(fullname)
        loader: Any = self  # typeshed wants an heir of importlib.abc.Loader
        return importlib.machinery.ModuleSpec(fullname, loader, origin=origin, is_package=package)

    def get_source(self, fullname: str) -> str:
        """Return a module's text; tracebacks show its lines by this."""
        return self.sources.get(fullname, "")

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        """Leave it to the import system, as the protocol has it."""

    def exec_module(self, module: Any) -> None:
        """Run a module."""
        name = module.__name__
        exec(compile(self.get_source(name), place(name), "exec"), module.__dict__)


def place(name: str) -> str:
    """Return a module's file name for tracebacks: not in <>, or they would not show its lines."""
    return name.replace(".", "/") + ".py"


def main(sources: dict[str, str], tag: str, life_s: int) -> None:
    """Serve until standard input ends."""
    sys.dont_write_bytecode = True
    gc.disable()  # for the agent: it makes no garbage in cycles, and passes over modules cost 3 ms
    importer = Importer(sources)
    sys.meta_path.insert(0, importer)
    del sources[__name__]  # else it would be imported
    from preflight.node import agent

    agent.Agent(tag, importer.sources).serve(life_s)


if __name__ == "preflight.node.boot" and "SOURCES" in globals():
    main(globals()["SOURCES"], globals()["TAG"], globals()["LIFE_S"])
