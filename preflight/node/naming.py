"""What nodes are called, and what is wrong with what a name means on another node. Pure.

Sent to nodes: stdlib only, Python 3.8.
"""

from __future__ import annotations

import ipaddress
from typing import Any, Mapping, NamedTuple, Sequence, TypedDict

from preflight.api import some
from preflight.node.pairs import Pair
from preflight.node.resolver import HOSTS, Look, Self

LOOPBACK, LINK_LOCAL = ("127.", "::1"), ("169.254.", "fe8", "fe9", "fea", "feb")


class Names(TypedDict):
    """What one node is called, and what the others are called there."""

    itself: Self | None
    names: dict[str, dict[str, Look]]
    """By other node and name."""
    reverse: dict[str, Look]
    """By other node."""
    lines: dict[str, str]
    problem: str


def names_of(peer: str, its: Self, mine: Self, master: str) -> list[str]:
    """Return what a node may be called by another one: its full name first."""
    names = [its["full"], peer, *([mine["master"]] if peer == master else [])]
    return [name for name in dict.fromkeys(names) if name and not is_address(name)]


def is_address(name: str) -> bool:
    """Whether it is an address, which nobody looks up."""
    try:
        ipaddress.ip_address(name.split("%")[0])
    except ValueError:
        return False
    return True


class Fault(NamedTuple):
    """A name that does not mean its node."""

    name: str
    means: str
    """An address, or why there is none."""
    words: str
    """What is wrong with that address; empty where there is none."""


def fault_of(node: str, peer: str, name: str, look: Look, all_: Mapping[str, Self]) -> Fault | None:
    """Return what is wrong with what a name of another node means on a node, None if nothing."""
    if look["problem"]:
        return Fault(name, look["problem"], "")
    first = bare(look["found"])[0]
    owners = [one for one, its in all_.items() if first in its["addresses"]]
    if first.startswith(LOOPBACK):
        words = "a loopback address"
    elif first.startswith(LINK_LOCAL):
        words = "a link-local address"
    elif node in owners:
        words = f"an address that {node} has itself"
    elif peer in owners:
        return None
    else:
        words = f"which is {owners[0]}" if owners else f"which no interface of {peer} has"
    return Fault(name, first, words)


def bare(addresses: Sequence[str]) -> list[str]:
    """Return addresses without zones."""
    return [one.split("%")[0] for one in addresses]


def faults_of(facts: Mapping[str, Names]) -> dict[Pair, list[Fault]]:
    """Return by asking and asked node what is wrong with the asked one's names."""
    all_ = selves(facts)
    found: dict[Pair, dict[str, Fault | None]] = {
        (node, peer): {name: fault_of(node, peer, name, look, all_) for name, look in looks.items()}
        for node, fact in facts.items()
        for peer, looks in fact["names"].items()
        if looks
    }
    right = {(b, name) for (_, b), of in found.items() for name, fault in of.items() if not fault}
    right |= {(node, its["full"]) for node, its in all_.items()}
    return {
        (a, b): [fault for name, fault in of.items() if fault and (b, name) in right]
        for (a, b), of in found.items()
    }


def selves(facts: Mapping[str, Names]) -> dict[str, Self]:
    """Return what each node says of itself, where it did."""
    return {node: fact["itself"] for node, fact in facts.items() if fact["itself"]}


def binds_to(its: Self) -> str:
    """Return the address that Gloo takes of those that the own name means: the first it can."""
    return next(
        (a for a in bare(its["own"]["found"]) if a in its["addresses"] or a.startswith("127.")), ""
    )


def known_as(pairs: Sequence[Pair] | Mapping[Pair, Any], facts: Mapping[str, Names]) -> str:
    """Return how nodes are made known to others."""
    lines = {}
    for _, b in sorted(pairs):
        its = facts[b]["itself"]
        names = [its["full"], *(n for n in (its["host"], b) if n != its["full"])] if its else [b]
        lines[b] = " ".join([its["address"] if its else "", *dict.fromkeys(names)])
    return f"add to DNS, or to {HOSTS}: {some(list(lines.values()))}"
