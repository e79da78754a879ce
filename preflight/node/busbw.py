"""Bus bandwidth of an all_reduce: by size, and whether it is enough. Pure.

Sent to nodes: stdlib only, Python 3.8.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Mapping, Sequence

from preflight.api import Point, Verdict, Want, fail
from preflight.node.expectation import (
    Expectation,
    expectation,
    is_bound,
    notes,
    of_gloo,
    verdict,
)
from preflight.node.ranks import BUSY, Ranked, Run, by_gloo, is_good, uneven

LEAST = "expect.all_reduce.min_busbw_gbs"
LATENCY = "how long a message takes counts in the largest one too"
LIMITER = "the CPU is what limits, the network may carry more"


def points(runs: Sequence[Run]) -> list[Point]:
    """Return what each size took on the slowest of the nodes that took part."""
    slowest: dict[int, float] = {}
    for run in runs:
        for one in run["sizes"]:
            slowest[one["bytes"]] = max(slowest.get(one["bytes"], 0.0), one["ms"])
    ranks = max((run["world"] for run in runs), default=1)
    return [point(size, ms, ranks) for size, ms in sorted(slowest.items())]


def point(size: int, ms: float, ranks: int) -> Point:
    """Return what a size took, reckoned as nccl-tests does (doc/PERFORMANCE.md there)."""
    algbw = size / ms / 1e6
    return Point(size, ms, algbw, algbw * 2 * (ranks - 1) / ranks)


def fastest(found: Sequence[Point]) -> Point:
    """Return the size at which most goes through."""
    return max(found, key=lambda one: (one.busbw, one.bytes))


def busy(runs: Sequence[Run], size: int) -> float:
    """Return how much of a CPU the busiest rank wanted at a size."""
    return max(one["busy"] for run in runs for one in run["sizes"] if one["bytes"] == size)


def expected(facts: Mapping[str, Ranked], runs: Sequence[Run]) -> Expectation | str:
    """Return what an all_reduce of nodes should reach, or why that is not known."""
    if by_gloo(facts):
        right = of_gloo([fact["link_gbps"] for fact in facts.values()])
    else:
        wires = {node: fact["wires"] for node, fact in facts.items()}
        right = expectation(wires, max(len(fact["devices"]) for fact in facts.values()))
    found = points(runs)
    best, ranks = fastest(found), runs[0]["world"]
    if busy(runs, best.bytes) >= BUSY:
        return LIMITER
    seconds = {one.bytes: one.ms / 1000 for one in found}
    bound = isinstance(right, Expectation) and is_bound(seconds, best.bytes, ranks, right.line)
    return LATENCY if bound else right


def too_slow(
    what: str, facts: Mapping[str, Ranked], runs: Sequence[Run], want: Want
) -> Verdict | None:
    """Return what is wrong: less than the inventory asks for, or else than is usual."""
    best, least = fastest(points(runs)).busbw, want.get(LEAST)
    if least is None:
        found = verdict(what, best, expected(facts, runs))
        return found and replace(found, scope="cluster")
    if best >= least:
        return None
    return fail(
        f"{what}: busbw {best:.3g} GB/s, {least:g} GB/s are expected",
        observed=round(best, 3),
        expected=least,
        scope="cluster",
    )


def remarks(facts: Mapping[str, Ranked], runs: Sequence[Run]) -> tuple[str, ...]:
    """Return how what was measured compares to what was expected."""
    return tuple(notes(fastest(points(runs)).busbw, expected(facts, runs), len(facts)))


def slow_alone(what: str, node: str, run: Run, facts: Mapping[str, Ranked]) -> Verdict | None:
    """Return what is wrong with the bandwidth of a node's own GPUs, beside that of others.

    Args:
        what: was measured, in words.
        node: whose they are.
        run: what came of their all_reduce, which is right.
        facts: of all nodes.
    """
    fact = facts[node]
    siblings = [
        fastest(points([other["local"]])).busbw
        for name, other in facts.items()
        if name != node
        and other["local"]
        and is_good(other["local"])
        and len(other["devices"]) == len(fact["devices"])
    ]
    return verdict(what, fastest(points([run])).busbw, expected({node: fact}, [run]), siblings)


def is_bad(facts: Mapping[str, Ranked], want: Want) -> bool:
    """Whether what nodes did together is wrong, did not end, or was slow."""
    runs = [fact["run"] for fact in facts.values() if fact["run"]]
    if not all(map(is_good, runs)):
        return True
    return bool(runs) and (uneven(facts) or too_slow("", facts, runs, want) is not None)


def doubtful(facts: Mapping[str, Ranked], want: Want) -> list[list[str]]:
    """Return the groups of nodes of whose NCCL an all_reduce is bad: all, else some alone."""
    if by_gloo(facts):
        return []
    some_ran = {node: fact for node, fact in facts.items() if fact["run"]}
    if is_bad(some_ran, want):
        return [list(some_ran)]
    alone = {node: fact["local"] for node, fact in facts.items()}
    return [
        [node]
        for node, run in alone.items()
        if run and (not is_good(run) or slow_alone("", node, run, facts))
    ]
