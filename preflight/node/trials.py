"""All_reduce with torch over groups of nodes: over all of them, and if that is bad over pairs.

What nodes do for it is in `collective.py`; here is who does it with whom, and what came of it.
Sent to nodes: stdlib only, Python 3.8.
"""

from __future__ import annotations

import re
import signal
import time
from typing import Any, Mapping, Sequence, TypedDict

from preflight.api import Fleet, Reply, Want, some
from preflight.node.collective import IMPORT_S, SLACK_S, hold, look, order
from preflight.node.launch import wanted
from preflight.node.mesh import message
from preflight.node.nvml import Occupant
from preflight.node.pairs import some_rounds
from preflight.node.software import asked

SIZES = (4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20)
"""Bytes: below, latency is what counts; gradients are sent in buckets of 25 MiB (DDP)."""
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
PAIRS_S = 40.0
"""No round of pairs begins later."""
WORDS = {
    "store": "meeting at the master",
    "group": "connecting to each other",
    "all_reduce": "in the all_reduce",
    "exchange": "sending to each other",
    "end": "coming to the end",
}
"""What ranks do at each stage."""
NEXT = {"met": "group", "joined": "all_reduce", "peer": "end", "done": ""}
"""At which stage a rank is once it has told something."""
LONGEST = 200
"""Characters of an error."""
NO_THREADS = "Resource temporarily unavailable"
"""EAGAIN of pthread_create(3), by which Gloo starts its threads: no more may be, or no memory."""
CONSEQUENCE = re.compile(
    r"tim(ed|e) ?out|clos(ed|ure)|reset|refused|connect|broken pipe|peer|remote|no route",
    re.IGNORECASE,
)
"""In errors that tell of another rank, or of the way to it."""


class Run(TypedDict):
    """What came of a rank."""

    at: str
    """The stage at which it came to no end; empty: all is done."""
    error: str
    killed: bool
    """Whether it was past its time."""
    signal: int
    """What ended it, if that was not us."""
    absent: list[str]
    world: int
    """How many ranks there are."""
    sizes: list[dict[str, Any]]


class Peer(TypedDict):
    """How data came from another node."""

    gbps: float
    receiving: float
    """How much of a CPU this rank wanted meanwhile, and while it sent as much back."""
    sending: float


class Ranked(TypedDict):
    """What collective.all_reduce knows of a node."""

    address: str
    interface: str
    link_gbps: float
    occupants: list[Occupant]
    problem: str
    asked: str
    torch: str
    why: str
    """Why there is no torch, and of what kind that is: see `collective.Ready`."""
    lack: str
    import_s: float
    run: Run | None
    peers: dict[str, Peer]
    pairs: dict[str, str]
    """By other node what is wrong with an all_reduce of both; empty: nothing."""
    untried: int
    """Pairs for which there was no time."""


def all_together(fleet: Fleet, want: Want) -> dict[str, Ranked]:
    """Return what came of it by node: the exercise of collective.all_reduce."""
    looked = fleet.map(look, dict.fromkeys(fleet.nodes, wanted(want)))
    facts = {node: begun(reply) for node, reply in looked.items()}
    free = [node for node, fact in facts.items() if not fact["occupants"] and not fact["problem"]]
    if len(free) < 2:
        return facts
    launch = {**asked(want)[0], "env": want.get("launch.env", {})}
    with fleet.start_all(hold, dict.fromkeys(free, (launch,)), IMPORT_S + SLACK_S) as running:
        doors = {}
        for node, one in running.items():
            if isinstance(one, Reply) and one.problem:
                facts[node]["problem"] = message(one)
                continue
            ready = one.value if isinstance(one, Reply) else one.ready
            for key in ("asked", "torch", "why", "lack"):
                facts[node][key] = ready[key]
            facts[node]["import_s"] = ready["seconds"]
            if not isinstance(one, Reply):
                doors[node] = ready["door"]
        if len(doors) > 1:
            Trials(fleet, want, facts, doors).go()
    return facts


def begun(reply: Reply) -> Ranked:
    """Return the facts of a node before anything was done there."""
    place = reply.value or {"address": "", "interface": "", "link_gbps": 0.0, "occupants": []}
    problem = message(reply) or place["problem"]
    more = {"asked": "", "torch": "", "why": "", "lack": "", "import_s": 0.0, "run": None}
    none: dict[str, Any] = {"peers": {}, "pairs": {}, "untried": 0, "problem": problem}
    return Ranked(**{**place, **more, **none})  # type: ignore[typeddict-item]


