"""An all_reduce over all nodes ends, is right, and no node or pair of nodes slows it.

Why: it is what training does after each step. It goes through the interpreter, the rendezvous, the
    ports, the interfaces and the links at once, and waits for the slowest of them.
Facts: address and interface (of the node on the data plane), link_gbps (speed of one link there;
    0 if it is not told, or not to be relied on, as in virtual machines), occupants (of GPUs: then
    the node takes no part), asked and torch (the training interpreter and its PyTorch; or why there
    is none), import_s; run (what the node's rank says of the all_reduce of all: sizes, each with
    time, wrong values and how much CPU it wanted; or at which stage it came to no end, its error,
    who was not there), peers (by other node: how fast 0.1 s of data came from it), pairs (only if
    the first was bad: what came of an all_reduce with each other node alone), untried (pairs for
    which there was no time).
Source: torch.distributed with Gloo, over TCP, one rank a node, in the training interpreter (see
    software.python), with launch.env; GLOO_SOCKET_IFNAME is that of the data plane where it is not
    set. Ranks meet at a free port of the master. Float32, 4 KiB to 64 MiB, sums of rank-dependent
    whole numbers. busbw = bytes / time * 2 (n-1) / n, as nccl-tests has it (doc/PERFORMANCE.md).
    Of a link's speed 50 to 70 % are usual without RDMA: below that it is a warning, if the CPU is
    not what limits. A path is slow below half of what is usual, as dlrover takes a node for a
    straggler above twice the median; what looks slow is tried up to five times, and the best
    counts. GPUs and NVLink are not seen by it.
Fix: see what the other checks of network say of that node; `preflight run --level deep` measures
    TCP alone.
"""

from __future__ import annotations

from statistics import median
from typing import Any, Mapping

from preflight.api import Check, Expect, Verdict, Want, fail, ok, skip, some, unknown, warn
from preflight.node import nvml
from preflight.node.launch import wanted
from preflight.node.pairs import Culprit, Pair, about, between, blame, present, stricken
from preflight.node.software import guessed
from preflight.node.trials import Ranked, all_together, in_words, is_good, own

BUSY = 0.7
"""Share of a CPU from which a rank may be what limits: our own choice, as of network.bandwidth."""
SLOWER = 2
"""Times slower than usual: dlrover's limit of a straggler."""
LINK_SHARE = 0.5
"""Of the link's speed; see Source."""
LIMITER = "the CPU is what limits: the network may carry more"
NO_RANK = "install in its training environment what the other nodes have, or see launch.python"
Facts = Mapping[str, Ranked]


def compare(facts: Facts, want: Want) -> dict[str, Verdict]:
    facts = present(facts, "peers", "pairs")
    if len(want.nodes) == 1:
        return {node: skip("one node alone meets no other") for node in facts}
    verdicts = {node: idle(node, facts) for node in facts}
    some_ran = {node: fact for node, fact in facts.items() if fact["run"]}
    judged = bad(some_ran) if not all(map(is_good, runs(some_ran))) else speed(some_ran, want)
    told = {node: one for node, one in verdicts.items() if one}
    return {**guessed(told, want, "torch"), **judged}


def runs(facts: Facts) -> list[Any]:
    return [fact["run"] for fact in facts.values()]


def idle(node: str, facts: Facts) -> Verdict | None:
    """Return the verdict of a node that took no part, or None."""
    fact = facts[node]
    if fact["occupants"]:
        return skip(f"busy: {nvml.in_words(fact['occupants'][0])}")
    if fact["problem"]:
        return unknown(fact["problem"])
    if fact["lack"]:
        return lacking(fact, any(other["torch"] for other in facts.values()))
    return None if fact["run"] else skip("no other node can take part")


def lacking(fact: Ranked, others: bool) -> Verdict:
    """Return the verdict of a node whose interpreter has no torch, while others have it or not."""
    if fact["lack"] == "unknown":
        return unknown(fact["why"])
    if fact["lack"] == "closed" or (fact["lack"] == "none" and not others):
        return skip(fact["why"])
    return fail(f"its rank cannot start: {fact['why']}", fix=NO_RANK)


# ---- it does not end, or is wrong ------------------------------------------------------------


def bad(facts: Mapping[str, Any]) -> dict[str, Verdict]:
    selves = {node for node, fact in facts.items() if own(fact["run"])}
    tried = {
        (a, b): not why
        for a, fact in facts.items()
        for b, why in fact["pairs"].items()
        if not {a, b} & selves
    }
    rows = stricken(blame(tried), list(facts))
    if not rows and not selves:
        return dict.fromkeys(facts, unexplained(facts, tried))
    verdicts = {}
    for node, fact in facts.items():
        if node in selves:
            verdicts[node] = fail(
                f"an all_reduce of {len(facts)} nodes does not end: {in_words(fact['run'])}"
            )
        elif node in rows:
            verdicts[node] = failure(node, rows[node], facts)
        else:
            verdicts[node] = well(node, facts)
    return verdicts


def unexplained(facts: Facts, tried: Mapping[Pair, bool]) -> Verdict:
    """Return what is said of all nodes where none is to blame."""
    ran = [fact["run"] for fact in facts.values() if fact["run"]]
    words = next(in_words(run) for run in ran if not is_good(run))
    beside = ", though any two of them can" if tried else ""
    what = "is wrong" if all(not run["at"] for run in ran) else "does not end"
    return fail(f"an all_reduce of {len(facts)} nodes {what}{beside}: {words}", scope="cluster")


def failure(node: str, culprit: Culprit, facts: Facts) -> Verdict:
    """Return the verdict of a node that is to blame, or the first one of a pair."""
    a, b = min(culprit.pairs)
    why = facts[a]["pairs"][b]
    what = "is wrong" if why.endswith(" wrong values") else "does not end"
    return fail(
        f"an all_reduce {between(culprit, node)} {what}: {why}",
        observed=what,
        **about(culprit, node, len(facts)),
    )


