"""The launch port is free on the master, and every node reaches it there.

Why: rank 0 listens on it and all others dial it. A port that is taken ends the job at once; one
    behind a firewall leaves all ranks waiting for the rendezvous until it times out. With another
    order of nodes, or an elastic restart, another node is the master: each is tried as one too.
Facts: listener (why our own could not be opened on the node, and who holds the port), dial (what
    came of connecting to the master's, from which address and interface, the master itself
    included), address (the master's on its data plane, else another one), meeting (the same of the
    master's address that MASTER_ADDR means on the node, if that is another), subnet (of the node's
    own address), others (what came of connecting to the listeners of other nodes, above 64 nodes of
    a sample). A dial counts as ok when our listener answers a secret with another one; who is
    silent is dialled once more (tries). Nothing connects to a port that somebody else holds.
Source: bind(2), connect(2), getaddrinfo(3), /proc/net/tcp and tcp6; pid and program by psutil where
    permitted; ip(7) IP_RECVERR for the ICMP message.
Fix: let the port through between the nodes, or name another one: launch.port.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from typing import Any, Mapping, NamedTuple, Sequence, TypedDict

from preflight.api import (
    STATUSES,
    Check,
    Fleet,
    Node,
    Reply,
    Verdict,
    Want,
    fail,
    ok,
    skip,
    unknown,
    warn,
)
from preflight.node.launch import settings, wanted
from preflight.node.mesh import (
    Answer,
    Dial,
    addresses,
    dial,
    dial_all,
    hold,
    in_words,
    message,
    noting,
    of_others,
)
from preflight.node.net import interfaces, meeting_address
from preflight.node.pairs import Placed, blame, partners, present, stricken, told
from preflight.node.ports import DIAL_S, MORE_PORTS, NO_PORT, OK, SILENT, Listener, listen, who

NONE: Mapping[str, Any] = {"ports": ()}
OWN_FAULT = ("not permitted", NO_PORT)
"""Results that only the dialling node itself can have caused."""
ELSEWHERE = ("network.firewall", "network.ephemeral")
"""What can explain all others: the same wall or proxy before all ports."""
EXPLAINED: Mapping[str, tuple[str, ...] | None] = {
    **dict.fromkeys(("filtered", "unreachable", "no route")),
    SILENT: (*ELSEWHERE, "network.latency"),
}
"""Some have more reasons: a link that is down or another interface; or answers that are lost."""
BEYOND = (
    "; where network.firewall (as root) finds no such rule on either node, see the security group"
    " of the cloud or the ACLs of the switches"
)
MASTER = "MASTER_ADDR"


class Meeting(TypedDict):
    """An address of the master that MASTER_ADDR means, and what came of dialling it."""

    address: str
    dial: Dial | None
    problem: str


class Reach(Placed):
    """What one node shows: the master has a listener; `problem` is why nothing is known."""

    master: str
    address: str
    port: int
    listener: Listener | None
    dial: Dial | None
    problem: str
    meeting: Meeting | None
    others: dict[str, list[Answer]]


def exercise(fleet: Fleet, want: Want) -> dict[str, Reach]:
    master, port = want.launch["master"], want.launch["port"]
    reach = {node: blank(master, port) for node in fleet.nodes}
    if master not in reach:
        for fact in reach.values():
            out = "was not reached" if master in want.nodes else "is left out of this run"
            fact["problem"] = f"the master {master} {out}"
        return reach
    network = fleet.call(master, interfaces, *wanted(want))
    address = meeting_address(network.value) if network.value else ""
    several = len(want.nodes) > 1
    data = dict.fromkeys(reach, address) if address and several else {}
    named = meetings(fleet, want, network, address) if several else {}
    secrets = os.urandom(16).hex(), os.urandom(16).hex()
    dials: tuple[Mapping[str, Reply], ...] = ({}, {})
    with fleet.start(master, listen, port, *secrets) as running:
        if isinstance(running, Reply):
            reach[master]["listener"], reach[master]["problem"] = running.value, message(running)
        else:
            reach[master]["listener"] = Listener(error="", holder=None)
            dials = tuple(
                fleet.map(dial, {n: (there, port, *secrets) for n, there in way.items()}, DIAL_S)
                for way in (data, named)
            )
    if dials[0]:
        try_others(fleet, want, reach)
    why = message(network) or f"the master {master} has no address that others could use"
    for node, fact in reach.items():
        fact["address"] = address
        fact["problem"] = fact["problem"] or ("" if address or node == master else why)
        if node in dials[0]:
            fact["dial"], fact["problem"] = dials[0][node].value, message(dials[0][node])
        if node in dials[1]:
            fact["meeting"] = met(named[node], dials[1][node])
    return reach


def try_others(fleet: Fleet, want: Want, reach: Mapping[str, Reach]) -> None:
    """See who reaches which other node on the launch port, as if that were the master."""
    master, port = want.launch["master"], want.launch["port"]
    known, subnets, _ = addresses(fleet, want)
    for node, subnet in subnets.items():
        reach[node]["subnet"] = subnet
    secrets = os.urandom(16).hex(), os.urandom(16).hex()
    asked = {node: ([port], *secrets) for node in known if node != master}
    with fleet.start_all(hold, asked) as running:
        held = {n: one.ready for n, one in running.items() if not isinstance(one, Reply)}
        for node, one in held.items():
            reach[node]["listener"] = next(iter(one["listeners"]), None)
        targets = {
            node: ({o: (known[o], [port]) for o in others if any(held.get(o, NONE)["ports"])},)
            for node, others in partners([*known], master).items()
        }
        dialling = {node: (*to, *secrets) for node, to in targets.items() if to[0]}
        for node, reply in of_others(fleet, dial_all, dialling, DIAL_S).items():
            reach[node]["others"] = reply.value or {}


def met(address: str, reply: Reply) -> Meeting:
    return Meeting(address=address, dial=reply.value, problem=message(reply))


def meetings(fleet: Fleet, want: Want, network: Reply, address: str) -> dict[str, str]:
    """Return by node the master's address that MASTER_ADDR means there, where it is another one.

    What is no address of the master is launch.plan's affair: a stranger's port is not dialled.
    """
    found = network.value["interfaces"] if network.value else ()
    own = {there for one in found for there in one["addresses"]}
    asked = fleet.map(meant, dict.fromkeys(fleet.nodes, wanted(want)))
    first = {n: next((a for a in reply.value or () if a in own), "") for n, reply in asked.items()}
    return {node: there for node, there in first.items() if there not in {"", address}}


def meant(node: Node, launch: Mapping[str, Any]) -> list[str]:
    """Return the addresses of MASTER_ADDR on this node, none where it is not set."""
    named = settings(node, launch)["found"].get(MASTER)
    return node.resolve(named["value"]) if named else []


def blank(master: str, port: int) -> Reach:
    """Return what is known of a node before anything was tried."""
    return Reach(
        master=master,
        address="",
        port=port,
        listener=None,
        dial=None,
        problem="",
        meeting=None,
        others={},
    )


# ---- judging -------------------------------------------------------------------------------


class Way(NamedTuple):
    """One node's way to the master: by its address on the data plane, or by MASTER_ADDR."""

    master: str
    address: str
    port: int
    name: str
    dial: Dial | None
    problem: str

    @property
    def place(self) -> str:
        """What is dialled, in words."""
        return f"{written(self.address)}:{self.port}" + (f" ({self.name})" if self.name else "")


