"""All nodes reach each other on random high ports, both ways.

Why: only the rendezvous is on a port that is known before. NCCL, Gloo and torch then listen on
    ports that the kernel picks; a firewall that lets through the rendezvous alone leaves the ranks
    connected to the master, and hanging in the first collective.
Facts: address and subnet (of the node on the data plane), ports (two that the kernel gave our
    listeners), answers (by other node and port: what came of dialling it, which ICMP message turned
    it away and whose). A dial is well when our listener answers a secret with another one. Who is
    silent is dialled once more (tries), since a lost packet is no firewall. Above 64 nodes a
    sample: each one meets at least eight others and the master.
Source: bind(2), connect(2), ip(7) IP_RECVERR; ports of net.ipv4.ip_local_port_range.
Fix: let all TCP ports through between the nodes, or net.ipv4.ip_local_port_range of all nodes.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import Any, Mapping

from preflight.api import Check, Fleet, Reply, Verdict, Want, fail, ok, skip, some, unknown
from preflight.node.launch import wanted
from preflight.node.mesh import (
    DIALS_S,
    Answer,
    addresses,
    briefly,
    dial_all,
    hold,
    in_words,
    message,
    noting,
    of_others,
)
from preflight.node.pairs import (
    Culprit,
    Pair,
    Placed,
    about,
    blame,
    of_all,
    partners,
    present,
    stricken,
    told,
)
from preflight.node.ports import MORE_PORTS, NO_PORT, OK, SILENT

PORTS = 2
"""Of each node: one could be a port that happens to be let through."""
FIREWALL = "network.firewall"
"""What can explain that our listeners are not reached."""
EXPLAINED: Mapping[str, tuple[str, ...] | None] = {
    **dict.fromkeys(("filtered", "unreachable", "no route")),
    SILENT: (FIREWALL, "network.latency"),
    NO_PORT: (),
}
"""Some results have other reasons: a link that is down, or answers that are lost."""
FIX = (
    "let TCP ports {low} to {high} (net.ipv4.ip_local_port_range) through between the nodes: see"
    " nft list ruleset, or iptables -S; where network.firewall (as root) finds no such rule on"
    " either node, see the security group of the cloud or the ACLs of the switches"
)
LOW, HIGH = 32768, 60999
"""Linux's own range; a node's may be another one."""


class Mesh(Placed):
    address: str
    ports: list[int]
    answers: dict[str, list[Answer]]
    problem: str


def exercise(fleet: Fleet, want: Want) -> dict[str, Mesh]:
    known, subnets, problems = addresses(fleet, want)
    facts = {
        node: Mesh(
            address=known.get(node, ""),
            subnet=subnets.get(node, ""),
            ports=[],
            answers={},
            problem="",
        )
        for node in fleet.nodes
    }
    for node, why in problems.items():
        facts[node]["problem"] = why
    secrets = os.urandom(16).hex(), os.urandom(16).hex()
    asked = dict.fromkeys(known, ([0] * PORTS, *secrets, want.launch["port"]))
    with fleet.start_all(hold, asked) as running:
        for node, one in running.items():
            if isinstance(one, Reply):
                facts[node]["problem"] = message(one) or "no port could be opened"
            else:
                facts[node]["ports"] = [port for port in one.ready["ports"] if port]
        there = [node for node in known if not facts[node]["problem"]]
        goes = partners(there, want.launch.get("master", ""))
        targets = {
            node: (
                {o: (known[o], facts[o]["ports"]) for o in others if facts[o]["ports"]},
                *secrets,
            )
            for node, others in goes.items()
        }
        replies = of_others(fleet, dial_all, targets, DIALS_S)
    for node, reply in replies.items():
        facts[node]["answers"] = reply.value or {}
        facts[node]["problem"] = message(reply)
    return facts


# ---- judging -------------------------------------------------------------------------------


def compare(facts: Mapping[str, Mesh], want: Want) -> dict[str, Verdict]:
    facts = present(facts, "answers")
    if len(want.nodes) == 1:
        return {node: skip("one node alone meets no other") for node in facts}
    tried = {
        (a, b): all(one["result"] == OK for one in got)
        for a, fact in facts.items()
        for b, got in fact["answers"].items()
        if got
    }
    rows = stricken(blame(tried, facts), list(facts))
    return {
        node: noting(of_node(node, facts, rows, tried), fact["answers"])
        for node, fact in facts.items()
    }


def of_node(
    node: str, facts: Mapping[str, Mesh], rows: Mapping[str, Culprit], tried: Mapping[Pair, bool]
) -> Verdict:
    """Return the verdict of one node."""
    if facts[node]["problem"]:
        return unknown(facts[node]["problem"])
    if node in rows:
        return failure(node, rows[node], facts)
    if not facts[node]["ports"]:
        return unknown("no random port could be opened, so no other node could dial it")
    # Who opened no port, or tells of no dials: where one way works, nothing is known of the other.
    there = {one for one, fact in facts.items() if fact["ports"] and fact["answers"]}
    known = {pair: good for pair, good in tried.items() if not good or there.issuperset(pair)}
    return well(node, known, len(facts))


def well(node: str, tried: Mapping[Pair, bool], count: int) -> Verdict:
    """Return the verdict of a node that is not to blame for what does not work."""
    met: dict[str, bool] = {}
    for pair, good in tried.items():
        if node in pair:
            other = pair[1] if pair[0] == node else pair[0]
            met[other] = good and met.get(other, True)
    if not met:
        return unknown("no other node could be dialled both ways")
    bad = sorted(other for other, good in met.items() if not good)
    sample = of_all(len(met), count)
    if bad:
        rest = f"; with {some(bad)} it does not, which is told there"
        return ok(f"meets {len(met) - len(bad)} of {len(met)} nodes{sample} on random ports{rest}")
    return ok(f"meets {some(sorted(met))}{sample} on random ports, both ways")


def failure(node: str, culprit: Culprit, facts: Mapping[str, Mesh]) -> Verdict:
    """Return the verdict of a node that is to blame, or the first one of a pair."""
    bad = [
        one
        for a, b in sorted(culprit.pairs)
        for one in facts[a]["answers"].get(b, ())
        if one["result"] != OK
    ]
    ((words, _),) = Counter(map(in_words, bad)).most_common(1)
    result = Counter(one["result"] for one in bad).most_common(1)[0][0]
    a, b = min(culprit.pairs)
    port, address = (facts[b]["ports"] or [HIGH])[0], facts[b]["address"]
    return fail(
        f"{told(culprit, node)} on random high ports: {words}",
        observed=result,
        expected=OK,
        fix=MORE_PORTS if result == NO_PORT else FIX.format(low=LOW, high=HIGH),
        reproduce=f"on {a}: nc -vz -w 3 {address} {port}, while on {b}: nc -l {port}",
        explained_by=EXPLAINED.get(result, (FIREWALL,)),
        **about(culprit, node, len(facts)),
    )


def pairs(facts: Mapping[str, Mesh]) -> dict[str, dict[str, str]]:
    return {
        node: {
            peer: next(filter(None, map(briefly, got)), "") for peer, got in fact["answers"].items()
        }
        for node, fact in facts.items()
    }


def surroundings(want: Want) -> tuple[Any, ...]:
    return (want.get("launch.master"), *wanted(want))


CHECK = Check(
    exercise=exercise,
    args=surroundings,
    compare=compare,
    lane="random ports",
    level="standard",
    explains=("network.port", "collective.all_reduce", "collective.pairs"),
    pairs=pairs,
)
