"""No node or pair of nodes carries much less TCP than the others, nor than its links can.

Why: every collective waits for the slowest path. A cable that loses packets, a rate limit, a link
    that fell back, an oversubscribed switch port: all ports are open, and training is slow.
Facts: address and subnet (of the node on the data plane), link_gbps (speed of one link there; 0 if
    it is not told, or not to be relied on: of virtual interfaces, and in virtual machines),
    occupants (of GPUs: then nothing is sent), instrument (what measured), drawn (by other node,
    what came from it: gbps; busy, how much of the CPU that it could use the sender and the receiver
    wanted; of iperf3 also retransmits, the segments that were sent again), counted (by link: what
    its counters grew by meanwhile; see network.errors). Nodes go in rounds of disjoint pairs, first
    one way, then the other; where little or nothing came it is tried once more, and the better of
    both counts. Above 64 nodes a sample: each one meets eight others.
Source: 8 TCP streams of preflight's own between listeners with a secret, 0.35 s each way after
    0.15 s at which they come to speed; the receiver counts (recv(2), MSG_TRUNC). /proc/stat,
    /proc/self/task/*/schedstat. A path is slow below half of what is usual, as dlrover takes a node
    for a straggler above twice the median; what is usual is the median of each node's best. Where a
    CPU is what limits, nobody is blamed. Against the link: 60 %, our own choice; TCP can have 94 %
    of it with packets of 1,500 bytes.
    `expect: {iperf3: true}` has it measured with iperf3 in place of these streams, 8 of its own for
    1 s each way: `iperf3 -s -1 --bind ADDRESS -p PORT`, `iperf3 -c ADDRESS -p PORT -P 8 -t 1 -J`.
    Only on request: it is to be installed on all nodes, and has no secret, so that whoever comes
    first to that one port is let in. Where it is missing or of no use, the node is unknown.
Fix: see both ends' `ethtool -S` and the switch port for errors and drops, `tc qdisc` for limits,
    and `ethtool` for the speed; in a cloud, the size of the virtual machine sets a limit.
"""

from __future__ import annotations

import os
from functools import partial
from statistics import median
from typing import Any, Iterable, Mapping, Sequence

from preflight.api import (
    Check,
    Expect,
    Fleet,
    Node,
    Reply,
    Verdict,
    Want,
    fail,
    ok,
    skip,
    some,
    unknown,
    warn,
)
from preflight.node import iperf, streams
from preflight.node.choice import subnet_of
from preflight.node.counters import (
    FEW,
    RATIO,
    Counts,
    checksums,
    counted,
    damaged,
    grown,
    packets,
)
from preflight.node.kernel import is_virtual
from preflight.node.launch import wanted
from preflight.node.mesh import SHORT, message
from preflight.node.net import interfaces, link_gbps, meeting_address
from preflight.node.nvml import Occupant, in_words, occupants
from preflight.node.pairs import (
    Culprit,
    Pair,
    about,
    between,
    blame,
    of_all,
    present,
    stricken,
)
from preflight.node.streams import BUSY, MEASURE_S, STREAMS, Drawn, pour
from preflight.node.sweep import SLOWER, Swept, everything, floor, measured, sweep, usual_rate

LINK_SHARE = 0.6
"""Of the link's speed; see Source."""
SWEEP_S, IPERF3_SWEEP_S = 100.0, 250.0
"""No round begins later. 64 nodes take 63 rounds of 1.1 s, of iperf3 2.6 s."""
OWN = "preflight's own"


class Mesh(Swept):
    address: str
    link_gbps: float
    occupants: list[Occupant]
    instrument: str
    """What measured: `OWN`, or iperf3 and its version; empty: nothing did."""
    counted: dict[str, Counts]
    """By link, what its counters have grown by meanwhile."""


