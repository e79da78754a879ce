"""Every node has a name that means itself, to itself and to the other nodes, without a wait.

Why: Gloo binds to what a node's own name means, torchrun's c10d rendezvous tells the other nodes
    the name of rank 0's node, torch asks for the name of each client. A name that means 127.0.1.1,
    an old address or nothing ends in "Connection refused" or a time-out; a dead name server holds
    up each connection for many seconds.
Facts: itself (host and full name, what the host name means there and how long that took, addresses,
    GLOO_SOCKET_IFNAME, MASTER_ADDR, name servers, its line of /etc/hosts), names (what the others'
    full names, their names in the inventory and MASTER_ADDR mean there), reverse (the names of the
    others' addresses), lines (of /etc/hosts). A name of the inventory and MASTER_ADDR count as a
    node's if they mean it anywhere. Of the node, not of a container. Above 64 nodes a sample.
Source: gethostname(2), getaddrinfo(3), gethostbyaddr(3), each for 6 s at most; /etc/hosts,
    /etc/resolv.conf. PyTorch 2.9 ProcessGroupGloo.cpp (createDefaultDevice), torch/distributed/
    elastic/rendezvous/api.py (socket.getfqdn), TCPStore's socket.cpp (getnameinfo).
Fix: give every node all nodes' names and addresses, in DNS or /etc/hosts.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Iterator, Mapping, Sequence

from preflight.api import (
    STATUSES,
    Check,
    Fleet,
    Verdict,
    Want,
    fail,
    ok,
    same_everywhere,
    some,
    unknown,
    warn,
)
from preflight.node.launch import wanted
from preflight.node.mesh import message
from preflight.node.naming import (
    LINK_LOCAL,
    LOOPBACK,
    Fault,
    Names,
    bare,
    binds_to,
    faults_of,
    known_as,
    names_of,
    selves,
)
from preflight.node.pairs import Culprit, Pair, blame, of_all, partners, present
from preflight.node.resolver import HOSTS, LIMIT_S, RESOLV, SILENT, Self, introduce, look_up

CALL_S = LIMIT_S + 5
SLOW_S = 1.0
"""One look-up of this kind for each connection of 16 ranks is a quarter of a minute; a resolver
that is well answers in milliseconds. As in pytorch/pytorch#154102."""
NUMBER = re.compile(r"(0[xX][0-9a-fA-F]+|\d+)(\.(0[xX][0-9a-fA-F]+|\d+)){0,3}")
"""What inet_aton(3), which getaddrinfo asks first, takes for an address."""
LAUNCH, INTERFACE = "launch.plan", "network.interface"
EFFECTS = (INTERFACE, "collective.all_reduce", "collective.pairs")


def exercise(fleet: Fleet, want: Want) -> dict[str, Names]:
    asked = fleet.map(introduce, dict.fromkeys(fleet.nodes, wanted(want)), CALL_S)
    known: dict[str, Self] = {node: reply.value for node, reply in asked.items() if reply.value}
    master = want.launch.get("master", "")
    goes = partners([node for node in fleet.nodes if node in known], master)
    called = {
        node: {peer: names_of(peer, known[peer], known[node], master) for peer in goes[node]}
        for node in known
    }
    places = {
        node: [known[p]["address"] for p in goes[node] if known[p]["address"]] for node in known
    }
    replies = fleet.map(
        look_up,
        {node: ([n for of in called[node].values() for n in of], places[node]) for node in known},
        CALL_S,
    )
    facts = {}
    for node in fleet.nodes:
        reply = replies.get(node, asked[node])
        looks = reply.value if node in replies and reply.value else {}
        names, reverse = looks.get("names", {}), looks.get("addresses", {})
        facts[node] = Names(
            itself=known.get(node),
            names={
                peer: {name: names[name] for name in of if name in names}
                for peer, of in called.get(node, {}).items()
            },
            reverse={
                peer: reverse[known[peer]["address"]]
                for peer in goes.get(node, ())
                if known[peer]["address"] in reverse
            },
            lines=looks.get("lines", {}),
            problem=message(reply),
        )
    return facts


# ---- judging -------------------------------------------------------------------------------


