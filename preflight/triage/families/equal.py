"""What must be equal on all nodes: versions, and NCCL's settings; and settings that fit none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from preflight.triage.family import Finding
from preflight.triage.launched import cause
from preflight.triage.rule import Kind, Rule
from preflight.triage.story import Seen, Story
from preflight.triage.words import counted

ENV = "launch.env"
ALIKE = (
    *("ALGO", "PROTO", "NET", "NET_PLUGIN", "IB_DISABLE", "P2P_DISABLE", "SHM_DISABLE"),
    *("BUFFSIZE", "MIN_NCHANNELS", "MAX_NCHANNELS", "NTHREADS", "CROSS_NIC", "COLLNET_ENABLE"),
    *("NVLS_ENABLE", "CUMEM_ENABLE", "MNNVL_ENABLE", "TOPO_FILE", "GRAPH_FILE"),
)
"""Settings that make ranks choose another way through the network, or another algorithm."""
NO_MATCH = cause(
    r"\bVersion mismatch: The cluster was started with:",
    "software.python",
    "a node runs another Python or Ray than Ray's first node: it was refused",
    "the same image or virtual environment on all nodes",
    "Ray _private/worker.py; a mere `patch version mismatch` is a warning of newer ones",
)
VERSION = Rule(
    r"^\s{2,8}(?:Ray: (?P<ray>\d[\w.+-]{2,30})|Python: (?P<python>\d\.\d{1,3}\.\d{1,3}))\s*$",
    Kind.FACT,
    source="Ray, below that line: first the cluster's, then the node's",
)


def setting(told: Mapping[str, str]) -> Mapping[str, str]:
    """Return a setting of NCCL under its own name."""
    return {"name": "", "value": "", f"NCCL_{told['name']}": told["value"].rstrip(".")}


NCCL_SETTING = Rule(
    r"NCCL INFO NCCL_(?P<name>" + "|".join(ALIKE) + r") set by environment to (?P<value>\S{1,120})",
    Kind.FACT,
    refine=setting,
    source="NCCL misc/param.cc: of the environment, and of /etc/nccl.conf and ~/.nccl.conf",
)


def version_words(told: Mapping[str, str]) -> Mapping[str, str]:
    """Return NCCL's numbers as versions: 22203 is 2.22.3."""
    return {key: words(told[key]) for key in ("one", "other")}


def words(number: str) -> str:
    """Return a number of NCCL_VERSION_CODE as a version."""
    code = int(number)
    return f"{code // 10000}.{code // 100 % 100}.{code % 100}"


RULES = (
    NO_MATCH,
    VERSION,
    NCCL_SETTING,
    cause(
        r"NCCL WARN (?:XML (?:Import|Export) Channel : (?:dev|rank) -?\w{1,20} not found"
        r"|XML (?:Parse|Mismatch|Graph has wrong|Topology has wrong))",
        ENV,
        "NCCL of {who} was given a topology or graph file that is not of this machine",
        "unset NCCL_TOPO_FILE and NCCL_GRAPH_FILE, also in /etc/nccl.conf and ~/.nccl.conf, or "
        "name that of this kind of machine",
        "NCCL graph/xml.cc, graph/search.cc",
        confidence=0.88,
        checks=("gpu.topology",),
        confirm="grep . /etc/nccl.conf ~/.nccl.conf on each node",
    ),
    Rule(
        r"Mismatched NCCL version detected : rank \d{1,7} version (?P<one>\d{4,6}) rank \d{1,7} "
        r"version (?P<other>\d{4,6})",
        Kind.CAUSE,
        cause="software.nccl",
        says="ranks use different NCCL, {one} and {other}",
        confidence=0.96,
        fix="one NCCL on all nodes: python -c 'import torch; print(torch.cuda.nccl.version())', "
        "LD_LIBRARY_PATH, LD_PRELOAD",
        confirm="preflight run --only software.nccl",
        stage="bootstrap",
        refine=version_words,
        source="NCCL init.cc since 2.23",
    ),
    cause(
        r"NCCL version mismatch with remote peer",
        "software.nccl",
        "ranks use different NCCL",
        "one NCCL on all nodes",
        "NCCL ras since 2.24",
    ),
    cause(
        r"Python minor versions differ between client and server: .{0,120}",
        "software.python",
        "a client runs another Python than Ray's cluster",
        "the same image or virtual environment everywhere",
        "Ray client",
    ),
)


def find(story: Story) -> Iterator[Finding]:
    """Yield what only several lines tell."""
    yield from refused_by_ray(story)
    if not went_wrong(story):
        return
    yield from versions(story, "nccl_version", "software.nccl", "NCCL")
    yield from versions(story, "torch_version", "software.pytorch", "torch")
    yield from settings(story)


