"""Nodes answer each other as quickly as the others do, from one site, and nothing is lost.

Why: every collective waits for the slowest round trip, many times a step. A node in another site
    or behind a slow tunnel holds back all. A link that loses one packet in a hundred stalls nearly
    every collective until TCP's timer sends it again, 200 ms later.
Facts: address and subnet (of the node on the data plane), trips (to other nodes: times_us, least,
    median and p99; sent, arrived and heard, up to the last reply, which tell what was lost there
    and what on the way back; missing, all replies that did not come; by: udp, or tcp where UDP is
    filtered, which tells no losses), losses (the same of 200 datagrams, where a first one was
    lost). Of two nodes one talks to the other, and each to one at a time. Above 64 nodes a sample:
    each one meets at least eight others and the master.
Source: UDP echoes of preflight's own, with the kernel's time of arrival (SO_TIMESTAMPNS) at both
    ends, so that it is the network that is timed and not how busy a node is. A round trip is within
    one rack tens of microseconds; 100 km of fibre add 1 ms. TCP carries at most 1.22 x MSS / (round
    trip x square root of the loss) a connection (Mathis and others, 1997): at 0.1 ms and 1 % that
    is 1.4 Gb/s, at 5 % 0.6; TCP_RTO_MIN of Linux is 200 ms.
Fix: take nodes of one site. Where packets are lost, see `ethtool -S` of both ends and the counters
    of the switch ports: cables and optics, full buffers, `tc qdisc`, a rate limit of the cloud.
"""

from __future__ import annotations

import os
from statistics import median
from typing import Any, Mapping, NamedTuple, Sequence

from preflight.api import Check, Fleet, Reply, Verdict, Want, fail, ok, skip, some, unknown, warn
from preflight.node.launch import wanted
from preflight.node.mesh import addresses, hold, message
from preflight.node.pairs import (
    Culprit,
    Pair,
    Placed,
    about,
    between,
    blame,
    of_all,
    partners,
    present,
    stricken,
)
from preflight.node.path import LIMIT_S as GREET_S
from preflight.node.trips import LIMIT_S, Trips, connects, losses, round_trips
from preflight.node.udp import echo

SITE_MS = 5.0
"""500 km of fibre, there and back: no longer one site."""
FLOOR_MS = 0.5
"""50 km of fibre, there and back; and more than a switch adds, or a virtual machine's scheduler at
its quickest. What is less above the others is not told."""
FACTOR = 3
"""Times what is usual: more than one more layer of switches."""
COUNT = 200
"""Datagrams by which losses are told, where a first one was lost."""
LOSS_WARN, LOSS_FAIL = 0.01, 0.05
"""See Source: at 1 % nearly all collectives are hit, at 5 % a connection carries 0.6 Gb/s."""
FEWEST_LOST = 3
"""Fewer are no verdict."""
DIALS_LOST = 0.1
"""From here on dials may fail, of which TCP sends three SYNs in 4 s."""
SLOWS = ("network.bandwidth", "collective.all_reduce", "collective.pairs")


class Mesh(Placed):
    address: str
    trips: dict[str, Trips]
    losses: dict[str, Trips]
    problem: str


class Took(NamedTuple):
    """Round trips between two nodes, in ms: of both directions the better."""

    least: float
    median: float
    p99: float


class Lost(NamedTuple):
    """What was lost from one node to another."""

    lost: int
    sent: int

    @property
    def rate(self) -> float:
        """How much of all."""
        return self.lost / self.sent if self.sent else 0.0

    @property
    def counts(self) -> bool:
        """Whether it is more than chance."""
        return self.lost >= FEWEST_LOST and self.rate >= LOSS_WARN


def exercise(fleet: Fleet, want: Want) -> dict[str, Mesh]:
    known, subnets, problems = addresses(fleet, want)
    facts = {
        node: Mesh(
            address=known.get(node, ""),
            subnet=subnets.get(node, ""),
            trips={},
            losses={},
            problem=problems.get(node, ""),
        )
        for node in fleet.nodes
    }
    if len(want.nodes) == 1:
        return facts
    secrets = os.urandom(16).hex(), os.urandom(16).hex()
    with fleet.start_all(echo, {node: (known[node], *secrets) for node in known}) as running:
        ports = {}
        for node, one in running.items():
            if isinstance(one, Reply):
                facts[node]["problem"] = message(one) or "no UDP port could be opened"
            else:
                ports[node] = one.ready["port"]
        goes = partners(list(ports), want.launch.get("master", ""))
        ways = {node: in_turn(node, goes, list(ports)) for node in goes}

        def asked(which: Mapping[str, Sequence[str]], *more: int) -> dict[str, Sequence[Any]]:
            return {
                node: ({one: (known[one], ports[one]) for one in others}, *secrets, *more)
                for node, others in which.items()
            }

        replies = fleet.map(round_trips, asked(ways), GREET_S + LIMIT_S + 5)
        for node, reply in replies.items():
            facts[node]["trips"], facts[node]["problem"] = reply.value or {}, message(reply)
        again = fleet.map(losses, asked(shaky(facts), COUNT), LIMIT_S + 5)
        for node, reply in again.items():
            facts[node]["losses"] = reply.value or {}
    silent = {
        node: [one for one in others if one not in facts[node]["trips"]]
        for node, others in ways.items()
        if not facts[node]["problem"]
    }
    by_tcp(fleet, known, {node: others for node, others in silent.items() if others}, facts)
    return facts


