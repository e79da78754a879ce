"""Progress on standard error while a run goes on; only on a terminal."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Collection, Mapping
from types import TracebackType
from typing import TextIO

from preflight.api import some
from preflight.errors import printable
from preflight.run import Event, Exercising, NodeDone, Outcome, Plan, run
from preflight.transport import Transport

USUAL_WIDTH = 80
"""Columns of a terminal that does not know its own."""
FEW = 3
"""So many nodes that are still waited for are named, and so many exercises."""


class Meter:
    """One line that changes: how many nodes have answered, then what is being exercised.

    Written with carriage returns and blanks alone. The cursor is never hidden and no thread
    draws, so there is nothing to restore however the run ends.
    """

    def __init__(self, nodes: Collection[str], out: TextIO) -> None:
        self._out = out if out.isatty() else None
        self._nodes = len(nodes)
        self._waiting = dict.fromkeys(nodes)
        self._lost = 0

    def __enter__(self) -> Meter:
        """Begin."""
        self._write(f"connecting to {self._nodes} node{'s' * (self._nodes != 1)}")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Wipe the line."""
        self._write("")

    def show(self, event: Event) -> None:
        """Show what happened."""
        if isinstance(event, NodeDone):
            self._waiting.pop(event.node, None)
            self._lost += not event.reached
            self._write(self._probed())
        elif isinstance(event, Exercising):
            self._write(f"exercising {some(event.checks, FEW)}")
        else:
            self._write("judging")

    def _probed(self) -> str:
        lost = f", {self._lost} not reached" if self._lost else ""
        waiting = ""
        if 0 < len(self._waiting) <= FEW:
            waiting = f", waiting for {' '.join(self._waiting)}"
        return f"{self._nodes - len(self._waiting)} of {self._nodes} nodes probed{lost}{waiting}"

    def _write(self, text: str) -> None:
        if self._out is None:
            return
        # The last column stays free: a terminal that wraps there would leave lines behind.
        room = (os.get_terminal_size(self._out.fileno()).columns or USUAL_WIDTH) - 1
        self._out.write(f"\r{printable(text)[:room]:{room}}\r")
        self._out.flush()


def watched(plan: Plan, transports: Mapping[str, Transport]) -> Outcome:
    """Do a run and show how it goes; return its evidence.

    Raises:
        ConfigError: checks contradict each other; nothing was contacted.
    """
    meter = Meter([node.name for node in plan.cluster.nodes], sys.stderr)
    outcome = None
    with contextlib.closing(run(plan, transports)) as events, meter:
        for event in events:
            meter.show(event)
            if isinstance(event, Outcome):
                outcome = event
    if outcome is None:
        raise RuntimeError("the run ended without an outcome")
    return outcome
