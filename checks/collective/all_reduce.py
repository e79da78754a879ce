"""An all_reduce over all nodes ends, is right, and no node or pair of nodes slows it.

Why: it is what training does after each step. It goes through the interpreter, the rendezvous, the
    ports, the interfaces and the links at once, and waits for the slowest of them.
Facts: address, interface and subnet (of the node on the data plane), link_gbps (speed of one link
    there; 0 if it is not told, or not to be relied on, as in virtual machines), gpus and occupants
    (of GPUs: then the node takes no part), wanting and cpus (tasks that want a CPU before it
    begins, and how many there are), asked, torch and nccl (the training interpreter, its PyTorch
    and that one's NCCL; or why there is none), import_s, devices (of each rank); run (what the
    node's ranks say of the all_reduce of all: sizes, each with time, wrong values and how much CPU
    it wanted; or at which stage it came to no end, its error, who was not there), peers (by other
    node: how fast 0.1 s of data came from it), local (as run, of the node's GPUs alone), pairs and
    untried (see collective.pairs).
Source: torch.distributed in the training interpreter (see software.python), with launch.env. With
    NCCL and a rank on each GPU, as many as launch.gpus_per_node or as CUDA_VISIBLE_DEVICES leaves,
    where torch sees GPUs on every node and NVML tells who else uses them; else with Gloo, over
    TCP, one rank a node: GLOO_SOCKET_IFNAME is that of the data plane where it is not set. Ranks
    meet at a free port of the master. Float32, 4 KiB to 64 MiB, 1 GiB on GPUs, sums of
    rank-dependent whole numbers. busbw = bytes / time * 2 (n-1) / n, as nccl-tests has it
    (doc/PERFORMANCE.md). Of a link's speed 50 to 70 % are usual without RDMA: below that it is a
    warning, if the CPU is not what limits. A path is slow below half of what is usual, as dlrover
    takes a node for a straggler above twice the median; what looks slow is tried up to five times,
    and the best counts. By Gloo, nothing is called slow where more tasks want a CPU than there are
    before it begins: others load the node, which is said. GPUs and NVLink are not seen by Gloo.
Fix: see what the other checks of network say of that node; `preflight run --level deep` measures
    TCP alone.
"""

from __future__ import annotations

from typing import Any, Mapping

from preflight.api import Check, Expect, Verdict, Want, fail, ok, skip, some, unknown, warn
from preflight.node.pairs import Culprit, Pair, about, between, blame, present, stricken
from preflight.node.ranks import (
    BUSY,
    Facts,
    Peer,
    Run,
    by_gloo,
    idle,
    in_words,
    is_good,
    load,
    own,
    quick,
)
from preflight.node.software import guessed
from preflight.node.trials import all_together, surroundings

LINK_SHARE = 0.5
"""Of the link's speed; see Source."""
LIMITER = "the CPU is what limits: the network may carry more"


def compare(facts: Facts, want: Want) -> dict[str, Verdict]:
    facts = present(facts, "peers", "pairs")
    if len(want.nodes) == 1:
        return {node: skip("one node alone meets no other") for node in facts}
    verdicts = {node: absent(node, facts) for node in facts}
    some_ran = {node: fact for node, fact in facts.items() if fact["run"]}
    judged = bad(some_ran) if not all(map(is_good, runs(some_ran))) else speed(some_ran, want)
    told = {node: one for node, one in verdicts.items() if one}
    return {**guessed(told, want, "torch"), **judged}


def runs(facts: Facts) -> list[Any]:
    return [fact["run"] for fact in facts.values()]


def absent(node: str, facts: Facts) -> Verdict | None:
    """Return the verdict of a node that took no part, or None."""
    return idle(node, facts) or (
        None if facts[node]["run"] else skip("no other node can take part")
    )


# ---- it does not end, or is wrong ------------------------------------------------------------


def bad(facts: Facts) -> dict[str, Verdict]:
    selves = {node: fact["run"] for node, fact in facts.items() if fact["run"] and own(fact["run"])}
    tried = {
        (a, b): not met["why"]
        for a, fact in facts.items()
        for b, met in fact["pairs"].items()
        if not {a, b} & selves.keys()
    }
    rows = stricken(blame(tried, facts), list(facts))
    if not rows and not selves:
        return dict.fromkeys(facts, unexplained(facts, tried))
    verdicts = {}
    for node in facts:
        if node in selves:
            verdicts[node] = fail(
                f"an all_reduce of {len(facts)} nodes does not end: {in_words(selves[node])}"
            )
        elif node in rows:
            verdicts[node] = failure(node, rows[node], facts)
        else:
            verdicts[node] = well(node, facts)
    return verdicts


def unexplained(facts: Facts, tried: Mapping[Pair, bool]) -> Verdict:
    """Return what is said of all nodes where none is to blame."""
    ran: list[Run] = runs(facts)
    words = next(in_words(run) for run in ran if not is_good(run))
    beside = ", though any two of them can" if tried else ""
    what = "is wrong" if all(not run["at"] for run in ran) else "does not end"
    return fail(f"an all_reduce of {len(facts)} nodes {what}{beside}: {words}", scope="cluster")


