"""Exercises: which of them go at the same time, and what each finds; never raises for one of them.

Those of different lanes go side by side, for most of their time is waiting.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from preflight.api import Reply, Want
from preflight.catalog import ALWAYS, Loaded
from preflight.fanout import fan_out
from preflight.fleet import LATE, Fleet
from preflight.judge import plain

OVER_S = 2.0
"""For exercises to come to their end after the run's deadline, which ends all that they wait for;
they need milliseconds."""


def batches(checks: Sequence[Loaded]) -> list[list[Loaded]]:
    """Return which exercises go at the same time, in order: those with a lane, then one by one.

    One that several checks share goes once. What the logins tell comes last: a node may be lost
    while others are exercised.
    """
    once: dict[str, Loaded] = {}
    for one in checks:
        if one.check.exercise:
            once.setdefault(one.evidence, one)
    first = [one for one in once.values() if one.group != ALWAYS]
    together = [one for one in first if one.check.lane]
    alone = [one for one in first if not one.check.lane]
    alone += [one for one in once.values() if one.group == ALWAYS]
    return [*filter(None, [together]), *([one] for one in alone)]


def exercised(
    batch: Sequence[Loaded], fleet: Fleet, want: Want, deadline: float
) -> Iterator[tuple[Loaded, dict[str, Reply]]]:
    """Yield the exercises of a batch as they end, with their facts by node.

    One that does not come to its end soon after the deadline is left behind.
    """
    lanes = {one.check.lane: threading.Lock() for one in batch}

    def go(one: Loaded) -> dict[str, Reply]:
        with lanes[one.check.lane]:
            late = time.monotonic() > deadline and one.group != ALWAYS
            return dict.fromkeys(want.nodes, LATE) if late else exercise(one, fleet, want)

    until = max(deadline, time.monotonic()) + OVER_S
    for done in fan_out(go, batch, len(batch), until):
        yield done.item, done.result


def exercise(one: Loaded, fleet: Fleet, want: Want) -> dict[str, Reply]:
    """Return an exercise's facts by node; one that crashes has a problem for every node."""
    begun = time.monotonic()
    found: dict[str, Any] = {}

    def drive() -> None:
        # The catalogue has seen that it has one.
        found.update(one.check.exercise(fleet, want))  # type: ignore[misc]
        for node in found.keys() - set(want.nodes):
            raise KeyError(f"it has facts of {node!r}, which is no node")

    error = attempt(drive)
    if error is not None:
        return dict.fromkeys(want.nodes, bug(error))
    seconds = round(time.monotonic() - begun, 4)
    return {node: kept(value, seconds) for node, value in found.items()}


def kept(value: Any, seconds: float) -> Reply:
    """Return what an exercise found of a node, as a report keeps it and as it is judged again."""
    values: list[Any] = []
    error = attempt(lambda: values.append(plain(value)))
    return bug(error) if error else Reply(values[0], None, seconds)


def bug(error: BaseException) -> Reply:
    """Return the answer of a check that crashed."""
    trace = "".join(traceback.format_exception(error))
    message = f"{type(error).__name__}: {error}"
    return Reply(None, {"kind": "bug", "message": message, "traceback": trace})


def attempt(job: Callable[[], object]) -> BaseException | None:
    """Return what a job raised, whatever it was: one node's trouble, or one check's, is a row."""
    try:
        job()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - never the end of the run, also if it exits
        return error
    return None
