"""What a node's packet filters do to the packets of a job: by rule, from or to whom, which ports.

Sent to nodes with what imports it: stdlib only, Python 3.8.
"""

from __future__ import annotations

from typing import Iterable, Mapping, NamedTuple, Sequence, Tuple, TypedDict

from preflight.api import Address
from preflight.node.fate import IN, LOST, OUT, Fate, Packet, Place, fate, holds, rules_of, spans
from preflight.node.netfilter import REDIRECT, Table, Test

SPANS = 64
"""Ranges of ports with a fate of their own that are looked at."""
Span = Tuple[int, int]


class Filter(TypedDict):
    """The packet filters of a node, and its place among others."""

    address: Address
    interface: str
    """That has this address."""
    ports: tuple[int, int]
    """The first and the last that the kernel picks."""
    tables: list[Table]
    unread: list[str]
    """What could not be looked at."""


class Lost(NamedTuple):
    """What one rule does to packets of the job: loses them, or leads them elsewhere."""

    kind: str
    inward: bool
    place: Place
    peers: tuple[str, ...]
    ports: tuple[Span, ...]


class Way(NamedTuple):
    """From a node to some others whom its rules cannot tell apart, or from them to it."""

    inward: bool
    peers: tuple[str, ...]
    packet: Packet
    """One of those; its port is still to be said."""
    ports: Span
    """That the kernel may pick at the end of the way."""

    def fate(self, tables: Sequence[Table], port: int) -> Fate:
        """Return what becomes of a packet to a port."""
        hooks = IN if self.inward else OUT
        return fate(tables, self.packet._replace(dport=port), hooks)


class Notes:
    """What becomes of all packets: by rule, and by range of ports."""

    def __init__(self) -> None:
        self.doubtful: dict[Place, None] = {}
        """Rules that might lose some, but it is not understood whether they match."""
        self._found: dict[tuple[str, bool, Place], dict[Span, list[str]]] = {}

    def take(self, end: Fate, inward: bool, span: Span, peers: Sequence[str]) -> None:
        """Take note of what becomes of packets to some ports."""
        self.doubtful.update(dict.fromkeys(end.open))
        if end.place and end.kind in {*LOST, REDIRECT}:
            by_span = self._found.setdefault((end.kind, inward, end.place), {})
            by_span.setdefault(span, []).extend(peers)

    def lost(self) -> list[Lost]:
        """Return what each rule does, those together whom it treats alike."""
        found = []
        for (kind, inward, place), by_span in self._found.items():
            alike: dict[tuple[str, ...], list[Span]] = {}
            for span, peers in sorted(by_span.items()):
                alike.setdefault(tuple(dict.fromkeys(peers)), []).append(span)
            for peers_, ports in alike.items():
                found.append(Lost(kind, inward, place, peers_, tuple(together(ports))))
        return found


def together(ports: Iterable[Span]) -> list[Span]:
    """Return sorted ranges with those made one that touch."""
    found: list[Span] = []
    for low, high in ports:
        if found and found[-1][1] + 1 >= low:
            found[-1] = found[-1][0], max(found[-1][1], high)
        else:
            found.append((low, high))
    return found


def lost(
    node: str, facts: Mapping[str, Filter], nodes: Sequence[str], master: str, port: int
) -> tuple[list[Lost], list[Place]]:
    """Return what a node's rules do to the job's packets, and which rules are not understood.

    Args:
        node: whose rules.
        facts: of the nodes whose rules were read; of the others no address is known.
        nodes: all of the job.
        master: who listens on the launch port.
        port: that port.
    """
    tables, notes = facts[node]["tables"], Notes()
    for way in ways(node, facts, nodes):
        for span in spans(tables, *way.ports, SPANS):
            notes.take(way.fate(tables, span[0]), way.inward, span, way.peers)
        listening = way.peers if way.inward and node == master else ()
        if not way.inward and master in way.peers:
            listening = (master,)
        if listening:
            notes.take(way.fate(tables, port), way.inward, (port, port), listening)
    return notes.lost(), [*notes.doubtful]


def ways(node: str, facts: Mapping[str, Filter], nodes: Sequence[str]) -> list[Way]:
    """Return all ways from and to a node."""
    own = facts[node]
    found: dict[object, Way] = {}
    tests = of_addresses(own["tables"])
    for peer in nodes:
        if peer == node:
            continue
        theirs = facts.get(peer, Filter(**{**own, "address": Address("")}))
        here, there = own["address"], theirs["address"]
        for inward, packet, (low, high) in (
            (True, Packet(there, here, 0, iif=own["interface"]), own["ports"]),
            (False, Packet(here, there, 0, oif=own["interface"]), theirs["ports"]),
        ):
            key = inward, low, high, *(holds(one, packet, {}) for one in tests)
            way = found.setdefault(key, Way(inward, (), packet, (low, high)))
            found[key] = way._replace(peers=(*way.peers, peer))
    return [*found.values()]


def of_addresses(tables: Sequence[Table]) -> list[Test]:
    """Return the different tests of addresses in some rules."""
    tests = (one for rule in rules_of(tables) for one in rule["tests"])
    by_value = {(t["key"], *t["values"]): t for t in tests if t["key"] in ("saddr", "daddr")}
    return [*by_value.values()]
