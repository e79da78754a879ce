"""Full-size packets pass unfragmented between all nodes, both ways.

Why: equal MTUs of all interfaces say nothing of the switches and tunnels between them. Where those
    take less, small messages pass and large ones are lost without an error: the ranks connect, and
    the first large all_reduce hangs.
Facts: address and subnet (of the node on the data plane), interface and mtu (of it), passages (by
    other node: result; full, the packet that should pass, which is the smaller MTU of both; passes,
    the largest that does; who turned larger ones away with which ICMP message). Each direction is
    tried alone, since replies are short. A size counts as lost when small datagrams beside it were
    answered six times and it never. Where not even small ones are answered, nor when they are
    sent once more (tries), nothing is known. Above 64 nodes a sample: each one meets at least eight
    others and the master.
Source: UDP with IP_MTU_DISCOVER = IP_PMTUDISC_PROBE and IP_RECVERR (ip(7), ipv6(7)) to echoes of
    preflight's own; RFC 1191, RFC 2923 for black holes. That a router says "fragmentation needed"
    is a warning only, since TCP heeds it.
Fix: give all switch ports, tunnels and bridges on the way the MTU of the nodes' interfaces, plus
    what a tunnel adds; or all interfaces the MTU that passes: `ip link set dev NAME mtu VALUE`.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import Mapping, Sequence

from preflight.api import Check, Fleet, Reply, Verdict, Want, fail, ok, skip, some, unknown, warn
from preflight.node.launch import wanted
from preflight.node.mesh import addresses, message, noting, of_others
from preflight.node.pairs import (
    Culprit,
    Pair,
    Placed,
    about,
    between,
    blame,
    of_all,
    partners,
    present,
    stricken,
)
from preflight.node.path import HOLE, LARGEST, LIMIT_S, TOLD, UNFINISHED, Passage, passages
from preflight.node.ports import FILTERED, NO_ROUTE, OK
from preflight.node.udp import echo

ANSWERED = (OK, HOLE, TOLD)
"""Results of pairs of which the path's MTU is known."""
LESS_THAN_MTU = (
    *("network.names", "network.interface", "network.route"),
    *("network.link", "network.errors"),
)
"""Checks that can explain that packets of the usual MTU are lost. That an interface has another MTU
than the others explains only that larger ones are: of two nodes the smaller MTU is tried."""

LATE = f" in {LIMIT_S:g} s, or answered"


class Mesh(Placed):
    address: str
    interface: str
    mtu: int
    passages: dict[str, Passage]
    problem: str


def exercise(fleet: Fleet, want: Want) -> dict[str, Mesh]:
    known, subnets, problems = addresses(fleet, want)
    facts = {
        node: Mesh(
            address=known.get(node, ""),
            subnet=subnets.get(node, ""),
            interface="",
            mtu=0,
            passages={},
            problem=problems.get(node, ""),
        )
        for node in fleet.nodes
    }
    if len(want.nodes) == 1:
        return facts
    secrets = os.urandom(16).hex(), os.urandom(16).hex()
    with fleet.start_all(echo, {node: (known[node], *secrets) for node in known}) as running:
        ports = {}
        for node, one in running.items():
            if isinstance(one, Reply):
                facts[node]["problem"] = message(one) or "no UDP port could be opened"
                continue
            facts[node]["interface"], facts[node]["mtu"] = one.ready["interface"], one.ready["mtu"]
            if one.ready["mtu"]:
                ports[node] = one.ready["port"]
            else:
                facts[node]["problem"] = f"the MTU of the interface with {known[node]} is not told"
        targets = {
            node: (goals(node, others, facts, ports), *secrets)
            for node, others in partners(list(ports), want.launch.get("master", "")).items()
        }
        replies = of_others(fleet, passages, targets, LIMIT_S + 5)
    for node, reply in replies.items():
        facts[node]["passages"] = reply.value or {}
        facts[node]["problem"] = message(reply)
    return facts