def exercise(fleet: Fleet, want: Want) -> dict[str, Mesh]:
    looked = fleet.map(look, dict.fromkeys(fleet.nodes, wanted(want)))
    facts = {node: begun(reply) for node, reply in looked.items()}
    free = [node for node, fact in facts.items() if not fact["occupants"] and not fact["problem"]]
    if len(free) > 1:
        load(fleet, facts, free, want)
    for node, reply in fleet.map(look, dict.fromkeys(fleet.nodes, wanted(want))).items():
        before, after = facts[node]["counted"], begun(reply)["counted"]
        facts[node]["counted"] = {name: grown(before.get(name, {}), after[name]) for name in after}
    return facts


def load(fleet: Fleet, facts: dict[str, Mesh], free: Sequence[str], want: Want) -> None:
    if want.get("expect.iperf3"):
        for node, reply in fleet.map(iperf.version, dict.fromkeys(free, ())).items():
            facts[node]["instrument"] = reply.value or ""
            facts[node]["problem"] = message(reply)
        free = [node for node in free if not facts[node]["problem"]]
        addresses = {node: facts[node]["address"] for node in free}
        sweep(facts, partial(iperf.through, fleet, addresses), free, want, IPERF3_SWEEP_S)
        return
    secrets = os.urandom(16).hex(), os.urandom(16).hex()
    with fleet.start_all(pour, dict.fromkeys(free, secrets)) as running:
        doors = {}
        for node, one in running.items():
            if isinstance(one, Reply):
                facts[node]["problem"] = message(one) or str(one.value["error"])
            else:
                facts[node]["instrument"] = OWN
                doors[node] = (facts[node]["address"], one.ready["port"], *secrets)
        sweep(facts, partial(streams.through, fleet, doors), [*doors], want, SWEEP_S)


def begun(reply: Reply) -> Mesh:
    if reply.problem:
        why = message(reply)
        return Mesh(
            address="",
            subnet="",
            link_gbps=0.0,
            occupants=[],
            instrument="",
            drawn={},
            counted={},
            problem=why,
        )
    found: Mesh = reply.value
    return found


# ---- on the node ---------------------------------------------------------------------------


def look(node: Node, launch: Mapping[str, Any]) -> Mesh:
    network = interfaces(node, launch)
    address = meeting_address(network)
    return Mesh(
        address=address,
        subnet=subnet_of(node, address),
        link_gbps=0.0 if is_virtual(node) else link_gbps(network, address),
        occupants=occupants(node),
        instrument="",
        drawn={},
        counted=counted(node, network)["links"],
        problem="" if address else "it has no address that other nodes could use",
    )


# ---- judging -------------------------------------------------------------------------------


def is_bound(one: Drawn) -> bool:
    """Whether a CPU may be what limits."""
    return max(one["busy"]) >= BUSY


def compare(facts: Mapping[str, Mesh], want: Want) -> dict[str, Verdict]:
    facts = present(facts, "drawn")
    if len(want.nodes) == 1:
        return {node: skip("one node alone meets no other") for node in facts}
    rates = measured(facts)
    usual, asked = usual_rate(rates), want.get("expect.tcp_gbps")
    right = f"{usual:.3g} Gb/s is usual" if asked is None else f"{asked:g} Gb/s is expected"
    good = {pair: one["gbps"] >= floor(rates, want) for pair, one in rates.items()}
    tried = {pair: fast for pair, fast in good.items() if fast or not is_bound(rates[pair])}
    rows = stricken(blame(tried, facts), list(facts))
    told = {pair: not one["error"] for pair, one in everything(facts).items()}
    untold = stricken(blame(told, facts), list(facts))
    verdicts = {}
    for node in facts:
        said = idle(facts, node)
        if not said and node in rows:
            said = failure(node, rows[node], facts, right)
        elif not said and node in untold:
            said = unheard(node, untold[node], facts)
        verdicts[node] = said or well(node, facts, tried, right)
    return verdicts


