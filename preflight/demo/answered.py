"""Which checks simulated nodes cannot answer: their recordings are asked before the run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping

from preflight.api import Want
from preflight.catalog import Loaded
from preflight.exercises import attempt
from preflight.judge import asked
from preflight.node.replay import Replay, Unrecorded
from preflight.recording import Recording

NO_TRAFFIC = "simulated: no traffic was recorded"


def unanswered(
    checks: Collection[Loaded], nodes: Collection[Recording], want: Want
) -> dict[str, str]:
    """Return the checks to be left out, by id, each with the reason."""
    reasons = {
        one.id: next(filter(None, (why_not(one, node, want) for node in nodes)), "")
        for one in checks
    }
    return {check_id: why for check_id, why in reasons.items() if why}


def why_not(one: Loaded, recording: Recording, want: Want) -> str:
    """Return what one node has no answer to, nothing if it has all."""
    if one.check.exercise:
        missing = set(traffic(one.check.exercise)) - set(recorded(recording.exercises))
        return NO_TRAFFIC if missing else ""
    probe, replay = one.check.probe, Replay(recording.node.model_dump(exclude_unset=True))
    error = attempt(lambda: probe(replay, *asked(one, want)))  # type: ignore[misc]
    if isinstance(error, Unrecorded):
        return f"the recording has no answer to {error.question}"
    return ""


def traffic(exercise: Callable[..., object]) -> Iterator[tuple[str, str]]:
    """Yield module and name of functions that an exercise can call on nodes and that use sockets.

    They are told by the module `socket` in theirs, and by a node that they are given: run here,
    they would use the real network.
    """
    for one in getattr(exercise, "__globals__", {}).values():
        if inspect.isfunction(one) and "socket" in one.__globals__ and is_given_a_node(one):
            yield one.__module__, one.__name__


def is_given_a_node(function: Callable[..., object]) -> bool:
    """Whether a function runs on nodes."""
    return next(iter(inspect.signature(function).parameters), "") == "node"


def recorded(exercises: Mapping[str, Mapping[str, object]]) -> Iterator[tuple[str, str]]:
    """Yield module and name of functions whose answers are in a recording."""
    for module, answers in exercises.items():
        for name in answers:
            yield module, name
