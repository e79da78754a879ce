"""The data plane's links are up, at full duplex and full speed.

Why: one link that fell back to 1 Gb/s, after a bad cable or a failed negotiation, sets the pace
    of every collective; a link that is down leaves NCCL another interface, or none.
Facts: see network.mtu: speed_mbps (0 where it is not told, as of most virtual interfaces), duplex,
    up (as the administrator set it), running (with a carrier), members of a bond.
Source: SIOCETHTOOL and SIOCGIFFLAGS (netdevice(7)) by psutil; /sys/class/net/*/bonding/slaves.
Fix: see `ethtool NAME` for what either side offers; reseat or change the cable or transceiver, and
    see the switch port's speed and errors.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Mapping, Sequence

from preflight.api import Check, Expect, Verdict, Want, fail, ok, same_everywhere, skip, warn
from preflight.node.launch import wanted
from preflight.node.net import Interface, Network, interfaces, main_interfaces


def compare(facts: Mapping[str, Network], want: Want) -> dict[str, Verdict]:
    used = {node: main_interfaces(fact) for node, fact in facts.items()}
    speeds = {node: slowest(found) for node, found in used.items() if slowest(found)}
    verdicts = pace(speeds, want)
    for node, fact in facts.items():
        state = down(fact, used[node], want) or half(used[node])
        if state:
            verdicts[node] = state
        elif node not in speeds:
            verdicts[node] = untold(used[node], bool(speeds))
        else:
            verdicts[node] = named(verdicts[node], used[node])
        if verdicts[node].status in {"pass", "skip"}:
            verdicts[node] = bonded(used[node]) or verdicts[node]
    return verdicts


def slowest(found: Sequence[Interface]) -> float:
    """Return the lowest speed that the interfaces tell, in Gb/s, 0 if none does."""
    return min((one["speed_mbps"] for one in found if one["speed_mbps"]), default=0) / 1000


def pace(speeds: Mapping[str, float], want: Want) -> dict[str, Verdict]:
    """Return verdicts of the speeds; one that is faster than it must be is no failure."""
    expected = want.get("expect.nic_speed_gbps")
    right = None if expected is None else float(expected)
    verdicts = same_everywhere(speeds, "link speed", right, "{:g} Gb/s".format)
    for node, verdict in verdicts.items():
        if verdict.expected is not None and speeds[node] > verdict.expected:
            verdicts[node] = ok(f"link speed {speeds[node]:g} Gb/s", observed=speeds[node])
    return verdicts


def named(verdict: Verdict, found: Sequence[Interface]) -> Verdict:
    """Return a verdict that names the slowest interface."""
    told = [one for one in found if one["speed_mbps"]]
    name = min(told, key=lambda one: one["speed_mbps"])["name"]
    summary = verdict.summary if verdict.scope == "cluster" else f"{name}: {verdict.summary}"
    return replace(verdict, summary=summary, reproduce=f"ethtool {name}")


def untold(found: Sequence[Interface], others: bool) -> Verdict:
    """Return the verdict where a node does not tell its speed."""
    names = ", ".join(one["name"] for one in found)
    return (
        ok(f"{names} is up; its speed is not told")
        if others
        else skip(f"{names} is up; no node tells its link speed")
    )


def down(fact: Network, found: Sequence[Interface], want: Want) -> Verdict | None:
    """Return what is wrong with an interface that carries nothing, at least to other nodes."""
    plane = fact["data_plane"]
    problem = plane["problem"]
    if len(want.nodes) > 1 and any(one["kind"] == "loopback" for one in found):
        problem = "the data plane is lo, which reaches no other node ({})".format(plane["why"])
    if problem:
        fix = "bring up the interface of the data plane, or name it: launch.interface"
        return fail(problem, fix=fix, reproduce="ip address")
    for one in found:
        name, more = one["name"], {"reproduce": "ip link show dev " + one["name"]}
        if not one["up"]:
            return fail(f"{name} is down", fix=f"ip link set dev {name} up", **more)
        if not one["running"]:
            fix = f"see the cable of {name} and its switch port: ethtool {name}"
            return fail(f"{name} has no carrier", fix=fix, **more)
    return None


def half(found: Sequence[Interface]) -> Verdict | None:
    """Return what is wrong with an interface that cannot send and receive at once."""
    for one in found:
        if one["duplex"] == "half":
            return fail(
                "{} runs at half duplex".format(one["name"]),
                observed="half",
                expected="full",
                reproduce="ethtool {}".format(one["name"]),
            )
    return None


def bonded(found: Sequence[Interface]) -> Verdict | None:
    """Return what is to be said of a bond that has lost a member."""
    for one in found:
        lost = [member["name"] for member in one["members"] if not member["running"]]
        if lost:
            return warn(
                "{} is without {} of its {} members: {}".format(
                    one["name"], len(lost), len(one["members"]), ", ".join(lost)
                ),
                observed=lost,
                reproduce="cat /proc/net/bonding/{}".format(one["name"]),
            )
    return None


CHECK = Check(
    probe=interfaces,
    args=wanted,
    compare=compare,
    expects=(Expect("nic_speed_gbps", float, "Gb/s", "speed of each link of the data plane"),),
    explains=(
        *("network.mtu", "network.interface", "network.route", "network.port"),
        *("network.path_mtu", "network.latency", "network.bandwidth"),
        *("collective.all_reduce", "collective.pairs"),
    ),
)
