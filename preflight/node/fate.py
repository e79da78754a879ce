"""What becomes of a new TCP connection's first packet in a node's packet filters. Pure.

Where a rule is not understood both ways are followed: a packet is lost for sure only if it is lost
on all of them. Sent to nodes with what imports it: stdlib only, Python 3.8.
"""

from __future__ import annotations

import functools
import ipaddress
from typing import Iterable, Mapping, NamedTuple, Sequence

from preflight.node.netfilter import (
    ACCEPT,
    DROP,
    GOTO,
    JUMP,
    REDIRECT,
    REJECT,
    RETURN,
    UNCLEAR,
    UNTRACKED,
    Chain,
    Rule,
    Table,
    Test,
    writer,
)

IN = ("ingress", "prerouting", "input")
OUT = ("output", "postrouting")
TRACKED = -200
"""NF_IP_PRI_CONNTRACK: chains before it do not see the state of a connection."""
NEW_FLAGS = {"syn"}
NEW = {"state": "new", "status": "", "direction": "original"}
"""What is known of the connection that a packet begins, as long as nothing leads it astray."""
ENDS = {
    True: {"saddrtype": "unicast", "daddrtype": "local", "pkttype": "host"},
    False: {"saddrtype": "local", "daddrtype": "unicast"},
}
"""Types of addresses (ip-route(8)) of what comes in, and of what goes out."""
LOST = (DROP, REJECT)
FAMILIES = {"ip": "ipv4", "ip6": "ipv6"}
GO_ON = "go on"
"""Of a chain: the packet comes to its end, or returns."""


class Packet(NamedTuple):
    """The first packet of a TCP connection. What is empty is not known."""

    saddr: str
    daddr: str
    dport: int
    iif: str = ""
    oif: str = ""


class Place(NamedTuple):
    """The rule that decides, or a chain's policy."""

    writer: str
    """See `netfilter.writer`."""
    family: str
    table: str
    chain: str
    text: str
    verdict: str
    start: str
    """The chain with the hook from which the packet came there."""


class Fate(NamedTuple):
    """What becomes of a packet for sure; `accept` also where that is open."""

    kind: str
    place: Place | None = None
    open: tuple[Place, ...] = ()
    """Rules that might lose it, but it is not understood whether they match."""


def fate(tables: Sequence[Table], packet: Packet, hooks: Sequence[str]) -> Fate:
    """Return what becomes of a packet on its way through these hooks."""
    family = "ip6" if ":" in packet.saddr else "ip"
    doubtful: list[Place] = []
    tracked = not any(rule["verdict"] == UNTRACKED for rule in rules_of(tables))
    for table, name in on_the_way(tables, family, hooks, packet.iif):
        walk = Walk(table, name, packet, family, tracked)
        ends = walk.through()
        sure = {end for end, _ in ends}
        if sure <= {*LOST} or sure == {REDIRECT}:
            end, place = ends[-1]
            return Fate(end, place)
        doubtful += [place for end, place in ends if end in LOST]
        if sure & {REDIRECT, UNCLEAR}:  # from here on it may be another packet
            break
    return Fate(ACCEPT, None, tuple(doubtful))


def rules_of(tables: Iterable[Table]) -> Iterable[Rule]:
    """Return all rules."""
    return (rule for one in tables for chain in one["chains"].values() for rule in chain["rules"])


def on_the_way(
    tables: Sequence[Table], family: str, hooks: Sequence[str], device: str
) -> Iterable[tuple[Table, str]]:
    """Return tables and names of the chains with these hooks, in the order of the kernel."""
    for hook in hooks:
        found = [
            (chain["priority"], table, name)
            for table in tables
            for name, chain in table["chains"].items()
            if chain["hook"] == hook and is_for(table, chain, family, device)
        ]
        for _, table, name in sorted(found, key=lambda one: one[0]):
            yield table, name


def is_for(table: Table, chain: Chain, family: str, device: str) -> bool:
    """Whether a chain with a hook sees packets of a family, and from a device."""
    if chain["device"] and device not in chain["device"].split(","):
        return False
    return table["family"] in (family, "inet", "netdev")


