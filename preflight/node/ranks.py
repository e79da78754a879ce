"""What came of the ranks of a collective, and what is said of them. Pure.

Sent to nodes: stdlib only, Python 3.8.
"""

from __future__ import annotations

import re
import signal
from statistics import median
from typing import Any, Mapping, NamedTuple, Sequence, TypedDict

from preflight.api import Verdict, fail, skip, some, unknown
from preflight.node.nccl_log import Heard
from preflight.node.nvml import Occupant
from preflight.node.nvml import in_words as occupied
from preflight.node.pairs import Pair, Placed
from preflight.node.wires import Wires

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
PLACE = re.compile(
    r"^(Gloo connectFullMesh failed with )?\[(enforce fail at )?[^\]]*\]\s*"
    r"(\S+ [!=]= \S+\. )?(\S+ vs \S+\. )?"
)
"""Where in the sources of torch an error was raised, and by which condition."""
NO_THREADS = "Resource temporarily unavailable"
"""EAGAIN of pthread_create(3), by which Gloo starts its threads: no more may be, or no memory."""
CONSEQUENCE = re.compile(
    r"tim(ed|e) ?out|clos(ed|ure)|reset|refused|connect|broken pipe|peer|remote|no route",
    re.IGNORECASE,
)
"""In errors that tell of another rank, or of the way to it."""
BUSY = 0.7
"""Share of a CPU from which a rank may be what limits: our own choice, as of network.bandwidth."""
SLOWER = 2
"""Times slower than usual: dlrover's limit of a straggler."""
SENSELESS = "what its interpreter tells makes no sense"
NAME = "nccl-tests"
NO_RANK = "install in its training environment what the other nodes have, or see launch.python"


class Size(TypedDict):
    """What came of one size on the ranks of a node."""

    bytes: int
    count: int
    """How often it was done."""
    ms: float
    """Of the slowest rank; of each one the median."""
    busy: float
    """How much of a CPU it wanted meanwhile, 0 on GPUs."""
    wrong: int
    """Values that are."""
    ranks: list[float]
    """Milliseconds of each rank of the node."""


class Run(TypedDict):
    """What came of the ranks of a node; of several, of that which is worst."""

    at: str
    """The stage at which it came to no end; empty: all is done."""
    error: str
    killed: bool
    """Whether it was past its time."""
    signal: int
    """What ended it, if that was not us."""
    absent: list[str]
    """Nodes that did not come."""
    rank: int
    """Of all ranks, that which this is told of."""
    world: int
    """How many ranks there are."""
    sizes: list[Size]


class Peer(TypedDict):
    """How data came from another node, to all ranks together."""

    gbps: float
    receiving: float
    """How much of a CPU this rank wanted meanwhile, and while it sent as much back."""
    sending: float


class Met(Peer):
    """What came of an all_reduce with another node alone."""

    why: str
    """What is wrong; empty: nothing."""


class Engine(TypedDict):
    """What did the all_reduce."""

    name: str
    """`torch` or `nccl-tests`; empty: nothing was done."""
    version: str
    nccl: str
    """Of the NCCL that it has, empty where it has none."""
    command: str
    """How to repeat it by hand, with launch.env in the environment; torch, on all nodes at once."""
    why: str
    """Why it is not nccl-tests."""


class Ranked(Placed):
    """What the checks of collectives know of a node."""

    address: str
    interface: str
    link_gbps: float
    gpus: int
    occupants: list[Occupant]
    wanting: int
    cpus: int
    problem: str
    asked: str
    torch: str
    nccl: str
    why: str
    """Why there is no torch, and of what kind that is: see `collective.Ready`."""
    lack: str
    import_s: float
    engine: Engine
    devices: list[str]
    """For each rank: its GPUs, `cuda:0` and so on, else `cpu`; see `by_gloo`."""
    local: Run | None
    """Of its own GPUs."""
    run: Run | None
    peers: dict[str, Peer]
    pairs: dict[str, Met]
    """By other node."""
    untried: int
    """Pairs that were not tried."""
    wires: Wires | None
    """What NCCL's data goes through; None where Gloo carries it."""
    heard: Heard | None
    """What NCCL said of itself when it did it once more; None: there was no need."""


