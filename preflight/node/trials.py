"""All_reduce over groups of nodes: each alone, all of them, and two at a time.

With nccl-tests where that can be had (`nccl_trials.py`); two at a time always with torch. What
nodes do for it is in `collective.py`, what is said of it in `ranks.py`; here is who does it with
whom.
Sent to nodes: stdlib only, Python 3.8.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Iterable, Mapping, Sequence

from preflight.api import Fleet, Reply, Want
from preflight.node.busbw import doubtful, is_bad
from preflight.node.by_hand import commands
from preflight.node.collective import HEARD, IMPORT_S, SLACK_S, hold, look, order
from preflight.node.launch import wanted
from preflight.node.mesh import message
from preflight.node.nccl_log import LOUD
from preflight.node.nccl_trials import TORCH, NcclTests
from preflight.node.pairs import Pair, disjoint, some_rounds
from preflight.node.ranks import (
    NAME,
    Engine,
    Met,
    Peer,
    Ranked,
    is_good,
    nothing,
    own,
    quick,
    uneven,
    what_came,
)
from preflight.node.software import asked
from preflight.node.wires import wires

SIZES = (4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20)
"""Bytes: below, latency is what counts; gradients are sent in buckets of 25 MiB (DDP)."""
LARGER = (256 << 20, 1 << 30)
"""On GPUs: fast links are not full below."""
ALL = {
    "wait_s": 8.0,  # torch's own limit to meet and connect: all have imported it, so 0.1 s will do
    "join_s": 10.0,  # then the rank is killed: torch does not keep its limit in several cases
    "limit_s": 30.0,  # for the rest, as nothing below goes on for longer
    "spend_s": 3.0,  # in which sizes are repeated
    "go_on_s": 10.0,  # no size is begun that would end later: 64 MiB at 200 Mb/s take 4 s
    "exchange_s": 6.0,  # no transfer between two ranks begins later
    "carry_s": 0.1,  # for one such transfer at the rate of the all_reduce
    "sizes": SIZES,
    "most": 10,  # repetitions: the median counts
}
TWO = {**ALL, "wait_s": 3.0, "join_s": 4.0, "limit_s": 5.0, "sizes": SIZES[:3:2], "most": 0}
"""Of pairs: whether it works is asked, a SYN that is lost goes out again after 1 s."""
AGAIN = {**ALL, "sizes": (1 << 20, 32 << 20), "most": 0, "loud": LOUD}
"""To hear what NCCL says: since 2.22 it connects a ring no earlier than data goes through it."""
ON_GPUS = {"wait_s": 40.0, "join_s": 45.0}
"""CUDA starts in seconds for each process, and NCCL connects hundreds of ranks in tens of them."""
PAIRS_S = 40.0
"""No round of pairs begins later."""
GIVEN_UP = 3
"""Nodes with which one has failed, and none with which it has not, after which it is at fault, and
its other pairs would but take time."""
Told = Mapping[str, Sequence[Mapping[str, Any]]]


def devices(gpus: int, most: int | None) -> list[str]:
    """Return the devices of the ranks of a node: each of its GPUs, else the CPU.

    Args:
        gpus: that torch may use, and of which NVML tells who else does.
        most: launch.gpus_per_node.
    """
    return [f"cuda:{place}" for place in range(min(gpus, most or gpus))] or ["cpu"]


def all_together(
    fleet: Fleet, want: Want, seating: Callable[[int, int | None], list[str]] = devices
) -> dict[str, Ranked]:
    """Return what came of it by node: the exercise of all checks of collectives.

    Args:
        fleet: the nodes.
        want: of the inventory.
        seating: gives the devices of a node.
    """
    looked = fleet.map(look, dict.fromkeys(fleet.nodes, wanted(want)))
    facts = {node: begun(reply) for node, reply in looked.items()}
    free = [node for node, fact in facts.items() if not fact["occupants"] and not fact["problem"]]
    if len(free) < 2 and not any(facts[node]["gpus"] for node in free):
        return facts
    tests = NcclTests(fleet, want, facts, free)
    why = tests.go()
    if why and want.get("launch.all_reduce.engine") == NAME:
        for node in free:
            facts[node]["problem"] = f"{NAME}: {why}"
        return facts
    some_ran = {node: facts[node] for node in free if facts[node]["run"]}
    tell_wires(fleet, want, facts, free if not why else ())
    if not why:
        tests.overhear(doubtful({node: facts[node] for node in free}, want))
    if why or fleet.level == "deep" or is_bad(some_ran, want):
        by_torch(fleet, want, facts, free, why, seating)
    return facts


def tell_wires(fleet: Fleet, want: Want, facts: Mapping[str, Ranked], nodes: Iterable[str]) -> None:
    """Say of nodes what NCCL's data goes through there."""
    for node, reply in fleet.map(wires, dict.fromkeys(nodes, wanted(want))).items():
        facts[node]["wires"] = reply.value