def compare(facts: Mapping[str, Names], want: Want) -> dict[str, Verdict]:
    facts = present(facts, "names", "reverse")
    all_ = selves(facts)
    found: dict[str, list[Verdict]] = {node: [] for node in facts}
    if len(want.nodes) > 1:
        for node, its in all_.items():
            found[node] += called(node, its, all_)
        for node, verdict in abroad(facts):
            found[node].append(verdict)
        for node, its in all_.items():
            found[node] += at_home(node, its, all_)
        for node, verdict in families(all_):
            found[node].append(verdict)
    for node, fact in facts.items():
        found[node] += waits(fact, all_)
    return {node: told(fact, found[node], len(facts)) for node, fact in facts.items()}


def told(fact: Names, found: Sequence[Verdict], all_: int) -> Verdict:
    """Return the gravest of what was found, with the rest as details."""
    its = fact["itself"]
    if fact["problem"] or not its:
        return unknown(fact["problem"])
    if found:
        worst = max(found, key=lambda verdict: STATUSES.index(verdict.status))
        rest = tuple(verdict.summary for verdict in found if verdict is not worst)
        follows = {e for v in found if v.status == "fail" for e in v.explains or ()}
        return replace(worst, details=rest, explains=tuple(sorted(follows)))
    own = f"its own name {its['host']} means {some(bare(its['own']['found'])) or 'nothing'}"
    count = sum(1 for looks in fact["names"].values() if looks)
    nodes = "1 other node" if count == 1 else f"{count} other nodes"
    return ok(own + (f"; it finds {nodes} by name{of_all(count, all_)}" if count else ""))


def wrong(summary: str, **more: Any) -> Verdict:
    return fail(summary, explained_by=(), **{"explains": EFFECTS, **more})


def called(node: str, its: Self, all_: Mapping[str, Self]) -> Iterator[Verdict]:
    """Yield what is wrong with how a node calls itself."""
    host, see = its["host"], "hostname; hostname -f"
    fix = f"hostnamectl set-hostname {node}"
    if NUMBER.fullmatch(host):
        means = (bare(its["own"]["found"]) or ["an address"])[0]
        words = f"its host name {host} is made of digits only, and taken for the address {means}"
        fix = "give it a name with a letter: hostnamectl set-hostname NAME"
        yield wrong(words, observed=host, fix=fix, reproduce=see)
    twins = [one for one in all_ if one != node and all_[one]["host"] == host]
    if twins and node != host:
        words = f"its host name {host} is that of {some(twins)} too"
        yield wrong(words, observed=host, fix=fix, reproduce=see)
    if its["full"].split(".")[0] in ("localhost", "localhost4", "localhost6"):
        words = (
            f"its full name is {its['full']}, which torchrun would tell the others as MASTER_ADDR"
        )
        line = its["line"]
        fix = f"take {host} out of '{line}' in {HOSTS}" if line and host != "localhost" else fix
        fix += f", and let it be {its['address']} there" if line and host != "localhost" else ""
        yield wrong(words, observed=its["full"], fix=fix, reproduce=see)


# ---- to itself -----------------------------------------------------------------------------


def at_home(node: str, its: Self, all_: Mapping[str, Self]) -> Iterator[Verdict]:
    """Yield what is wrong with what a node's own name means there; Gloo binds to it."""
    if its["gloo"]:
        return
    host, address = its["host"], its["address"] or "ADDRESS"
    line = its["line"]
    fix = f"in {HOSTS}, write '{address} {host}'" + (f" in place of '{line}'" if line else "")
    more = {
        "observed": its["own"]["found"] or its["own"]["problem"],
        "fix": f"{fix}; {gloo_fix(its)}",
        "reproduce": f"getent ahosts {host}",
    }
    bound = binds_to(its)
    others = [n for n in all_ if n != node and bound in all_[n]["addresses"]]
    if its["own"]["problem"]:
        why = reason(its["own"]["problem"], its)
        yield wrong(f"its own name {host} means nothing here ({why}): Gloo takes 127.0.0.1", **more)
    elif not bound:
        means = bare(its["own"]["found"])[0]
        words = f"its own name {host} means {means}, which no interface here has"
        yield wrong(f"{words}: Gloo takes 127.0.0.1", **more)
    elif bound.startswith(LOOPBACK):
        words = f"its own name {host} means {bound}, a loopback address"
        yield wrong(f"{words}: Gloo would have the other nodes connect to themselves", **more)
    elif bound.startswith(LINK_LOCAL):
        words = f"its own name {host} means {bound}, a link-local address"
        yield warn(f"{words}: Gloo would tell it to the other nodes", **more)
    elif others:
        words = f"its own name {host} means {bound}, an address that {some(others)} has too"
        yield wrong(words, **more)


