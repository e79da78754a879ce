"""The way to every other node's data plane, and of answers, is by the data plane.

Why: a second interface in the same subnet, a network of containers that overlaps it, or a missing
    route sends the job's data by a slow or a dead link, though each node's interfaces are right.
    Where the answers take another way, a node whose rp_filter is strict drops what comes in.
Facts: places (addresses of the data plane, with interface and subnet), subnets (of all interfaces),
    strict (interfaces whose rp_filter is 1), routes (by other node: the device, source and gateway
    by which the kernel would go to each of its addresses, and answer from there). Nothing is sent.
    Above 64 nodes a sample, as of network.ephemeral.
Source: rtnetlink(7) RTM_GETROUTE, as `ip route get`; getifaddrs(3) by psutil;
    net.ipv4.conf.*.rp_filter (kernel's ip-sysctl.rst).
Fix: see `ip route get ADDRESS`, and give each interface a subnet of its own, and a route to those
    of the other nodes.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from dataclasses import replace
from typing import Any, Collection, Iterator, Mapping, NamedTuple, Sequence, TypedDict

from preflight.api import (
    FAIL,
    STATUSES,
    WARN,
    Check,
    Fleet,
    Verdict,
    Want,
    ok,
    skip,
    some,
    unknown,
)
from preflight.node.launch import wanted
from preflight.node.mesh import message
from preflight.node.pairs import Culprit, about, blame, of_all, partners, present, stricken
from preflight.node.route import Place, Route, Table, is_within, table, ways

LOST = (
    *("network.ephemeral", "network.port", "network.path_mtu", "network.latency"),
    *("network.bandwidth", "collective.all_reduce", "collective.pairs"),
)


class Ways(TypedDict):
    table: Table | None
    routes: dict[str, list[Route]]
    problem: str


class Fault(NamedTuple):
    """What is wrong with the way to an address of a peer, or of the answers to it."""

    status: str
    address: str
    words: str
    """What the node does, such as `goes to {b} by eth0, not by eth1`."""
    fix: str


def exercise(fleet: Fleet, want: Want) -> dict[str, Ways]:
    asked = fleet.map(table, dict.fromkeys(fleet.nodes, wanted(want)))
    facts = {
        node: Ways(table=reply.value, routes={}, problem=message(reply))
        for node, reply in asked.items()
    }
    places = {node: places_of(fact) for node, fact in facts.items()}
    there = [node for node in facts if places[node]]
    goes = partners(there, want.launch.get("master", ""))
    calls = {
        a: (places[a], {b: [one["address"] for one in places[b]] for b in others})
        for a, others in goes.items()
        if others
    }
    for node, reply in fleet.map(ways, calls).items():
        facts[node]["routes"] = reply.value or {}
        facts[node]["problem"] = message(reply)
    return facts


def places_of(fact: Ways) -> list[Place]:
    # without an address it is no place for others to go to, whatever tells it
    return [one for one in fact["table"]["places"] if one["address"]] if fact["table"] else []


# ---- judging -------------------------------------------------------------------------------


def compare(facts: Mapping[str, Ways], want: Want) -> dict[str, Verdict]:
    facts = present(facts, "routes")
    if len(want.nodes) == 1:
        return {node: skip("one node alone goes to no other") for node in facts}
    faults = {
        (a, b): list(faults_of(fact, b, routes))
        for a, fact in facts.items()
        for b, routes in fact["routes"].items()
    }
    tried = {pair: not any(one.status == FAIL for one in of) for pair, of in faults.items()}
    rows = stricken(blame(tried), list(facts))
    return {
        node: failure(node, rows[node], faults, facts)
        if node in rows
        else by_itself(node, facts, faults)
        for node in facts
    }


def by_itself(
    node: str, facts: Mapping[str, Ways], faults: Mapping[tuple[str, str], list[Fault]]
) -> Verdict:
    """Return the verdict of a node to which no failure is put down."""
    fact = facts[node]
    if not fact["problem"] and not any(map(places_of, facts.values())):
        return skip("no node has an address on the data plane that others could use")
    if not fact["routes"]:
        return unknown(fact["problem"] or "it or the others have no address on the data plane")
    mine = {b: of for (a, b), of in faults.items() if a == node}
    mild = {b: [one for one in of if one.status == WARN] for b, of in mine.items()}
    told = said(mild)
    if told:
        return told
    bad = [b for b, of in mine.items() if of]
    good = [b for b in mine if b not in bad]
    devices = dict.fromkeys(one["there"]["device"] for b in good for one in fact["routes"][b])
    rest = f"; of {some(bad)} it is told there" if bad else ""
    left = unused(fact, devices)
    rest += f"; nothing goes by {some(left)}, of the same subnet" if left else ""
    goes = f"goes to {some(good) or 'none'}{of_all(len(mine), len(facts))}"
    return ok(f"{goes} by {some(list(devices)) or 'none'}{rest}")


def unused(fact: Ways, devices: Collection[str]) -> list[str]:
    """Return the interfaces by which nothing goes out, as it does by others in their subnet."""
    places = places_of(fact)
    taken = {one["subnet"] for one in places if one["interface"] in devices}
    left = [one for one in places if one["interface"] not in devices]
    return [one["interface"] for one in left if one["subnet"] in taken]


def said(mine: Mapping[str, list[Fault]]) -> Verdict | None:
    """Return the verdict of what is wrong with the ways from one node, nothing if they are well."""
    first = [(b, of[0]) for b, of in sorted(mine.items()) if of]
    if not first:
        return None
    b, one = max(first, key=lambda pair: STATUSES.index(pair[1].status))
    more = len(first) - 1
    return Verdict(
        one.status,
        one.words.format(b=b) + (f"; so it is with {more} more" if more else ""),
        observed=one.words.format(b="").replace(one.address, ""),
        fix=one.fix,
        reproduce=f"ip route get {one.address}",
    )


def failure(
    node: str,
    culprit: Culprit,
    faults: Mapping[tuple[str, str], list[Fault]],
    facts: Mapping[str, Ways],
) -> Verdict:
    """Return the verdict of a node that is to blame, or the first one of a pair."""
    wrong = {pair: [f for f in faults[pair] if f.status == FAIL] for pair in culprit.pairs}
    mine = {b: of for (a, b), of in wrong.items() if a == node}
    verdict = replace(said(mine) or abroad(wrong), **about(culprit, node, len(facts)))
    if verdict.scope == "node":
        return verdict
    return replace(verdict, summary=f"{node} {verdict.summary}")


def abroad(wrong: Mapping[tuple[str, str], list[Fault]]) -> Verdict:
    """Return the failure of a node to which the others do not find the way."""
    (a, _), of = min(wrong.items())
    words = Counter(one.words.format(b="it") for found in wrong.values() for one in found)
    return Verdict(
        FAIL,
        f"the other nodes do not go to it as they should: {a} {words.most_common(1)[0][0]}",
        observed=of[0].address,
        fix=f"give it an address in the others' subnet, or them a route: on {a}, {of[0].fix}",
        reproduce=f"on {a}: ip route get {of[0].address}",
    )


# ---- one way -------------------------------------------------------------------------------


def faults_of(fact: Ways, peer: str, routes: list[Route]) -> Iterator[Fault]:
    """Yield what is wrong with the ways to a peer."""
    places = {one["interface"]: one for one in places_of(fact)}
    for route in routes:
        there, answer, at = route["there"], route["answer"], places[route["interface"]]
        if there["problem"]:
            words = f"has no way to {{b}} ({route['address']}): {there['problem']}"
            yield Fault(FAIL, route["address"], words, way_back(route, at))
        elif is_bare(at):
            continue
        elif there["device"] not in places:
            yield astray(fact, route, at)
        elif answer["device"] and answer["device"] not in places:
            yield answered(fact, route, at)


def way_back(route: Route, at: Place) -> str:
    """Return what gives a node the way that it lacks."""
    if route["there"]["device"]:
        return "see on which nodes that address is, and leave it to one: ip -brief address"
    if is_within(route["address"], at["subnet"]):
        return f"ip route add {at['subnet']} dev {at['interface']}"
    return lacking(route["address"], at)


def lacking(address: str, at: Place) -> str:
    return f"ip route add SUBNET via GATEWAY dev {at['interface']}, for the subnet of {address}"


def is_bare(at: Place) -> bool:
    """Whether an address lies on no link: it is reached by whatever link there is."""
    hosts = ipaddress.ip_network(at["subnet"]).num_addresses if at["subnet"] else 0
    return at["kind"] == "loopback" or hosts == 1


def astray(fact: Ways, route: Route, at: Place) -> Fault:
    """Return the fault of a way that is not by the data plane."""
    device, address, own = route["there"]["device"], route["address"], at["interface"]
    words = f"goes to {{b}} ({address}) by {device}, not by {own}"
    if is_within(address, at["subnet"]):
        theirs = [s for s in subnets_of(fact, device) if overlap(s, at["subnet"])]
        why = f"{at['subnet']} of {own} and {theirs[0]} of {device} overlap" if theirs else ""
        words += f": {why}" if why else f", though that is in {at['subnet']} too"
        fix = f"give {device} another subnet, or take its address: ip address show dev {device}"
        return Fault(FAIL, address, words, fix if why else f"see ip route get {address}")
    gateway = route["there"]["gateway"]
    words += f": the way to it is by {gateway}" if gateway else ""
    return dropped(fact, Fault(WARN, address, words, lacking(address, at)), own)


def answered(fact: Ways, route: Route, at: Place) -> Fault:
    """Return the fault of answers that are not by the data plane."""
    own, device = at["interface"], route["answer"]["device"]
    words = f"answers {{b}} ({route['address']}) from {at['address']} of {own} by {device}"
    fix = f"see ip rule, and ip route get {route['address']} from {at['address']}"
    return dropped(fact, Fault(WARN, route["address"], words, fix), own)


def dropped(fact: Ways, fault: Fault, own: str) -> Fault:
    """Return the fault as a failure if the interface takes nothing that it would not answer."""
    if not fact["table"] or own not in fact["table"]["strict"]:
        return fault
    words = f"{fault.words}, and {own} drops what comes from there (rp_filter is 1)"
    return fault._replace(status=FAIL, words=words, fix=f"{fault.fix}; or rp_filter=2")


def subnets_of(fact: Ways, device: str) -> Sequence[str]:
    return fact["table"]["subnets"].get(device, []) if fact["table"] else []


def overlap(one: str, other: str) -> bool:
    a, b = ipaddress.ip_network(one), ipaddress.ip_network(other)
    return a.version == b.version and a.overlaps(b)


def pairs(facts: Mapping[str, Ways]) -> dict[str, dict[str, str]]:
    return {
        a: {b: brief(list(faults_of(fact, b, routes))) for b, routes in fact["routes"].items()}
        for a, fact in facts.items()
    }


def brief(faults: list[Fault]) -> str:
    failing = [one for one in faults if one.status == FAIL]
    if not failing:
        return ""
    return "no way" if failing[0].words.startswith("has no") else "another way"


def surroundings(want: Want) -> tuple[Any, ...]:
    return (want.get("launch.master"), *wanted(want))


CHECK = Check(
    exercise=exercise,
    args=surroundings,
    compare=compare,
    lane="routes",
    level="standard",
    explains=LOST,
    pairs=pairs,
)
