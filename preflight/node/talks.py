"""Who talks to whose echo, what comes of it, and what of that looks late or lossy.

What nodes do for it is in `trips.py`; here is who does it with whom, and what is measured again.
Sent to nodes: stdlib only, Python 3.8.
"""

from __future__ import annotations

import os
import time
from statistics import median
from typing import Callable, Mapping, NamedTuple, Sequence

from preflight.api import Fleet, Reply, Want
from preflight.node.mesh import addresses, hold, message, of_others
from preflight.node.pairs import Pair, Placed, partners
from preflight.node.path import LIMIT_S as GREET_S
from preflight.node.trips import LIMIT_S, Trips, connects, round_trips, series
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
AGAIN, PAUSES_S = 40, (0.2, 0.5, 1.0)
"""Datagrams by which that is measured once more which looks late, and pauses before each time: a
process, or a virtual machine, that had no CPU then has one by now."""
LOSS_WARN, LOSS_FAIL = 0.01, 0.05
"""At 1 % nearly all collectives are hit, at 5 % a connection carries 0.6 Gb/s (network.latency has
the source)."""
FEWEST_LOST = 3
"""Fewer are no verdict."""


class Mesh(Placed):
    """What network.latency knows of a node, by other node what came of talking to it."""

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


def all_pairs(fleet: Fleet, want: Want) -> dict[str, Mesh]:
    """Return what came of it by node: the exercise of network.latency."""
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
        doors = {}
        for node, one in running.items():
            if isinstance(one, Reply):
                facts[node]["problem"] = message(one) or "no UDP port could be opened"
            else:
                doors[node] = (known[node], one.ready["port"])
        talks = Talks(fleet, facts, doors, secrets)
        talks.first(want.launch.get("master", ""))
        talks.again()
    return facts


class Talks:
    """Nodes that talk to each other's echoes, and what comes of it."""

    def __init__(
        self,
        fleet: Fleet,
        facts: Mapping[str, Mesh],
        doors: Mapping[str, tuple[str, int]],
        secrets: tuple[str, str],
    ) -> None:
        self.fleet, self.facts, self.doors, self.secrets = fleet, facts, doors, secrets
        self.talk = 2  # of the next series

    def first(self, master: str) -> None:
        """Measure all pairs that are to meet."""
        order = [*self.doors]
        goes = partners(order, master)
        ways = {node: in_turn(node, goes, order) for node in goes}
        asked = {node: (self.to(others), *self.secrets) for node, others in ways.items()}
        replies = of_others(self.fleet, round_trips, asked, GREET_S + LIMIT_S + 5)
        for node, reply in replies.items():
            self.facts[node]["trips"] = reply.value or {}
            self.facts[node]["problem"] = message(reply)
        silent = {
            node: [one for one in others if one not in self.facts[node]["trips"]]
            for node, others in ways.items()
            if not self.facts[node]["problem"]
        }
        self.by_tcp({node: others for node, others in silent.items() if others})

    def again(self) -> None:
        """Measure again what looks lossy or late: it may have been the moment, or a busy node."""
        for which in (shaky, lossy):
            for node, found in self.series(which(self.facts), COUNT).items():
                kept = self.facts[node]["losses"]
                for other, one in found.items():
                    kept[other] = min(kept.get(other, one), one, key=lambda one: one["missing"])
        for pause in PAUSES_S:
            udp, tcp = lagging(self.facts, "udp"), lagging(self.facts, "tcp")
            if not udp and not tcp:
                return
            time.sleep(pause)
            for node, found in self.series(udp, AGAIN).items():
                keep(self.facts[node]["trips"], found)
            self.by_tcp(tcp)

    def series(self, which: Mapping[str, Sequence[str]], count: int) -> dict[str, dict[str, Trips]]:
        """Return what comes of so many datagrams to each."""
        asked = {}
        for node, others in which.items():
            by = self.facts[node]["trips"]
            to = {
                one: (*where, by[one].get("own_port", 0)) for one, where in self.to(others).items()
            }
            asked[node] = (to, *self.secrets, count, self.talk)
        self.talk += 1
        replies = of_others(self.fleet, series, asked, LIMIT_S + 5)
        return {node: reply.value or {} for node, reply in replies.items()}

    def to(self, others: Sequence[str]) -> dict[str, tuple[str, int]]:
        """Return address and port of their echoes."""
        return {one: self.doors[one] for one in others}

    def by_tcp(self, which: Mapping[str, Sequence[str]]) -> None:
        """Time connections to our own listeners where datagrams are not answered."""
        secrets = os.urandom(16).hex(), os.urandom(16).hex()
        aims = {one for others in which.values() for one in others}
        with self.fleet.start_all(hold, dict.fromkeys(sorted(aims), ([0], *secrets))) as running:
            ports = {
                node: one.ready["ports"][0]
                for node, one in running.items()
                if not isinstance(one, Reply) and one.ready["ports"][0]
            }
            targets = {
                node: ({o: (self.doors[o][0], ports[o]) for o in others if o in ports}, *secrets)
                for node, others in which.items()
            }
            for node, reply in of_others(self.fleet, connects, targets, LIMIT_S + 5).items():
                keep(self.facts[node]["trips"], reply.value or {})


def keep(trips: dict[str, Trips], found: Mapping[str, Trips]) -> None:
    """Keep the quickest of all that was measured."""
    for other, one in found.items():
        if one["times_us"]:
            old = trips.setdefault(other, one)
            old["times_us"] = min(old["times_us"], one["times_us"])


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
    """Return the pairs that losses are counted of: what lost one, and all of who lost several.

    Without those that only TCP reaches: what a filter holds back is no loss.
    """
    lost = {
        (a, b) for a, fact in facts.items() for b, one in fact["trips"].items() if one["missing"]
    }
    met: dict[str, set[str]] = {}
    for a, b in lost:
        met.setdefault(a, set()).add(b)
        met.setdefault(b, set()).add(a)
    several = {node for node, others in met.items() if len(others) > 1}

    def counted(a: str, b: str) -> bool:
        by_udp = facts[a]["trips"][b]["by"] == "udp"
        return by_udp and bool({(a, b), (b, a)} & lost or {a, b} & several)

    return those(facts, counted)


def lossy(facts: Mapping[str, Mesh]) -> dict[str, list[str]]:
    """Return the pairs of which too many datagrams were lost."""
    lost = {frozenset(pair) for pair, one in lost_packets(facts).items() if one.counts}
    return those(facts, lambda a, b: {a, b} in lost)


def lagging(facts: Mapping[str, Mesh], by: str) -> dict[str, list[str]]:
    """Return the pairs that look late, as measured in one way."""
    took = times(facts)
    right = usual(took)
    late = {pair for pair, one in took.items() if is_late(one, right)}
    return those(facts, lambda a, b: (a, b) in late and facts[a]["trips"][b]["by"] == by)


def those(facts: Mapping[str, Mesh], wanted: Callable[[str, str], bool]) -> dict[str, list[str]]:
    """Return by node those to whom it talked that are wanted."""
    found = {a: [b for b in fact["trips"] if wanted(a, b)] for a, fact in facts.items()}
    return {node: others for node, others in found.items() if others}


# ---- what looks late or lossy ----------------------------------------------------------------


def times(facts: Mapping[str, Mesh]) -> dict[Pair, Took]:
    """Return round trips of all pairs, the same both ways: they are of both ways together."""
    found: dict[Pair, list[list[int]]] = {}
    for a, fact in facts.items():
        for b, one in fact["trips"].items():
            if len(one["times_us"]) == len(Took._fields):
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