Facts = Mapping[str, Ranked]


class Came(NamedTuple):
    """What the ranks of a node told."""

    run: Run
    peers: dict[str, Peer]
    """By other node."""
    why: str
    """What is wrong; empty: nothing."""


def what_came(told: Sequence[Mapping[str, Any]], nodes: Mapping[int, str]) -> Came:
    """Return what came of the ranks of a node; whatever they told, it does not raise.

    Args:
        told: by its ranks; what has no `rank` is of all of them.
        nodes: of all ranks.
    """
    try:
        run = digest(told, nodes)
        return Came(run, together(told, nodes), "" if is_good(run) else in_words(run))
    except (AttributeError, KeyError, TypeError, ValueError):
        return what_came(nothing(SENSELESS), nodes)


def nothing(error: str) -> list[dict[str, Any]]:
    """Return what ranks would tell that did not come to be."""
    return [{"stage": "error", "at": "store", "error": error}]


def digest(told: Sequence[Mapping[str, Any]], nodes: Mapping[int, str]) -> Run:
    """Return what came of the ranks of a node, by what they told.

    Args:
        told: by its ranks; what has no `rank` is of all of them.
        nodes: of all ranks.

    Raises:
        ValueError: it makes no sense, as other errors of what is not there.
    """
    ranks = sorted({one["rank"] for one in told if "rank" in one}) or [0]
    runs = [of_one(rank, [o for o in told if o.get("rank", rank) == rank], nodes) for rank in ranks]
    worst = min(runs, key=lambda run: (not own(run), is_good(run), not run["at"]))
    together = [one_size(sizes) for sizes in zip(*(run["sizes"] for run in runs))]
    if not (worst["at"] or together):
        raise ValueError("all is done, and nothing is told of it")
    return Run(**{**worst, "sizes": together})


def of_one(rank: int, told: Sequence[Mapping[str, Any]], nodes: Mapping[int, str]) -> Run:
    """Return what came of one rank."""
    run = Run(at="store", error="", killed=False, signal=0, absent=[], rank=rank, world=0, sizes=[])
    run["world"] = len(nodes)
    for one in told:
        stage = one["stage"]
        if stage in NEXT:
            run["at"] = NEXT[stage]
        if stage == "size":
            kept = {key: one[key] for key in ("bytes", "count", "ms", "busy", "wrong")}
            run["sizes"].append(Size(ranks=[one["ms"]], **kept))  # type: ignore[typeddict-item]
        elif stage == "missing":
            run["absent"] = list(dict.fromkeys(nodes[other] for other in one["ranks"]))
        elif stage == "error":
            run["at"], run["error"] = one["at"], briefly(one["error"])
        elif stage == "killed":
            run["killed"] = True
        elif stage == "ended" and not run["killed"]:
            run["signal"] = one["signal"]
    return run


def together(told: Sequence[Mapping[str, Any]], nodes: Mapping[int, str]) -> dict[str, Peer]:
    """Return how data came from other nodes: to each rank its share, all at once."""
    found: dict[str, Peer] = {}
    for one in (one for one in told if one["stage"] == "peer"):
        peer = found.setdefault(nodes[one["other"]], Peer(gbps=0.0, receiving=0.0, sending=0.0))
        peer["gbps"] = round(peer["gbps"] + one["gbps"], 4)
        for way in ("receiving", "sending"):
            peer[way] = max(peer[way], one[way])
    return found


def one_size(sizes: Sequence[Size]) -> Size:
    """Return what came of one size on several ranks."""
    return Size(
        bytes=sizes[0]["bytes"],
        count=sizes[0]["count"],
        ms=max(one["ms"] for one in sizes),
        busy=max(one["busy"] for one in sizes),
        wrong=sum(one["wrong"] for one in sizes),
        ranks=[one["ms"] for one in sizes],
    )


def briefly(error: str) -> str:
    """Return an error of torch without the place in its sources and the condition there."""
    words = PLACE.sub("", error).strip()
    more = ": no more threads can be started (see ulimit -u and -v)" if words == NO_THREADS else ""
    return words[:LONGEST] + more