def by_torch(
    fleet: Fleet,
    want: Want,
    facts: dict[str, Ranked],
    free: Sequence[str],
    why: str,
    seating: Callable[[int, int | None], list[str]],
) -> None:
    """Do it with torch, or what nccl-tests does not.

    Args:
        fleet: the nodes.
        want: of the inventory.
        facts: by node. What is found goes into them.
        free: those that may take part.
        why: not nccl-tests; empty: it did what it can.
        seating: gives the devices of a node.
    """
    launch = {**asked(want)[0], "env": want.get("launch.env", {})}
    with fleet.start_all(hold, dict.fromkeys(free, (launch,)), IMPORT_S + SLACK_S) as running:
        doors, gpus = {}, {}
        for node, one in running.items():
            if isinstance(one, Reply) and one.problem:
                facts[node]["problem"] = message(one)
                continue
            ready = one.value if isinstance(one, Reply) else one.ready
            for key in ("asked", "torch", "nccl", "why", "lack"):
                facts[node][key] = ready[key]
            facts[node]["import_s"] = ready["seconds"]
            if not isinstance(one, Reply):
                doors[node] = ready["door"]
                gpus[node] = min(ready["gpus"], facts[node]["gpus"])
        if not why:
            able = [node for node in doors if len(facts[node]["devices"]) <= gpus[node]]
            Trials(fleet, want, facts, {node: doors[node] for node in able}).pairs()
            return
        for node in doors:
            facts[node]["devices"] = seating(gpus[node], want.get("launch.gpus_per_node"))
        trials = Trials(fleet, want, facts, doors)
        trials.tell(why)
        on_gpus = [node for node in doors if "cpu" not in facts[node]["devices"]]
        tell_wires(fleet, want, facts, on_gpus)
        trials.go()
        trials.overhear(doubtful({node: facts[node] for node in doors}, want))


def surroundings(want: Want) -> tuple[dict[str, Any], ...]:
    """Return what of the launch the facts depend on."""
    keys = ("master", "python", "workdir", "gpus_per_node", "all_reduce")
    return ({key: want.get(f"launch.{key}") for key in keys}, *wanted(want))


def begun(reply: Reply) -> Ranked:
    """Return the facts of a node before anything was done there."""
    texts = ("address", "interface", "subnet", "switch", "problem")
    place: dict[str, Any] = dict.fromkeys(texts, "")
    none = {"link_gbps": 0.0, "gpus": 0, "occupants": [], "wanting": 0, "cpus": 0}
    place.update(reply.value or none)
    more = dict.fromkeys(("asked", "torch", "nccl", "why", "lack"), "")
    found = {"import_s": 0.0, "devices": [], "local": None, "run": None, "peers": {}, "pairs": {}}
    problem = message(reply) or place["problem"]
    engine = Engine(name="", version="", nccl="", command="", why="")
    found.update(untried=0, wires=None, heard=None, engine=engine, problem=problem)
    return Ranked(**{**place, **more, **found})  # type: ignore[typeddict-item]


