"""The launch port is free on the master, and every node reaches it there.

Why: rank 0 listens on it and all others dial it. A port that is taken ends the job at once; one
    behind a firewall leaves all ranks waiting for the rendezvous until it times out.
Facts: listener (why our own could not be opened on the master, and who holds the port), dial (what
    came of connecting to it, from which address and interface, the master itself included),
    address (the master's on its data plane, else another one), meeting (the same of the master's
    address that MASTER_ADDR means on the node, if that is another). A dial counts as ok when our
    listener answers a secret with another one. Nothing connects to a port that somebody else holds.
Source: bind(2), connect(2), getaddrinfo(3), /proc/net/tcp and tcp6; pid and program by psutil where
    permitted.
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
)
from preflight.node.launch import settings, wanted
from preflight.node.net import interfaces, meeting_address
from preflight.node.ports import CONNECT_S, ECHO_S, OK, Dial, Holder, Listener, dial, listen

DIAL_S = CONNECT_S + ECHO_S + 2
"""For one dial, with some time for a busy node."""
WORDS = {
    "filtered": f"no answer in {CONNECT_S:g} s, as where a firewall drops it",
    "refused": "refused although our listener was there, as where a firewall resets it",
    "unreachable": "no route to host, as where a firewall rejects it or the address is gone",
    "no route": "no route to that network",
    "reset": "connected, then reset",
    "not permitted": "this node's own firewall forbids it",
    "silent": "accepted, but our listener never answered, as behind a proxy or service mesh",
    "foreign": "accepted by something that is not our listener, as by a proxy or service mesh",
}
OWN_FAULT = ("not permitted",)
"""Results that only the dialling node itself can have caused."""
LOST = ("filtered", "unreachable", "no route")
"""Results that a link which is down, or another interface, can cause too."""
MASTER = "MASTER_ADDR"


class Meeting(TypedDict):
    """An address of the master that MASTER_ADDR means, and what came of dialling it."""

    address: str
    dial: Dial | None
    problem: str


class Reach(TypedDict):
    """What one node shows: the master has a listener; `problem` is why nothing is known."""

    master: str
    address: str
    port: int
    listener: Listener | None
    dial: Dial | None
    problem: str
    meeting: Meeting | None


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
    why = message(network) or f"the master {master} has no address that others could use"
    for node, fact in reach.items():
        fact["address"] = address
        if node != master and not address:
            fact["problem"] = why
        if node in dials[0]:
            fact["dial"], fact["problem"] = dials[0][node].value, message(dials[0][node])
        if node in dials[1]:
            fact["meeting"] = met(named[node], dials[1][node])
    return reach


def met(address: str, reply: Reply) -> Meeting:
    return Meeting(address=address, dial=reply.value, problem=message(reply))


def meetings(fleet: Fleet, want: Want, network: Reply, address: str) -> dict[str, str]:
    """Return by node the master's address that MASTER_ADDR means there, where it is another one.

    What is no address of the master is launch.env's affair: a stranger's port is not dialled.
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
        master=master, address="", port=port, listener=None, dial=None, problem="", meeting=None
    )


def message(reply: Reply) -> str:
    """Return why a call has no value, or nothing."""
    return str(reply.problem["message"]) if reply.problem else ""


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
    first = next(iter(facts.values()))
    master, port = first["master"], first["port"]
    if master not in facts:
        return {node: skip(fact["problem"]) for node, fact in facts.items()}
    listener = facts[master]["listener"]
    if listener is None or listener["error"]:
        verdicts = dict.fromkeys(
            facts, skip(f"not tried: port {port} could not be opened on {master}")
        )
        lost = unknown(facts[master]["problem"])
        return {**verdicts, master: taken(port, listener) if listener else lost}
    data, named = {}, {}
    for node, fact in facts.items():
        data[node] = Way(master, fact["address"], port, "", fact["dial"], fact["problem"])
        met = fact["meeting"]
        if met:
            named[node] = Way(master, met["address"], port, MASTER, met["dial"], met["problem"])
    by_data, by_name = judged(data, master), judged(named, master) if named else {}
    return {
        node: gravest([verdict, *([by_name[node]] if node in by_name else [])])
        for node, verdict in by_data.items()
    }


