"""Nodes answer each other as quickly as the others do, from one site, and nothing is lost.

Why: every collective waits for the slowest round trip, many times a step. A node in another site
    or behind a slow tunnel holds back all. A link that loses one packet in a hundred stalls nearly
    every collective until TCP's timer sends it again, 200 ms later.
Facts: address and subnet (of the node on the data plane), trips (to other nodes: times_us, least,
    median and p99; sent, arrived and heard, up to the last reply, which tell what was lost there
    and what on the way back; missing, all replies that did not come; by: udp, or tcp where UDP is
    filtered, which tells no losses), losses (the same of 200 datagrams, where a first one was
    lost). Of two nodes one talks to the other, and each to one at a time. What looks late is
    measured up to three times more, after pauses, and losses once more; the better counts. Above 64
    nodes a sample: each one meets at least eight others and the master.
Source: UDP echoes of preflight's own, with the kernel's time of arrival (SO_TIMESTAMPNS) at both
    ends, and what it had no room for (SO_RXQ_OVFL); of TCP its own measure (TCP_INFO): so it is the
    network that is judged and not how busy a node is. A round trip is within one rack tens of
    microseconds; 100 km of fibre add 1 ms. TCP carries at most 1.22 x MSS / (round trip x square
    root of the loss) a connection (Mathis and others, 1997): at 0.1 ms and 1 % that is 1.4 Gb/s, at
    5 % 0.6; TCP_RTO_MIN of Linux is 200 ms.
Fix: take nodes of one site. Where packets are lost, see `ethtool -S` of both ends and the counters
    of the switch ports: cables and optics, full buffers, `tc qdisc`, a rate limit of the cloud.
"""

from __future__ import annotations

from statistics import median
from typing import Mapping, Sequence

from preflight.api import Check, Verdict, Want, fail, ok, skip, some, unknown, warn
from preflight.node.launch import wanted
from preflight.node.pairs import Culprit, Pair, about, between, blame, of_all, present, stricken
from preflight.node.talks import (
    LOSS_FAIL,
    SITE_MS,
    Lost,
    Mesh,
    Took,
    all_pairs,
    is_late,
    lost_packets,
    times,
    usual,
)

DIALS_LOST = 0.1
"""From here on dials may fail, of which TCP sends three SYNs in 4 s."""
SLOWS = ("network.bandwidth", "collective.all_reduce", "collective.pairs")


def compare(facts: Mapping[str, Mesh], want: Want) -> dict[str, Verdict]:
    facts = present(facts, "trips", "losses")
    if len(want.nodes) == 1:
        return {node: skip("one node alone has no way to another") for node in facts}
    took, lost, nodes = times(facts), lost_packets(facts), list(facts)
    right = usual(took)
    late = stricken(
        blame({pair: not is_late(one, right) for pair, one in took.items()}, facts), nodes
    )
    gone = stricken(blame({pair: not one.counts for pair, one in lost.items()}, facts), nodes)
    verdicts = {}
    for node, fact in facts.items():
        if fact["problem"]:
            verdicts[node] = unknown(fact["problem"])
        elif node in gone:
            verdicts[node] = losing(node, gone[node], lost, facts)
        elif node in late:
            verdicts[node] = slow(node, late[node], took, right, facts)
        else:
            verdicts[node] = well(node, took, right, lost, nodes)
    return verdicts


def losing(
    node: str, culprit: Culprit, lost: Mapping[Pair, Lost], facts: Mapping[str, Mesh]
) -> Verdict:
    """Return the verdict of a node whose packets are lost."""
    found = [lost[pair] for pair in culprit.pairs]
    total = Lost(sum(one.lost for one in found), sum(one.sent for one in found))
    a, b = min(culprit.pairs)
    return (fail if total.rate >= LOSS_FAIL else warn)(
        f"{percent(total.rate)} of the packets {between(culprit, node)} are lost:"
        f" {total.lost} of {total.sent} small ones",
        observed=round(total.rate, 3),
        expected=0,
        reproduce=f"on {a}: ping -c 200 -i 0.2 {facts[b]['address']}",
        explains=(*SLOWS, "network.ephemeral", "network.port")
        if total.rate >= DIALS_LOST
        else SLOWS,
        **about(culprit, node, len(facts)),
    )


