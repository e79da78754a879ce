"""No node or pair of nodes carries much less TCP than the others, nor than its links can.

Why: every collective waits for the slowest path. A cable that loses packets, a rate limit, a link
    that fell back, an oversubscribed switch port: all ports are open, and training is slow.
Facts: address and subnet (of the node on the data plane), link_gbps (speed of one link there; 0 if
    it is not told, or not to be relied on: of virtual interfaces, and in virtual machines),
    occupants (of GPUs: then nothing is sent), drawn (by other node, what came from it: gbps; busy,
    how much of the CPU that it could use the sender and the receiver wanted), counted (by link:
    what its counters grew by meanwhile; see network.errors). Nodes go in rounds of disjoint pairs,
    first one way, then the other; what looks slow is tried once more, and the better of both
    counts. Above 64 nodes a sample: each one meets eight others.
Source: 8 TCP streams of preflight's own between listeners with a secret, 0.35 s each way after
    0.15 s at which they come to speed; the receiver counts (recv(2), MSG_TRUNC). /proc/stat,
    /proc/self/task/*/schedstat. A path is slow below half of what is usual, as dlrover takes a node
    for a straggler above twice the median; what is usual is the median of each node's best. Where a
    CPU is what limits, nobody is blamed. Against the link: 60 %, our own choice; TCP can have 94 %
    of it with packets of 1,500 bytes.
Fix: see both ends' `ethtool -S` and the switch port for errors and drops, `tc qdisc` for limits,
    and `ethtool` for the speed; in a cloud, the size of the virtual machine sets a limit.
"""

from __future__ import annotations

import os
import time
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
from preflight.node.net import (
    interfaces,
    link_gbps,
    meeting_address,
)
from preflight.node.nvml import Occupant, in_words, occupants
from preflight.node.pairs import (
    Culprit,
    Pair,
    Placed,
    about,
    between,
    blame,
    disjoint,
    of_all,
    present,
    some_rounds,
    stricken,
)
from preflight.node.ports import ECHO_S
from preflight.node.streams import (
    BUSY,
    CONNECT_S,
    MEASURE_S,
    STREAMS,
    WARM_S,
    Drawn,
    draw,
    pour,
)

SLOWER = 2
"""Times slower than usual: dlrover's limit of a straggler."""
LINK_SHARE = 0.6
"""Of the link's speed; see Source."""
AGAIN = 6
"""Rounds in which slow pairs are tried once more: enough to tell a moment's noise from a fault."""
SWEEP_S = 100.0
"""No round begins later. 64 nodes take 63 rounds of 1.1 s."""
DRAW_S = CONNECT_S + 3 * ECHO_S + WARM_S + MEASURE_S + 1
INSTRUMENT = f"measured with {STREAMS} TCP streams of preflight's own, {MEASURE_S:g} s each way"


class Mesh(Placed):
    address: str
    link_gbps: float
    occupants: list[Occupant]
    drawn: dict[str, Drawn]
    counted: dict[str, Counts]
    """By link, what its counters have grown by meanwhile."""
    problem: str


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
    secrets = os.urandom(16).hex(), os.urandom(16).hex()
    with fleet.start_all(pour, dict.fromkeys(free, secrets)) as running:
        doors = {}
        for node, one in running.items():
            if isinstance(one, Reply):
                facts[node]["problem"] = message(one) or str(one.value["error"])
            else:
                doors[node] = (facts[node]["address"], one.ready["port"], *secrets)
        sweep(fleet, facts, doors, want)


def begun(reply: Reply) -> Mesh:
    if reply.problem:
        why = message(reply)
        return Mesh(
            address="", subnet="", link_gbps=0.0, occupants=[], drawn={}, counted={}, problem=why
        )
    found: Mesh = reply.value
    return found


def sweep(
    fleet: Fleet, facts: dict[str, Mesh], doors: Mapping[str, Sequence[Any]], want: Want
) -> None:
    """Measure all pairs in rounds, and the slow ones once more."""
    until = time.monotonic() + SWEEP_S
    for pairs in some_rounds([*doors]):
        if time.monotonic() < until:
            measure(fleet, facts, doors, pairs)
            measure(fleet, facts, doors, [(b, a) for a, b in pairs])
    rates = measured(facts)
    right = floor(rates, want)
    slow = [pair for pair, one in rates.items() if one["gbps"] < right]
    for pairs in disjoint(slow)[:AGAIN]:
        if time.monotonic() < until:
            measure(fleet, facts, doors, pairs)


