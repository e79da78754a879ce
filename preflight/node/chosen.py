"""The addresses that NCCL, Gloo and TensorPipe would give to others, dialled by all of them.

Runs on the controller, for checks; as all of `preflight.node`: stdlib only, Python 3.8.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import Any, Mapping, NamedTuple, Sequence, TypedDict

from preflight.api import Fleet, Reply, Want, majority
from preflight.node.choice import NAMES, NCCL, Choice, choices, choices_by_name, dialled
from preflight.node.launch import wanted
from preflight.node.mesh import DIALS_S, Answer, dial_all, hold, in_words, message, of_others
from preflight.node.net import INNER, Interface, Network, reachable
from preflight.node.pairs import Culprit, Pair, partners
from preflight.node.ports import NO_ROUTE, OK
from preflight.node.resolver import LIMIT_S as NAME_S

FURTHER = 4
"""Other addresses of a node that are tried where a chosen one is not reached."""


class Chosen(TypedDict):
    """What a node would give to the others, and what came of dialling them."""

    network: Network | None
    choices: list[Choice]
    others: dict[str, str]
    """Further addresses that other nodes might reach, by interface, one each."""
    unnamed: str
    """Why it is not known what the host name decides; empty where it is."""
    answers: dict[str, dict[str, Answer]]
    """By other node and its address."""
    problem: str


def look(fleet: Fleet, want: Want) -> dict[str, Chosen]:
    """Return the choices of all nodes, and let them dial each other at all of them."""
    asked = dict.fromkeys(fleet.nodes, wanted(want))
    made, by_name = fleet.map(choices, asked), fleet.map(choices_by_name, asked, NAME_S)
    facts = {node: chosen(made[node], by_name[node]) for node in fleet.nodes}
    if len(want.nodes) > 1 and any(dialled(fact["choices"]) for fact in facts.values()):
        dial(fleet, want.launch, facts)
    return facts


def chosen(made: Reply, by_name: Reply) -> Chosen:
    """Return what a node says of its choices."""
    value = made.value or {"network": None, "choices": [], "others": {}}
    return Chosen(
        network=value["network"],
        choices=[*value["choices"], *(by_name.value or ())],
        others=value["others"],
        unnamed=message(by_name),
        answers={},
        problem=message(made),
    )


def dial(fleet: Fleet, launch: Mapping[str, Any], facts: dict[str, Chosen]) -> None:
    """Let all nodes dial the chosen addresses of the others, then others of those not reached."""
    secrets = os.urandom(16).hex(), os.urandom(16).hex()
    with fleet.start_all(hold, dict.fromkeys(facts, ([0], *secrets, launch["port"]))) as running:
        ports = {}
        for node, one in running.items():
            if isinstance(one, Reply):
                facts[node]["problem"] = facts[node]["problem"] or message(one)
            else:
                ports[node] = [port for port in one.ready["ports"] if port]
        goes = partners([node for node in facts if ports.get(node)], launch["master"])
        wide = {a: {b: dialled(facts[b]["choices"]) for b in others} for a, others in goes.items()}
        for a, reply in of_others(fleet, dial_all, packed(wide, ports, secrets), DIALS_S).items():
            facts[a]["answers"] = unpacked(reply)
            facts[a]["problem"] = facts[a]["problem"] or message(reply)
        again = {a: others for a in goes for others in [further(facts[a], facts)] if others}
        for a, reply in of_others(fleet, dial_all, packed(again, ports, secrets), DIALS_S).items():
            for b, answers in unpacked(reply).items():
                facts[a]["answers"][b].update(answers)


def further(fact: Chosen, facts: Mapping[str, Chosen]) -> dict[str, list[str]]:
    """Return what else could be dialled of the nodes that are not reached at a chosen address."""
    return {
        b: list(facts[b]["others"].values())[:FURTHER]
        for b, answers in fact["answers"].items()
        if facts[b]["others"] and not all(map(is_well, answers.values()))
    }


def packed(
    wide: Mapping[str, Mapping[str, Sequence[str]]],
    ports: Mapping[str, Sequence[int]],
    secrets: tuple[str, str],
) -> dict[str, tuple[Any, ...]]:
    """Return the arguments of calls that dial several addresses of each node."""
    return {
        a: ({f"{b} {one}": (one, ports[b]) for b, found in to.items() for one in found}, *secrets)
        for a, to in wide.items()
    }


def unpacked(reply: Reply) -> dict[str, dict[str, Answer]]:
    """Return what came of such a call, by node and address."""
    found: dict[str, dict[str, Answer]] = {}
    for words, got in (reply.value or {}).items():
        node, _, address = words.partition(" ")
        for answer in got[:1]:
            found.setdefault(node, {})[address] = answer
    return found


# ---- what is asked of the facts ------------------------------------------------------------


def is_well(answer: Mapping[str, Any]) -> bool:
    """Whether our listener was reached."""
    return bool(answer["result"] == OK)


def interfaces_of(fact: Chosen) -> list[Interface]:
    """Return the interfaces of a node, none where they are not known."""
    return fact["network"]["interfaces"] if fact["network"] else []


def first(fact: Chosen) -> Choice | None:
    """Return where NCCL's ranks would meet."""
    return next((one for one in fact["choices"] if one["by"] == NCCL), None)


