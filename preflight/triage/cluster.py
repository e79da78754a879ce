"""From what logs say to what the cluster shows: which checks on which nodes, and what came of it.

Nothing is contacted here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from preflight.api import FAIL, PASS, SKIP
from preflight.catalog import Catalog
from preflight.errors import ConfigError
from preflight.inventory import Cluster
from preflight.judge import REACH
from preflight.node_names import is_address
from preflight.report.folding import folded, some
from preflight.report.model import Report, Result
from preflight.triage.model import Asked, Cause, Shown, Triage

ORDER = (
    *("network.firewall", "network.port", "network.ephemeral"),
    *("network.mtu", "network.path_mtu", "network.link"),
    *("network", "software", "launch", "rdma"),
)
"""Checks and groups in the order in which they are looked at; all others follow."""
PEERS = 3
"""Other nodes at least: of four, three are a majority against one that is odd."""
INVENTORY = "INVENTORY"
"""What stands in a command for a file that was not given."""
BELIEVED, DOUBTED = 0.7, 0.6
"""Of the doubt about a hypothesis that is gone when the cluster shows it; of its confidence that
is left when the cluster does not. It is more than half: what a log says was so, and may be gone."""


def ordered(checks: Iterable[str], known: Catalog) -> list[str]:
    """Return the checks that there are, each once, in the order in which they are looked at."""
    found = dict.fromkeys(check for check in checks if check in known)
    places = {name: place for place, name in enumerate(ORDER)}
    places |= {
        check: places.get(check.split(".")[0], len(ORDER)) for check in found if check not in places
    }
    return sorted(found, key=lambda check: places[check])


def command(answer: Triage, known: Catalog) -> str | None:
    """Return the command that checks the hypotheses, as far as logs tell; None: no check can."""
    checks = ordered((check for one in answer.hypotheses for check in one.checks), known)
    if not checks:
        return None
    names = dict.fromkeys(
        name for one in answer.hypotheses for name in (*one.nodes, *one.peers) if one.checks
    )
    return written(INVENTORY, checks, [name for name in names if not is_address(name)])


def written(source: str, checks: Sequence[str], nodes: Collection[str]) -> str:
    """Return the command that runs some checks on some nodes; none: on all."""
    on = f" --nodes '{folded(nodes)}'" if nodes else ""
    return f"preflight run {source} --only {','.join(checks)}{on}"


class Directory:
    """Knows the nodes of an inventory by what logs call them: names, short names, addresses."""

    def __init__(self, cluster: Cluster) -> None:
        self._names = [node.name for node in cluster.nodes]
        self._per_node = cluster.launch.gpus_per_node
        self._source = cluster.source
        self._known: dict[str, set[str]] = {}
        for node in cluster.nodes:
            for word in filter(None, (node.name, node.address)):
                for one in {word.lower(), short(word)}:
                    self._known.setdefault(one, set()).add(node.name)

    def find(self, word: str) -> str | None:
        """Return the node that a name or address of a log is; None: none, or more than one."""
        for one in (word.lower(), short(word)):
            if len(found := self._known.get(one, set())) == 1:
                return next(iter(found))
        return None

    def planned(self, rank: int) -> str | None:
        """Return where a rank runs by the launch plan; None: there is no such plan."""
        place = rank // self._per_node if self._per_node else len(self._names)
        return self._names[place] if place < len(self._names) else None

    @property
    def unplanned(self) -> str:
        """Say that nobody knows where ranks run."""
        return (
            "logs do not say on which nodes all of these ranks ran, so all nodes were asked: "
            f"launch.gpus_per_node in {self._source} would tell"
        )

    def without(self, names: Sequence[str]) -> str:
        """Say which nodes are not asked."""
        return (
            f"{some(names)}: blamed by these logs and not asked, as {self._source} has no such "
            "node, or several of that name"
        )

    def how(self, rank: int, node: str, called: str | None) -> str:
        """Say how a rank's node was found by the plan."""
        why = (
            f"logs call its node {called!r}, which {self._source} has not"
            if called
            else "no log names its node"
        )
        plan = f"{self._per_node} GPU{'s' * (self._per_node != 1)}"
        return f"rank {rank} is taken to be on {node}, by {plan} a node: {why}"


def short(name: str) -> str:
    """Return a host name without its domain, in small letters."""
    return name.lower() if is_address(name) else name.lower().partition(".")[0]


@dataclass(frozen=True)
class Target:
    """What is asked of whom."""

    checks: list[str]
    nodes: list[str]
    """All that are asked, in the inventory's order."""
    named: list[list[str]]
    """By hypothesis: those that it is about; none: all of them."""
    mapped: list[str] = field(default_factory=list)

    @property
    def suspects(self) -> list[str]:
        """Those that any hypothesis is about."""
        return [node for node in self.nodes if any(node in some for some in self.named)]


