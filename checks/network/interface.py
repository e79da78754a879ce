"""NCCL, Gloo and TensorPipe choose addresses that the other nodes reach.

Why: each of them gives the others one of the node's addresses, by rules of its own. One that leads
    to containers, lies in another network or is loopback lets the ranks meet at the master, and
    wait in the first collective for a connection that cannot come.
Facts: choices (by whom, interface, address, subnet, and why), others (further addresses that could
    be reached), answers (what came of dialling each of them from the other nodes), data_plane and
    interfaces (see network.mtu), unnamed (why it is not known what the host name decides).
Source: getifaddrs(3) by psutil and getaddrinfo(3), by the rules of NCCL 2.30 (src/misc/socket.cc),
    of PyTorch 2.x for Gloo (ProcessGroupGloo.cpp: GLOO_SOCKET_IFNAME, the host name, 127.0.0.1) and
    TensorPipe (tensorpipe_agent.cpp: TP_SOCKET_IFNAME, the host name, 127.0.0.1); connect(2) to our
    own listeners. Above 64 nodes a sample, as of network.ephemeral. torch's TCPStore chooses
    nothing: it listens on all addresses, and is dialled at MASTER_ADDR, as network.port does.
Fix: name the interface for all nodes: launch.interface, or NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME
    and TP_SOCKET_IFNAME in launch.env.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Iterable, Mapping, Sequence

from preflight.api import (
    FAIL,
    STATUSES,
    WARN,
    Check,
    Verdict,
    Want,
    fail,
    ok,
    same_everywhere,
    skip,
    some,
    unknown,
    warn,
)
from preflight.node.choice import HOST_NAME, LOOPBACK, NAMES, NCCL, Choice, dialled
from preflight.node.chosen import (
    Chosen,
    Slot,
    better,
    detoured,
    first,
    interfaces_of,
    is_one,
    is_well,
    look,
    most_bad,
    odd,
    other_way,
    slots,
    unrouted,
    users,
)
from preflight.node.launch import wanted
from preflight.node.mesh import briefly, noting
from preflight.node.net import NCCLS, Network, main_interfaces, strayed, usual_choice
from preflight.node.pairs import Culprit, about, blame, of_all, present, stricken

NAME_IT = "name it for all nodes: launch.interface, or NCCL_SOCKET_IFNAME in launch.env"
CARRIED = (
    *("network.link", "network.mtu", "network.route", "network.firewall", "network.ephemeral"),
    *("network.port", "network.path_mtu", "network.latency", "network.bandwidth"),
    *("collective.all_reduce", "collective.pairs"),
)
FURTHER = ("network.route", "collective.all_reduce", "collective.pairs")
"""What can follow from a choice besides that of where ranks meet."""
SLOWS = ("network.bandwidth", "collective.all_reduce", "collective.pairs")


def compare(facts: Mapping[str, Chosen], want: Want) -> dict[str, Verdict]:
    facts = present(facts, "answers")
    known = {node: fact["network"] for node, fact in facts.items() if fact["network"]}
    found: dict[str, list[Verdict]] = {node: by_itself(fact, want) for node, fact in facts.items()}
    twice = shared(facts)
    missing = [
        {node: verdict for node, verdict in reached(slot, facts).items() if node not in twice}
        for slot in slots(facts)
    ]
    for one in (twice, *missing, closed_in(facts, known, want), strays(known), rails(known)):
        for node, verdict in one.items():
            found[node].append(verdict)
    return {
        node: unknown(fact["problem"])
        if not fact["network"]
        else gravest(found[node] or [well(node, fact, facts, want)])
        for node, fact in facts.items()
    }


def gravest(found: Sequence[Verdict]) -> Verdict:
    """Return the gravest of several verdicts; what else is wrong is a detail."""
    worst = max(found, key=lambda verdict: STATUSES.index(verdict.status))
    rest = [v.summary for v in found if v is not worst]
    return replace(worst, details=(*worst.details, *rest))


def well(node: str, fact: Chosen, facts: Mapping[str, Chosen], want: Want) -> Verdict:
    """Return the verdict of a node whose choices are right, as far as this check tells."""
    words = "; ".join(f"{by} would use {places(found)}" for by, found in by_whom(fact["choices"]))
    if len(want.nodes) == 1:
        return skip(f"one node alone: {words}")
    if fact["problem"] or not fact["answers"]:
        return unknown(fact["problem"] or "no other node could be dialled")
    if all(node not in one["answers"] for one in facts.values()):
        return unknown("no other node tells whether it reaches it")
    met = {b: [*got.values()] for b, got in fact["answers"].items()}
    bad = [b for b, got in met.items() if not any(map(is_well, got))]
    rest = f"; to {some(bad)} there is no way, which is told elsewhere" if bad else ""
    sample = of_all(len(met), len(want.nodes))
    asked = f"; dialled {len(met)} nodes{sample}" if sample else ""
    return noting(ok(words + asked + rest), met)


def by_whom(found: Iterable[Choice]) -> list[tuple[str, list[Choice]]]:
    """Return who chooses the same, in words, and what."""
    made: dict[str, list[Choice]] = {}
    for one in found:
        made.setdefault(one["by"], []).append(one)
    same: dict[tuple[str, ...], list[str]] = {}
    for by, ones in made.items():
        same.setdefault(tuple(one["address"] for one in ones), []).append(by)
    return [(" and ".join(who), made[who[0]]) for who in same.values()]


def places(found: Sequence[Choice]) -> str:
    return ", ".join(f"{one['interface']} ({one['address']})" for one in found)


# ---- a node by itself ----------------------------------------------------------------------


def by_itself(fact: Chosen, want: Want) -> list[Verdict]:
    """Return what is wrong with a node's choices, whatever the other nodes have."""
    found = [unmade(one) for one in fact["choices"] if one["problem"]]
    if len(want.nodes) > 1 and fact["network"]:
        found += filter(None, (loopback(fact), inner(fact["network"])))
    return found


