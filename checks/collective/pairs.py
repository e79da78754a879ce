"""Two nodes alone do an all_reduce, it is right, and no pair of them is slow at it.

Why: an all_reduce of all nodes says that something is wrong, seldom where: all wait for the one
    that is slow, or is not there. Two at a time tell: who fails or is slow with several others is
    at fault, and two that are good with all but each other have something wrong between them.
Facts: those of collective.all_reduce; of each other node with which it was tried: why (what is
    wrong, empty if nothing), gbps (how fast data came from there), receiving and sending (how much
    of a CPU the rank wanted meanwhile, and while it sent as much back); untried (pairs that were
    not).
Source: as of collective.all_reduce, with 4 KiB and 1 MiB, then 0.1 s of data each way; when that
    failed, was wrong or slow, or at level deep. Rounds of disjoint pairs: all pairs up to 64 nodes,
    beyond that each node meets eight others or more. What is bad is tried once more. A node that
    has failed with three others, and with none it has not, is tried no further, and no round begins
    after 40 s: what was not tried is said. A node is blamed for what fails with at least two
    others, else the pair is, and nodes that are good with each other and bad with all others are
    named by the subnet or switch that they alone share. GPUs of two nodes send all at once and are
    added up: what a single rail of several loses is not told apart. Slow is below half of what is
    usual, as of collective.all_reduce.
Fix: see what the other checks of network say of that node, or of those two.
"""

from __future__ import annotations

from typing import Mapping

from preflight.api import FAIL, Check, Verdict, Want, fail, ok, skip, some, unknown
from preflight.node.pairs import Culprit, Pair, about, between, blame, of_all, present, stricken
from preflight.node.ranks import Facts, Met, idle, is_good, load, quick
from preflight.node.trials import all_together, surroundings

NO_NEED = "an all_reduce of all nodes is well; pairs are tried when it is not, or at level deep"

NO_TORCH = (
    "two nodes at a time are tried by torch, which does not see the GPUs of nccl-tests here or on "
    "any other node: see software.pytorch"
)


def compare(facts: Facts, want: Want) -> dict[str, Verdict]:
    facts = present(facts, "peers", "pairs")
    if len(want.nodes) == 1:
        return {node: skip("one node alone meets no other") for node in facts}
    met, works, fast, usual = seen(facts)
    failing = stricken(blame(works, facts), list(facts))
    slow = stricken(blame(fast, facts), list(facts))
    verdicts = {}
    for node in facts:
        if silent := idle(node, facts) or untried(node, facts):
            # That its rank cannot start is told once, by collective.all_reduce.
            verdicts[node] = unknown(silent.summary) if silent.status == FAIL else silent
        elif node in failing:
            verdicts[node] = failure(node, failing[node], facts)
        elif node in slow:
            verdicts[node] = slowness(node, slow[node], met, usual, len(facts))
        else:
            verdicts[node] = well(node, facts)
    return verdicts


def seen(
    facts: Facts,
) -> tuple[dict[Pair, Met], dict[Pair, bool], dict[Pair, bool], float]:
    """Return what came of pairs, whether each works, whether it is fast then, and what is usual."""
    met = {(a, b): one for b, fact in facts.items() for a, one in fact["pairs"].items()}
    works = {pair: not one["why"] for pair, one in met.items()}
    fast, usual = quick({pair: one for pair, one in met.items() if works[pair]}, facts)
    return met, works, fast, usual


def untried(node: str, facts: Facts) -> Verdict | None:
    """Return the verdict of a node that was tried with no other, or None."""
    if facts[node]["pairs"]:
        return None
    if not facts[node]["run"]:
        return skip("no other node can take part")
    if all(is_good(fact["run"]) for fact in facts.values() if fact["run"]):
        return skip(NO_NEED)
    if not facts[node]["untried"]:
        return unknown(NO_TORCH)
    return unknown("there was no time to try it with others")


def failure(node: str, culprit: Culprit, facts: Facts) -> Verdict:
    """Return the verdict of a node that fails with others, or the first one of a pair."""
    a, b = min(culprit.pairs)
    why = facts[b]["pairs"][a]["why"]
    what = "is wrong" if why.endswith(" wrong values") else "does not end"
    return fail(
        f"an all_reduce of two, {between(culprit, node)}, {what}: {why}{left(node, facts)}",
        observed=what,
        **about(culprit, node, len(facts)),
    )


def slowness(
    node: str, culprit: Culprit, met: Mapping[Pair, Met], usual: float, count: int
) -> Verdict:
    """Return the verdict of a node that is slow with others, or the first one of a pair."""
    rates = [met[pair]["gbps"] for pair in culprit.pairs]
    return fail(
        f"with two nodes alone, data {between(culprit, node)} comes at {span(rates)}, "
        f"{usual:.3g} Gb/s is usual",
        **about(culprit, node, count),
    )


def well(node: str, facts: Facts) -> Verdict:
    """Return the verdict of a node that is not to blame."""
    mine, bad = facts[node]["pairs"], pairs(facts)
    others = sorted(o for o in mine if bad[node].get(o) or bad[o].get(node))
    good = sorted(mine.keys() - others)
    told = f"with {some(others)} it is not so, which is told there" if others else ""
    if not good:
        return unknown(f"an all_reduce with {some(others)} alone is not right, which is told there")
    sample = of_all(len(mine) + facts[node]["untried"], len(facts))
    words = f"an all_reduce with {some(good)}{sample} alone is right, data comes at "
    words += span([mine[other]["gbps"] for other in good]) + left(node, facts)
    return ok("; ".join(filter(None, (words, told))) + load(facts))


def span(rates: list[float]) -> str:
    return " to ".join(dict.fromkeys(f"{rate:.3g}" for rate in (min(rates), max(rates)))) + " Gb/s"


def left(node: str, facts: Facts) -> str:
    """Return in words how many pairs were not tried, nothing where all were."""
    count = facts[node]["untried"]
    return f"; {count} more {'was' if count == 1 else 'were'} not tried" if count else ""


def pairs(facts: Facts) -> dict[str, dict[str, str]]:
    """Return what is wrong from each node to each other one, nothing where nothing is."""
    _, works, fast, _ = seen(present(facts, "pairs"))
    found: dict[str, dict[str, str]] = {node: {} for node in facts}
    for (a, b), is_well in works.items():
        found[a][b] = "bad" if not is_well else "" if fast.get((a, b), True) else "slow"
    return found


CHECK = Check(
    exercise=all_together,
    args=surroundings,
    facts_of="collective.all_reduce",
    compare=compare,
    level="standard",
    explains=("collective.all_reduce",),
    pairs=pairs,
)
