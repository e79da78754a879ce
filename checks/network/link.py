"""The data plane's links are up, at full duplex and full speed.

Why: one link that fell back to 1 Gb/s, after a bad cable or a failed negotiation, sets the pace
   of every collective; a link that is down leaves NCCL another interface, or none.
Facts: see network.mtu: speed_mbps (0 where it is not told, as of most virtual interfaces), duplex,
   up (as the administrator set it), running (with a carrier), bond (mode, policy) and its members
   (running, speed_mbps, idle: why LACP does not use it).
Source: SIOCETHTOOL and SIOCGIFFLAGS (netdevice(7)) by psutil; /sys/class/net/*/bonding and
   bonding_slave (bonding.rst).
Fix: see `ethtool NAME` for what either side offers; reseat or change the cable or transceiver, and
    see the switch port's speed and errors.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Mapping, Sequence

from preflight.api import (
    STATUSES,
    WARN,
    Check,
    Expect,
    Verdict,
    Want,
    fail,
    ok,
    same_everywhere,
    skip,
    unknown,
    warn,
)
from preflight.node.bonds import LACP, NO_PARTNER, Bond
from preflight.node.launch import wanted
from preflight.node.net import (
    Interface,
    Network,
    by_names,
    comparable,
    interfaces,
    main_interfaces,
)

SLOWS = (
    *("network.errors", "network.latency", "network.bandwidth"),
    *("collective.all_reduce", "collective.pairs"),
)
"""What a link can do that is there, but slow; it loses no packet and closes no port."""
CHOSEN = ("network.interface",)
"""What the speed of a link can follow from: that it is the link of another interface."""
BACKUP = "active-backup"
HASHES = ("balance-xor", LACP)
"""Modes that choose a member by xmit_hash_policy. Of layer2 and layer2+3 all packets between two
nodes take one member, as their addresses are the same (bonding.rst)."""
GROUP = "put the switch's ports into one LACP group (port channel)"
FALLEN = 4
"""Times slower: one lane of four, as 25 of 100 Gb/s. A newer node is mostly twice as fast."""


def compare(facts: Mapping[str, Network], want: Want) -> dict[str, Verdict]:
    paced = pace(comparable(facts), want)
    modes = alike({node: main_interfaces(fact) for node, fact in facts.items()})
    verdicts = {}
    for node, fact in facts.items():
        used = main_interfaces(fact)
        found = (down(fact), half(used), paced.get(node), modes.get(node), *bonded(used))
        verdicts[node] = gravest([verdict for verdict in found if verdict])
    return verdicts


def gravest(found: Sequence[Verdict]) -> Verdict:
    """Return the gravest of several verdicts; what else is wrong is a detail."""
    worst = max(found, key=lambda verdict: STATUSES.index(verdict.status))
    rest = [v.summary for v in found if v is not worst and v.status not in {"pass", "skip"}]
    return replace(worst, details=(*worst.details, *rest))


# ---- speed ---------------------------------------------------------------------------------


def pace(used: Mapping[str, Sequence[Interface]], want: Want) -> dict[str, Verdict]:
    """Return verdicts of the speeds of all nodes with interfaces."""
    told = {
        node: sorted((one for one in found if one["speed_mbps"]), key=lambda one: one["speed_mbps"])
        for node, found in used.items()
    }
    told = {node: found for node, found in told.items() if found}
    asked = want.get("expect.nic_speed_gbps")
    right = None if asked is None else float(asked)
    verdicts: dict[str, list[Verdict]] = {node: [] for node in told}
    # the slowest of each node, then the next: a slow one that all have must hide no other
    for place in range(min(map(len, told.values()), default=0)):
        ones = {node: found[place] for node, found in told.items()}
        speeds = {node: one["speed_mbps"] / 1000 for node, one in ones.items()}
        alike = same_everywhere(
            speeds, "link speed", right, "{:g} Gb/s".format, explains=SLOWS, explained_by=CHOSEN
        )
        for node, one in ones.items():
            verdict = faster(alike[node], speeds[node], asked is None)
            verdicts[node].append(named(verdict, one["name"]))
    silent = {node: untold(found, bool(told), right) for node, found in used.items() if found}
    return {**silent, **{node: gravest(found) for node, found in verdicts.items()}}


def faster(verdict: Verdict, speed: float, doubtful: bool) -> Verdict:
    """Return a milder verdict of a node that is faster than it must be, or than most nodes are.

    Where nobody said what is right, the one node that is much faster may be the one that is not
    degraded.
    """
    if verdict.expected is None or speed < verdict.expected:
        return verdict
    if doubtful and speed >= verdict.expected * FALLEN:
        fix = "see what both ends of the slower nodes' links offer: ethtool NAME"
        return warn(f"{verdict.summary}: have they fallen back?", observed=speed, fix=fix)
    return ok(f"link speed {speed:g} Gb/s", observed=speed)


def named(verdict: Verdict, name: str) -> Verdict:
    """Return a verdict that names the interface."""
    summary = verdict.summary if verdict.scope == "cluster" else f"{name}: {verdict.summary}"
    return replace(verdict, summary=summary, reproduce=f"ethtool {name}")


def untold(found: Sequence[Interface], others: bool, right: float | None) -> Verdict:
    """Return the verdict where a node does not tell its speed."""
    names = ", ".join(one["name"] for one in found)
    if right is not None:
        return unknown(f"{names} is up; its speed is not told, expected {right:g} Gb/s")
    if others:
        return ok(f"{names} is up; its speed is not told")
    return skip(f"{names} is up; no node tells its link speed")


# ---- state ---------------------------------------------------------------------------------


def down(fact: Network) -> Verdict | None:
    """Return what is wrong with an interface that is not there, or carries nothing."""
    plane = fact["data_plane"]
    if plane["problem"]:
        fix = "bring up the interface of the data plane, or name it: launch.interface"
        return fail(plane["problem"], fix=fix, reproduce="ip address")
    for one in by_names(fact, [*plane["names"], *plane["idle"]]):
        words, fix = useless(one)
        if words:
            see = "ip address show dev " + one["name"]
            return fail(words, fix=fix, reproduce=see, explained_by=())
    return None


def useless(one: Interface) -> tuple[str, str]:
    """Say why an interface carries nothing, and what mends it; nothing if it does."""
    name = one["name"]
    if not one["up"]:
        return f"{name} is down", f"ip link set dev {name} up"
    if not one["running"]:
        return (
            f"{name} has no carrier",
            f"see the cable of {name} and its switch port: ethtool {name}",
        )
    if not one["addresses"]:
        fix = f"give {name} an address, or leave it out: NCCL_SOCKET_IFNAME, launch.interface"
        return f"{name} has no address", fix
    return "", ""


def half(found: Sequence[Interface]) -> Verdict | None:
    """Return what is wrong with an interface that cannot send and receive at once."""
    for one in found:
        if one["duplex"] == "half":
            return fail(
                "{} runs at half duplex".format(one["name"]),
                observed="half",
                expected="full",
                reproduce="ethtool {}".format(one["name"]),
                explains=SLOWS,
                explained_by=(),
            )
    return None


# ---- bonds ---------------------------------------------------------------------------------


def bonded(found: Sequence[Interface]) -> list[Verdict]:
    """Return what is to be said of bonds."""
    verdicts = []
    for one in found:
        share = one.get("bond")
        if share:
            told = lost(one), unequal(one, share), ordered(one, share), spread(one, share)
            see = "cat /proc/net/bonding/" + share["name"]
            verdicts += [replace(verdict, reproduce=see) for verdict in told if verdict]
    return verdicts


def lost(one: Interface) -> Verdict | None:
    """Return a warning of members that do not take part."""
    running = [member for member in one["members"] if member["running"]]
    if len(running) > 1 and all(member["idle"] == NO_PARTNER for member in running):
        return warn(
            "{} has no LACP partner: one of its {} members carries all".format(
                one["name"], len(one["members"])
            ),
            observed=[member["name"] for member in running],
            fix=GROUP,
        )
    away = [member for member in one["members"] if not member["running"] or member["idle"]]
    if not away:
        return None
    names = [m["name"] + (f" ({m['idle']})" if m["running"] else "") for m in away]
    return warn(
        "{} is without {} of its {} members: {}".format(
            one["name"], len(away), len(one["members"]), ", ".join(names)
        ),
        observed=[member["name"] for member in away],
        fix=GROUP if all(member["running"] for member in away) else None,
    )


def unequal(one: Interface, share: Bond) -> Verdict | None:
    """Return a warning of members of different speeds, which LACP would not put together."""
    speeds = {m["name"]: m["speed_mbps"] for m in one["members"] if m["running"]}
    if share["mode"] == BACKUP or not all(speeds.values()) or len({*speeds.values()}) < 2:
        return None
    each = ", ".join(f"{name} {speed / 1000:g} Gb/s" for name, speed in speeds.items())
    return warn(f"members of {one['name']} differ in speed: {each}", observed=speeds)


def ordered(one: Interface, share: Bond) -> Verdict | None:
    """Return a warning of packets that overtake each other."""
    if share["mode"] != "balance-rr" or len(one["members"]) < 2:
        return None
    return warn(
        f"{one['name']} is a bond in mode balance-rr: packets of one connection overtake"
        " each other, which TCP takes for loss",
        observed="balance-rr",
        fix=f"make {one['name']} a bond in mode 802.3ad; {GROUP}",
    )


def spread(one: Interface, share: Bond) -> Verdict | None:
    """Return a warning of a bond of which two nodes use one member between them."""
    running = sum(m["running"] and not m["idle"] for m in one["members"])
    policy, mode = share["policy"], share["mode"]
    if running < 2 or mode not in HASHES or not policy or policy.endswith("3+4"):
        return None
    return warn(
        f"{one['name']} sends all that goes to one node by one of its {running} members:"
        f" xmit_hash_policy {policy}",
        observed=policy,
        expected="layer3+4",
        fix=f"ip link set dev {share['name']} type bond xmit_hash_policy layer3+4, and the same on"
        " the switch; where RoCE carries the data, NCCL_IB_QPS_PER_CONNECTION=2 too",
    )


def alike(used: Mapping[str, Sequence[Interface]]) -> dict[str, Verdict]:
    """Return warnings of bonds in another mode than most nodes'."""
    modes = {
        node: found[0]["bond"]["mode"]
        for node, found in used.items()
        if found and found[0].get("bond", {}).get("mode")
    }
    fix = "give the bonds of all nodes one mode, and the switch's ports what it needs"
    verdicts = same_everywhere(modes, "bond mode", say=warn, fix=fix)
    return {node: verdict for node, verdict in verdicts.items() if verdict.status == WARN}


CHECK = Check(
    probe=interfaces,
    args=wanted,
    compare=compare,
    expects=(Expect("nic_speed_gbps", float, "Gb/s", "speed of each link of the data plane"),),
    explains=(
        *("network.mtu", "network.route", "network.ephemeral", "network.port"),
        *("network.path_mtu", *SLOWS),
    ),
)