def unmade(one: Choice) -> Verdict:
    """Return the failure of a choice that cannot be made."""
    variable = NAMES.get(one["by"])
    name_it = f"set {variable} to an interface that is here" if variable else NAME_IT
    words = one["problem"] if one["by"] == NCCL else "{by}: {problem}".format(**one)
    return fail(words, fix=name_it, reproduce="ip -brief address")


def loopback(fact: Chosen) -> Verdict | None:
    """Return the failure of a choice that means the other node itself to each of them.

    Where the host name has such an address, network.names says so.
    """
    for one in fact["choices"]:
        if one["address"].startswith(LOOPBACK) and not one["why"].startswith(HOST_NAME):
            behind = [a for i in interfaces_of(fact) if i["name"] == "lo" for a in i["addresses"]]
            behind = [a for a in behind if not a.startswith(LOOPBACK)]
            words = "{by} would use lo, which leads to no other node: {why}".format(**one)
            if behind:
                words += f"; {behind[0]} is on lo too, where it cannot be chosen"
            fix = f"give {behind[0]} to a dummy interface, and {NAME_IT}" if behind else NAME_IT
            return fail(words, fix=fix, reproduce="ip address", explains=CARRIED)
    return None


def inner(network: Network) -> Verdict | None:
    """Return a warning of interfaces that NCCL would use and no other node could reach."""
    plane = network["data_plane"]
    if not plane["aside"]:
        return None
    by = "left to choose" if plane["why"] == NCCLS else "by {why}".format(**plane)
    return warn(
        "{}, NCCL would use {} too, which are not of the network between the nodes".format(
            by, some(plane["aside"])
        ),
        observed=plane["aside"],
        fix="set NCCL_SOCKET_IFNAME={}".format(",".join(plane["names"])),
        reproduce="ip -brief address",
    )


# ---- compared with the others --------------------------------------------------------------


