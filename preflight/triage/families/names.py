"""Names that do not lead to an address, or to one that is of no use to others.

Gloo and torchrun listen on the address that the node's own name leads to: on Debian and Ubuntu
that is 127.0.1.1. torch since 2.6 asks for the name of each address that connects.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import re
from collections.abc import Iterator, Mapping
from itertools import pairwise

from preflight.triage.families.rendezvous import TRIED
from preflight.triage.family import Finding
from preflight.triage.rule import Kind, Rule
from preflight.triage.story import Seen, Story

NAMES = "network.names"
RENDEZVOUS, BOOTSTRAP = "rendezvous", "bootstrap"
CONFIRM = "preflight run --only network.names; by hand on each node: getent hosts NAME"
TELL = "have every node know every other: DNS, or all names in /etc/hosts of all nodes"
OPEN = (
    "open all TCP ports between the nodes, and export GLOO_SOCKET_IFNAME=INTERFACE, the one that "
    "they share"
)
GAI = {
    "-2": "nobody knows this name",
    "-3": "no name server answered",
    "-5": "the name has no address of this kind",
}
"""What getaddrinfo(3) says, for Linux."""


def looked_up(told: Mapping[str, str]) -> Mapping[str, str]:
    """Return what it means that a name led nowhere."""
    return {"means": GAI.get(told["gai"], f"getaddrinfo error {told['gai']}")}


def of_others(told: Mapping[str, str]) -> Mapping[str, str] | None:
    """Return nothing more, or None: the address is that of the node itself, wherever it is read."""
    return None if re.match(LOOPBACK, told["peer"]) else {}


LOOPBACK = r"(?:::ffff:)?127\.[\d.]{5,11}|::1"
CONNECT = r"(?:pair\.cc:\d{1,5}\] connect |SO_ERROR: [A-Z][\w ]{4,60}, remote=)"
TO_ITSELF = Rule(
    CONNECT + r"\[(?P<peer>" + LOOPBACK + r")\]",
    Kind.SYMPTOM,
    cause=NAMES,
    says="{who} was sent to {peer}, which on every node is that node itself: Gloo listens where "
    "the node's own name leads to",
    confidence=0.85,
    fix="export GLOO_SOCKET_IFNAME=INTERFACE (the one that all nodes share), or have each node's "
    "own name lead to its address there: /etc/hosts",
    confirm="getent hosts $(hostname) on each node: an address of 127.0.0.0/8 is of no use",
    checks=("network.interface",),
    stage=BOOTSTRAP,
    source="gloo transport/tcp/pair.cc: the first before 2023, the second in torch since 2.9",
)
TO_OTHERS = Rule(
    CONNECT + r"\[(?P<peer>[\w.:%]{2,80})\]",
    Kind.SYMPTOM,
    cause="network.ephemeral",
    says="{who} could not connect to {peer} by Gloo: a firewall closes its ports, or it is an "
    "interface that the nodes do not share",
    confidence=0.6,
    fix=OPEN,
    confirm="preflight run --only network.ephemeral,network.interface,network.names",
    checks=("network.interface", "network.names", "network.firewall"),
    stage=BOOTSTRAP,
    refine=of_others,
    source="gloo transport/tcp/pair.cc",
)
FELL_BACK = Rule(
    r"Unable to resolve hostname to a \(local\) address\. Using the loopback address as fallback",
    Kind.FACT,
    says="{who} lets Gloo listen on 127.0.0.1: its node's own name leads to no address of it",
    source="torch ProcessGroupGloo.cpp: harmless where all ranks are on one node",
)
MESH = Rule(
    r"Gloo connectFullMesh failed with ",
    Kind.SYMPTOM,
    cause="network.ephemeral",
    says="{who} could not connect to all others by Gloo",
    confidence=0.5,
    fix=OPEN,
    confirm="preflight run --only network.ephemeral,network.interface,network.names",
    checks=("network.interface", "network.names", "network.firewall"),
    stage=BOOTSTRAP,
    source="torch ProcessGroupGloo.cpp since 2.1",
)
NO_NAME = Rule(
    r"The hostname of the client socket cannot be retrieved\. err=-3",
    Kind.FACT,
    says="{who} asked for the name of an address, and no name server answered",
    source="torch c10d/socket.cpp since 2.6: harmless if the answer comes at once",
)
UNKNOWN = Rule(
    r"The IPv(?P<kind>[46]) network addresses of \((?P<name>[^,)]{1,253}), (?P<port>\d{1,5})\) "
    r"cannot be retrieved \(gai error: (?P<gai>-?\d{1,4})",
    Kind.FACT,
    says="{who} found no address of {name}: {means}",
    stage=RENDEZVOUS,
    refine=looked_up,
    source="torch c10d/socket.cpp; of IPv6 alone it is harmless where IPv4 follows",
)
RULES = (
    TO_ITSELF,
    TO_OTHERS,
    FELL_BACK,
    MESH,
    NO_NAME,
    UNKNOWN,
    Rule(
        r"ss1\.ss_family == ss2\.ss_family\. (?:2 vs 10|10 vs 2)",
        Kind.CAUSE,
        cause=NAMES,
        says="{who} uses IPv4 and its peer IPv6, or the other way round: Gloo takes the first "
        "address that a node's own name leads to",
        confidence=0.92,
        fix="have all names lead to the same kind of address (/etc/hosts), or export "
        "GLOO_SOCKET_IFNAME of an interface with one kind",
        confirm="getent ahosts $(hostname) on each node: the first line counts",
        checks=("network.interface",),
        stage=BOOTSTRAP,
        source="gloo transport/tcp/device.cc",
    ),
    Rule(
        r"(?:socket\.)?gaierror: \[Errno (?P<gai>-\d{1,3})\]",
        Kind.SYMPTOM,
        cause=NAMES,
        says="{who} could not look up a name: {means}",
        confidence=0.65,
        fix=TELL,
        confirm=CONFIRM,
        refine=looked_up,
        source="Python socket",
    ),
    Rule(
        r"error encountered when getting address info : (?P<why>[A-Z][\w ]{4,60})",
        Kind.CAUSE,
        cause=NAMES,
        says="{who} could not look up the name in NCCL_COMM_ID: {why}",
        confidence=0.85,
        fix=TELL,
        confirm=CONFIRM,
        stage=BOOTSTRAP,
        source="NCCL misc/socket.cc",
    ),
    Rule(
        r"ssh: Could not resolve hostname (?P<name>[\w.-]{1,253}): |"
        r"gethostbyname\(\"(?P<of_pdsh>[\w.-]{1,253})\"\) failed|"
        r"slurm_set_addr: Unable to resolve \"(?P<of_slurm>[\w.-]{1,253})\"",
        Kind.CAUSE,
        cause=NAMES,
        says="the launcher found no address of {missing}",
        confidence=0.9,
        fix=TELL,
        confirm=CONFIRM,
        checks=("access.ssh",),
        stage="launch",
        refine=lambda told: {"missing": next(iter(told.values()))},
        source="OpenSSH, pdsh, Slurm",
    ),
)
SLOW = dt.timedelta(seconds=4)
"""A look-up that takes longer waited for a name server in vain: it is given 5 s or more."""
TWICE = 2
"""Gaps of the same length, from which on they are none by chance."""


def find(story: Story) -> Iterator[Finding]:
    """Yield what only several lines tell."""
    yield from slow_lookups(story)
    yield from never_found(story)
    yield from only_nccl(story)


def slow_lookups(story: Story) -> Iterator[Finding]:
    """Yield that each connection waits for a dead name server: the lines come as a clock ticks."""
    by_file: dict[str, list[Seen]] = {}
    for seen in story.of_rule(NO_NAME):
        by_file.setdefault(seen.file, []).append(seen)
    for lines in by_file.values():
        lines.sort(key=lambda seen: seen.order)
        gaps = [gap for one, two in pairwise(lines[:3]) if (gap := between(one, two))]
        if len(gaps) < TWICE or min(gaps) < SLOW or max(gaps) - min(gaps) > SLOW / 2:
            continue
        took = round(min(gaps).total_seconds())
        yield Finding(
            cause=NAMES,
            kind=Kind.SYMPTOM,
            says=f"the set-up waits {took} s for a name server with every connection: none answers",
            confidence=0.7,
            fix="mend or remove the dead name server in /etc/resolv.conf, or name all nodes in "
            "/etc/hosts",
            evidence=tuple(lines),
            confirm="time getent hosts ADDRESS-OF-A-PEER on rank 0's node",
        )


def between(one: Seen, two: Seen) -> dt.timedelta | None:
    """Return how much later a line is than another; None if they do not tell."""
    try:
        return dt.datetime.fromisoformat(plain(two)) - dt.datetime.fromisoformat(plain(one))
    except ValueError:
        return None


def plain(seen: Seen) -> str:
    """Return a line's time, in a leap year where none is told."""
    return "2000" + seen.time[4:]


