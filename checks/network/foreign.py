"""Nobody but the job's own nodes connects to ports of the nodes.

Why: NCCL and torch listen on ports that anybody may connect to, and count connections, or wait for
    what each one says. A metrics scraper, a vulnerability scanner or a health probe that comes upon
    one of them can hang the first collective, or use up the place of a rank.
Facts: ports (the launch port and a random one, which our own listeners held for some seconds; 0
    where it was not to be had, then listeners say why), strangers (who connected to them: address,
    port, how often, and the first bytes of what was said), addresses (of the node, so that nodes
    are told by name). Whoever comes less often than that is not seen: a pass says little.
Source: accept(2). NVIDIA/nccl#1808, a scraper on a port of NCCL before 2.30:
    https://github.com/NVIDIA/nccl/issues/1808
Fix: leave the nodes' ports out of what scrapers and scanners visit, or let only the nodes in.
"""

from __future__ import annotations

from typing import Mapping, TypedDict

from preflight.api import Check, Fleet, Verdict, Want, ok, some, unknown, warn
from preflight.node.launch import wanted
from preflight.node.mesh import message, watch
from preflight.node.net import interfaces
from preflight.node.ports import Listener, Stranger, who

WATCH_S = 2.0
"""How long the ports are held. Scanners come by in less; scrapers mostly every 15 s or more."""
SPARE_S = 5.0
"""For a busy node."""
LOOPBACK = ("127.", "::1")
SAYINGS = {
    "GET /metrics": "a metrics scraper",
    "GET /": "an HTTP client, as a health probe, a scraper or a scanner",
    "HEAD /": "an HTTP client, as a health probe or a scanner",
    "POST /": "an HTTP client",
    "OPTIONS ": "an HTTP client, as a scanner",
    "PRI * HTTP/2": "a client of gRPC or HTTP/2, as a health probe",
    "\\x16\\x03": "a TLS client, as a scanner or a scraper",
    "SSH-": "an SSH client, as a scanner",
    "\\x00\\xce\\xf7\\x85<": "a rank of torch that looks for its master, as of a job left over",
}
"""How they begin. The last is torch's TCPStore: VALIDATE and 0x3C85F7CE (TCPStoreBackend.hpp)."""


class Foreign(TypedDict):
    addresses: list[str]
    ports: list[int]
    listeners: list[Listener]
    strangers: list[Stranger]
    problem: str


def exercise(fleet: Fleet, want: Want) -> dict[str, Foreign]:
    networks = fleet.map(interfaces, dict.fromkeys(fleet.nodes, wanted(want)))
    ports = [want.launch["port"], 0]
    asked = dict.fromkeys(fleet.nodes, (ports, WATCH_S))
    facts = {}
    for node, reply in fleet.map(watch, asked, WATCH_S + SPARE_S).items():
        held, network = reply.value, networks[node].value
        own = network["interfaces"] if network else ()
        facts[node] = Foreign(
            addresses=[address for one in own for address in one["addresses"]],
            ports=held["ports"] if held else [],
            listeners=held["listeners"] if held else [],
            strangers=held["strangers"] if held else [],
            problem=message(reply),
        )
    return facts


# ---- judging -------------------------------------------------------------------------------


def compare(facts: Mapping[str, Foreign], want: Want) -> dict[str, Verdict]:
    owners = {address: node for node, fact in facts.items() for address in fact["addresses"]}
    return {node: of_node(node, fact, owners, want) for node, fact in facts.items()}


def of_node(node: str, fact: Foreign, owners: Mapping[str, str], want: Want) -> Verdict:
    launch = want.launch["port"]
    if fact["problem"] or not any(fact["ports"]):
        return unknown(fact["problem"] or "no port could be held")
    words = "port " + " and ".join(str(port) for port in fact["ports"] if port)
    details = tuple(
        f"port {launch} was not watched: it is not free{by(one)}"
        for one, port in zip(fact["listeners"], fact["ports"])
        if not port
    )
    came: dict[str, list[Stranger]] = {}
    for one in fact["strangers"]:
        came.setdefault(one["address"], []).append(one)
    if not came:
        return ok(f"nobody came to {words} in {WATCH_S:g} s", details=details)
    told = [visit(named(who_, node, owners), those, launch) for who_, those in came.items()]
    several = f"; and {len(told) - 1} more" if len(told) > 1 else ""
    return warn(
        f"{told[0]}{several}",
        observed=fact["strangers"],
        details=(*told[1:], *details),
        fix=f"see what runs at {some(list(came))}, and leave the ports of these nodes out of it",
        reproduce=f"nc -lvk {launch}",
    )


def by(one: Listener) -> str:
    return ", held by " + who(one["holder"]) if one["holder"] else ""


def named(address: str, node: str, owners: Mapping[str, str]) -> str:
    """Return an address, with the node that has it."""
    owner = node if address.startswith(LOOPBACK) else owners.get(address)
    if owner is None:
        return address
    return f"this node itself ({address})" if owner == node else f"{owner} ({address})"


def visit(name: str, those: list[Stranger], launch: int) -> str:
    """Return who came how often to which ports, and what it is likely to be."""
    count = sum(one["count"] for one in those)
    ports = {one["port"] for one in those}
    times = "once" if count == 1 else f"{count} times"
    places = " and ".join(
        "the launch port" if port == launch else f"random port {port}" for port in sorted(ports)
    )
    said = next((one["said"] for one in those if one["said"]), "")
    shown = f"it said '{said}'" if said else "it said nothing"
    what = likely(said, ports, launch)
    return f"{name} came to {places} {times} in {WATCH_S:g} s: {what} ({shown})"


def likely(said: str, ports: set[int], launch: int) -> str:
    """Return what somebody is likely to be, by what it says and where it comes."""
    for begin, what in SAYINGS.items():
        if said.startswith(begin):
            return what
    if ports - {launch}:
        return "a port scanner, for nothing else would come upon a random port"
    return "a health probe that only connects, or a rank of a job that is left over"


CHECK = Check(
    exercise=exercise,
    args=lambda want: (want.get("launch.port"), *wanted(want)),
    compare=compare,
    lane="launch port",
    level="standard",
    explains=("collective.all_reduce", "collective.pairs"),
)