def target(answer: Triage, cluster: Cluster, known: Catalog) -> Target:
    """Return what is to be asked; no check, where none can tell.

    Raises:
        ConfigError: logs name nodes, and the cluster has none of them.
    """
    directory = Directory(cluster)
    notes: dict[str, None] = {}
    named = [where(one, answer, directory, notes) for one in answer.hypotheses]
    checks = ordered((check for one in answer.hypotheses for check in one.checks), known)
    names = [node.name for node in cluster.nodes]
    suspects = {node for some in named for node in some}
    met = {
        node for one in answer.hypotheses for peer in one.peers if (node := directory.find(peer))
    }
    called = [name for one in answer.hypotheses for name in one.nodes if one.checks]
    if called and not suspects | met:
        raise ConfigError(
            f"{cluster.source}: has no node called {called[0]!r}, nor any other that these logs "
            "blame; is it of another cluster? Name them in it as the logs do, or leave out -i"
        )
    unplaced = any(
        one.checks and not some for one, some in zip(answer.hypotheses, named, strict=True)
    )
    if lost := passed_over(answer, directory):
        notes[directory.without(lost)] = None
    if unplaced or not suspects:
        if any(one.ranks for one in answer.hypotheses):
            notes[directory.unplanned] = None
        return Target(checks, names, named, [*notes])
    wanted = {*suspects, *met, cluster.master}
    start = min(names.index(node) for node in suspects)
    for name in (*names[start:], *names[:start]):
        if len(wanted - suspects) >= max(PEERS, len(suspects) + 1):
            break
        wanted.add(name)
    return Target(checks, [name for name in names if name in wanted], named, [*notes])


def where(one: Cause, answer: Triage, directory: Directory, notes: dict[str, None]) -> list[str]:
    """Return the nodes of the inventory that a hypothesis is about; none: nobody can tell."""
    found = {name: directory.find(name) for name in one.nodes}
    called = {rank.rank: rank.node for rank in answer.ranks}
    nodes = dict.fromkeys(node for node in found.values() if node)
    for rank in one.ranks:
        name = called.get(rank)
        if name and directory.find(name):
            nodes[directory.find(name) or ""] = None
        elif node := directory.planned(rank):
            nodes[node] = None
            notes[directory.how(rank, node, name)] = None
    return [*nodes]


def passed_over(answer: Triage, directory: Directory) -> list[str]:
    """Return the blamed nodes that the inventory has not, where no rank of theirs is planned."""
    called = {rank.rank: rank.node for rank in answer.ranks}
    found: dict[str, None] = {}
    for one in answer.hypotheses:
        planned = {called.get(rank) for rank in one.ranks if directory.planned(rank)}
        for name in one.nodes if one.checks else ():
            if name not in planned and not directory.find(name):
                found[name] = None
    return [*found]


def with_cluster(
    answer: Triage, asked: Target, report: Report, known: Catalog, source: str
) -> Triage:
    """Return the answer with what the cluster shows, hypotheses in their new order."""
    found = [
        weighed(one, some or asked.nodes, report, known)
        for one, some in zip(answer.hypotheses, asked.named, strict=True)
    ]
    found.sort(key=lambda one: -one.confidence)
    unreached = [row.node for row in report.results if row.check == REACH and row.status != PASS]
    return answer.model_copy(
        update={
            "headline": found[0].summary,
            "hypotheses": found,
            "command": written(source, asked.checks, asked.nodes),
            "asked": Asked(
                nodes=asked.suspects,
                peers=[node for node in asked.nodes if node not in asked.suspects],
                mapped=asked.mapped,
                unreached=unreached,
            ),
        }
    )


def weighed(one: Cause, nodes: Sequence[str], report: Report, known: Catalog) -> Cause:
    """Return a hypothesis with what the cluster shows of it on its nodes."""
    rows = [row for row in report.results if row.check in one.checks]
    failing = [row for row in rows if row.status == FAIL and concerns(row, nodes, known)]
    if failing:
        confidence = one.confidence + (1 - one.confidence) * BELIEVED
        return told(one, "yes", confidence, causes_of(failing, report))
    here = [row for row in rows if row.node in nodes]
    own = [row for row in here if row.check == one.check]
    others_know = all(row.status in (PASS, SKIP) for row in here)
    if own and others_know and all(row.status == PASS for row in own):
        return told(one, "no", one.confidence * DOUBTED, grouped(here))
    if one.check is None:  # of the program, of which no check knows
        return one
    return told(one, "unknown", one.confidence, grouped(row for row in here if row.status != PASS))


def told(one: Cause, word: str, confidence: float, shown: Sequence[Shown]) -> Cause:
    """Return a hypothesis with what was told of it."""
    update = {"confirmed": word, "confidence": round(confidence, 2), "shown": [*shown]}
    return one.model_copy(update=update)


def concerns(row: Result, nodes: Collection[str], known: Catalog) -> bool:
    """Whether a result is about these nodes; what fails between nodes may stand at the other."""
    return row.node in nodes or known[row.check].check.exercise is not None


def causes_of(failing: Iterable[Result], report: Report) -> list[Shown]:
    """Return what the report says is behind failing results, each once."""
    found: dict[tuple[str, str], Shown] = {}
    for row in failing:
        for cause in report.causes:
            own = cause.check == row.check and row.node in cause.nodes
            if own or any((e.check, e.node) == (row.check, row.node) for e in cause.explains):
                found[cause.check, cause.summary] = Shown(
                    check=cause.check,
                    nodes=cause.nodes,
                    status=FAIL,
                    summary=cause.summary,
                    fix=cause.fix,
                )
    return [*found.values()]


def grouped(rows: Iterable[Result]) -> list[Shown]:
    """Return results of the same words as one."""
    found: dict[tuple[str, str, str], list[Result]] = {}
    for row in rows:
        words = row.summary if row.status != PASS else ""
        found.setdefault((row.check, row.status, words), []).append(row)
    return [
        Shown(
            check=check,
            nodes=[row.node for row in some],
            status=some[0].status,
            summary=some[0].summary,
            fix=None,
        )
        for (check, _, _), some in found.items()
    ]