def compare(facts: Mapping[str, Reach], want: Want) -> dict[str, Verdict]:
    facts = present(facts, "others")
    first = next(iter(facts.values()))
    master, port = first["master"], first["port"]
    if master not in facts:
        lost = f"the master {master} was lost meanwhile"
        return {node: skip(fact["problem"] or lost) for node, fact in facts.items()}
    listener = facts[master]["listener"]
    if listener is None or listener["error"]:
        verdicts = dict.fromkeys(
            facts, skip(f"not tried: port {port} could not be opened on {master}")
        )
        unheard = unknown(facts[master]["problem"])
        return {**verdicts, master: taken(port, listener) if listener else unheard}
    data, named = {}, {}
    for node, fact in facts.items():
        data[node] = Way(master, fact["address"], port, "", fact["dial"], fact["problem"])
        met = fact["meeting"]
        if met:
            named[node] = Way(master, met["address"], port, MASTER, met["dial"], met["problem"])
    by_data, by_name = judged(data, master), judged(named, master) if named else {}
    instead = in_its_place(facts, master, port)
    found = {
        node: [one[node] for one in (by_data, by_name, instead) if node in one] for node in by_data
    }
    return {node: noting(gravest(verdicts), dials(facts[node])) for node, verdicts in found.items()}


def dials(fact: Reach) -> dict[str, list[Any]]:
    """Return what came of all dials of a node, by node."""
    meeting = fact["meeting"]
    own = fact["dial"], meeting["dial"] if meeting else None
    return {fact["master"]: [one for one in own if one], **fact["others"]}