def failure(node: str, culprit: Culprit, facts: Facts) -> Verdict:
    """Return the verdict of a node that is to blame, or the first one of a pair."""
    a, b = min(culprit.pairs)
    why = facts[a]["pairs"][b]["why"]
    what = "is wrong" if why.endswith(" wrong values") else "does not end"
    return fail(
        f"an all_reduce {between(culprit, node)} {what}: {why}",
        observed=what,
        **about(culprit, node, len(facts)),
    )


def well(node: str, facts: Facts) -> Verdict:
    """Return the verdict of a node that is not to blame for what does not work."""
    pairs = facts[node]["pairs"]
    good = sorted(other for other, met in pairs.items() if not met["why"])
    others = sorted(other for other, met in pairs.items() if met["why"])
    if not good:
        return unknown("the all_reduce of all nodes did not end, which is told at another node")
    words = f"an all_reduce with {some(good)} alone is right"
    untried = facts[node]["untried"]
    words += f"; {untried} others were not tried" if untried else ""
    return ok(words + (f"; with {some(others)} it is not, which is told there" if others else ""))


# ---- how fast it is --------------------------------------------------------------------------


def speed(facts: Facts, want: Want) -> dict[str, Verdict]:
    if not facts:
        return {}
    words, busbw, busy = measured(facts)
    rates = {(a, b): one for b, fact in facts.items() for a, one in fact["peers"].items()}
    tried, usual = quick(rates, facts)
    rows = stricken(blame(tried, facts), list(facts))
    others = load(facts)
    expected = want.get("expect.all_reduce")
    least = min(fact["link_gbps"] for fact in facts.values())
    verdicts = {}
    for node in facts:
        if node in rows:
            verdicts[node] = slow(node, rows[node], rates, usual, len(facts))
        elif expected and busbw < expected and not rows and not others:
            verdicts[node] = fail(
                f"{words}, {expected:g} GB/s are expected",
                observed=round(busbw, 3),
                expected=expected,
                scope="cluster",
            )
        elif least and busbw * 8 < LINK_SHARE * least and busy < BUSY and not (rows or others):
            verdicts[node] = warn(
                f"{words}: {100 * busbw * 8 / least:.0f} % of the links' {least:g} Gb/s",
                observed=round(busbw * 8 / least, 2),
                expected=LINK_SHARE,
            )
        else:
            beside = "" if not rows else f"; data with {some(sorted(rows))} is slow, told there"
            said = f"{words}, all sums right{beside}{others}"
            verdicts[node] = ok(said, details=details(facts, busy))
    return verdicts


def measured(facts: Facts) -> tuple[str, float, float]:
    """Return the best of all sizes in words, its busbw in GB/s, and how busy the ranks were."""
    world = max(run["world"] for run in runs(facts))
    by_size: dict[int, list[dict[str, Any]]] = {}
    for run in runs(facts):
        for one in run["sizes"]:
            by_size.setdefault(one["bytes"], []).append(one)
    found = []
    for size, ones in by_size.items():
        slowest = max(one["ms"] for one in ones) / 1000
        found.append((size / slowest * 2 * (world - 1) / world / 1e9, size, ones))
    busbw, size, ones = max(found, key=lambda one: one[:2])
    by = f"torch {versions(facts, 'torch')}, {carrier(facts, world)}"
    words = f"all_reduce of {shown(size)} over {len(facts)} nodes ({by}): busbw {busbw:.3g} GB/s"
    return words, busbw, max(one["busy"] for one in ones)


def carrier(facts: Facts, world: int) -> str:
    """Return in words what carries the data."""
    if by_gloo(facts):
        return "Gloo"
    return f"NCCL {versions(facts, 'nccl')}, {world} GPUs"


def versions(facts: Facts, key: str) -> str:
    return " and ".join(sorted({str(fact[key]) for fact in facts.values()}))  # type: ignore[literal-required]


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


def slow(
    node: str, culprit: Culprit, rates: Mapping[Pair, Peer], usual: float, count: int
) -> Verdict:
    """Return the verdict of a node whose paths are slow, or the first one of a pair."""
    found = sorted(rates[pair]["gbps"] for pair in culprit.pairs)
    words = " to ".join(dict.fromkeys(f"{rate:.3g}" for rate in (found[0], found[-1])))
    return fail(
        f"an all_reduce waits for data {between(culprit, node)}: {words} Gb/s, "
        f"{usual:.3g} Gb/s is usual",
        **about(culprit, node, count),
    )


def pairs(facts: Facts) -> dict[str, dict[str, str]]:
    return {
        node: {other: "bad" if met["why"] else "" for other, met in fact["pairs"].items()}
        for node, fact in facts.items()
        if fact["pairs"]
    }


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
