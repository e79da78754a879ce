"""The data plane's links damage and drop no packets, and stay up.

Why: a cable, transceiver or port that damages packets makes RDMA send a whole window again and TCP
    slow down, and no error is printed; a link that flaps ends the job. Both are mostly found when a
    node has been slow for weeks, or when the third job has died of it.
Facts: before, after (half a second later, of each link and what it lies on: packets, errors, drops,
    carrier_down_count; up_s since the node's start).
Source: /sys/class/net/*/statistics (if_link.h says what each counter means). Ethernet damages at
    most one bit of 10^12 (IEEE 802.3), one packet of 9,000 bytes in 14 million: here one of a
    million, and a hundred in all, are too many. While it is looked at, 10 damaged or 100 dropped a
    second are, as for NVSentinel (port_rcv_errors, xmit_discards), and any going down. Five downs a
    day are for azurehpc-health-checks. Drops and downs are held against those of the other nodes.
Fix: reseat or change the cable or transceiver, then the switch port: `ethtool -S NAME` and
    `ethtool -m NAME` say which side is bad; for drops see `ethtool -g NAME` and the CPU's load.
"""

from __future__ import annotations

import time
from statistics import median
from typing import Any, Mapping, Sequence, TypedDict

from preflight.api import (
    Check,
    Node,
    Verdict,
    Want,
    fail,
    ok,
    skip,
    unknown,
    warn,
)
from preflight.node.counters import (
    DOWNS,
    FEW,
    RATIO,
    Counted,
    Counts,
    checksums,
    counted,
    damaged,
    grown,
    packets,
    total,
)
from preflight.node.launch import wanted
from preflight.node.net import interfaces

WATCH_S = 0.5
DAMAGED_RATE, DROPPED_RATE = 10, 100
"""A second; see Source."""
DOWNS_A_DAY = 5
DAY_S = 86400
ODD = 2
"""Times as many as the other nodes' median have."""
DROPS = ("rx_dropped", "rx_missed_errors")


class Watched(TypedDict):
    before: Counted
    after: Counted


def watch(node: Node, launch: Mapping[str, Any]) -> Watched:
    network = interfaces(node, launch)
    before = counted(node, network)
    time.sleep(WATCH_S)
    return Watched(before=before, after=counted(node, network))


# ---- judging -------------------------------------------------------------------------------


def compare(facts: Mapping[str, Watched], want: Want) -> dict[str, Verdict]:
    downs = {node: downs_of(fact) for node, fact in facts.items()}
    drops = {node: drops_of(fact) for node, fact in facts.items()}
    return {
        node: judged(
            fact,
            others([n for other, n in downs.items() if other != node]),
            others([n for other, n in drops.items() if other != node]),
        )
        for node, fact in facts.items()
    }


def others(numbers: Sequence[float]) -> float | None:
    """Return what is usual with other nodes, None if there are none."""
    return median(numbers) if numbers else None


def judged(fact: Watched, usual_downs: float | None, usual_drops: float | None) -> Verdict:
    before, after = fact["before"], fact["after"]
    if not after["links"]:
        return unknown("there is no interface of the data plane")
    if not any(packets(counts) for counts in after["links"].values()):
        return skip("its links count no packets")
    took = max(WATCH_S, after["up_s"] - before["up_s"])
    now = {name: grown(before["links"].get(name, {}), c) for name, c in after["links"].items()}
    for name, more in now.items():
        verdict = growing(name, more, took, usual_drops)
        if verdict:
            return verdict
    for name, counts in after["links"].items():
        verdict = worn(name, counts, after["up_s"], usual_downs)
        if verdict:
            return verdict
    least = ", ".join(after["links"])
    return ok(f"{least}: no damage to speak of, and not many drops or downs")


def growing(name: str, more: Counts, took: float, usual_drops: float | None) -> Verdict | None:
    """Return what is wrong with a link while it is looked at."""
    bad, lost = damaged(more), total(more, DROPS)
    see = f"ethtool -S {name}; ip -s -s link show dev {name}"
    if more.get(DOWNS):
        return fail(f"{name} went down while it was looked at", observed=more[DOWNS], reproduce=see)
    if bad >= DAMAGED_RATE and bad / took >= DAMAGED_RATE:
        return fail(
            f"{name} damages {bad / took:.0f} packets a second{checksums(more)}",
            observed=round(bad / took),
            expected=f"less than {DAMAGED_RATE}",
            reproduce=see,
        )
    if lost / took >= max(DROPPED_RATE, ODD * (usual_drops or 0)):
        most = max(DROPS, key=lambda file: more.get(file, 0))
        return warn(
            f"{name} drops {lost / took:.0f} packets a second ({most})" + beside(usual_drops, ""),
            observed=round(lost / took),
            reproduce=see,
            fix=NO_ROOM if most == "rx_missed_errors" else UNWANTED,
        )
    return None


NO_ROOM = "give the NIC larger rings (ethtool -g, -G) or more queues (ethtool -l, -L)"
UNWANTED = (
    "see which packets nobody here wants (dropwatch, tcpdump): a foreign protocol or VLAN; or the"
    " node has no memory or time for them"
)


def worn(name: str, counts: Counts, up_s: float, usual_downs: float | None) -> Verdict | None:
    """Return a warning of what a link has gone through since the node's start."""
    bad, every = damaged(counts), packets(counts)
    if bad >= FEW and bad > every * RATIO:
        return warn(
            f"{name} has damaged {bad} of {every} packets since the node's start"
            + checksums(counts),
            observed=bad,
            reproduce=f"ip -s -s link show dev {name}",
        )
    downs = counts.get(DOWNS, 0)
    days = max(1.0, up_s / DAY_S)
    if downs > DOWNS_A_DAY * days and downs > ODD * (usual_downs or 0):
        return warn(
            f"{name} has gone down {downs} times in {days:.0f} days"
            + beside(usual_downs, " times"),
            observed=downs,
            reproduce=f"cat /sys/class/net/{name}/{DOWNS}",
        )
    return None


def beside(usual: float | None, unit: str) -> str:
    """Say what is usual."""
    return "" if usual is None else f", the other nodes {usual:.0f}{unit}"


def downs_of(fact: Watched) -> int:
    """Return how often the worst of a node's links has gone down."""
    return max((counts.get(DOWNS, 0) for counts in fact["after"]["links"].values()), default=0)


def drops_of(fact: Watched) -> float:
    """Return how many packets the worst of a node's links drops a second."""
    before, after = fact["before"], fact["after"]
    took = max(WATCH_S, after["up_s"] - before["up_s"])
    links = after["links"].items()
    more = (grown(before["links"].get(name, {}), counts) for name, counts in links)
    return max((total(one, DROPS) / took for one in more), default=0)


CHECK = Check(
    probe=watch,
    args=wanted,
    compare=compare,
    level="standard",
    explains=(
        *("network.latency", "network.bandwidth"),
        *("collective.all_reduce", "collective.pairs"),
    ),
)
