"""No rule of a node's own firewall loses what the other nodes of the job send it.

Why: ranks meet on the launch port and then on ports that the kernel picks. A packet filter that
    knows neither leaves them waiting; a dropped packet does not say who dropped it, the rule does.
Facts: tables (chains and rules of nftables and iptables that a packet from or to the node may come
    to, with what they test; firewalld and ufw write one or the other), unread (what could not be
    looked at), address and interface (on the data plane), ports (net.ipv4.ip_local_port_range). The
    first packet of a connection from each other node to the launch port of the master, and to
    each of those ports, is led through them, and so is each one that goes out. Where a rule is not
    understood both ways are followed. What runs as eBPF (Cilium), a cloud's security groups and
    a switch's ACLs are seen by network.port and network.ephemeral alone.
Source: nft -j list ruleset (libnftables-json(5)); /proc/net/ip_tables_names, iptables-legacy-save
    and iptables-nft-save (iptables-extensions(8)); needs root.
Fix: let the other nodes in: TCP, the launch port and net.ipv4.ip_local_port_range.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Any, Mapping, Sequence

from preflight.api import (
    Check,
    Node,
    Unobservable,
    Verdict,
    Want,
    fail,
    ok,
    skip,
    some,
    unknown,
    warn,
)
from preflight.node import iptables, nft
from preflight.node.fate import LOST, Place, rules_of
from preflight.node.launch import wanted
from preflight.node.lost import Filter, Lost, Span, lost
from preflight.node.net import interfaces, meeting_address
from preflight.node.netfilter import FIREWALLD, UFW, Table, is_idle, ruleset, saved, within_reach

RANGE = "/proc/sys/net/ipv4/ip_local_port_range"
LEGACY = {"iptables": "/proc/net/ip_tables_names", "ip6tables": "/proc/net/ip6_tables_names"}
LINUXS = (32768, 60999)
"""Where the kernel does not say: its own default."""
FEW = 0.01
"""Of the ports that the kernel may pick. A job's nodes open hundreds of them: a share like this one
is met, while a single port that is closed, as a database's, is so only once in a hundred jobs."""
SHOWN = 4
"""Rules that are not understood, in the details."""
COLLECTIVE = ("collective.all_reduce", "collective.pairs")
EPHEMERAL = "network.ephemeral"
"""Fails where ports are closed that the kernel picks; others that use such ports tell nothing then:
that no packet comes through is neither a loss of large ones nor of some."""
LISTED = {
    "nft": "nft -a list ruleset",
    FIREWALLD: "firewall-cmd --list-all-zones",
    UFW: "ufw status verbose",
}
ZONE = re.compile(r"(?:filter_)?IN_(?!policy_)(.+?)(?:_(?:pre|log|deny|allow|post))?")
"""The chain in which firewalld has what a zone lets in."""
UFW_USERS = "ufw-user-"
"""Chains of ufw with rules that were asked for begin so; the first that matches decides."""
BEYOND = (
    "where network.port or network.ephemeral get no answer all the same, it is lost outside: see"
    " the cloud's security group and network ACL, or the ACLs of the switches"
)


def probe(node: Node, launch: Mapping[str, Any]) -> Filter:
    # Under sudo the environment is root's; the job's files are those of who logged in.
    user = launch.get("user") or node.environ().get("SUDO_USER")
    network = interfaces(node, {**launch, "user": user} if user else launch)
    address = meeting_address(network)
    low, high = map(int, (node.read(RANGE) or "").split() or LINUXS)
    unread: list[str] = []
    tables = [*nftables(node, unread), *legacy(node, unread)]
    return Filter(
        address=address,
        interface=next((i["name"] for i in network["interfaces"] if address in i["addresses"]), ""),
        ports=(low, high),
        tables=[one for one in map(within_reach, tables) if one["chains"]],
        unread=unread,
    )


def nftables(node: Node, unread: list[str]) -> list[Table]:
    """Return the tables of nf_tables; those that iptables has written as iptables shows them."""
    if is_idle(node):
        return []
    try:
        objects = ruleset(node, unread)
    except Unobservable as problem:
        unread.append(str(problem))
        return []
    theirs = nft.managed_by_iptables(objects)
    found = [one for one in nft.tables(objects) if (one["family"], one["name"]) not in theirs]
    for family in sorted({family for family, _ in theirs}):
        program = "ip6tables" if family == "ip6" else "iptables"
        shown = others(node, program, (f"{program}-nft-save", f"{program}-save"), unread)
        found += [one for one in shown if (family, one["name"]) in theirs]
    return found