def unheard(node: str, culprit: Culprit, facts: Mapping[str, Mesh]) -> Verdict:
    """Return what is said where nothing was measured."""
    why = everything(facts)[min(culprit.pairs)]["error"]
    return unknown(f"not measured {between(culprit, node)}: {SHORT.get(why, why)}")


def idle(facts: Mapping[str, Mesh], node: str) -> Verdict | None:
    """Return the verdict of a node of which nothing was measured, or None."""
    fact = facts[node]
    if fact["occupants"]:
        return skip(f"busy: {in_words(fact['occupants'][0])}")
    if fact["problem"]:
        fix = iperf.INSTALL if fact["problem"] == iperf.MISSING else None
        return unknown(fact["problem"], fix=fix)
    if any(node in pair for pair in measured(facts)):
        return None
    if all(one["occupants"] for other, one in facts.items() if other != node):
        return skip("busy: all other nodes")
    errors = [*unmeasured(node, facts).values()]
    return unknown("no other node could be measured" + (f": {errors[0]}" if errors else ""))


def unmeasured(node: str, facts: Mapping[str, Mesh]) -> dict[str, str]:
    """Return by other node, where it was tried, why it was not measured both ways."""
    found = {}
    for end, fact in facts.items():
        tries = [facts[b]["drawn"].get(a) for a, b in ((node, end), (end, node))]
        errors = [one["error"] if one else fact["problem"] for one in tries] if any(tries) else []
        why = next(filter(None, errors), "")
        if why:
            found[end] = SHORT.get(why, why)
    return found


def well(node: str, facts: Mapping[str, Mesh], tried: Mapping[Pair, bool], right: str) -> Verdict:
    """Return the verdict of a node that is not to blame for what is slow."""
    mine = {pair: one for pair, one in measured(facts).items() if node in pair}
    judged = {pair: one for pair, one in mine.items() if tried.get(pair)}
    slow = sorted({other(pair, node) for pair in mine if tried.get(pair) is False})
    lost = unmeasured(node, facts)
    bound = [pair for pair in mine if is_bound(mine[pair])]
    tcp = title(facts[node])
    if not judged and not slow:
        return unknown(
            f"{tcp} at {shown(mine.values())} where {right}, but {limiter(node, mine)} is what"
            " limits: the network may carry more",
            details=(method(facts[node]),),
        )
    worse = meanwhile(facts[node]) or fallen_short(node, facts, mine)
    if worse and not slow:
        return worse
    met = sorted({other(pair, node) for pair in judged} - {*slow, *lost})
    sample = of_all(len(met) + len(slow), len(facts))
    words = [f"{tcp} at {shown(judged.values())} with {some(met)}{sample}"] if met else []
    words += [f"{tcp} with {some(slow)} is slow, which is told there"] if slow else []
    if lost:
        why = next(iter(lost.values()))
        words.append(f"not measured both ways with {some([*lost])}: {why}")
    if 2 * len(bound) > len(mine) or (len(judged) < len(mine) and not slow):
        words.append(f"{limiter(node, mine)} is what limits")
    return (ok if met or slow else unknown)("; ".join(words), details=(method(facts[node]),))


def title(fact: Mesh) -> str:
    """Return what was measured, in a row: where nothing else is said, by our own streams."""
    return "TCP" if fact["instrument"] == OWN else f"TCP ({fact['instrument']})"


def method(fact: Mesh) -> str:
    """Say how it was measured."""
    seconds = MEASURE_S if fact["instrument"] == OWN else iperf.SECONDS
    return f"measured with {STREAMS} TCP streams of {fact['instrument']}, {seconds:g} s each way"


def other(pair: Pair, node: str) -> str:
    """Return the other end."""
    return pair[0] if pair[1] == node else pair[1]


def limiter(node: str, mine: Mapping[Pair, Drawn]) -> str:
    """Say whose CPU is busy."""
    ends: dict[str, list[float]] = {}
    for pair, one in mine.items():
        for end, busy in zip(pair, one["busy"]):
            ends.setdefault(end, []).append(busy)
    if median(ends[node]) >= BUSY:
        return f"this node's CPU ({100 * median(ends[node]):.0f} % busy)"
    return "the CPU of " + some(sorted(end for end in ends if max(ends[end]) >= BUSY))