def better(fact: Chosen, than: str) -> str:
    """Return another interface of a node that others might reach; empty without one."""
    ones = (i for i in interfaces_of(fact) if i["kind"] not in (*INNER, "loopback"))
    return next((i["name"] for i in ones if reachable(i) and i["name"] != than), "")


def is_one(fact: Chosen, other: Chosen) -> bool:
    """Whether two nodes seem to be one machine, as access.identity says."""
    return every_address(fact) == every_address(other)


def every_address(fact: Chosen) -> set[str]:
    """Return the addresses of a node."""
    return {address for one in interfaces_of(fact) for address in one["addresses"]}


def users(fact: Chosen, address: str) -> list[str]:
    """Return who would use an address."""
    return list(dict.fromkeys(o["by"] for o in fact["choices"] if o["address"] == address))


class Slot(NamedTuple):
    """What one of them, or several, would give to the others: one choice, or more, of each node."""

    by: str
    choices: dict[str, list[Choice]]
    meets: bool
    """Whether it is where NCCL's ranks meet, which network.ephemeral dials too."""


def slots(facts: Mapping[str, Chosen]) -> list[Slot]:
    """Return what is to be reached: where NCCL meets, its further interfaces, Gloo's, TensorPipe's.

    What is the same as something before is left out.
    """
    made: list[Slot] = []
    seen: list[Mapping[str, Sequence[str]]] = []
    for by in (NCCL, *NAMES):
        all_of = {
            node: [one for one in fact["choices"] if one["by"] == by and dialled([one])]
            for node, fact in facts.items()
        }
        parts = [{n: ones[:1] for n, ones in all_of.items()}]
        if by == NCCL:
            parts.append({n: ones[1:] for n, ones in all_of.items()})
        for number, part in enumerate(parts):
            addresses = {n: [one["address"] for one in ones] for n, ones in part.items()}
            if any(part.values()) and addresses not in seen:
                made.append(Slot(by, part, by == NCCL and not number))
                seen.append(addresses)
    return made


def detoured(pair: Pair, slot: Slot, facts: Mapping[str, Chosen]) -> bool:
    """Whether one node reaches the other at an address that is not the one in question."""
    return bool(detour(pair, slot, facts))


def detour(pair: Pair, slot: Slot, facts: Mapping[str, Chosen]) -> str:
    """Return such an address, empty without one."""
    a, b = pair
    asked = {one["address"] for one in slot.choices[b]}
    answers = facts[a]["answers"].get(b, {})
    return next((at for at, got in answers.items() if at not in asked and is_well(got)), "")


def unrouted(culprit: Culprit, slot: Slot, facts: Mapping[str, Chosen]) -> bool:
    """Whether a node lacks the route to the very subnet that its NCCL's address is in.

    That is no fault of the choice; network.route says so.
    """
    for a, b in culprit.pairs:
        near = {one["subnet"] for one in slot.choices.get(a, ())}
        for one in slot.choices[b]:
            answer = facts[a]["answers"][b].get(one["address"])
            if answer and answer["result"] == NO_ROUTE and one["subnet"] in near - {""}:
                return slot.by == NCCL
    return False


def other_way(culprit: Culprit, slot: Slot, facts: Mapping[str, Chosen]) -> str:
    """Return the interface that is reached in place of one that is not."""
    for pair in sorted(culprit.pairs):
        address = detour(pair, slot, facts)
        for one in interfaces_of(facts[pair[1]]):
            if address in one["addresses"]:
                return one["name"]
    return ""


def odd(culprit: Culprit, slot: Slot) -> str:
    """Return what most nodes use, if who is to blame has an address of another subnet."""
    kinds: dict[str, list[str]] = {}
    for node, ones in slot.choices.items():
        for one in ones[:1]:
            kinds.setdefault(one["subnet"], []).append(node)
    usual = majority(kinds)
    if not usual or culprit.kind in ("out", "cluster") or {*culprit.nodes} & {*kinds[usual]}:
        return ""
    names = Counter(slot.choices[node][0]["interface"] for node in kinds[usual])
    return f"{names.most_common(1)[0][0]} in {usual}"


def most_bad(
    at: str, culprit: Culprit, slot: Slot, facts: Mapping[str, Chosen]
) -> tuple[Choice, str]:
    """Return a choice of a node that is not reached, and what mostly comes of it."""
    for one in slot.choices[at]:
        got = [facts[a]["answers"][b].get(one["address"]) for a, b in culprit.pairs if b == at]
        bad = Counter(in_words(answer) for answer in got if answer and not is_well(answer))
        if bad:
            return one, bad.most_common(1)[0][0]
    return slot.choices[at][0], "not tried"