def went_wrong(story: Story) -> bool:
    """Whether anything did, or a rank has not ended its set-up."""
    if any(True for _ in story.events(Kind.CONSEQUENCE, Kind.SYMPTOM, Kind.CAUSE)):
        return True
    done = story.stated("complete")
    return any(who not in done for who in story.stated("init"))


def refused_by_ray(story: Story) -> Iterator[Finding]:
    """Yield which versions Ray found, which stand below the line that says so."""
    for line in story.of_rule(NO_MATCH):
        below = [one for one in story.of_rule(VERSION) if 0 < one.line - line.line <= BELOW]
        pythons = [one.told["python"] for one in below if "python" in one.told]
        rays = [one.told["ray"] for one in below if "ray" in one.told]
        for name, both in (("Python", pythons), ("Ray", rays)):
            if len(both) > 1 and both[0] != both[1]:
                yield Finding(
                    cause="software.python",
                    kind=Kind.CAUSE,
                    says=f"Ray's first node has {name} {both[0]}, another one {both[1]}: Ray "
                    "refused it",
                    confidence=0.95,
                    fix="the same image or virtual environment on all nodes",
                    evidence=(line, *below),
                    confirm="preflight run --only software.python",
                )
                return


BELOW = 6
"""Lines in which Ray tells versions: two or three of the cluster, and as many of the node."""


def versions(story: Story, fact: str, check: str, program: str) -> Iterator[Finding]:
    """Yield that nodes, or ranks of one node, state different versions."""
    by_version: dict[str, list[Seen]] = {}
    for seen in story.stated(fact).values():
        if node_of(story, seen):
            by_version.setdefault(seen.told[fact], []).append(seen)
    if len(by_version) < 2:
        return
    told = sorted(by_version.items(), key=lambda one: (-len(one[1]), one[0]))
    nodes = {version: {node_of(story, one) for one in some} for version, some in told}
    ranks = {version: story.owners(some)[0] for version, some in told}
    if not set.intersection(*nodes.values()):
        where, places = "nodes", {version: named(some) for version, some in nodes.items()}
    elif all(len(ranks[version]) == len(some) for version, some in told):
        where, places = "ranks", {version: counted(some) for version, some in ranks.items()}
    else:  # each node has several programs, and not all of them are ranks
        return
    shown = ", ".join(f"{version} on {place}" for version, place in places.items())
    yield Finding(
        cause=check,
        kind=Kind.SYMPTOM,
        says=f"{program} is not the same on all {where}: {shown}",
        confidence=0.85,
        fix=f"one {program} on all nodes: the same image or virtual environment",
        evidence=tuple(some[0] for _, some in reversed(told)),
        ranks=tuple(rank for version, _ in told[1:] for rank in ranks[version]),
        nodes=tuple(sorted(set.union(*(nodes[version] for version, _ in told[1:])))),
        confirm=f"preflight run --only {check}",
    )


def node_of(story: Story, seen: Seen) -> str:
    """Return the node of a line; empty if it is not known."""
    return story.node_of(seen.who)


def named(nodes: set[str]) -> str:
    """Return nodes in words."""
    few = sorted(nodes)
    return ", ".join(few[:3]) + (f" and {len(few) - 3} more" if len(few) > 3 else "")


def settings(story: Story) -> Iterator[Finding]:
    """Yield a setting that NCCL has on some nodes only, or that differs."""
    nodes = {seen.who.node for seen in story.stated("address").values()} - {""}
    for name in ALIKE:
        by_node = {seen.who.node: seen for seen in story.stated(f"NCCL_{name}").values()}
        values = {node: seen.told[f"NCCL_{name}"] for node, seen in by_node.items() if node}
        without = nodes - values.keys()
        if not values or (not without and len(set(values.values())) == 1):
            continue
        lines = {seen.told[f"NCCL_{name}"]: seen for seen in by_node.values()}
        shown = ", ".join(f"{value} on {seen.who.node}" for value, seen in lines.items())
        yield Finding(
            cause=ENV,
            kind=Kind.SYMPTOM,
            says=f"NCCL_{name} is not the same on all nodes: {shown}"
            + (f", unset on {named(without)}" if without else ""),
            confidence=0.62,
            fix=f"set NCCL_{name} alike on all nodes, or nowhere: the job's environment, "
            "/etc/nccl.conf, ~/.nccl.conf",
            evidence=tuple(lines.values()),
            nodes=tuple(sorted(without)),
            confirm="preflight run --only launch.env",
        )
        return