def in_its_place(facts: Mapping[str, Reach], master: str, port: int) -> dict[str, Verdict]:
    """Return warnings of nodes that could not be the master, or do not reach such a one."""
    found = {
        node: could_not(taken(port, fact["listener"]).summary)
        for node, fact in facts.items()
        if node != master and fact["listener"] and fact["listener"]["error"]
    }
    tried = {
        (a, b): all(one["result"] == OK for one in got)
        for a, fact in facts.items()
        for b, got in fact["others"].items()
        if got
    }
    for node, culprit in stricken(blame(tried, facts), list(facts)).items():
        bad = [one for a, b in sorted(culprit.pairs) for one in facts[a]["others"][b]]
        words = usual([in_words(one) for one in bad if one["result"] != OK])
        why = f"{told(culprit, node)} on port {port}: {words}"
        found.setdefault(node, could_not(why, culprit.kind in ("in", "node")))
    return found


def could_not(why: str, itself: bool = True) -> Verdict:
    """Return the warning of a launch port that would not do if another node were the master."""
    fix = "let the launch port through between all nodes, or see that the master stays the same"
    return warn(f"{'could not be the' if itself else 'with another'} master: {why}", fix=fix)


def gravest(found: Sequence[Verdict]) -> Verdict:
    """Return the graver of the verdicts of two ways; the other is a detail."""
    worst = max(found, key=lambda verdict: STATUSES.index(verdict.status))
    rest = [verdict.summary for verdict in found if verdict is not worst]
    return replace(worst, details=(*worst.details, *rest))


def judged(ways: Mapping[str, Way], master: str) -> dict[str, Verdict]:
    """Return the verdicts of one way to the master, by node; the master's own is always there."""
    dials = {node: way.dial for node, way in ways.items() if way.dial}
    at_fault = blocked({node: one["result"] for node, one in dials.items()}, master)
    mute = any(way.dial is None for node, way in ways.items() if node != master)
    heard = " that tells" if mute else ""
    verdicts = {n: of_node(way, at_fault, heard) for n, way in ways.items() if n != master}
    own = ways.get(master) or next(iter(ways.values()))._replace(dial=None)
    return {**verdicts, master: of_master(own, dials, at_fault, heard)}


def blocked(results: Mapping[str, str], master: str) -> str:
    """Return how the master fails all nodes, empty if it does not or that can't be told.

    It is the master if no other node reaches it and there are several, or it does not even reach
    itself; how, is what most of them meet.
    """
    others = [result for node, result in results.items() if node != master]
    outer = [result for result in others if result not in OWN_FAULT]
    itself = results.get(master, OK) != OK
    if not outer or OK in others or not (len(outer) > 1 or itself):
        return ""
    return Counter(outer).most_common(1)[0][0]


def of_master(way: Way, dials: Mapping[str, Dial], at_fault: str, heard: str) -> Verdict:
    """Return the verdict of the node that has the port; `heard` limits who else is spoken of."""
    itself = way.dial["result"] if way.dial else OK
    if at_fault:
        who = f"no {'other ' if itself == OK else ''}node{heard} reaches"
        # the master's own dial last: no ICMP message turns that one away
        met = sorted(dials, key=lambda node: node == way.master)
        words = usual([in_words(dials[n]) for n in met if dials[n]["result"] == at_fault])
        return unreached(f"{who} {way.place}: {words}", way, at_fault)
    if way.dial and itself != OK:
        summary = f"does not reach itself at {way.place}: {in_words(way.dial)}"
        return unreached(summary, way, itself)
    others = [one["result"] for node, one in dials.items() if node != way.master]
    count = f"; {others.count(OK)} of {len(others)} other nodes reach it at {way.place}"
    return ok(f"port {way.port} is free" + (count if others else ""))


