"""Rounds in which pairs of nodes are measured, and which rates of them are slow.

Runs on the controller; pure but for the instrument that it is given.
"""

from __future__ import annotations

import time
from statistics import median
from typing import Callable, Iterable, Mapping, Sequence, Tuple

from preflight.api import Want
from preflight.node.pairs import Pair, Placed, disjoint, some_rounds
from preflight.node.streams import Drawn

SLOWER = 2
"""Times slower than usual: dlrover's limit of a straggler."""
AGAIN = 6
"""Rounds in which slow pairs are tried once more: enough to tell a moment's noise from a fault."""

Instrument = Callable[[Sequence[Pair]], Tuple[Mapping[Pair, Drawn], Mapping[str, str]]]
"""Sends from the first of each pair to the second, all at once; no node is in two of them. Gives
what came, and by node why it can measure no more."""


class Swept(Placed):
    """What was measured at a node, and where that is."""

    drawn: dict[str, Drawn]
    """By other node, what came from it."""
    problem: str
    """Why it can measure no more; empty if it can."""


def sweep(
    facts: Mapping[str, Swept],
    instrument: Instrument,
    nodes: Sequence[str],
    want: Want,
    limit_s: float,
) -> None:
    """Measure all pairs in rounds, and once more those of which little came, or nothing.

    No round begins past the limit.
    """
    until = time.monotonic() + limit_s
    for pairs in some_rounds(nodes):
        if time.monotonic() < until:
            measure(facts, instrument, pairs)
            measure(facts, instrument, [(b, a) for a, b in pairs])
    right = floor(measured(facts), want)
    slow = [pair for pair, one in everything(facts).items() if one["gbps"] < right]
    for pairs in disjoint(slow)[:AGAIN]:
        if time.monotonic() < until:
            measure(facts, instrument, pairs)


def measure(facts: Mapping[str, Swept], instrument: Instrument, pairs: Iterable[Pair]) -> None:
    """Measure pairs whose ends both can, all at once; the best try counts."""
    found, problems = instrument([p for p in pairs if not any(facts[end]["problem"] for end in p)])
    for node, problem in problems.items():
        facts[node]["problem"] = problem
    for (a, b), one in found.items():
        drawn = facts[b]["drawn"]
        drawn[a] = max(drawn.get(a, one), one, key=lambda one: one["gbps"])


def everything(facts: Mapping[str, Swept]) -> dict[Pair, Drawn]:
    """Return what came from the first of a pair to the second, or why nothing was measured."""
    return {(a, b): one for b, fact in facts.items() for a, one in fact["drawn"].items()}


def measured(facts: Mapping[str, Swept]) -> dict[Pair, Drawn]:
    """Return what was measured from the first of a pair to the second."""
    return {pair: one for pair, one in everything(facts).items() if not one["error"]}


def usual_rate(rates: Mapping[Pair, Drawn]) -> float:
    """Return the median of each node's best: half of all pairs may be those of one slow node."""
    best: dict[str, float] = {}
    for pair, one in rates.items():
        for node in pair:
            best[node] = max(best.get(node, 0.0), one["gbps"])
    return median(best.values()) if best else 0.0


def floor(rates: Mapping[Pair, Drawn], want: Want) -> float:
    """Return the rate from which a path is fast enough."""
    asked = want.get("expect.tcp_gbps")
    return usual_rate(rates) / SLOWER if asked is None else float(asked)