def legacy(node: Node, unread: list[str]) -> list[Table]:
    """Return the tables of ip_tables, where it has any: asking for them would make them."""
    found: list[Table] = []
    for program, path in LEGACY.items():
        try:
            used = (node.read(path) or "").split()
        except Unobservable as problem:
            unread.append(str(problem))
            continue
        programs = f"{program}-legacy-save", f"{program}-save"
        found += others(node, f"{program}-legacy", programs, unread) if used else []
    return found


def others(node: Node, name: str, programs: Sequence[str], unread: list[str]) -> list[Table]:
    """Return the tables that a program like iptables-save writes."""
    try:
        return iptables.tables(saved(node, *programs), name)
    except Unobservable as problem:
        unread.append(str(problem))
        return []


# ---- judging -------------------------------------------------------------------------------


def compare(facts: Mapping[str, Filter], want: Want) -> dict[str, Verdict]:
    if len(want.nodes) == 1:
        return {node: skip("one node alone meets no other") for node in facts}
    return {node: of_node(node, facts, want) for node in facts}


def of_node(node: str, facts: Mapping[str, Filter], want: Want) -> Verdict:
    fact, master, port = facts[node], want.launch["master"], want.launch["port"]
    if fact["unread"]:
        closed = all("ermi" in why for why in fact["unread"])  # permission, not permitted
        say = skip if closed and not fact["tables"] else unknown
        return say("the rules cannot be read: " + "; ".join(fact["unread"]))
    if not fact["address"]:
        return unknown("it has no address that other nodes could use")
    if not fact["tables"]:
        return ok("no rules: this node filters nothing", details=(BEYOND,))
    found, doubtful = lost(node, facts, want.nodes, master, port)
    found.sort(key=lambda one: -len(one.peers))
    words = {one: told(one, want) for one in found}
    grave = [one for one in found if is_met(one, fact, port)]
    losses = [one for one in grave if one.kind in LOST]
    said = (losses or grave)[:1]
    rest = [words[one] for one in found if one not in said]
    may = "may lose some of it, for it is not understood what else matches: {}"
    rest += [may.format(rule(one)) for one in doubtful[:SHOWN]]
    if losses:
        return failure(words[losses[0]], losses, rest, node, facts, port)
    if grave:
        fix = "take these ports out of the proxy or mesh, or name another port: launch.port"
        seen = rule(grave[0].place)
        return warn(words[grave[0]], observed=seen, details=tuple(rest), fix=fix)
    ports = [*([(port, port)] if node == master else []), (fact["ports"][0], fact["ports"][1])]
    sure = "surely " if doubtful else ""
    which = f"what comes from the other nodes on {written(ports)}, or goes to them"
    but = sorted({span for one in found for span in one.ports})
    which += f", but for {written(but)}" if but else ""
    return ok(f"no rule {sure}loses {which}", details=(*rest, BEYOND))


def is_met(one: Lost, fact: Filter, port: int) -> bool:
    """Whether a job would meet with what a rule does."""
    return on(one.ports, port) or share(one.ports, fact) >= FEW


def on(ports: Sequence[Span], port: int) -> bool:
    return any(low <= port <= high for low, high in ports)


def share(ports: Sequence[Span], fact: Filter) -> float:
    """Return which part of the ports that the kernel picks is among these."""
    low, high = fact["ports"]
    return sum(max(0, min(b, high) - max(a, low) + 1) for a, b in ports) / (high - low + 1)


def failure(
    summary: str,
    losses: Sequence[Lost],
    rest: Sequence[str],
    node: str,
    facts: Mapping[str, Filter],
    port: int,
) -> Verdict:
    first, fact = losses[0], facts[node]
    high = any(share(one.ports, fact) >= FEW for one in losses)
    launch = any(on(one.ports, port) for one in losses)
    ports = [str(port), *(["{}-{}".format(*fact["ports"])] if high else [])]
    return fail(
        summary,
        observed=list(dict.fromkeys(rule(one.place) for one in losses)),
        details=tuple(rest),
        fix=opening(first, ports, facts, fact["tables"]),
        reproduce=LISTED.get(first.place.writer, f"{first.place.writer} -S"),
        explains=(
            *COLLECTIVE,
            *((EPHEMERAL,) if high else ()),
            *(("network.port",) if launch else ()),
        ),
    )