def gloo_fix(its: Self) -> str:
    return (
        f"or tell Gloo the interface: GLOO_SOCKET_IFNAME={its['interface'] or 'NAME'} in launch.env"
    )


def families(all_: Mapping[str, Self]) -> Iterator[tuple[str, Verdict]]:
    """Yield failures where Gloo would speak IPv6 on one node and IPv4 on another."""
    bound = {node: binds_to(its) for node, its in all_.items() if not its["gloo"]}
    kinds = {
        node: "IPv6 first" if ":" in address else "IPv4 first"
        for node, address in bound.items()
        if address and not address.startswith((*LOOPBACK, *LINK_LOCAL))
    }
    verdicts = same_everywhere(kinds, "its own name means", explained_by=(), explains=EFFECTS)
    for node, verdict in verdicts.items():
        if verdict.status == "fail":
            its = all_[node]
            yield (
                node,
                replace(
                    verdict,
                    summary=f"{verdict.summary}: Gloo does not pair them",
                    fix=f"have one family first for all, in {HOSTS} or DNS; {gloo_fix(its)}",
                    reproduce=f"getent ahosts {its['host']}",
                ),
            )


# ---- to the others -------------------------------------------------------------------------


def abroad(facts: Mapping[str, Names]) -> Iterator[tuple[str, Verdict]]:
    """Yield by node to blame what is wrong with what names mean on other nodes."""
    faults = faults_of(facts)
    if faults and all(of and not any(one.words for one in of) for of in faults.values()):
        yield from unnamed(facts, faults)
        return
    for culprit in blame({pair: not of for pair, of in faults.items()}):
        yield from blamed(culprit, faults, facts)


def unnamed(
    facts: Mapping[str, Names], faults: Mapping[Pair, Sequence[Fault]]
) -> Iterator[tuple[str, Verdict]]:
    """Yield warnings of a cluster that goes by addresses: names of others mean nothing anywhere."""
    words = "no node finds another one by name, which torchrun's c10d rendezvous needs"
    for node in {a: None for a, _ in faults}:
        names = [of[0].name for (a, _), of in faults.items() if a == node]
        yield node, warn(words, observed=names, fix=known_as(faults, facts), scope="cluster")


def blamed(
    culprit: Culprit, faults: Mapping[Pair, list[Fault]], facts: Mapping[str, Names]
) -> Iterator[tuple[str, Verdict]]:
    """Yield the verdicts of those who are to blame: who asks for a name, or whose name it is."""
    pairs = sorted(culprit.pairs)
    if culprit.kind not in ("in", "node"):
        for node in dict.fromkeys(a for a, _ in pairs):
            mine = {b: faults[a, b] for a, b in pairs if a == node}
            yield node, asks(node, mine, facts, culprit)
        return
    (peer,) = culprit.nodes
    by = {a: faults[a, b] for a, b in pairs if b == peer}
    verdict = is_asked(peer, by, facts)
    masters = {a: its["master"] for a, its in selves(facts).items()}
    if any(one.name == masters[a] for a, of in by.items() for one in of):
        # All that go there by this name fail: what each of them shows must find its cause there.
        verdict = replace(verdict, scope="cluster", explains=(LAUNCH, *EFFECTS))
        for node in by:
            yield node, replace(verdict, summary=verdict.summary.replace("its name", "the name"))
    yield peer, verdict