class Trials:
    """Groups of nodes that do it together."""

    def __init__(
        self, fleet: Fleet, want: Want, facts: dict[str, Ranked], doors: Mapping[str, str]
    ) -> None:
        self.fleet, self.facts, self.doors = fleet, facts, doors
        self.port = want.launch["port"]
        master = want.launch.get("master", "")
        self.nodes = sorted(doors, key=lambda node: node != master)  # it comes first

    def go(self) -> None:
        """Do it with all; if that is bad, with two at a time, and once more if those are good."""
        self.all()
        if all(is_good(self.facts[node]["run"]) for node in self.nodes):
            return
        self.pairs()
        words = [word for node in self.nodes for word in self.facts[node]["pairs"].values()]
        if words and not any(words) and not any(own(self.facts[n]["run"]) for n in self.nodes):
            self.all()

    def all(self) -> None:
        """Do it with all nodes."""
        meets: dict[str, list[int | None]] = {node: [] for node in self.nodes}
        for pairs in some_rounds(self.nodes):
            other = {**dict(pairs), **{b: a for a, b in pairs}}
            for node, ranks in meets.items():
                there = other.get(node)
                ranks.append(None if there is None else self.nodes.index(there))
        told = self.told([self.nodes], ALL, meets)
        for node in self.nodes:
            self.facts[node]["run"] = digest(told[node], self.nodes)
            self.facts[node]["peers"] = {
                self.nodes[one["rank"]]: Peer(
                    gbps=one["gbps"], receiving=one["receiving"], sending=one["sending"]
                )
                for one in told[node]
                if one["stage"] == "peer"
            }

    def pairs(self) -> None:
        """Do it with two at a time, in rounds of disjoint pairs."""
        until = time.monotonic() + PAIRS_S
        for pairs in some_rounds(self.nodes):
            if time.monotonic() > until:
                for node in {node for pair in pairs for node in pair}:
                    self.facts[node]["untried"] += 1
                continue
            told = self.told(pairs, TWO, {})
            for pair in pairs:
                runs = [digest(told[node], pair) for node in pair]
                why = next((in_words(run) for run in runs if own(run)), "") or next(
                    (in_words(run) for run in runs if not is_good(run)), ""
                )
                for node, other in (pair, pair[::-1]):
                    self.facts[node]["pairs"][other] = why

    def told(
        self,
        groups: Sequence[Sequence[str]],
        plan: Mapping[str, Any],
        meets: Mapping[str, Sequence[int | None]],
    ) -> dict[str, list[dict[str, Any]]]:
        """Return by node what the ranks of disjoint groups tell; they meet at the first of each."""
        limit = plan["join_s"] + plan["limit_s"] + SLACK_S
        here = {**plan, "task": "store", "port": 0, "besides": self.port, "limit_s": limit}
        stores = self.done({group[0]: here for group in groups}, limit)
        orders = {}
        found: dict[str, list[dict[str, Any]]] = {}
        for group in groups:
            reply = stores[group[0]]
            ports = [one["port"] for one in reply.value or () if one["stage"] == "listening"]
            for rank, node in enumerate(group):
                found[node] = nothing(no_store(group[0], reply))
                if ports:
                    orders[node] = {
                        **plan,
                        "task": "reduce",
                        "host": self.facts[group[0]]["address"],
                        "port": ports[0],
                        "rank": rank,
                        "world": len(group),
                        "interface": self.facts[node]["interface"],
                        "meets": meets.get(node, []),
                    }
        for node, reply in self.done(orders, limit).items():
            found[node] = reply.value or nothing(message(reply) or "its interpreter has ended")
        return found

    def done(self, orders: Mapping[str, Mapping[str, Any]], limit_s: float) -> dict[str, Reply]:
        """Return what came of orders, given to all of these nodes before any of them is awaited."""
        args = {node: (self.doors[node], one) for node, one in orders.items()}
        with self.fleet.start_all(order, args, limit_s + 2 * SLACK_S) as running:
            return {n: one if isinstance(one, Reply) else one.stop() for n, one in running.items()}


def nothing(error: str) -> list[dict[str, Any]]:
    """Return what a rank would tell that did not come to be."""
    return [{"stage": "error", "at": "store", "error": error}]


def no_store(node: str, reply: Reply) -> str:
    """Return why there was no place to meet."""
    errors = [one["error"] for one in reply.value or () if one["stage"] == "error"]
    return f"no port to meet at on {node}: {message(reply) or ''.join(errors) or 'no answer'}"


def digest(told: Sequence[Mapping[str, Any]], nodes: Sequence[str]) -> Run:
    """Return what came of a rank, by what it told."""
    run = Run(at="store", error="", killed=False, signal=0, absent=[], world=len(nodes), sizes=[])
    for one in told:
        stage = one["stage"]
        if stage in NEXT:
            run["at"] = NEXT[stage]
        if stage == "size":
            run["sizes"].append({k: one[k] for k in ("bytes", "count", "ms", "busy", "wrong")})
        elif stage == "missing":
            run["absent"] = [nodes[rank] for rank in one["ranks"]]
        elif stage == "error":
            run["at"], run["error"] = one["at"], briefly(one["error"])
        elif stage == "killed":
            run["killed"] = True
        elif stage == "ended" and not run["killed"]:
            run["signal"] = one["signal"]
    return run


def briefly(error: str) -> str:
    """Return an error of torch without the place in its sources and the condition there."""
    words = re.sub(r"^\[(enforce fail at )?[^\]]*\]\s*(\S+ [!=]= \S+\. )?", "", error).strip()
    more = ": no more threads can be started (see ulimit -u and -v)" if words == NO_THREADS else ""
    return words[:LONGEST] + more


def is_good(run: Run | None) -> bool:
    """Whether a rank came to its end, and all that it summed is right."""
    return run is not None and not run["at"] and not wrong(run)


def wrong(run: Run) -> int:
    """Return how many values are wrong."""
    return sum(one["wrong"] for one in run["sizes"])


def own(run: Run | None) -> bool:
    """Whether a rank failed by itself, and not for what another one did."""
    if run is None or not run["at"] or run["killed"]:
        return False
    return bool(run["signal"] or (run["error"] and not CONSEQUENCE.search(run["error"])))


def in_words(run: Run) -> str:
    """Return what came of a rank that is not good."""
    if run["signal"]:
        name = signal.Signals(run["signal"]).name
        more = ", as the kernel does when memory runs out" if name == "SIGKILL" else ""
        return f"its rank was ended by {name}{more}"
    if run["at"] and run["absent"]:
        return f"{some(run['absent'])} did not come to where ranks meet"
    if run["error"]:
        return f"{WORDS[run['at']]}: {run['error']}"
    if run["at"]:
        return f"{WORDS[run['at']]}: no end, cut off"
    return f"{wrong(run)} wrong values"