def is_good(run: Run | None) -> bool:
    """Whether all ranks came to their end, and all that they summed is right."""
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


def by_tests(engine: Engine) -> str:
    """Return nccl-tests and its NCCL in words, nothing where something else did it."""
    if engine["name"] != NAME:
        return ""
    return f"{NAME} {engine['version']}" + (f", NCCL {engine['nccl']}" if engine["nccl"] else "")


# ---- what is said of a node ------------------------------------------------------------------


def idle(node: str, facts: Facts) -> Verdict | None:
    """Return the verdict of a node none of whose ranks could take part, or None."""
    fact = facts[node]
    if fact["occupants"]:
        return skip(f"busy: {occupied(fact['occupants'][0])}")
    if fact["problem"]:
        return unknown(fact["problem"])
    if fact["lack"]:
        return lacking(fact, any(other["torch"] for other in facts.values()))
    return None


def lacking(fact: Ranked, others: bool) -> Verdict:
    """Return the verdict of a node whose interpreter has no torch, while others have it or not."""
    if fact["lack"] == "unknown":
        return unknown(fact["why"])
    if fact["lack"] == "closed" or (fact["lack"] == "none" and not others):
        return skip(fact["why"])
    return fail(f"its rank cannot start: {fact['why']}", fix=NO_RANK)


def by_gloo(facts: Facts) -> bool:
    """Whether data between these nodes is moved by CPUs: NCCL needs GPUs on all of them."""
    return any("cpu" in fact["devices"] for fact in facts.values())


# ---- who is slow -----------------------------------------------------------------------------


def usual_rate(rates: Mapping[Pair, float]) -> float:
    """Return the median of each node's best: half of all pairs may be those of one slow node."""
    best: dict[str, float] = {}
    for pair, rate in rates.items():
        for node in pair:
            best[node] = max(best.get(node, 0.0), rate)
    return median(best.values()) if best else 0.0


def quick(rates: Mapping[Pair, Peer], facts: Facts) -> tuple[dict[Pair, bool], float]:
    """Return of each pair whether data comes as fast as usual, and how fast that is, in Gb/s.

    What is slow because a CPU is, or may be so because others load it, is left out.

    Args:
        rates: from the first of a pair to the second.
        facts: of the nodes.
    """
    usual = usual_rate({pair: one["gbps"] for pair, one in rates.items()})
    found = {pair: one["gbps"] * SLOWER >= usual for pair, one in rates.items()}
    told = {pair: fast for pair, fast in found.items() if fast or not is_bound(pair, rates, facts)}
    return told, usual


def uneven(facts: Facts) -> bool:
    """Whether data from some nodes was slow when all did it."""
    rates = {(a, b): one for b, fact in facts.items() for a, one in fact["peers"].items()}
    return not all(quick(rates, facts)[0].values())


def is_bound(pair: Pair, rates: Mapping[Pair, Peer], facts: Facts) -> bool:
    """Whether the CPU may be what limits what goes from the first of a pair to the second."""
    back = rates.get((pair[1], pair[0]))
    most = max(rates[pair]["receiving"], back["sending"] if back else 0.0)
    return most >= BUSY or bool({*pair} & set(loaded(facts)))


def loaded(facts: Facts) -> list[str]:
    """Return the nodes of which others want more CPUs than there are, where these move the data."""
    found = [node for node, fact in facts.items() if fact["wanting"] > fact["cpus"] > 0]
    return found if by_gloo(facts) else []


def load(facts: Facts) -> str:
    """Return in words that speed is not judged for want of CPUs, nothing where there is none."""
    return f"; how fast says little, as {burden(facts)}" if loaded(facts) else ""


def burden(facts: Facts) -> str:
    """Return in words which nodes have no CPU to spare; there are some."""
    found = loaded(facts)
    most = max((facts[node] for node in found), key=lambda fact: fact["wanting"])
    count = f"{most['wanting']} tasks want {most['cpus']} CPUs"
    return f"others load {some(found)} ({count})"