# ---- in words ------------------------------------------------------------------------------


def rule(place: Place) -> str:
    """Return a rule, and where it stands."""
    zone = zone_of(place.chain) if place.writer == FIREWALLD else ""
    where = f"zone {zone}" if zone else f"chain {place.chain} of {place.family} {place.table}"
    return f"{place.text} ({place.writer}, {where})"


def zone_of(chain: str) -> str:
    """Return the zone of firewalld that a chain is of, empty if it is of none."""
    found = ZONE.fullmatch(chain)
    return found[1] if found else ""


def is_by_source(zone: str, tables: Sequence[Table]) -> bool:
    """Whether a zone of firewalld has packets by where they come from; no other zone has those."""
    return any(
        zone_of(rule["target"]) == zone and any(test["key"] == "saddr" for test in rule["tests"])
        for rule in rules_of(tables)
    )


def written(ports: Sequence[Span]) -> str:
    words = [str(low) if low == high else f"{low}-{high}" for low, high in ports]
    return "TCP port{} {}".format("s" if "-" in "".join(words) or words[1:] else "", some(words))


def told(one: Lost, want: Want) -> str:
    """Return what a rule does."""
    all_others = len(one.peers) == len(want.nodes) - 1 > 1
    who = "the other nodes" if all_others else some(one.peers)
    what = f"what comes from {who}" if one.inward else f"what goes out to {who}"
    done = {"drop": "dropped here", "reject": "rejected here"}
    how = done.get(one.kind, "led elsewhere here, as to a proxy,")
    return f"{what} on {written(one.ports)} is {how} by: {rule(one.place)}"


def opening(
    one: Lost, ports: Sequence[str], facts: Mapping[str, Filter], tables: Sequence[Table]
) -> str:
    """Return the command that lets the job's packets through, of the program that has the rules."""
    nets, place = networks([fact["address"] for fact in facts.values()]), one.place
    colons = ",".join(ports).replace("-", ":")
    if place.writer == FIREWALLD:
        zone, adding = "trusted", [f"--add-source={net}" for net in nets]
        if is_by_source(zone_of(place.chain), tables):
            zone, adding = zone_of(place.chain), [f"--add-port={port}/tcp" for port in ports]
        words = " ".join([f"--zone={zone}", *adding])
        return f"firewall-cmd --permanent {words} && firewall-cmd --reload"
    if place.writer == UFW:
        first = "prepend " if place.chain.startswith(UFW_USERS) else ""
        form = "allow proto tcp from {} to any port {}"
        form = form if one.inward else "allow out proto tcp to {} port {}"
        return " && ".join(f"ufw {first}{form.format(net, colons)}" for net in nets)
    if place.writer == "nft":
        chain, end = (
            f"{place.family} {place.table} {place.start}",
            "saddr" if one.inward else "daddr",
        )
        family = "ip6" if ":" in nets[0] else "ip"
        match = f"{family} {end} {listed(nets)} tcp dport {listed(ports)}"
        return f"nft insert rule {chain} '{match} accept', and keep it in /etc/nftables.conf"
    table = "" if place.table == "filter" else f"-t {place.table} "
    end = "-s" if one.inward else "-d"
    match = f"-p tcp {end} {','.join(nets)} -m multiport --dports {colons}"
    return f"{place.writer} {table}-I {place.start} {match} -j ACCEPT, and save the rules"


def listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else "{ " + ", ".join(words) + " }"


def networks(addresses: Sequence[str]) -> list[str]:
    """Return the networks that hold just these addresses, of the family of the first."""
    known = [ipaddress.ip_network(address) for address in addresses if address]
    same = [net for net in known if net.version == known[0].version]
    joined: Any = ipaddress.collapse_addresses(same)  # typed for one family at a time
    return [str(net).replace("/32", "").replace("/128", "") for net in joined]


CHECK = Check(
    probe=probe,
    args=wanted,
    compare=compare,
    level="standard",
    needs_root=True,
    explains=(EPHEMERAL, "network.port", *COLLECTIVE),
)