class Trials:
    """Groups of nodes that do it together.

    Args:
        fleet: the nodes.
        want: of the inventory.
        facts: by node; those of `doors` know their devices. What is found goes into them.
        doors: of the interpreters that wait for orders, by node.
    """

    def __init__(
        self, fleet: Fleet, want: Want, facts: dict[str, Ranked], doors: Mapping[str, str]
    ) -> None:
        self.fleet, self.facts, self.doors = fleet, facts, doors
        self.port, self.env = want.launch["port"], want.get("launch.env", {})
        master = want.launch.get("master", "")
        self.nodes = sorted(doors, key=lambda node: node != master)  # it comes first

    def tell(self, why: str) -> None:
        """Say of all nodes that torch does it, and why not nccl-tests."""
        by_hand = commands(self.devices(self.nodes), self.facts, self.port, self.env)
        for node, command in by_hand.items():
            fact = self.facts[node]
            nccl = "" if "cpu" in fact["devices"] else fact["nccl"]
            fact["engine"] = Engine(
                name=TORCH, version=fact["torch"], nccl=nccl, command=command, why=why
            )

    def go(self) -> None:
        """Do it on each, with all, and if that is bad with two at a time.

        Once more with all if those are good.
        """
        self.each()
        if len(self.nodes) < 2:
            return
        self.all()
        has_failed = not all(is_good(self.facts[node]["run"]) for node in self.nodes)
        is_slow = uneven({node: self.facts[node] for node in self.nodes})
        if not (has_failed or is_slow or self.fleet.level == "deep"):
            return
        self.pairs()
        words = [met["why"] for node in self.nodes for met in self.facts[node]["pairs"].values()]
        selves = any(own(self.facts[node]["run"]) for node in self.nodes)
        if has_failed and words and not any(words) and not selves:
            self.all()

    def each(self) -> None:
        """Do it on each node alone, of those that have several GPUs."""
        groups = [[node] for node in self.nodes if len(self.facts[node]["devices"]) > 1]
        told = self.told(groups, ALL, meet=False)
        for (node,) in groups:
            self.facts[node]["local"] = what_came(told[node], self.seats([node])).run

    def all(self) -> None:
        """Do it with all nodes."""
        seats, told = self.seats(self.nodes), self.told([self.nodes], ALL)
        for node in self.nodes:
            came = what_came(told[node], seats)
            self.facts[node]["run"], self.facts[node]["peers"] = came.run, came.peers

    def overhear(self, groups: Sequence[Sequence[str]]) -> None:
        """Do it once more with groups whose NCCL is to say what it does."""
        told = self.told(groups, AGAIN, meet=False)
        for node in (node for group in groups for node in group):
            heard = (one[HEARD] for one in told[node] if HEARD in one)
            self.facts[node]["heard"] = next(heard, None)

    def pairs(self) -> None:
        """Do it with two at a time, in rounds of disjoint pairs; what is bad once more."""
        until = time.monotonic() + PAIRS_S
        for pairs in some_rounds(self.nodes):
            is_late = time.monotonic() > until
            left_out = [pair for pair in pairs if is_late or any(map(self.is_out, pair))]
            for node in (node for pair in left_out for node in pair):
                self.facts[node]["untried"] += 1
            self.meet([pair for pair in pairs if pair not in left_out])
        for pairs in disjoint(self.bad()):
            if time.monotonic() < until:
                self.meet([pair for pair in pairs if not any(map(self.is_out, pair))])

    def is_out(self, node: str) -> bool:
        """Whether a node has failed with several others, and with none it has not."""
        words = [met["why"] for met in self.facts[node]["pairs"].values()]
        return len(words) >= GIVEN_UP and all(words)

    def bad(self) -> list[Pair]:
        """Return the pairs that failed or were slow, in one direction."""
        met = {(a, b): one for b in self.nodes for a, one in self.facts[b]["pairs"].items()}
        fast, _ = quick({pair: one for pair, one in met.items() if not one["why"]}, self.facts)
        bad = (pair for pair, one in met.items() if one["why"] or not fast.get(pair, True))
        return sorted({(min(pair), max(pair)) for pair in bad})

    def meet(self, pairs: Sequence[Pair]) -> None:
        """Do it with disjoint pairs; of what was done before, the better counts."""
        told = self.told(pairs, TWO)
        for pair in pairs:
            seats = self.seats(pair)
            came = {node: what_came(told[node], seats) for node in pair}
            first = sorted(came.values(), key=lambda one: (not own(one.run), not one.why))
            for node, other in (pair, pair[::-1]):
                known = self.facts[node]["pairs"]
                none = Peer(gbps=0.0, receiving=0.0, sending=0.0)
                found = Met(**came[node].peers.get(other, none), why=first[0].why)
                known[other] = max(known.get(other, found), found, key=better)

    def devices(self, group: Sequence[str]) -> dict[str, list[str]]:
        """Return the devices of each node in a group; the CPUs where only some have GPUs."""
        found = {node: self.facts[node]["devices"] for node in group}
        kinds = {device == "cpu" for devices in found.values() for device in devices}
        return found if len(kinds) == 1 else {node: ["cpu"] for node in group}

    def seats(self, group: Sequence[str]) -> dict[int, str]:
        """Return the nodes of all ranks of a group."""
        places = [node for node, devices in self.devices(group).items() for _ in devices]
        return dict(enumerate(places))

    def told(
        self, groups: Sequence[Sequence[str]], plan: Mapping[str, Any], meet: bool = True
    ) -> dict[str, list[dict[str, Any]]]:
        """Return by node what its ranks tell; those of a group meet at the first node of it.

        Args:
            groups: disjoint.
            plan: limits and sizes.
            meet: whether any two of a group send to each other, besides the all_reduce.
        """
        there = {node: found for group in groups for node, found in self.devices(group).items()}
        if any("cpu" not in found for found in there.values()):
            plan = {**plan, **ON_GPUS}
            plan["sizes"] += LARGER if plan["most"] else ()
        limit = plan["join_s"] + plan["limit_s"] + SLACK_S
        here = {**plan, "task": "store", "ranks": [0], "port": 0, "besides": self.port}
        here["limit_s"] = limit
        stores = self.done({group[0]: here for group in groups}, limit)
        orders = {}
        found: dict[str, list[dict[str, Any]]] = {}
        for group in groups:
            reply = stores[group[0]]
            ports = [one["port"] for one in reply.value or () if one.get("port")]
            seats, rounds = self.seats(group), meetings(group) if meet else {}
            for node in group:
                found[node] = nothing(no_store(group[0], reply))
                if ports:
                    orders[node] = {
                        **plan,
                        "task": "reduce",
                        "host": self.facts[group[0]]["address"],
                        "port": ports[0],
                        "ranks": ranks_of(node, seats),
                        "devices": there[node],
                        "world": len(seats),
                        "interface": self.facts[node]["interface"],
                        "meets": met_by(node, rounds.get(node, ()), seats),
                    }
        for node, reply in self.done(orders, limit).items():
            found[node] = reply.value or nothing(message(reply) or "its interpreter has ended")
        return found

    def done(self, orders: Mapping[str, Mapping[str, Any]], limit_s: float) -> dict[str, Reply]:
        """Return what came of orders, given to all of these nodes before any of them is awaited."""
        args = {node: (self.doors[node], one) for node, one in orders.items()}
        with self.fleet.start_all(order, args, limit_s + 2 * SLACK_S) as running:
            return {n: one if isinstance(one, Reply) else one.stop() for n, one in running.items()}


