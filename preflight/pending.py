"""A call on its way to a node, and what came of it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from preflight.api import Reply

SLACK_S = 5.0
"""Above a call's own limit: the agent answers for a late child; this is for a late agent."""
LAST_S = 0.5
"""In place of that when the run's deadline cuts a call short: nothing may wait long after it."""
QUIET_S = 5.0
"""A node that is awaited and has sent nothing for so long is asked whether it is still there."""
DEADLINE = "the run's deadline came first"
BEGAN_AT = time.time() - time.monotonic()
"""Added to the monotonic clock: were ours set between two stamps, a node would seem to be off."""


class Pending:
    """A call on its way: what came of it so far."""

    def __init__(
        self,
        number: int,
        timeout_s: float,
        cut: bool = False,
        heard: Callable[[], float] = lambda: math.inf,
    ) -> None:
        self.number = number
        self.timeout_s = timeout_s
        self.cut = cut
        """Whether the run's deadline left it less time than it was to have."""
        self.due = math.inf
        """When it is late (monotonic); known once it is sent."""
        self.since = math.inf
        """When it was sent; never of the agent's hello, for who is not there cannot be asked."""
        self._heard = heard
        """When anything came from the node."""
        self.sent_at = self.heard_at = now()
        self.ready: Mapping[str, Any] | None = None
        self.frame: Mapping[str, Any] | None = None
        self.awaited = False
        """Whether somebody waits for it, and not only for another."""

    def sent(self, deadline: float) -> None:
        """Let its time begin."""
        self.since = time.monotonic()
        self.due = min(self.since + self.timeout_s + SLACK_S, deadline + LAST_S)
        self.cut = self.cut or self.since + self.timeout_s > deadline

    def put(self, frame: Mapping[str, Any]) -> None:
        """Take a frame; the first that says no more than `ready` is the answer."""
        self.heard_at = now()
        if isinstance(frame.get("ready"), dict) and self.ready is None:
            self.ready = frame["ready"]
        elif self.frame is None:
            self.frame = frame

    @property
    def reply(self) -> Reply:
        """The answer, or that there is none; an answer of another shape is a problem too."""
        if self.frame is not None:
            found = reply(self.frame)
            if not (self.cut and found.problem and found.problem["kind"] == "timeout"):
                return found
        why = DEADLINE if self.cut else f"no answer in {self.timeout_s:g} s"
        quiet_s = time.monotonic() - max(self.since, self._heard())
        if quiet_s >= QUIET_S:
            why += f", and the node was silent for {quiet_s:.0f} s"
        return Reply(None, {"kind": "timeout", "message": why})


def now() -> float:
    """Return the time since the epoch by a clock that nobody sets while we measure."""
    return BEGAN_AT + time.monotonic()


def reply(frame: Mapping[str, Any]) -> Reply:
    """Return an answer frame as a reply; a frame of another shape is a problem too."""
    taken = frame.get("seconds")
    seconds = taken if isinstance(taken, float) else 0.0
    if "value" in frame:
        return Reply(frame["value"], None, seconds)
    problem = frame.get("problem")
    if isinstance(problem, dict) and {"kind", "message"} <= set(problem):
        return Reply(None, {k: str(v) for k, v in problem.items()}, seconds)
    return Reply(None, {"kind": "bug", "message": "the agent's answer has no value"})