def measure(
    fleet: Fleet,
    facts: dict[str, Mesh],
    doors: Mapping[str, Sequence[Any]],
    pairs: Iterable[Pair],
) -> None:
    """Let the second of each pair draw from the first, all at once; the best try counts."""
    sources = {b: a for a, b in pairs if not facts[a]["problem"] and not facts[b]["problem"]}
    for node, reply in fleet.map(draw, {b: doors[a] for b, a in sources.items()}, DRAW_S).items():
        if reply.problem:
            facts[node]["problem"] = message(reply)
            continue
        drawn, found = facts[node]["drawn"], reply.value
        before = drawn.get(sources[node], found)
        drawn[sources[node]] = max(before, found, key=lambda one: float(one["gbps"]))


# ---- on the node ---------------------------------------------------------------------------


def look(node: Node, launch: Mapping[str, Any]) -> Mesh:
    network = interfaces(node, launch)
    address = meeting_address(network)
    return Mesh(
        address=address,
        subnet=subnet_of(node, address),
        link_gbps=0.0 if is_virtual(node) else link_gbps(network, address),
        occupants=occupants(node),
        drawn={},
        counted=counted(node, network)["links"],
        problem="" if address else "it has no address that other nodes could use",
    )


# ---- judging -------------------------------------------------------------------------------


def measured(facts: Mapping[str, Mesh]) -> dict[Pair, Drawn]:
    """Return what was measured from the first of a pair to the second."""
    return {
        (a, b): one
        for b, fact in facts.items()
        for a, one in fact["drawn"].items()
        if not one["error"]
    }


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
    return {
        node: idle(facts, node)
        or (
            failure(node, rows[node], facts, right)
            if node in rows
            else well(node, facts, tried, right)
        )
        for node in facts
    }


def idle(facts: Mapping[str, Mesh], node: str) -> Verdict | None:
    """Return the verdict of a node of which nothing was measured, or None."""
    fact = facts[node]
    if fact["occupants"]:
        return skip(f"busy: {in_words(fact['occupants'][0])}")
    if fact["problem"]:
        return unknown(fact["problem"])
    if any(node in pair for pair in measured(facts)):
        return None
    if all(one["occupants"] for other, one in facts.items() if other != node):
        return skip("busy: all other nodes")
    errors = [one["error"] for one in fact["drawn"].values()]
    return unknown(
        "no other node could be measured"
        + (f": {SHORT.get(errors[0], errors[0])}" if errors else "")
    )


def well(node: str, facts: Mapping[str, Mesh], tried: Mapping[Pair, bool], right: str) -> Verdict:
    """Return the verdict of a node that is not to blame for what is slow."""
    mine = {pair: one for pair, one in measured(facts).items() if node in pair}
    judged = {pair: one for pair, one in mine.items() if tried.get(pair)}
    slow = sorted({other(pair, node) for pair in mine if tried.get(pair) is False})
    bound = [pair for pair in mine if is_bound(mine[pair])]
    if not judged and not slow:
        return unknown(
            f"TCP at {shown(mine.values())} where {right}, but {limiter(node, mine)} is what"
            " limits: the network may carry more",
            details=(INSTRUMENT,),
        )
    worse = meanwhile(facts[node]) or fallen_short(node, facts, mine)
    if worse and not slow:
        return worse
    met = sorted({other(pair, node) for pair in judged} - {*slow})
    sample = of_all(len(met) + len(slow), len(facts))
    words = [f"TCP at {shown(judged.values())} with {some(met)}{sample}"] if met else []
    words += [f"TCP with {some(slow)} is slow, which is told there"] if slow else []
    if 2 * len(bound) > len(mine) or (len(judged) < len(mine) and not slow):
        words.append(f"{limiter(node, mine)} is what limits")
    return ok("; ".join(words), details=(INSTRUMENT,))


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
        f"TCP at {rates} with {some(sorted({other(p, node) for p in shares}))}:"
        f" {100 * median(shares.values()):.0f} % of the links' {speed:g} Gb/s",
        observed=round(median(shares.values()), 2),
        expected=LINK_SHARE,
        details=(INSTRUMENT,),
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
        f"TCP {between(culprit, node)} at {shown(found)}, {right}{why}",
        details=(INSTRUMENT,),
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
    args=wanted,
    compare=compare,
    level="deep",
    expects=(Expect("tcp_gbps", float, "Gb/s", "TCP between any two nodes, each way, at least"),),
    explains=("collective.all_reduce", "collective.pairs"),
    pairs=pairs,
)