def meetings(group: Sequence[str]) -> dict[str, list[str | None]]:
    """Return by node whom it meets, round by round."""
    found: dict[str, list[str | None]] = {node: [] for node in group}
    for pairs in some_rounds(group):
        other = {**dict(pairs), **{b: a for a, b in pairs}}
        for node, others in found.items():
            others.append(other.get(node))
    return found


def ranks_of(node: str, seats: Mapping[int, str]) -> list[int]:
    """Return the ranks on a node."""
    return [rank for rank, there in seats.items() if there == node]


def met_by(
    node: str, others: Iterable[str | None], seats: Mapping[int, str]
) -> list[list[int | None]]:
    """Return for each rank of a node whom it meets: of other nodes that in the same place."""
    mine = ranks_of(node, seats)
    theirs = [ranks_of(other, seats) if other else [] for other in others]
    return [[dict(enumerate(ranks)).get(place) for ranks in theirs] for place in range(len(mine))]


def better(met: Met) -> tuple[bool, float]:
    """Return what the better of two trials has more of."""
    return not met["why"], met["gbps"]


def no_store(node: str, reply: Reply) -> str:
    """Return why there was no place to meet."""
    errors = [str(one["error"]) for one in reply.value or () if one.get("error")]
    return f"no port to meet at on {node}: {message(reply) or ''.join(errors) or 'no answer'}"