def gravest(found: Sequence[Verdict]) -> Verdict:
    """Return the graver of the verdicts of two ways; the other is a detail."""
    worst = max(found, key=lambda verdict: STATUSES.index(verdict.status))
    rest = [verdict.summary for verdict in found if verdict is not worst]
    return replace(worst, details=(*worst.details, *rest))


def judged(ways: Mapping[str, Way], master: str) -> dict[str, Verdict]:
    """Return the verdicts of one way to the master, by node; the master's own is always there."""
    results = {node: way.dial["result"] for node, way in ways.items() if way.dial}
    at_fault = blocked(results, master)
    verdicts = {n: of_node(way, at_fault) for n, way in ways.items() if n != master}
    own = ways.get(master) or next(iter(ways.values()))._replace(dial=None)
    return {**verdicts, master: of_master(own, results, at_fault)}


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


def of_master(way: Way, results: Mapping[str, str], at_fault: str) -> Verdict:
    """Return the verdict of the node that has the port."""
    itself = way.dial["result"] if way.dial else OK
    if at_fault:
        who = "no other node reaches" if itself == OK else "no node reaches"
        return unreached(f"{who} {way.place}: {told(at_fault)}", way, at_fault)
    if itself != OK:
        return unreached(f"does not reach itself at {way.place}: {told(itself)}", way, itself)
    others = [result for node, result in results.items() if node != way.master]
    count = f"; {others.count(OK)} of {len(others)} other nodes reach it at {way.place}"
    return ok(f"port {way.port} is free" + (count if others else ""))


def of_node(way: Way, at_fault: str) -> Verdict:
    """Return the verdict of a node that dials."""
    own, master = way.dial, way.master
    if own is None:
        return unknown(way.problem)
    place = f"{way.place} of {master}"
    route = " from " + own["source"] if own["source"] else ""
    route += " ({})".format(own["interface"]) if own["interface"] else ""
    if own["result"] == OK:
        return ok(f"reaches {place}{route}")
    summary = f"does not reach {place}{route}: " + told(own["result"])
    if own["result"] in OWN_FAULT:
        return unreached(summary, way, own["result"])
    if at_fault == own["result"]:
        return ok(f"like every other node, does not reach {place}: the fault is at {master}")
    if at_fault:
        return unknown(f"{summary}; no other node reaches it either, so see to {master} first")
    return replace(unreached(summary, way, own["result"]), scope="pair", peers=(master,))


def told(result: str) -> str:
    """Return the result of a dial in words."""
    return WORDS.get(result, result)


def unreached(summary: str, way: Way, result: str) -> Verdict:
    """Return a failure with what mends it, and how it is seen by hand."""
    port, master, address = way.port, way.master, way.address
    wall = f"on {master}: nft list ruleset (or iptables -S), and let TCP port {port} in"
    fixes = {
        "filtered": wall + "; in a cloud, in the security group too",
        "refused": wall,
        "unreachable": wall + "; if there is no such rule, see that ping gets through",
        "no route": f"see `ip route get {address}`, and add the route",
        "not permitted": f"nft list ruleset (or iptables -S), and let TCP port {port} out",
    }
    proxied = f"take TCP port {port} out of the proxy or mesh, or name another one: launch.port"
    return fail(
        summary,
        observed=result,
        expected=OK,
        fix=fixes.get(result, proxied),
        reproduce=f"nc -vz -w 3 {address} {port}, while `nc -l {port}` runs on {master}",
        # the data plane's state says nothing of the way by MASTER_ADDR
        explained_by=None if result in LOST and not way.name else (),
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


def who(holder: Holder) -> str:
    """Return a process in words, as far as the login user may see it."""
    user = holder["user"] or "uid {}".format(holder["uid"])
    if not holder["pid"]:
        return f"a process of {user}, whose pid only {user} and root can see"
    since = "" if holder["seconds"] is None else " for " + age(holder["seconds"])
    return "pid {} ({}) of {}{}".format(holder["pid"], holder["program"], user, since)


def age(seconds: float) -> str:
    """Return a span of time for people."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def written(address: str) -> str:
    """Return an address as it stands before a port."""
    return f"[{address}]" if ":" in address else address


CHECK = Check(
    exercise=exercise,
    args=lambda want: (want.get("launch.master"), want.get("launch.port"), *wanted(want)),
    compare=compare,
    level="standard",
    explains=("collective.all_reduce", "collective.pairs"),
)