def meanwhile(fact: Mesh) -> Verdict | None:
    """Return a warning of a link that has damaged packets under this load."""
    for name, more in fact["counted"].items():
        bad, every = damaged(more), packets(more)
        if bad >= FEW and bad > RATIO * every:
            words = f"{name} has damaged {bad} of {every} packets meanwhile{checksums(more)}"
            return warn(words, observed=bad, reproduce=f"ip -s -s link show dev {name}")
    return None


def fallen_short(
    node: str, facts: Mapping[str, Mesh], mine: Mapping[Pair, Drawn]
) -> Verdict | None:
    """Return a warning of a node whose links are not used, though nothing else limits."""
    links = {pair: min(facts[end]["link_gbps"] for end in pair) for pair in mine}
    shares = {
        pair: mine[pair]["gbps"] / link
        for pair, link in links.items()
        if link and not is_bound(mine[pair])
    }
    if not shares or median(shares.values()) >= LINK_SHARE:
        return None
    rates, speed = shown(mine[pair] for pair in shares), min(links[pair] for pair in shares)
    return warn(
        f"{title(facts[node])} at {rates} with {some(sorted({other(p, node) for p in shares}))}:"
        f" {100 * median(shares.values()):.0f} % of the links' {speed:g} Gb/s",
        observed=round(median(shares.values()), 2),
        expected=LINK_SHARE,
        details=(method(facts[node]),),
        reproduce=by_hand(min(shares), facts),
    )


def failure(node: str, culprit: Culprit, facts: Mapping[str, Mesh], right: str) -> Verdict:
    """Return the verdict of a node that is to blame, or the first one of a pair."""
    rates = measured(facts)
    found = [rates[pair] for pair in culprit.pairs]
    stalled = not any(one["gbps"] for one in found)
    why = ": nothing comes through, as where large packets are lost" if stalled else ""
    damage = meanwhile(facts[node])
    why += f"; {damage.summary}" if damage else ""
    return fail(
        f"{title(facts[node])} {between(culprit, node)} at {shown(found)}, {right}{why}",
        details=(method(facts[node]),),
        reproduce=by_hand(min(culprit.pairs), facts),
        **about(culprit, node, len(facts)),
    )


def shown(found: Iterable[Drawn]) -> str:
    """Return rates for people: one, or from the least to the greatest."""
    rates = sorted(one["gbps"] for one in found)
    least, most = f"{rates[0]:.3g}", f"{rates[-1]:.3g}"
    return f"{least} Gb/s" if least == most else f"{least} to {most} Gb/s"


def by_hand(pair: Pair, facts: Mapping[str, Mesh]) -> str:
    a, b = pair
    return f"on {b}: iperf3 -s; on {a}: iperf3 -P {STREAMS} -c {facts[b]['address']}"


def pairs(facts: Mapping[str, Mesh]) -> dict[str, dict[str, str]]:
    rates = measured(facts)
    usual = usual_rate(rates)
    found: dict[str, dict[str, str]] = {node: {} for node in facts}
    for (a, b), one in rates.items():
        slow = one["gbps"] * SLOWER < usual and not is_bound(one)
        found[a][b] = shown([one]) if slow else ""
    return found


CHECK = Check(
    exercise=exercise,
    args=lambda want: (*wanted(want), bool(want.get("expect.iperf3"))),
    compare=compare,
    level="deep",
    expects=(
        Expect("tcp_gbps", float, "Gb/s", "TCP between any two nodes, each way, at least"),
        Expect("iperf3", bool, "", "all nodes have it, and TCP is measured with it"),
    ),
    explains=("collective.all_reduce", "collective.pairs"),
    pairs=pairs,
)
