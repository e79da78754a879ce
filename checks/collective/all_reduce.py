"""An all_reduce over all nodes ends, is right, and no node or pair of nodes slows it.

Why: it is what training does after each step. It goes through the interpreter, the rendezvous, the
    ports, the interfaces and the links at once, and waits for the slowest of them.
Facts: address, interface, subnet and switch (of the node on the data plane; the switch's name by
    LLDP, as systemd-networkd or lldpd heard it, empty if they did not), link_gbps (speed of one
    link there; 0 if it is not told, or not to be relied on, as in virtual machines), gpus and
    occupants (of GPUs: then the node takes no part), wanting and cpus (tasks that want a CPU before
    it begins, and how many there are), asked, torch and nccl (the training interpreter, its PyTorch
    and that one's NCCL; or why there is none), import_s, engine (what did it, of which version, how
    it is repeated by hand, why not nccl-tests), devices (of each rank); run (what the node's ranks
    say of the all_reduce of all: sizes, each with time, wrong values and how much CPU it wanted; or
    at which stage it came to no end, its error, who was not there), peers (by other node: how fast
    0.1 s of data came from it), local (as run, of the node's GPUs alone), pairs and untried (see
    collective.pairs), wires (of GPUs: ports with their rates, NVLinks, PCIe), heard
    (what NCCL said of itself when it was repeated: version, bootstrap, network, RDMA ports,
    sockets, by which way how many channels go, its first warnings).
Source: nccl-tests, where every node that takes part has GPUs and its all_reduce_perf starts there:
    launch.all_reduce.program, else by PATH of launch.env, else in /opt/nccl-tests/build. On several
    nodes it is a build with MPI, by srun where preflight was started in a job of Slurm, else by
    Open MPI's mpirun on the master, whose ssh must ask nothing. Two at a time, and where it cannot
    be had (`launch: {all_reduce: {engine: torch}}` asks for that), it is torch.distributed in the
    training interpreter (see software.python), with launch.env. With NCCL and a rank on each GPU,
    as many as launch.gpus_per_node or as CUDA_VISIBLE_DEVICES leaves, where torch sees GPUs on
    every node and NVML tells who else uses them; else with Gloo, over TCP, one rank a node:
    GLOO_SOCKET_IFNAME is that of the data plane where it is not set. Ranks meet at a free port of
    the master. Float32, 4 KiB to 64 MiB, 1 GiB on GPUs, sums of rank-dependent whole numbers. busbw
    = bytes / time * 2 (n-1) / n, as nccl-tests has it (doc/PERFORMANCE.md). The best of all sizes
    is held to `expect: {all_reduce: {min_busbw_gbs}}`, else to the line rate of what is slowest on
    the way, reckoned for a ring: all ports of a node, its PCIe, or NVLink. Of TCP 50 to 70 % are
    usual, of RDMA 62 to 90, of NVLink 75 to 95 (what others ask for, and have measured:
    preflight/node/expectation.py). Less is a failure by NCCL, a warning by Gloo, over fast TCP and
    without NVLink; nothing where a rate is not told, a CPU is what limits, or latency. Tree and
    NVLS may be above line rate. A path is slow below half of what is usual, as dlrover takes a node
    for a straggler above twice the median; what looks slow is tried up to five times, then with two
    nodes alone, and the best counts. By Gloo, nothing is called slow where more tasks want a CPU
    than there are before it begins: others load the node, which is said. GPUs and NVLink are not
    seen by Gloo. What is bad by NCCL is repeated once, with 1 and 32 MiB and NCCL_DEBUG=INFO, for
    25 s at most, by torch 75 s: the node that NCCL tells apart from most, or that does what none
    should, is named.
Fix: see what the other checks of network say of that node; `preflight run --level deep` measures
    TCP alone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Mapping

from preflight.api import (
    TOGETHER,
    Check,
    Expect,
    Point,
    Verdict,
    Want,
    fail,
    ok,
    skip,
    some,
    unknown,
)
from preflight.node.busbw import fastest, points, remarks, too_slow
from preflight.node.nccl_cause import found, joined
from preflight.node.pairs import Culprit, Pair, about, between, blame, present, stricken
from preflight.node.ranks import (
    NAME,
    Facts,
    Peer,
    Run,
    burden,
    by_gloo,
    by_tests,
    idle,
    in_words,
    is_good,
    load,
    loaded,
    own,
    quick,
)
from preflight.node.software import guessed
from preflight.node.trials import all_together, surroundings


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
    cause = found(facts, ended=False)
    at = cause.at if cause else {}
    whole = unexplained(facts, tried)
    verdicts = {}
    for node in facts:
        if node in selves:
            words = f"an all_reduce of {len(facts)} nodes does not end: {in_words(selves[node])}"
            verdicts[node] = joined(fail(words), cause, node, facts)
        elif node in rows:
            verdicts[node] = joined(failure(node, rows[node], facts), cause, node, facts)
        elif node in at:
            verdicts[node] = joined(replace(whole, scope="node"), cause, node, facts)
        elif rows or selves or at:
            verdicts[node] = well(node, facts)
        else:
            verdicts[node] = joined(whole, cause, node, facts)
    return verdicts


def unexplained(facts: Facts, tried: Mapping[Pair, bool]) -> Verdict:
    """Return what is said of all nodes where none is to blame."""
    ran: list[Run] = runs(facts)
    words = next(in_words(run) for run in ran if not is_good(run))
    ended = all(not run["at"] for run in ran)
    if not ended and ran[0]["world"] > seats(facts):
        return unknown("the all_reduce did not end, as a node that took part was lost meanwhile")
    beside = ", though any two of them can" if tried else ""
    what = f"an all_reduce of {len(facts)} nodes {'is wrong' if ended else 'does not end'}"
    if loaded(facts) and not ended:
        return unknown(f"{what}{beside}: {words}; {burden(facts)}", details=by_whom(facts))
    return fail(f"{what}{beside}: {words}", scope="cluster", details=by_whom(facts))


def seats(facts: Facts) -> int:
    """Return how many ranks these nodes have in the all_reduce of all."""
    return len(facts) if by_gloo(facts) else sum(len(fact["devices"]) for fact in facts.values())


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
    words += (
        f"; {untried} {'other was' if untried == 1 else 'others were'} not tried" if untried else ""
    )
    return ok(words + (f"; with {some(others)} it is not, which is told there" if others else ""))


# ---- how fast it is --------------------------------------------------------------------------


def speed(facts: Facts, want: Want) -> dict[str, Verdict]:
    if not facts:
        return {}
    best = fastest(points(runs(facts)))
    words = f"all_reduce of {shown(best.bytes)} over {len(facts)} nodes ({carrier(facts)})"
    rates = best_of(facts)
    tried, usual = quick(rates, facts)
    rows = stricken(blame(tried, facts), list(facts))
    others = load(facts)
    short = None if rows or others else too_slow(words, facts, runs(facts), want)
    cause = found(facts, ended=True)
    at = cause.at if cause and short else {}
    verdicts = {}
    for node in facts:
        if node in rows:
            late = slow(node, rows[node], rates, usual, len(facts))
            verdicts[node] = joined(late, cause, node, facts)
        elif short and (node in at or not at):
            scope = "node" if at else short.scope
            verdicts[node] = joined(replace(short, scope=scope), cause, node, facts)
        else:
            odd = some(sorted(rows or at))
            beside = f"; data with {odd} is slow, told there" if odd else ""
            verdicts[node] = ok(
                f"{words}: busbw {best.busbw:.3g} GB/s, all sums right{beside}{others}",
                details=(
                    *remarks(facts, runs(facts)),
                    *left_out(node, facts),
                    *by_whom(facts),
                ),
            )
    return verdicts


def best_of(facts: Facts) -> dict[Pair, Peer]:
    """Return how data came from the first to the second: beside the others, or with two alone."""
    found: dict[Pair, Peer] = {}
    for b, fact in facts.items():
        for a, one in fact["peers"].items():
            alone = fact["pairs"].get(a, one)
            found[a, b] = max(one, alone, key=lambda peer: peer["gbps"])
    return found


def left_out(node: str, facts: Facts) -> list[str]:
    """Return in words from how many nodes data was timed, nothing if from all or none."""
    met, others = len(facts[node]["peers"]), len(facts) - 1
    return [f"data was timed from {met} of {others} others"] if 0 < met < others else []


def carrier(facts: Facts) -> str:
    """Return in words what carries the data."""
    gpus = sum(len(fact["devices"]) for fact in facts.values())
    tests = by_tests(next(iter(facts.values()))["engine"])
    if tests:
        return f"{tests}, {gpus} GPUs"
    torch = f"torch {versions(facts, 'torch')}"
    if by_gloo(facts):
        return f"{torch}, Gloo"
    return f"{torch}, NCCL {versions(facts, 'nccl')}, {gpus} GPUs"


def by_whom(facts: Facts) -> tuple[str, ...]:
    """Return how it is repeated by hand, and why nccl-tests did not do it where there are GPUs."""
    told = [fact["engine"] for fact in facts.values()]
    where = "" if by_tests(told[0]) else ", at the same time on all nodes, each its own --node_rank"
    by_hand = [f"by hand{where}: {one['command']}" for one in told if one["command"]]
    whys = [fact["engine"]["why"] for fact in facts.values() if fact["gpus"]]
    return (*by_hand[:1], *[f"not by {NAME}: {why}" for why in whys if why][:1])


def versions(facts: Facts, key: str) -> str:
    return " and ".join(sorted({str(fact[key]) for fact in facts.values()}))  # type: ignore[literal-required]


def shown(size: int) -> str:
    units = (30, "GiB"), (20, "MiB"), (10, "KiB"), (0, "B")
    return next(f"{size >> bits} {unit}" for bits, unit in units if size >> bits)


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


def curves(facts: Facts) -> dict[str, list[Point]]:
    ran: list[Run] = [run for run in runs(facts) if run]
    return {TOGETHER: points(ran)} if all(map(is_good, ran)) else {}


FIELDS = (
    Expect("min_busbw_gbs", float, "GB/s", "bus bandwidth, at least; as derived where left out"),
)
CHECK = Check(
    exercise=all_together,
    args=surroundings,
    compare=compare,
    level="standard",
    expects=(
        Expect(
            "all_reduce",
            dict,
            about="what an all_reduce over all nodes should reach",
            fields=FIELDS,
        ),
    ),
    pairs=pairs,
    curves=curves,
)