def never_found(story: Story) -> Iterator[Finding]:
    """Yield that a name was looked up in vain until the job gave up."""
    given_up = [seen for seen in story.events(Kind.SYMPTOM) if "master" in seen.told]
    lines = [seen for seen in story.of_rule(UNKNOWN) if seen.told["kind"] == "4"]
    if not lines and not story.of_rule(TRIED):  # who has an address says whether it is reached
        lines = story.of_rule(UNKNOWN) if given_up else []
    if not lines or not (given_up or any(map(story.stuck, lines))):
        return
    seen = lines[-1]
    yield Finding(
        cause=NAMES,
        kind=Kind.SYMPTOM,
        says=f"the name {seen.told['name']} leads to no address: {seen.told['means']}",
        confidence=0.88,
        fix=f"{TELL}; or give torchrun an address: --rdzv-backend=static --master-addr=ADDRESS",
        evidence=tuple(lines),
        confirm=f"getent hosts {seen.told['name']} on every node",
        checks=("launch.plan",),
    )


def only_nccl(story: Story) -> Iterator[Finding]:
    """Yield that NCCL was told which interface to use, and Gloo was not, and took another."""
    told = [*story.stated("socket_ifname").values()]
    here = [*story.stated("address").values()]
    if not told or not here:
        return
    near = {network for seen in here if (network := network_of(seen.told["address"]))}
    for seen in story.of_rule(TO_OTHERS):
        network = network_of(seen.told["peer"])
        if network is None or network in near:
            continue
        yield Finding(
            cause="launch.env",
            kind=Kind.SYMPTOM,
            says=f"Gloo went to {seen.told['peer']}, NCCL uses {here[0].told['address']}: only "
            "NCCL was told which interface to use",
            confidence=0.85,
            fix="export GLOO_SOCKET_IFNAME=" + told[0].told["socket_ifname"].lstrip("="),
            evidence=(seen, told[0]),
            confirm="preflight run --only launch.env,network.names",
            checks=("network.names", "network.interface"),
        )
        return


def network_of(address: str) -> str | None:
    """Return the first half of an IPv4 address, by which networks are told apart; else None."""
    try:
        found = ipaddress.ip_address(address.removeprefix("::ffff:"))
    except ValueError:
        return None
    if found.version == 6 or found.is_loopback:
        return None
    return ".".join(str(found).split(".")[:2])