def well(node: str, facts: Facts) -> Verdict:
    """Return the verdict of a node that is not to blame for what does not work."""
    pairs = facts[node]["pairs"]
    good = sorted(other for other, why in pairs.items() if not why)
    others = sorted(other for other, why in pairs.items() if why)
    if not good:
        return unknown("the all_reduce of all nodes did not end, which is told at another node")
    words = f"an all_reduce with {some(good)} alone is right"
    untried = facts[node]["untried"]
    words += f"; {untried} others were not tried, for want of time" if untried else ""
    return ok(words + (f"; with {some(others)} it is not, which is told there" if others else ""))


# ---- how fast it is --------------------------------------------------------------------------


def speed(facts: Facts, want: Want) -> dict[str, Verdict]:
    if not facts:
        return {}
    words, busbw, busy = measured(facts)
    rates = {(a, b): one for b, fact in facts.items() for a, one in fact["peers"].items()}
    usual = usual_rate({pair: one["gbps"] for pair, one in rates.items()})
    tried = {
        pair: fast
        for pair, one in rates.items()
        if (fast := one["gbps"] * SLOWER >= usual) or not is_bound(pair, facts)
    }
    rows = stricken(blame(tried), list(facts))
    expected = want.get("expect.all_reduce")
    least = min(fact["link_gbps"] for fact in facts.values())
    verdicts = {}
    for node in facts:
        if node in rows:
            verdicts[node] = slow(node, rows[node], facts, usual)
        elif expected and busbw < expected and not rows:
            verdicts[node] = fail(
                f"{words}, {expected:g} GB/s are expected",
                observed=round(busbw, 3),
                expected=expected,
                scope="cluster",
            )
        elif least and busbw * 8 < LINK_SHARE * least and busy < BUSY and not rows:
            verdicts[node] = warn(
                f"{words}: {100 * busbw * 8 / least:.0f} % of the links' {least:g} Gb/s",
                observed=round(busbw * 8 / least, 2),
                expected=LINK_SHARE,
            )
        else:
            beside = "" if not rows else f"; data with {some(sorted(rows))} is slow, told there"
            verdicts[node] = ok(f"{words}, all sums right{beside}", details=details(facts, busy))
    return verdicts


def measured(facts: Facts) -> tuple[str, float, float]:
    """Return the best of all sizes in words, its busbw in GB/s, and how busy the ranks were."""
    count = max(run["world"] for run in runs(facts))
    by_size: dict[int, list[dict[str, Any]]] = {}
    for run in runs(facts):
        for one in run["sizes"]:
            by_size.setdefault(one["bytes"], []).append(one)
    found = []
    for size, ones in by_size.items():
        slowest = max(one["ms"] for one in ones) / 1000
        found.append((size / slowest * 2 * (count - 1) / count / 1e9, size, ones))
    busbw, size, ones = max(found, key=lambda one: one[:2])
    versions = " and ".join(sorted({fact["torch"] for fact in facts.values()}))
    words = f"all_reduce of {shown(size)} over {count} nodes (torch {versions}, Gloo): "
    return f"{words}busbw {busbw:.3g} GB/s", busbw, max(one["busy"] for one in ones)


def details(facts: Facts, busy: float) -> tuple[str, ...]:
    """Return how long each size takes, in words, and what limits if that is known."""
    sizes = [run["sizes"] for run in runs(facts)]
    found = [
        f"{shown(ones[0]['bytes'])}: {max(one['ms'] for one in ones):.3g} ms"
        for ones in zip(*sizes)
    ]
    return (*found, *([LIMITER] if busy >= BUSY else []))


def shown(size: int) -> str:
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


def usual_rate(rates: Mapping[Pair, float]) -> float:
    """Return the median of each node's best: half of all pairs may be those of one slow node."""
    best: dict[str, float] = {}
    for pair, rate in rates.items():
        for node in pair:
            best[node] = max(best.get(node, 0.0), rate)
    return median(best.values()) if best else 0.0


def is_bound(pair: Pair, facts: Facts) -> bool:
    """Whether the CPU may be what limits what goes from the first of a pair to the second."""
    a, b = pair
    back = facts[a]["peers"].get(b)
    return max(facts[b]["peers"][a]["receiving"], back["sending"] if back else 0.0) >= BUSY


def slow(node: str, culprit: Culprit, facts: Facts, usual: float) -> Verdict:
    """Return the verdict of a node whose paths are slow, or the first one of a pair."""
    rates = sorted(facts[b]["peers"][a]["gbps"] for a, b in culprit.pairs)
    found = " to ".join(dict.fromkeys(f"{rate:.3g}" for rate in (rates[0], rates[-1])))
    return fail(
        f"an all_reduce waits for data {between(culprit, node)}: {found} Gb/s, "
        f"{usual:.3g} Gb/s is usual",
        **about(culprit, node, len(facts)),
    )


def pairs(facts: Facts) -> dict[str, dict[str, str]]:
    return {
        node: {other: "bad" if why else "" for other, why in fact["pairs"].items()}
        for node, fact in facts.items()
        if fact["pairs"]
    }


def surroundings(want: Want) -> tuple[Any, ...]:
    keys = ("master", "python", "workdir")
    return ({key: want.get(f"launch.{key}") for key in keys}, *wanted(want))


CHECK = Check(
    exercise=all_together,
    args=surroundings,
    compare=compare,
    level="standard",
    expects=(
        Expect("all_reduce", float, "GB/s", "busbw of an all_reduce over all nodes, at least"),
    ),
    pairs=pairs,
)
