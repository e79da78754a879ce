"""Bonds of interfaces: how they share the load, and which members take part.

Sent to nodes: stdlib only, Python 3.8.
"""

from __future__ import annotations

from typing import Any, Mapping, TypedDict

from preflight.api import Node

CLASS = "/sys/class/net"
LACP = "802.3ad"
DEFAULTED = 0x40
"""Bit of a port's state: it has heard of no partner (IEEE 802.1AX, 7.3.1.20; the kernel's
LACP_STATE_DEFAULTED)."""
NO_PARTNER, OTHER_GROUP = "no LACP partner", "in another LACP group"


class Member(TypedDict):
    """An interface within a bond, or within the bond below a VLAN or bridge."""

    name: str
    running: bool
    speed_mbps: int
    idle: str
    """What keeps LACP from using it; empty: nothing, or it is not said, or there is no LACP."""


class Bond(TypedDict):
    """How a bond shares its load."""

    name: str
    mode: str
    """The kernel's word: `balance-rr`, `active-backup`, `802.3ad`, …; empty: not told."""
    policy: str
    """By what a packet's member is chosen, where the mode goes by that: `layer2`, `layer3+4`."""


def bond(node: Node, name: str) -> Bond:
    """Return how a bond shares its load.

    Source: bonding/{mode,xmit_hash_policy} (bonding.rst), such as `802.3ad 4` and `layer2 0`.
    """
    return Bond(
        name=name,
        mode=word(node, f"{CLASS}/{name}/bonding/mode"),
        policy=word(node, f"{CLASS}/{name}/bonding/xmit_hash_policy"),
    )


def members(node: Node, one: Bond, stats: Mapping[str, Any]) -> list[Member]:
    """Return the members of a bond.

    Source: bonding/slaves, bonding/ad_aggregator, bonding_slave/{ad_actor_oper_port_state,
    ad_aggregator_id} (drivers/net/bonding/bond_sysfs_slave.c, Linux 4.0), which all users may read;
    the partner's address in /proc/net/bonding is root's alone.
    """
    folder = "{}/{}/bonding".format(CLASS, one["name"])
    active = word(node, f"{folder}/ad_aggregator") if one["mode"] == LACP else ""
    found = []
    for name in (node.read(f"{folder}/slaves") or "").split():
        told = stats.get(name, {"flags": "", "speed": 0})
        found.append(
            Member(
                name=name,
                running="running" in told["flags"].split(","),
                speed_mbps=max(0, told["speed"]),
                idle=idle(node, name, active) if one["mode"] == LACP else "",
            )
        )
    return found


def idle(node: Node, name: str, active: str) -> str:
    """Return what keeps LACP from using a member."""
    folder = f"{CLASS}/{name}/bonding_slave"
    state = word(node, f"{folder}/ad_actor_oper_port_state")
    if state.isdigit() and int(state) & DEFAULTED:
        return NO_PARTNER
    group = word(node, f"{folder}/ad_aggregator_id")
    return OTHER_GROUP if group.isdigit() and active.isdigit() and group != active else ""


def word(node: Node, path: str) -> str:
    """Return the first word of a file."""
    return ((node.read(path) or "").split() or [""])[0]
