"""The reached nodes as an exercise drives them; `preflight.api.Fleet` is its contract."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from preflight.api import Reply
from preflight.fanout import fan_out
from preflight.pending import DEADLINE
from preflight.session import Running, Session
from preflight.shape import garbled, readied, returned, understood

WIDTH = 64
"""Calls of one `map` that wait side by side; each is one frame each way, so this is plenty."""
LATE = Reply(None, {"kind": "timeout", "message": DEADLINE})


class Open:
    """An open call; `preflight.api.Running` is its contract.

    Args:
        running: it.
        promise: of its answer.
    """

    def __init__(self, running: Running, promise: Any) -> None:
        self.ready = running.ready
        self._running, self._promise = running, promise

    def stop(self) -> Reply:
        """Tell it to stop, and wait for its answer; the second time gives the same."""
        return understood(self._running.stop(), self._promise)


class Fleet:
    """See `preflight.api.Fleet`.

    Args:
        sessions: of the reached nodes, by name, in the inventory's order.
        logins: how the login went, of all nodes.
        deadline: monotonic time at which the run must be over; the sessions keep to it too.
        level: of the run.
    """

    def __init__(
        self,
        sessions: Mapping[str, Session],
        logins: Mapping[str, Mapping[str, Any]],
        deadline: float,
        level: str,
    ) -> None:
        self._sessions = sessions
        self._logins = logins
        self._deadline = deadline
        self.level = level
        self.nodes = tuple(sessions)

    def login(self, node: str) -> Mapping[str, Any]:
        """Return how the login went."""
        return self._logins[node]

    def clocks(self) -> Mapping[str, Mapping[str, float]]:
        """Return the clocks' offsets; nodes that stopped answering are left out."""
        found = fan_out(
            lambda node: self._sessions[node].clock(), self.nodes, WIDTH, self._deadline
        )
        return {done.item: done.result for done in found if done.result}

    def call(
        self, node: str, function: Callable[..., Any], *args: Any, timeout_s: float = 10
    ) -> Reply:
        """Run a function on one node; never raises."""
        session = self._sessions[node]
        reply = session.call(function.__module__, function.__name__, args, timeout_s)
        return understood(reply, returned(function))

    def map(
        self, function: Callable[..., Any], args: Mapping[str, Sequence[Any]], timeout_s: float = 10
    ) -> Mapping[str, Reply]:
        """Run it on several nodes at once, each with its own arguments; never raises."""

        def one(node: str) -> Reply:
            return self.call(node, function, *args[node], timeout_s=timeout_s)

        found = {d.item: d.result for d in fan_out(one, tuple(args), WIDTH, self._deadline)}
        return {node: found.get(node, LATE) for node in args}

    @contextlib.contextmanager
    def start_all(
        self, function: Callable[..., Any], args: Mapping[str, Sequence[Any]], timeout_s: float = 10
    ) -> Iterator[Mapping[str, Open | Reply]]:
        """Start a function that stays on several nodes at once, each with its own arguments."""

        def one(node: str) -> Open | Reply:
            return self._start(node, function, args[node], timeout_s)

        def over(node: str) -> None:
            running = found[node]
            if isinstance(running, Open):
                running.stop()

        found: dict[str, Open | Reply] = dict.fromkeys(args, LATE)
        try:
            for done in fan_out(one, tuple(args), WIDTH, self._deadline):
                found[done.item] = done.result
            yield found
        finally:
            for _ in fan_out(over, tuple(args), WIDTH, self._deadline):
                pass

    @contextlib.contextmanager
    def start(
        self, node: str, function: Callable[..., Any], *args: Any, timeout_s: float = 10
    ) -> Iterator[Open | Reply]:
        """Start a function that stays for the length of a `with` block."""
        running = self._start(node, function, args, timeout_s)
        try:
            yield running
        finally:
            if isinstance(running, Open):
                running.stop()

    def _start(
        self, node: str, function: Callable[..., Any], args: Sequence[Any], timeout_s: float
    ) -> Open | Reply:
        module, name, promise = function.__module__, function.__name__, returned(function)
        running = self._sessions[node].start(module, name, args, timeout_s)
        if isinstance(running, Reply):
            return understood(running, promise)
        problem = garbled(running.ready, readied(function))
        if problem:
            running.stop()
            return Reply(None, problem)
        return Open(running, promise)