def in_turn(node: str, goes: Mapping[str, Sequence[str]], order: Sequence[str]) -> list[str]:
    """Return whom a node talks to, in the order of the nodes, from the one after it on.

    Of two nodes that would go to each other one does: a talk tells of both ways.
    """
    start, places = order.index(node), {one: place for place, one in enumerate(order)}
    mine = [
        one
        for one in goes[node]
        if node not in goes[one] or (start < places[one]) == bool((start + places[one]) % 2)
    ]
    return sorted(mine, key=lambda one: (places[one] - start) % len(order))


def shaky(facts: Mapping[str, Mesh]) -> dict[str, list[str]]:
    """Return the pairs that losses are counted of: what lost one, and all of who lost several."""
    lossy = {
        (a, b) for a, fact in facts.items() for b, one in fact["trips"].items() if one["missing"]
    }
    met: dict[str, set[str]] = {}
    for a, b in lossy:
        met.setdefault(a, set()).add(b)
        met.setdefault(b, set()).add(a)
    several = {node for node, others in met.items() if len(others) > 1}
    found = {
        a: [b for b in fact["trips"] if {(a, b), (b, a)} & lossy or {a, b} & several]
        for a, fact in facts.items()
    }
    return {node: others for node, others in found.items() if others}


def by_tcp(
    fleet: Fleet,
    known: Mapping[str, str],
    silent: Mapping[str, Sequence[str]],
    facts: Mapping[str, Mesh],
) -> None:
    """Time connections to our own listeners where datagrams are not answered."""
    secrets = os.urandom(16).hex(), os.urandom(16).hex()
    aims = {one for others in silent.values() for one in others}
    with fleet.start_all(hold, dict.fromkeys(sorted(aims), ([0], *secrets))) as running:
        ports = {
            node: one.ready["ports"][0]
            for node, one in running.items()
            if not isinstance(one, Reply) and one.ready["ports"][0]
        }
        targets = {
            node: ({one: (known[one], ports[one]) for one in others if one in ports}, *secrets)
            for node, others in silent.items()
        }
        for node, reply in fleet.map(connects, targets, LIMIT_S + 5).items():
            facts[node]["trips"].update(
                {one: trips for one, trips in (reply.value or {}).items() if trips["times_us"]}
            )


# ---- judging -------------------------------------------------------------------------------


def compare(facts: Mapping[str, Mesh], want: Want) -> dict[str, Verdict]:
    facts = present(facts, "trips", "losses")
    if len(want.nodes) == 1:
        return {node: skip("one node alone has no way to another") for node in facts}
    took, lost, nodes = times(facts), lost_packets(facts), list(facts)
    right = usual(took)
    late = stricken(
        blame({pair: not is_late(one, right) for pair, one in took.items()}, facts), nodes
    )
    gone = stricken(blame({pair: not one.counts for pair, one in lost.items()}, facts), nodes)
    verdicts = {}
    for node, fact in facts.items():
        if fact["problem"]:
            verdicts[node] = unknown(fact["problem"])
        elif node in gone:
            verdicts[node] = losing(node, gone[node], lost, facts)
        elif node in late:
            verdicts[node] = slow(node, late[node], took, right, facts)
        else:
            verdicts[node] = well(node, took, right, lost, nodes)
    return verdicts


def times(facts: Mapping[str, Mesh]) -> dict[Pair, Took]:
    """Return round trips of all pairs, the same both ways: they are of both ways together."""
    found: dict[Pair, list[list[int]]] = {}
    for a, fact in facts.items():
        for b, one in fact["trips"].items():
            if one["times_us"]:
                for pair in ((a, b), (b, a)):
                    found.setdefault(pair, []).append(one["times_us"])
    return {
        pair: Took(*(min(one[i] for one in each) / 1000 for i in range(3)))
        for pair, each in found.items()
    }


def usual(took: Mapping[Pair, Took]) -> Took:
    """Return what is usual: the median of each node's quickest, so that one node moves nothing."""
    each: dict[str, list[Took]] = {}
    for (a, _), one in took.items():
        each.setdefault(a, []).append(one)
    best = [min(mine) for mine in each.values()]
    return Took(*(median([one[i] for one in best]) if best else 0.0 for i in range(3)))


def is_late(one: Took, right: Took) -> bool:
    """Whether a pair is slow, by its least and its median: a busy node has a quick one too."""
    pairs_of = ((one.least, right.least), (one.median, right.median))
    apart = all(mine >= max(FACTOR * its, its + FLOOR_MS) for mine, its in pairs_of)
    return apart or one.least >= SITE_MS


