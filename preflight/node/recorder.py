"""Records a node: what its probes ask, and what the machine answers, as `replay.py` reads it.

Only what was asked is kept; of the environment only the variables that were looked at, for the
rest of it may hold secrets.
Sent to nodes: stdlib only, Python 3.8.
"""

from __future__ import annotations

import importlib
import json
from typing import Any, Callable, Dict, Iterator, Mapping, Sequence

from preflight.api import Absent, Account, Node, Ran, Unobservable, Visit
from preflight.node.replay import Replay, key
from preflight.node.variables import HIDDEN, SECRET, without_login

Answers = Dict[str, Dict[str, Any]]


class Looked(Mapping[str, str]):
    """An environment that keeps the variables that are looked at.

    Args:
        environ: all of it.
        keep: is told each variable that somebody reads.
    """

    def __init__(self, environ: Mapping[str, str], keep: Callable[[str, str], None]) -> None:
        self._environ, self._keep = environ, keep

    def __getitem__(self, name: str) -> str:
        value = without_login(name, self._environ[name])
        if SECRET.search(name):
            value = HIDDEN
        self._keep(name, value)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._environ)

    def __len__(self) -> int:
        return len(self._environ)


class Recorder(Replay):
    """A recording that asks the machine what it does not know yet, and keeps the answer.

    So what a probe makes of it is what it makes of the finished recording.

    Args:
        node: the machine.
        known: the recording so far.
    """

    def __init__(self, node: Node, known: Answers) -> None:
        super().__init__(known)
        self._node, self._known = node, known
        self.fresh: Answers = {}

    def answer(self, method: str, *args: Any) -> Any:
        """Return an answer, from the machine where it was not recorded before."""
        self._keep(method, key(*args), lambda: getattr(self._node, method)(*args))
        return super().answer(method, *args)

    def run(
        self, argv: Sequence[str], timeout_s: float = 10, env: Mapping[str, str] | None = None
    ) -> Ran:
        """Run a command."""
        self._keep("run", key(list(argv)), lambda: self._node.run(argv, timeout_s, env))
        return super().run(argv)

    def visit(self, paths: Sequence[str], limit_s: float = 2) -> Mapping[str, Visit]:
        """Go to the paths that were not visited before, all at once."""
        new = [path for path in paths if path not in self._known.get("visit", {})]
        found: Mapping[str, Visit] = self._node.visit(new, limit_s) if new else {}
        for path, visit in found.items():
            self._put("visit", path, plain(visit))
        return super().visit(paths)

    def environ(self) -> Mapping[str, str]:
        """Return the environment; what is looked at is kept."""
        for answers in (self._known, self.fresh):
            answers.setdefault("environ", {}).setdefault("", {})

        def keep(name: str, value: str) -> None:
            for answers in (self._known, self.fresh):
                answers["environ"][""][name] = value

        return Looked(self._node.environ(), keep)

    def _keep(self, method: str, word: str, ask: Callable[[], Any]) -> None:
        if word not in self._known.get(method, {}):
            self._put(method, word, told(ask))

    def _put(self, method: str, word: str, answer: Any) -> None:
        for answers in (self._known, self.fresh):
            answers.setdefault(method, {})[word] = answer


def told(ask: Callable[[], Any]) -> Any:
    """Return an answer as a recording writes it; that there is none is an answer too."""
    try:
        return plain(ask())
    except Absent as statement:
        return {"absent": str(statement)}
    except Unobservable as statement:
        return {"unobservable": str(statement)}


def plain(value: Any) -> Any:
    """Return a value as it comes back from a file."""
    named = isinstance(value, (Ran, Account, Visit))
    return json.loads(json.dumps(value._asdict() if named else value))


def record(
    node: Node, module: str, function: str, args: Sequence[Any], known: Answers
) -> dict[str, Any]:
    """Run one probe; return its facts, or its problem, and the answers that were not known."""
    recorder = Recorder(node, known)
    found: dict[str, Any] = {}
    try:
        found["value"] = getattr(importlib.import_module(module), function)(recorder, *args)
    except Unobservable as statement:
        found["problem"] = str(statement)
    return {**found, "fresh": recorder.fresh}