def goals(
    node: str, others: Sequence[str], facts: Mapping[str, Mesh], ports: Mapping[str, int]
) -> dict[str, tuple[str, int, int]]:
    """Return address, port and full size of the nodes that one goes to.

    Each begins with the one after it, so that not all come to the same at once.
    """
    after = list(ports)
    after = after[after.index(node) :] + after
    return {
        other: (
            facts[other]["address"],
            ports[other],
            min(facts[node]["mtu"], facts[other]["mtu"], LARGEST),
        )
        for other in sorted(others, key=after.index)
    }


# ---- judging -------------------------------------------------------------------------------


def compare(facts: Mapping[str, Mesh], want: Want) -> dict[str, Verdict]:
    facts = present(facts, "passages")
    if len(want.nodes) == 1:
        return {node: skip("one node alone sends nothing to another") for node in facts}
    results = {
        (a, b): one["result"] for a, fact in facts.items() for b, one in fact["passages"].items()
    }
    known = {pair: result for pair, result in results.items() if result in ANSWERED}
    asked = {pair: result for pair, result in results.items() if result != UNFINISHED}
    nodes = list(facts)
    holes = stricken(blame({pair: result != HOLE for pair, result in known.items()}, facts), nodes)
    small = stricken(blame({pair: result != TOLD for pair, result in known.items()}, facts), nodes)
    quiet = stricken(
        blame({pair: result in ANSWERED for pair, result in asked.items()}, facts), nodes
    )
    verdicts = {}
    for node, fact in facts.items():
        if fact["problem"]:
            verdicts[node] = unknown(fact["problem"])
        elif node in holes:
            verdicts[node] = lost(node, holes[node], facts, want)
        elif node in small:
            verdicts[node] = refused(node, small[node], facts)
        elif node in quiet:
            verdicts[node] = unheard(node, quiet[node], facts)
        else:
            verdicts[node] = well(node, facts, results)
    return {
        node: noting(verdict, {b: [one] for b, one in facts[node]["passages"].items()})
        for node, verdict in verdicts.items()
    }


def well(node: str, facts: Mapping[str, Mesh], results: Mapping[Pair, str]) -> Verdict:
    """Return the verdict of a node that is not to blame for what does not pass."""
    mine = {pair: result for pair, result in results.items() if node in pair}
    bad = {other(pair, node) for pair, result in mine.items() if result not in (OK, UNFINISHED)}
    aside = bad | {other(pair, node) for pair, result in mine.items() if result == UNFINISHED}
    aside |= {n for n, fact in facts.items() if not fact["passages"]}  # of one way nothing is known
    good = {pair for pair, result in mine.items() if result == OK and not {*pair} & aside}
    rest = (
        f"; those to or from {some([n for n in facts if n in bad])} do not, which is told there"
        if bad
        else ""
    )
    if not good:
        return (
            ok(f"packets{rest[7:]}")
            if bad
            else unknown(f"no other node was tried to the end{LATE}")
        )
    sizes = sorted({facts[a]["passages"][b]["passes"] for a, b in good})
    size = " to ".join(str(one) for one in dict.fromkeys((sizes[0], sizes[-1])))
    met = {other(pair, node) for pair in good}
    between = some([one for one in facts if one in met]) + of_all(len(met), len(facts))
    return ok(f"packets of {size} bytes pass to and from {between}{rest}", observed=sizes[0])


def other(pair: Pair, node: str) -> str:
    return pair[1] if pair[0] == node else pair[0]


def lost(node: str, culprit: Culprit, facts: Mapping[str, Mesh], want: Want) -> Verdict:
    """Return the failure of a node behind a black hole."""
    one, (a, b) = worst(culprit, facts)
    name, size, mtu = facts[node]["interface"], one["passes"], one["full"]
    where = between(culprit, node)
    right = want.get("expect.mtu", usual(facts))
    return fail(
        f"packets above {size} bytes {where} are lost without an error;"
        f" the interfaces there have MTU {mtu}",
        observed=size,
        expected=mtu,
        fix=f"let packets of {mtu} bytes through on the way (switch ports, bridges, tunnels)"
        f" {where}; until then: ip link set dev {name} mtu {size}, on all nodes",
        reproduce=by_hand(a, b, facts, mtu),
        explained_by=LESS_THAN_MTU if mtu <= right else None,
        **about(culprit, node, len(facts)),
    )