def strays(known: Mapping[str, Network]) -> dict[str, Verdict]:
    """Return what is to be said of nodes that have the interfaces most nodes use, and use others.

    A failure where those are not as fast, or have another MTU.
    """
    usual, found = usual_choice(known), {}
    theirs = [main_interfaces(n) for n in known.values() if joined(n) == usual]
    for node, network in known.items():
        words = strayed(network, usual)
        if not words:
            continue
        differing = [
            f"{what} {show(ours)}, not {show(right)}"
            for what, key, show in (("MTU", "mtu", str), ("speed", "speed_mbps", gbps))
            for ours in [main_interfaces(network)[0][key]]  # type: ignore[literal-required]
            for right in [theirs[0][0][key]]  # type: ignore[literal-required]
            if ours and right and ours != right
        ]
        say = fail if differing else warn
        found[node] = say(
            f"{words}: {' and '.join(differing)}" if differing else words,
            fix=f"{NAME_IT}: {usual}",
            reproduce="ip -brief address",
            explains=CARRIED,
        )
    return found


def joined(network: Network) -> str:
    return ", ".join(network["data_plane"]["names"])


def gbps(mbps: int) -> str:
    return f"{mbps / 1000:g} Gb/s"


def rails(known: Mapping[str, Network]) -> dict[str, Verdict]:
    """Return the verdicts of nodes whose data plane has not as many interfaces as most nodes'.

    Where nobody named any, it is not said that all of them are meant.
    """
    counts = {node: len(network["data_plane"]["names"]) for node, network in known.items()}
    counts = {node: count for node, count in counts.items() if count}
    verdicts = same_everywhere(
        counts,
        "interfaces of the data plane:",
        fix="see which are missing, down or without an address, and bring them up",
        reproduce="ip -brief address",
        explains=SLOWS,
    )
    for node, verdict in verdicts.items():
        summary = f"{verdict.summary}; here {joined(known[node])}"
        verdict = verdict if verdict.scope == "cluster" else replace(verdict, summary=summary)
        verdicts[node] = verdict
        if verdict.expected is not None and counts[node] > verdict.expected:
            verdicts[node] = replace(verdict, status=WARN, fix=NAME_IT)
        elif verdict.status == FAIL and known[node]["data_plane"]["why"] == NCCLS:
            verdicts[node] = replace(verdict, status=WARN, fix=f"{verdict.fix}; or {NAME_IT}")
        elif known[node]["data_plane"]["idle"]:
            verdicts[node] = ok("")  # what is idle is down, which network.link says
    return {node: verdict for node, verdict in verdicts.items() if verdict.status != "pass"}


def closed_in(
    facts: Mapping[str, Chosen], known: Mapping[str, Network], want: Want
) -> dict[str, Verdict]:
    """Return what is wrong with a first choice that is an IPv6 address of one link alone.

    NCCL takes them. Among themselves they may do, on interfaces of the same number.
    """
    firsts = {node: first(fact) for node, fact in facts.items()}
    away = any(one and dialled([one]) for one in firsts.values())
    found = {}
    for node, one in firsts.items():
        if not one or dialled([one]) or not one["address"] or one["address"].startswith(LOOPBACK):
            continue
        aside = one["interface"] in (known[node]["data_plane"]["aside"] if node in known else ())
        say = fail if away or aside else warn
        other = better(facts[node], one["interface"])
        found[node] = say(
            "{interface} has only a link-local address ({why})".format(**one),
            fix=f"set NCCL_SOCKET_IFNAME={other}" if other else "give it an address",
            reproduce="ip address show dev {}".format(one["interface"]),
            explains=CARRIED,
        )
    return found if len(want.nodes) > 1 else {}


def shared(facts: Mapping[str, Chosen]) -> dict[str, Verdict]:
    """Return the failures of choices that other nodes have too: each would dial itself."""
    owners: dict[str, dict[str, Choice]] = {}
    for node, fact in facts.items():
        for one in fact["choices"]:
            if dialled([one]):
                owners.setdefault(one["address"], {}).setdefault(node, one)
    found = {}
    for address, having in owners.items():
        for node, one in having.items():
            others = [o for o in having if o != node and not is_one(facts[node], facts[o])]
            if others:
                found[node] = fail(
                    "{} would use {} ({}), an address of {} too: {}".format(
                        one["by"], one["interface"], address, some(others), one["why"]
                    ),
                    observed=address,
                    fix=named(one, better(facts[node], one["interface"])),
                    reproduce="ip -brief address",
                    explains=CARRIED,
                )
    return found