def of_node(way: Way, at_fault: str, heard: str) -> Verdict:
    """Return the verdict of a node that dials; `heard` limits who else is spoken of."""
    own, master = way.dial, way.master
    if own is None:
        return unknown(way.problem)
    place = f"{way.place} of {master}"
    route = " from " + own["source"] if own["source"] else ""
    route += " ({})".format(own["interface"]) if own["interface"] else ""
    if own["result"] == OK:
        return ok(f"reaches {place}{route}")
    summary = f"does not reach {place}{route}: " + in_words(own)
    if own["result"] in OWN_FAULT:
        return unreached(summary, way, own["result"])
    if at_fault == own["result"]:
        return ok(f"like every other node{heard}, does not reach {place}: the fault is at {master}")
    if at_fault:
        return unknown(f"{summary}; no other node reaches it either, so see to {master} first")
    return replace(unreached(summary, way, own["result"]), scope="pair", peers=(master,))


def usual(words: Sequence[str]) -> str:
    """Return what most say."""
    return Counter(words).most_common(1)[0][0]


def unreached(summary: str, way: Way, result: str) -> Verdict:
    """Return a failure with what mends it, and how it is seen by hand."""
    port, master, address = way.port, way.master, way.address
    wall = f"on {master}: nft list ruleset (or iptables -S), and let TCP port {port} in"
    fixes = {
        "filtered": wall + BEYOND,
        "refused": wall,
        "unreachable": wall + "; if there is no such rule, see that ping gets through",
        "no route": f"see `ip route get {address}`, and add the route",
        "not permitted": f"nft list ruleset (or iptables -S), and let TCP port {port} out",
        NO_PORT: MORE_PORTS,
    }
    proxied = f"take TCP port {port} out of the proxy or mesh, or name another one: launch.port"
    return fail(
        summary,
        observed=result,
        expected=OK,
        fix=fixes.get(result, proxied),
        reproduce=f"nc -vz -w 3 {address} {port}, while `nc -l {port}` runs on {master}",
        # the data plane's state says nothing of the way by MASTER_ADDR
        explained_by=() if way.name else EXPLAINED.get(result, ELSEWHERE),
    )


def own(summary: str, **more: Any) -> Verdict:
    """Return a failure that follows from no other."""
    return fail(summary, explained_by=(), **more)


def taken(port: int, listener: Listener) -> Verdict:
    """Return the failure of a port that could not be opened: whatever else is wrong there."""
    holder, error = listener["holder"], listener["error"]
    other = "name another port: launch.port"
    if error == "EACCES":
        return own(f"port {port} may not be opened by the login user: below 1024", fix=other)
    if error != "EADDRINUSE":
        return own(f"port {port} cannot be opened: {error}", fix=other)
    see = f"ss -tanp 'sport = :{port}'"
    if holder is None:
        summary = f"port {port} is in use by a socket that is bound and does not listen"
        return own(summary, fix=other, reproduce="ss -tanp")
    how = "held" if holder["listening"] else "the source of a connection"
    end = f"end it if it is a leftover, or {other}"
    if holder["pid"]:
        end = "kill {}, if it is a leftover; or {}".format(holder["pid"], other)
    return own(f"port {port} is {how} by {who(holder)}", observed=holder, fix=end, reproduce=see)


def written(address: str) -> str:
    """Return an address as it stands before a port."""
    return f"[{address}]" if ":" in address else address


CHECK = Check(
    exercise=exercise,
    args=lambda want: (want.get("launch.master"), want.get("launch.port"), *wanted(want)),
    compare=compare,
    lane="launch port",
    level="standard",
    explains=("collective.all_reduce", "collective.pairs"),
)