def lost_packets(facts: Mapping[str, Mesh]) -> dict[Pair, Lost]:
    """Return what was lost from each node to each other: of its datagrams, and of its replies."""
    found: dict[Pair, Lost] = {}

    def add(pair: Pair, lost: int, sent: int) -> None:
        old = found.get(pair, Lost(0, 0))
        found[pair] = Lost(old.lost + lost, old.sent + sent)

    for a, fact in facts.items():
        for b, first in fact["trips"].items():
            one = fact["losses"].get(b, first)
            if one["by"] == "udp":
                add((a, b), one["sent"] - one["arrived"], one["sent"])
                add((b, a), one["arrived"] - one["heard"], one["arrived"])
    return found


def losing(
    node: str, culprit: Culprit, lost: Mapping[Pair, Lost], facts: Mapping[str, Mesh]
) -> Verdict:
    """Return the verdict of a node whose packets are lost."""
    found = [lost[pair] for pair in culprit.pairs]
    total = Lost(sum(one.lost for one in found), sum(one.sent for one in found))
    a, b = min(culprit.pairs)
    return (fail if total.rate >= LOSS_FAIL else warn)(
        f"{percent(total.rate)} of the packets {between(culprit, node)} are lost:"
        f" {total.lost} of {total.sent} small ones",
        observed=round(total.rate, 3),
        expected=0,
        reproduce=f"on {a}: ping -c 200 -i 0.2 {facts[b]['address']}",
        explains=(*SLOWS, "network.ephemeral", "network.port")
        if total.rate >= DIALS_LOST
        else SLOWS,
        **about(culprit, node, len(facts)),
    )


def slow(
    node: str,
    culprit: Culprit,
    took: Mapping[Pair, Took],
    right: Took,
    facts: Mapping[str, Mesh],
) -> Verdict:
    """Return the warning of a node that is far from others, or slow to answer."""
    found = [took[pair] for pair in culprit.pairs]
    one = Took(*(median([each[i] for each in found]) for i in range(3)))
    a, b = min(culprit.pairs)
    beside = f", {written(right.median)} elsewhere" if culprit.kind != "cluster" else ""
    why = f"{written(one.least)} at the least is more than a switch or a tunnel nearby adds"
    if one.least >= SITE_MS:
        why = "as between sites: training is held back by it"
    alone = len(facts) == 2
    return warn(
        f"round trips {between(culprit, node)} take {written(one.median)}"
        f"{'' if alone else beside}; {why}",
        observed=one.median,
        expected=None if alone or culprit.kind == "cluster" else right.median,
        details=(
            f"no all_reduce across it takes less than {written(one.least / 2)}, however small",
        ),
        fix="take nodes of one site and network; else see the route: tracepath, tc qdisc, tunnels",
        reproduce=f"on {a}: ping -c 20 -i 0.2 {facts[b]['address']}",
        **about(culprit, node, len(facts)),
    )


def well(
    node: str,
    took: Mapping[Pair, Took],
    right: Took,
    lost: Mapping[Pair, Lost],
    order: Sequence[str],
) -> Verdict:
    """Return the verdict of a node that is not to blame for what is slow or lost."""
    bad = {pair for pair, one in lost.items() if one.counts}
    bad |= {pair for pair, one in took.items() if is_late(one, right)}
    told = [one for one in order if {(node, one), (one, node)} & bad]
    mine = {one: took[node, one] for one in order if (node, one) in took and one not in told}
    rest = f"; what is wrong between it and {some(told)} is told there" if told else ""
    if not mine:
        return ok(rest[2:]) if told else unknown("no other node answered, by UDP or by TCP")
    middle, worst = median([one.median for one in mine.values()]), max(m.p99 for m in mine.values())
    gone = [one for pair, one in lost.items() if node in pair and not {*pair} & {*told}]
    missing, sent = (sum(one[i] for one in gone) for i in range(2))
    words = f"{missing} of {sent} packets lost" if missing else "nothing lost"
    if not all((node, one) in lost for one in mine):
        words = "by TCP where UDP is filtered: losses are not told there"
    return ok(
        f"round trips with {some(list(mine))}{of_all(len(mine), len(order))} take"
        f" {written(middle)} (p99 {written(worst)}), {words}{rest}",
        observed=middle,
    )


def written(ms: float) -> str:
    """Return a time for people."""
    return f"{1000 * ms:.0f} us" if ms < 1 else f"{ms:.1f} ms" if ms < 10 else f"{ms:.0f} ms"


def percent(rate: float) -> str:
    """Return a share for people."""
    return f"{100 * rate:.0f} %"


def pairs(facts: Mapping[str, Mesh]) -> dict[str, dict[str, str]]:
    took, lost = times(facts), lost_packets(facts)
    right = usual(took)
    found: dict[str, dict[str, str]] = {node: {} for node in facts}
    for (a, b), one in took.items():
        found[a][b] = written(one.median) if is_late(one, right) else ""
    for (a, b), gone in lost.items():
        if gone.counts:
            found[a][b] = f"{percent(gone.rate)} lost"
    return found


CHECK = Check(
    exercise=exercise,
    args=lambda want: (want.get("launch.master"), *wanted(want)),
    compare=compare,
    level="standard",
    explains=(*SLOWS, "network.ephemeral", "network.port"),
    pairs=pairs,
)