class Walk:
    """One packet in one table; what a chain does to it is found once."""

    def __init__(
        self, table: Table, start: str, packet: Packet, family: str, tracked: bool
    ) -> None:
        self._table, self._start, self._packet = table, start, packet
        chain = table["chains"][start]
        self._facts = {"nfproto": FAMILIES[family], "l4proto": "tcp", **ENDS[chain["hook"] in IN]}
        if tracked and chain["priority"] > TRACKED:
            self._facts.update(NEW)
        self._writer = writer(table)
        self._known: dict[str, list[tuple[str, Place]]] = {}

    def through(self) -> list[tuple[str, Place]]:
        """Return the ends that it may come to, the one it comes to if no other last."""
        policy = self._table["chains"][self._start]["policy"]
        end = policy, self._place(self._start, f"policy {policy}", policy)
        return [end if one[0] == GO_ON else one for one in self._ends(self._start)]

    def _ends(self, name: str) -> list[tuple[str, Place]]:
        """Return the ends in one chain, `GO_ON` where it leaves it again."""
        if name not in self._known:
            self._known[name] = [(GO_ON, self._place(name, "", GO_ON))]  # of a circle, if any
            self._known[name] = self._found(name)
        return self._known[name]

    def _found(self, name: str) -> list[tuple[str, Place]]:
        found: list[tuple[str, Place]] = []
        here = self._table["chains"].get(name)
        for rule in here["rules"] if here else ():
            hits = matches(rule["tests"], self._packet, self._facts)
            if hits is False or rule["verdict"] == UNTRACKED:
                continue
            ends = self._decided(name, rule)
            stays = rule["verdict"] == JUMP and any(end == GO_ON for end, _ in ends)
            found += [one for one in ends if one[0] != GO_ON or rule["verdict"] != JUMP]
            if hits and not stays:
                return found
        return [*found, (GO_ON, self._place(name, "", GO_ON))]

    def _decided(self, name: str, rule: Rule) -> list[tuple[str, Place]]:
        """Return what follows if a rule matches."""
        verdict = rule["verdict"]
        if verdict in (JUMP, GOTO):
            return self._ends(rule["target"])
        end = GO_ON if verdict == RETURN else verdict
        return [(end, self._place(name, rule["text"], verdict))]

    def _place(self, name: str, text: str, verdict: str) -> Place:
        table = self._table
        where = self._writer, table["family"], table["name"]
        return Place(*where, name, text, verdict, self._start)


# ---- tests ---------------------------------------------------------------------------------


def matches(tests: Sequence[Test], packet: Packet, facts: Mapping[str, str]) -> bool | None:
    """Return whether a packet passes all tests, None if that can't be told."""
    found = [holds(one, packet, facts) for one in tests]
    return False if False in found else None if None in found else True


def holds(test: Test, packet: Packet, facts: Mapping[str, str]) -> bool | None:
    """Return whether a packet passes one test, None if that can't be told."""
    if not test["key"]:
        return None
    each = [is_one(test["key"], value, packet, facts) for value in test["values"]]
    hit = True if True in each else None if None in each else False
    return hit if hit is None else hit != test["differs"]


def is_one(key: str, value: str, packet: Packet, facts: Mapping[str, str]) -> bool | None:
    """Return whether a packet has one value, None if that can't be told."""
    if key in ("saddr", "daddr"):
        return within(packet.saddr if key == "saddr" else packet.daddr, value)
    if key in ("iif", "oif"):
        return named(packet.iif if key == "iif" else packet.oif, value)
    if key == "dport":
        span = ports(value)
        return None if span is None else span[0] <= packet.dport <= span[1]
    if key == "flags":
        mask, wanted = (set(filter(None, part.split(","))) for part in value.split("/"))
        return (NEW_FLAGS if "all" in mask else mask & NEW_FLAGS) == wanted
    if key in facts:
        return value in (facts[key], "all")
    return None


def named(name: str, value: str) -> bool | None:
    """Return whether an interface has a name, or one that begins so."""
    if not name:
        return None
    return name.startswith(value[:-1]) if value.endswith("*") else name == value


@functools.lru_cache(maxsize=4096)
def within(address: str, value: str) -> bool | None:
    """Return whether an address is another one, or within a range or network."""
    try:
        one = ipaddress.ip_address(address)
        if "/" in value:
            return one in ipaddress.ip_network(value, strict=False)
        low, _, high = value.partition("-")
        first, last = ipaddress.ip_address(low), ipaddress.ip_address(high or low)
        return one.version == first.version and int(first) <= int(one) <= int(last)
    except (ValueError, TypeError):
        return None


def ports(value: str) -> tuple[int, int] | None:
    """Return a port or a range of ports as a range, None if it is none."""
    low, _, high = value.partition("-")
    return (int(low), int(high or low)) if low.isdigit() and (high or low).isdigit() else None


def spans(tables: Sequence[Table], low: int, high: int, most: int) -> list[tuple[int, int]]:
    """Return ranges of ports, in each of which all ports have the same fate; at most so many."""
    edges = {low}
    for rule in rules_of(tables):
        for test in rule["tests"]:
            found = [ports(value) for value in test["values"]] if test["key"] == "dport" else ()
            edges |= {port for span in found if span for port in (span[0], span[1] + 1)}
    begins = sorted(port for port in edges if low <= port <= high)
    ends = [port - 1 for port in begins[1:]] + [high]
    return list(zip(begins, ends))[:most]