def named(one: Choice, name: str) -> str:
    """Return how another interface is named to the one who chose."""
    variable = NAMES.get(one["by"], "NCCL_SOCKET_IFNAME")
    if one["by"] == NCCL and one["why"] == "launch.interface":
        return f"launch.interface: {name or 'one that the other nodes reach'}"
    return f"set {variable}" + (f"={name}" if name else " to one that the other nodes reach")


def moved(one: Choice, usual: str) -> str:
    """Return what makes a choice as it is on most nodes, nothing if it is not known there."""
    name, _, subnet = usual.partition(" in ")
    if name and name == one["interface"]:
        return f"give {name} an address in {subnet}; it has {one['address']}"
    return named(one, name) if name else ""


# ---- who reaches them ----------------------------------------------------------------------

USES = "{by} would use {place}, "
REACH = {
    "node": USES + "which no other node reaches",
    "in": USES + "which no other node reaches",
    "group": USES + "which most nodes do not reach",
    "cluster": USES + "which no node reaches",
    "out": "reaches no other node where {by} would listen, as at {place} of {b}",
    "pair": "{a} does not reach {b} where {by} would listen, at {place}",
    "way": "{a} does not reach {b} where {by} would listen, at {place}",
}
"""Who does not reach what, by the kind of culprit."""


def reached(slot: Slot, facts: Mapping[str, Chosen]) -> dict[str, Verdict]:
    """Return what is wrong with addresses that others do not reach, if no other check says it."""
    tried = {}
    for a in (node for node, ones in slot.choices.items() if ones):
        for b, answers in facts[a]["answers"].items():
            asked = [one["address"] for one in slot.choices[b] if one["address"] in answers]
            if asked:
                tried[a, b] = all(is_well(answers[address]) for address in asked)
    rows = stricken(blame(tried), list(facts))
    told = {node: missed(node, culprit, slot, facts) for node, culprit in rows.items()}
    return {node: verdict for node, verdict in told.items() if verdict}


def missed(node: str, culprit: Culprit, slot: Slot, facts: Mapping[str, Chosen]) -> Verdict | None:
    """Return the verdict of a node whose address is not reached, or that reaches none.

    None where it is not the choice that is wrong: what is wrong with the way to where NCCL's ranks
    meet, network.route, network.firewall and network.ephemeral say.
    """
    around = 2 * sum(detoured(pair, slot, facts) for pair in culprit.pairs) > len(culprit.pairs)
    whole = culprit.kind in ("cluster", "group") or (len(facts) == 2 and culprit.kind == "pair")
    usual = odd(culprit, slot)
    if not (around if not slot.meets else usual or (whole and around)):
        return None
    if not usual and unrouted(culprit, slot, facts):
        return None
    a, b = min(culprit.pairs)
    at = node if culprit.kind in ("node", "in", "group", "cluster") else b
    if not slot.choices[at]:
        return None
    one, result = most_bad(at, culprit, slot, facts)
    by = " and ".join(users(facts[at], one["address"]))
    place = "{interface} ({address}; {why})".format(**one)
    reach = REACH[culprit.kind].format(a=a, b=b, by=by, place=place)
    rest = f"; most nodes use {usual}" if usual else ""
    say = warn if one["why"].startswith(HOST_NAME) else fail
    return say(
        f"{reach}: {result}{rest}",
        observed=result,
        fix=moved(one, usual) or named(one, other_way(culprit, slot, facts)),
        reproduce="ip -brief address",
        explains=CARRIED if slot.meets else FURTHER,
        **about(culprit, node, len(facts)),
    )


def pairs(facts: Mapping[str, Chosen]) -> dict[str, dict[str, str]]:
    return {
        a: {
            b: next(filter(None, (briefly(got[at]) for at in asked if at in got)), "")
            for b, got in fact["answers"].items()
            for asked in [dialled(facts[b]["choices"])]
        }
        for a, fact in facts.items()
    }


def surroundings(want: Want) -> tuple[Any, ...]:
    return (want.get("launch.master"), *wanted(want))


CHECK = Check(
    exercise=look,
    args=surroundings,
    compare=compare,
    lane="chosen addresses",
    level="standard",
    explains=CARRIED,
    pairs=pairs,
)
