"""The launch port is free on the master, and every node reaches it there.

Why: rank 0 listens on it and all others dial it. A port that is taken ends the job at once; one
    behind a firewall leaves all ranks waiting for the rendezvous until it times out.
Facts: listener (why our own could not be opened on the master, and who holds the port), dial (what
    came of connecting to it, from which address and interface, the master itself included),
    address (the master's on its data plane). A dial counts as ok when our listener answers a
    secret with another one. Nothing connects to a port that somebody else holds.
Source: bind(2), connect(2), /proc/net/tcp and tcp6; pid and program by psutil where permitted.
Fix: let the port through between the nodes, or name another one: launch.port.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Mapping, TypedDict

from preflight.api import Check, Fleet, Reply, Verdict, Want, fail, ok, skip, unknown
from preflight.node.launch import wanted
from preflight.node.net import interfaces
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


class Reach(TypedDict):
    """What one node shows: the master has a listener; `problem` is why nothing is known."""

    master: str
    address: str
    port: int
    listener: Listener | None
    dial: Dial | None
    problem: str


def exercise(fleet: Fleet, want: Want) -> dict[str, Reach]:
    master, port = want.launch["master"], want.launch["port"]
    reach = {node: blank(master, port) for node in fleet.nodes}
    if master not in reach:
        for fact in reach.values():
            out = "was not reached" if master in want.nodes else "is left out of this run"
            fact["problem"] = f"the master {master} {out}"
        return reach
    network = fleet.call(master, interfaces, *wanted(want))
    address = network.value["data_plane"]["address"] if network.value else ""
    secrets = os.urandom(16).hex(), os.urandom(16).hex()
    with fleet.start(master, listen, port, *secrets) as running:
        if isinstance(running, Reply):
            reach[master]["listener"], reach[master]["problem"] = running.value, message(running)
            callers: tuple[str, ...] = ()
        else:
            reach[master]["listener"] = Listener(error="", holder=None)
            callers = fleet.nodes if address and len(want.nodes) > 1 else ()
        dials = fleet.map(dial, dict.fromkeys(callers, (address, port, *secrets)), DIAL_S)
    why = message(network) or f"the master {master} has no address on the data plane"
    for node, fact in reach.items():
        fact["address"] = address
        if node in dials:
            fact["dial"], fact["problem"] = dials[node].value, message(dials[node])
        elif node != master:
            fact["problem"] = "" if address else why
    return reach


def blank(master: str, port: int) -> Reach:
    """Return what is known of a node before anything was tried."""
    return Reach(master=master, address="", port=port, listener=None, dial=None, problem="")


def message(reply: Reply) -> str:
    """Return why a call has no value, or nothing."""
    return str(reply.problem["message"]) if reply.problem else ""


# ---- judging -------------------------------------------------------------------------------


def compare(facts: Mapping[str, Reach], want: Want) -> dict[str, Verdict]:
    master = next(fact["master"] for fact in facts.values())
    if master not in facts:
        return {node: skip(fact["problem"]) for node, fact in facts.items()}
    results = {node: fact["dial"]["result"] for node, fact in facts.items() if fact["dial"]}
    at_fault = blocked(results, master)
    verdicts = {n: of_node(f, facts[master], at_fault) for n, f in facts.items() if n != master}
    verdicts[master] = of_master(facts[master], results, at_fault)
    return verdicts


def blocked(results: Mapping[str, str], master: str) -> str:
    """Return how the master fails all nodes, empty if it does not or that can't be told.

    It is the master if it does not even reach itself, or if several nodes fail in the same way.
    """
    others = [result for node, result in results.items() if node != master]
    if not others or OK in others:
        return ""
    alike = len(others) > 1 and len(set(others)) == 1 and others[0] not in OWN_FAULT
    itself = results.get(master, OK) != OK
    return others[0] if alike or itself else ""


def of_master(fact: Reach, results: Mapping[str, str], at_fault: str) -> Verdict:
    """Return the verdict of the node that has the port."""
    port, own = fact["port"], fact["dial"]
    if fact["listener"] is None:
        return unknown(fact["problem"])
    if fact["listener"]["error"]:
        return taken(port, fact["listener"])
    itself = own["result"] if own else OK
    place = "{}:{}".format(written(fact["address"]), port)
    if at_fault:
        who = "no other node reaches" if itself == OK else "no node reaches"
        return unreached(f"{who} {place}: {told(at_fault)}", fact, at_fault)
    if itself != OK:
        return unreached(f"does not reach itself at {place}: {told(itself)}", fact, itself)
    others = [result for node, result in results.items() if node != fact["master"]]
    count = f"; {others.count(OK)} of {len(others)} other nodes reach it at {place}"
    return ok(f"port {port} is free" + (count if others else ""))


def of_node(fact: Reach, of_master: Reach, at_fault: str) -> Verdict:
    """Return the verdict of a node that dials."""
    master, port, own = fact["master"], fact["port"], fact["dial"]
    listener = of_master["listener"]
    if listener is None or listener["error"]:
        return skip(f"not tried: port {port} could not be opened on {master}")
    if own is None:
        return unknown(fact["problem"])
    place = "{}:{} of {}".format(written(fact["address"]), port, master)
    way = " from " + own["source"] if own["source"] else ""
    way += " ({})".format(own["interface"]) if own["interface"] else ""
    if own["result"] == OK:
        return ok(f"reaches {place}{way}")
    if at_fault:
        return ok(f"like every other node, does not reach {place}: the fault is at {master}")
    summary = f"does not reach {place}{way}: " + told(own["result"])
    if own["result"] in OWN_FAULT:
        return unreached(summary, fact, own["result"])
    return replace(unreached(summary, fact, own["result"]), scope="pair", peers=(master,))


def told(result: str) -> str:
    """Return the result of a dial in words."""
    return WORDS.get(result, result)


def unreached(summary: str, fact: Reach, result: str) -> Verdict:
    """Return a failure with what mends it, and how it is seen by hand."""
    port, master = fact["port"], fact["master"]
    wall = f"on {master}: nft list ruleset (or iptables -S), and let TCP port {port} in"
    fixes = {
        "filtered": wall + "; in a cloud, in the security group too",
        "refused": wall,
        "unreachable": wall + "; if there is no such rule, see that ping gets through",
        "no route": "see `ip route get {}`, and add the route".format(fact["address"]),
        "not permitted": f"nft list ruleset (or iptables -S), and let TCP port {port} out",
    }
    proxied = f"take TCP port {port} out of the proxy or mesh, or name another one: launch.port"
    return fail(
        summary,
        observed=result,
        expected=OK,
        fix=fixes.get(result, proxied),
        reproduce="nc -vz -w 3 {} {}, while `nc -l {}` runs on {}".format(
            fact["address"], port, port, master
        ),
    )


def taken(port: int, listener: Listener) -> Verdict:
    """Return the failure of a port that could not be opened."""
    holder, error = listener["holder"], listener["error"]
    other = "name another port: launch.port"
    if error == "EACCES":
        return fail(f"port {port} may not be opened by the login user: below 1024", fix=other)
    if error != "EADDRINUSE":
        return fail(f"port {port} cannot be opened: {error}", fix=other)
    see = f"ss -tanp 'sport = :{port}'"
    if holder is None:
        summary = f"port {port} is in use by a socket that is bound and does not listen"
        return fail(summary, fix=other, reproduce="ss -tanp")
    how = "held" if holder["listening"] else "the source of a connection"
    end = f"end it if it is a leftover, or {other}"
    if holder["pid"]:
        end = "kill {}, if it is a leftover; or {}".format(holder["pid"], other)
    return fail(f"port {port} is {how} by {who(holder)}", observed=holder, fix=end, reproduce=see)


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