def usual(facts: Mapping[str, Mesh]) -> int:
    """Return the MTU that most nodes have, of several such the smallest."""
    counts = Counter(fact["mtu"] for fact in facts.values() if fact["mtu"])
    return min(counts, key=lambda mtu: (-counts[mtu], mtu))


def refused(node: str, culprit: Culprit, facts: Mapping[str, Mesh]) -> Verdict:
    """Return the warning of a node to which a router says what it cannot take."""
    one, (a, b) = worst(culprit, facts)
    size, mtu = one["passes"], one["full"]
    who = " and ".join(sorted({facts[a]["passages"][b]["by"] for a, b in culprit.pairs}))
    return warn(
        f"packets above {size} bytes {between(culprit, node)} are too large for {who or 'a router'}"
        f', which says so (ICMP "{TOLD}"); the interfaces there have MTU {mtu}',
        observed=size,
        expected=mtu,
        fix=f"raise the MTU of {who or 'the router'} to {mtu}, or give all nodes {size}",
        reproduce=by_hand(a, b, facts, mtu),
        **about(culprit, node, len(facts)),
    )


def unheard(node: str, culprit: Culprit, facts: Mapping[str, Mesh]) -> Verdict:
    """Return what is said where not even small datagrams are answered."""
    found = [facts[a]["passages"][b] for a, b in sorted(culprit.pairs)]
    # one that was told why says more than one that heard nothing
    one = next((one for one in found if one["icmp"] or one["result"] != FILTERED), found[0])
    result, icmp, by = one["result"], one["icmp"], one["by"]
    where = between(culprit, node)
    if result == NO_ROUTE and not icmp:
        return unknown(
            f"no route {where}, so what size passes cannot be told",
            fix="see network.route, and ip route get ADDRESS",
        )
    how = "are not answered" if result == FILTERED else f"are turned away: {result}"
    if icmp:
        how = f"are rejected by {by} (ICMP {icmp})"
    return unknown(
        f"UDP filtered: even small datagrams {where} {how}, so what size passes cannot be told",
        fix="let UDP through between the nodes, at least while preflight runs",
    )


def worst(culprit: Culprit, facts: Mapping[str, Mesh]) -> tuple[Passage, Pair]:
    """Return the passage of a culprit that takes least, and between whom."""
    pair = min(sorted(culprit.pairs), key=lambda one: facts[one[0]]["passages"][one[1]]["passes"])
    return facts[pair[0]]["passages"][pair[1]], pair


def by_hand(a: str, b: str, facts: Mapping[str, Mesh], mtu: int) -> str:
    """Return how to see that packets of this size do not pass."""
    address = facts[b]["address"]
    return f"on {a}: ping -M do -c 3 -s {mtu - (48 if ':' in address else 28)} {address}"


def pairs(facts: Mapping[str, Mesh]) -> dict[str, dict[str, str]]:
    return {
        node: {peer: briefly(one) for peer, one in fact["passages"].items()}
        for node, fact in facts.items()
    }


def briefly(one: Passage) -> str:
    """Return what came of a pair, nothing where it is well, for a matrix."""
    if one["result"] in (HOLE, TOLD):
        return f"{one['passes']} B"
    return "" if one["result"] == OK else "no UDP"


CHECK = Check(
    exercise=exercise,
    args=lambda want: (want.get("launch.master"), *wanted(want)),
    compare=compare,
    lane="datagrams",
    level="standard",
    explains=("network.bandwidth", "collective.all_reduce", "collective.pairs"),
    pairs=pairs,
)