def asks(
    node: str, mine: Mapping[str, Sequence[Fault]], facts: Mapping[str, Names], culprit: Culprit
) -> Verdict:
    """Return the verdict of a node whose resolver is wrong about others."""
    fact, its = facts[node], selves(facts)[node]
    odd = [(b, one) for b, of in mine.items() for one in of if one.words]
    lost = [one for of in mine.values() for one in of if not one.words]
    if odd:
        peer, one = odd[0]
        summary = f"takes {one.name} for {one.means}, {one.words}"
        more = len({b for b, _ in odd}) - 1
        summary += f"; so it is with {more} more" if more else ""
        line = fact["lines"].get(one.name, "")
        right = (selves(facts)[peer]["address"], one.name)
        where = f"in {HOSTS}, write '{' '.join(right)}' in place of '{line}'"
        fix = where if line else f"in DNS, let {one.name} be {right[0]}"
    else:
        names = list(dict.fromkeys(one.name for one in lost))
        one, summary = lost[0], f"does not find {some(names)}: {reason(lost[0].means, its)}"
        fix = known_as([(node, b) for b in mine], facts)
        fix = f"see that the name server answers ({RESOLV}); or {fix}" if silent(lost) else fix
    to_master = any(one.name == its["master"] for of in mine.values() for one in of)
    return wrong(
        summary,
        observed={one.name: one.means for of in mine.values() for one in of},
        fix=fix,
        reproduce=f"getent ahosts {one.name}",
        scope="cluster" if culprit.kind == "cluster" else "node",
        explains=(LAUNCH, *EFFECTS) if to_master else EFFECTS,
    )


def silent(lost: Sequence[Fault]) -> bool:
    return lost[0].means == SILENT


def is_asked(node: str, by: Mapping[str, Sequence[Fault]], facts: Mapping[str, Names]) -> Verdict:
    """Return the verdict of a node whose name means nothing, or another one, to the others."""
    its = selves(facts)[node]
    asker, of = next(iter(by.items()))
    one = of[0]
    if one.words:
        summary = f"its name {one.name} means {one.means} to the other nodes, {one.words}"
        line = facts[asker]["lines"].get(one.name)
        where = f"{HOSTS} of the other nodes" if line else "DNS"
        fix = f"in {where}, let {one.name} be {its['address']}"
    else:
        why = reason(one.means, selves(facts)[asker])
        summary = f"its name {one.name} means nothing to the other nodes: {why}"
        fix = known_as([(asker, node)], facts)
    return wrong(
        summary,
        observed={one.name: one.means},
        expected={one.name: its["address"]},
        fix=fix,
        reproduce=f"getent ahosts {one.name}, on {asker}",
    )


def reason(means: str, its: Self) -> str:
    """Return why a name means nothing."""
    if means != SILENT:
        return means
    return f"no answer of the resolver ({servers(its)})"


def servers(its: Self) -> str:
    """Return the name servers of a node in words."""
    named = some(its["nameservers"])
    return f"{RESOLV} names {named}" if named else f"{RESOLV} names no server"


# ---- how long it takes ---------------------------------------------------------------------


def waits(fact: Names, all_: Mapping[str, Self]) -> Iterator[Verdict]:
    """Yield warnings of look-ups that take long."""
    its = fact["itself"]
    if not its:
        return
    own = {its["host"]: its["own"]}
    names = {name: look for of in (own, *fact["names"].values()) for name, look in of.items()}
    reverse = {all_[peer]["address"]: look for peer, look in fact["reverse"].items()}
    for what, looks, why in (
        ("looking up", names, "each rank waits for it"),
        ("the reverse look-up of", reverse, "torch does one for each client of its store"),
    ):
        slow = {one: look for one, look in looks.items() if look["seconds"] >= SLOW_S}
        if slow:
            first, look = next(iter(slow.items()))
            words = f"{what} {first} took {look['seconds']:.1f} s"
            words += " without an answer" if look["problem"] == SILENT else ""
            words += f", {len(slow) - 1} more were as slow" if len(slow) > 1 else ""
            yield warn(
                f"{words} ({servers(its)}): {why}",
                observed={one: look["seconds"] for one, look in slow.items()},
                fix=f"mend or remove what is slow in {RESOLV}, or put all nodes into {HOSTS}",
                reproduce=f"time getent hosts {first}",
            )


def pairs(facts: Mapping[str, Names]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for (a, b), of in faults_of(facts).items():
        found.setdefault(a, {})[b] = of[0].means if of else ""
    return found


CHECK = Check(
    exercise=exercise,
    args=lambda want: (want.get("launch.master"), *wanted(want)),
    compare=compare,
    lane="names",
    level="standard",
    explains=(LAUNCH, *EFFECTS),
    pairs=pairs,
)
