"""The reached nodes as an exercise drives them; `preflight.api.Fleet` is its contract."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from preflight.api import Reply
from preflight.fanout import fan_out
from preflight.session import DEADLINE, Running, Session

WIDTH = 64
"""Calls of one `map` that wait side by side; each is one frame each way, so this is plenty."""
LATE = Reply(None, {"kind": "timeout", "message": DEADLINE})


class Fleet:
    """See `preflight.api.Fleet`.

    Args:
        sessions: of the reached nodes, by name, in the inventory's order.
        logins: how the login went, of all nodes.
        deadline: monotonic time at which the run must be over; the sessions keep to it too.
    """

    def __init__(
        self,
        sessions: Mapping[str, Session],
        logins: Mapping[str, Mapping[str, Any]],
        deadline: float,
    ) -> None:
        self._sessions = sessions
        self._logins = logins
        self._deadline = deadline
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
        return self._sessions[node].call(function.__module__, function.__name__, args, timeout_s)

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
    ) -> Iterator[Mapping[str, Running | Reply]]:
        """Start a function that stays on several nodes at once, each with its own arguments."""

        def one(node: str) -> Running | Reply:
            module, name = function.__module__, function.__name__
            return self._sessions[node].start(module, name, args[node], timeout_s)

        def over(node: str) -> None:
            running = found[node]
            if isinstance(running, Running):
                running.stop()

        found: dict[str, Running | Reply] = dict.fromkeys(args, LATE)
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
    ) -> Iterator[Running | Reply]:
        """Start a function that stays for the length of a `with` block."""
        session = self._sessions[node]
        running = session.start(function.__module__, function.__name__, args, timeout_s)
        try:
            yield running
        finally:
            if isinstance(running, Running):
                running.stop()