def slow(
    node: str,
    culprit: Culprit,
    took: Mapping[Pair, Took],
    right: Took,
    facts: Mapping[str, Mesh],
) -> Verdict:
    """Return the warning of a node that is far from others, or slow to answer."""
    found = [took[pair] for pair in culprit.pairs]
    one = Took(*(median([each[i] for each in found]) for i in range(3)))
    a, b = min(culprit.pairs)
    beside = f", {written(right.median)} elsewhere" if culprit.kind != "cluster" else ""
    why = f"{written(one.least)} at the least is more than a switch or a tunnel nearby adds"
    if one.least >= SITE_MS:
        why = "as between sites: training is held back by it"
    alone = len(facts) == 2
    return warn(
        f"round trips {between(culprit, node)} take {written(one.median)}"
        f"{'' if alone else beside}; {why}",
        observed=one.median,
        expected=None if alone or culprit.kind == "cluster" else right.median,
        details=(
            f"no all_reduce across it takes less than {written(one.least / 2)}, however small",
        ),
        fix="take nodes of one site and network; else see the route: tracepath, tc qdisc, tunnels",
        reproduce=f"on {a}: ping -c 20 -i 0.2 {facts[b]['address']}",
        **about(culprit, node, len(facts)),
    )


def well(
    node: str,
    took: Mapping[Pair, Took],
    right: Took,
    lost: Mapping[Pair, Lost],
    order: Sequence[str],
) -> Verdict:
    """Return the verdict of a node that is not to blame for what is slow or lost."""
    bad = {pair for pair, one in lost.items() if one.counts}
    bad |= {pair for pair, one in took.items() if is_late(one, right)}
    told = [one for one in order if {(node, one), (one, node)} & bad]
    mine = {one: took[node, one] for one in order if (node, one) in took and one not in told}
    rest = f"; what is wrong between it and {some(told)} is told there" if told else ""
    if not mine:
        return ok(rest[2:]) if told else unknown("no other node answered, by UDP or by TCP")
    middle, worst = median([one.median for one in mine.values()]), max(m.p99 for m in mine.values())
    gone = [one for pair, one in lost.items() if node in pair and not {*pair} & {*told}]
    missing, sent = (sum(one[i] for one in gone) for i in range(2))
    words = f"{missing} of {sent} packets lost" if missing else "nothing lost"
    if not all((node, one) in lost for one in mine):
        words = "by TCP where UDP is filtered: losses are not told there"
    return ok(
        f"round trips with {some(list(mine))}{of_all(len(mine), len(order))} take"
        f" {written(middle)} (p99 {written(worst)}), {words}{rest}",
        observed=middle,
    )


def written(ms: float) -> str:
    """Return a time for people."""
    return f"{1000 * ms:.0f} us" if ms < 1 else f"{ms:.1f} ms" if ms < 10 else f"{ms:.0f} ms"


def percent(rate: float) -> str:
    """Return a share for people."""
    return f"{100 * rate:.0f} %"


def pairs(facts: Mapping[str, Mesh]) -> dict[str, dict[str, str]]:
    took, lost = times(facts), lost_packets(facts)
    right = usual(took)
    found: dict[str, dict[str, str]] = {node: {} for node in facts}
    for (a, b), one in took.items():
        found[a][b] = written(one.median) if is_late(one, right) else ""
    for (a, b), gone in lost.items():
        if gone.counts:
            found[a][b] = f"{percent(gone.rate)} lost"
    return found


CHECK = Check(
    exercise=all_pairs,
    args=lambda want: (want.get("launch.master"), *wanted(want)),
    compare=compare,
    level="standard",
    explains=(*SLOWS, "network.ephemeral", "network.port"),
    pairs=pairs,
)
