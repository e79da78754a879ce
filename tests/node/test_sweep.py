"""Rounds of measurements, with an instrument of the test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from preflight.api import Want
from preflight.node.pairs import Pair
from preflight.node.streams import Drawn
from preflight.node.sweep import Swept, everything, sweep

NODES = ("a", "b", "c")
WANT = Want({}, {}, list(NODES))
LIMIT_S = 60.0


def swept(gives: Callable[[Pair, int], Drawn]) -> tuple[dict[str, Swept], Counter[Pair]]:
    """Return what comes of a sweep, and how often each pair was measured."""
    facts = {node: Swept(drawn={}, problem="") for node in NODES}
    tries: Counter[Pair] = Counter()

    def instrument(pairs: Sequence[Pair]) -> tuple[dict[Pair, Drawn], dict[str, str]]:
        tries.update(pairs)
        return {pair: gives(pair, tries[pair]) for pair in pairs}, {}

    sweep(facts, instrument, NODES, WANT, LIMIT_S)
    return facts, tries


def drawn(gbps: float, error: str = "") -> Drawn:
    return Drawn(gbps=gbps, busy=[0.1, 0.1], error=error)


@pytest.mark.parametrize("first", [drawn(0.0, "filtered"), drawn(1.0)], ids=["nothing", "little"])
def test_where_little_or_nothing_came_it_is_measured_once_more(first: Drawn) -> None:
    odd = ("a", "b")
    good = drawn(9.0)
    facts, tries = swept(lambda pair, count: first if (pair, count) == (odd, 1) else good)
    assert tries == Counter({pair: 1 + (pair == odd) for pair in everything(facts)})
    assert len(tries) == len(NODES) * (len(NODES) - 1)
    assert all(one == good for one in everything(facts).values())


def test_where_nothing_comes_at_all_nothing_is_repeated() -> None:
    silent = drawn(0.0, "filtered")
    facts, tries = swept(lambda *_: silent)
    assert set(tries.values()) == {1}
    assert all(one == silent for one in everything(facts).values())
