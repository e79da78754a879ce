"""Connections that do not come to be, or end: closed ports, firewalls, scanners, middleboxes.

How NCCL says it changed four times: `misc/socket.cc` of 2.4 to 2.9, 2.10 to 2.15, 2.16 to 2.23,
2.24 to 2.26, and since 2.27; `os/linux.cc` since 2.29. Why it failed always stands there in the
words of errno(3).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from preflight.triage.family import Finding
from preflight.triage.rule import Kind, Rule
from preflight.triage.story import Seen, Story

ADDRESS = r"\[?(?P<address>[0-9a-zA-Z.:%_-]{1,80}?)\]?(?:<(?P<port>\d{1,5})>)"
TOLD = (
    r"(?P<why>Connection refused|Connection timed out|No route to host|Network is unreachable"
    r"|Connection reset by peer|Invalid argument|Cannot assign requested address)"
)
ALL_PORTS = "open all TCP ports between the nodes: NCCL and torch listen on random high ports, too"
SHARED = re.compile(r"127\.|169\.254\.|fe80:|::1$|localhost$")
"""Addresses that mean another machine on each machine."""
OWN_CHOICE = (
    "set NCCL_SOCKET_IFNAME to the interface that all nodes share (for Gloo GLOO_SOCKET_IFNAME)"
)
MEANS = {
    "Connection refused": "reached {at}, but nothing listened there: the rank there has ended, "
    "or it is the address of another machine",
    "Connection timed out": "had no answer from {at}: a firewall drops it, or there is no way to "
    "that address",
    "No route to host": "cannot reach {at}: a firewall rejects it (as firewalld does), or nobody "
    "there has this address",
    "Network is unreachable": "has no route to {address}",
    "Connection reset by peer": "was cut off by {at}",
    "Invalid argument": "cannot use the address {at}",
    "Cannot assign requested address": "has no address from which to reach {address}",
}
CAUSES = {
    "Connection refused": "network.ephemeral",
    "Connection timed out": "network.ephemeral",
    "No route to host": "network.firewall",
    "Network is unreachable": "network.route",
    "Connection reset by peer": "network.ephemeral",
    "Invalid argument": "network.interface",
    "Cannot assign requested address": "network.interface",
}
FIXES = {
    "network.ephemeral": ALL_PORTS,
    "network.firewall": f"see the rules on that node (nft list ruleset); {ALL_PORTS}",
    "network.route": "ip route get ADDRESS on the node that says so; add the route, or use another "
    "interface: " + OWN_CHOICE,
    "network.interface": OWN_CHOICE,
}


def connected(told: Mapping[str, str]) -> Mapping[str, str] | None:
    """Return what a failed connection means, by the address and why; None: it is tried again."""
    return None if told.get("again") else meaning(told)


def meaning(told: Mapping[str, str]) -> Mapping[str, str]:
    """Return what it means that a connection did not come to be."""
    why, address = told["why"], told["address"]
    cause = "network.interface" if SHARED.match(address) else CAUSES[why]
    at = f"{address} port {told['port']}" if told.get("port") else address
    means = MEANS[why].format(address=address, at=at)
    if SHARED.match(address):
        means = f"went to {address}, which on every machine is that machine itself"
    return {"cause": cause, "means": means, "mend": FIXES[cause]}


def lost(told: Mapping[str, str]) -> Mapping[str, str] | None:
    """Return what it means that a connection that was there ended, or None: a peer has ended."""
    return {} if told["why"] == "Connection timed out" else None


MAGIC = re.compile(r"[0-9a-fA-F]{1,16}")


def decoded(told: Mapping[str, str]) -> Mapping[str, str]:
    """Return what a stranger has said to a port of NCCL: its first eight bytes, as text."""
    said = int(told["magic"], 16).to_bytes(8, "little")
    if said[:1] == b"\x16" and said[1:2] == b"\x03":
        return {"stranger": "a TLS client (such as a scanner)"}
    text = said.rstrip(b"\0").decode("latin-1")
    if text[:4] in {"GET ", "POST", "HEAD", "PUT "}:
        return {"stranger": f"an HTTP client ({text!r}, such as a metrics scraper)"}
    if text.startswith("SSH-"):
        return {"stranger": f"an SSH client ({text!r})"}
    if text.isprintable() and text:
        return {"stranger": f"a program that says {text!r}"}
    return {"stranger": "a stranger, a rank of another job, or one of another NCCL"}


BOOTSTRAP = "bootstrap"
RULES = (
    Rule(
        r"(?:ocket(?:Start|Poll)Connect|NCCL WARN|Net :)[^<]{0,40}[Cc]onnect to "
        + ADDRESS
        + r" (?:failed ?:|failed with error|returned) ?(?:\d{1,4}\()?"
        + TOLD
        + r"(?P<again>, retrying)?",
        Kind.SYMPTOM,
        cause="{cause}",
        says="{who} {means}",
        confidence=0.6,
        fix="{mend}",
        confirm="preflight run --only network.ephemeral,network.firewall,network.interface",
        checks=("network.ephemeral", "network.firewall", "network.interface", "network.names"),
        stage=BOOTSTRAP,
        refine=connected,
        source="NCCL misc/socket.cc, 2.4 to 2.30",
    ),
    Rule(
        r"ocket(?:Start|Poll)Connect: connect(?: to "
        + ADDRESS
        + r")? returned "
        + TOLD
        + r", exceeded error retry count",
        Kind.SYMPTOM,
        cause="network.ephemeral",
        says="{who} gave up to connect to another rank: {why}",
        confidence=0.5,
        fix=ALL_PORTS,
        confirm="preflight run --only network.ephemeral,network.firewall,network.interface",
        checks=("network.firewall", "network.interface"),
        stage=BOOTSTRAP,
        source="NCCL misc/socket.cc, 2.24 to 2.26: the address is not told",
    ),
    Rule(
        r"socket(?:Start|Poll)Connect: exceeded (?P<what>retries|timeouts) \(\d{1,9}\)",
        Kind.SYMPTOM,
        cause="network.ephemeral",
        says="{who} gave up to connect to another rank ({what})",
        confidence=0.45,
        fix=ALL_PORTS,
        confirm="preflight run --only network.ephemeral,network.firewall",
        checks=("network.firewall", "network.interface"),
        stage=BOOTSTRAP,
        source="NCCL misc/socket.cc, 2.16 to 2.23",
    ),
    Rule(
        r"NCCL INFO .{0,40}Call to connect (?:to "
        + ADDRESS
        + r" )?returned "
        + TOLD
        + r", retrying",
        Kind.FACT,
        says="{who} tries again to connect: {why}",
        stage=BOOTSTRAP,
        source="NCCL misc/socket.cc, 2.4 to 2.23",
    ),
    Rule(
        r"ocket(?:Start|Poll)Connect: connect(?: to "
        + ADDRESS
        + r")? returned "
        + TOLD
        + r", retrying",
        Kind.FACT,
        says="{who} tries again to connect: {why}",
        stage=BOOTSTRAP,
        source="NCCL misc/socket.cc, since 2.24",
    ),
    Rule(
        r"ocketPollConnect poll\(\) returned 1, no POLLOUT events",
        Kind.SYMPTOM,
        cause="host.limits",
        says="{who} could not connect: the other end dropped it, as a full listen queue does",
        confidence=0.55,
        fix="sysctl -w net.core.somaxconn=4096 net.ipv4.tcp_max_syn_backlog=8192 on all nodes; "
        "NCCL from 2.27 on tries again",
        confirm="nstat -az TcpExtListenDrops TcpExtListenOverflows on the nodes",
        checks=("network.ephemeral", "network.firewall"),
        stage=BOOTSTRAP,
        source="NCCL misc/socket.cc, 2.23.4 to 2.26.6; NVIDIA/nccl#1618",
    ),
    Rule(
        r"ocketTryAccept: Accept failed: Too many open files|accept.{0,30}: Too many open files"
        r"|OSError: \[Errno 24\] Too many open files|socket.{0,60}: Too many open files",
        Kind.CAUSE,
        cause="host.limits",
        says="{who} may open no more files or connections (ulimit -n)",
        confidence=0.95,
        fix="ulimit -n $(ulimit -Hn) before the program is started, or LimitNOFILE= of the service",
        confirm="preflight run --only host.limits",
        stage=BOOTSTRAP,
        source="NCCL misc/socket.cc, os/linux.cc",
    ),
    Rule(
        r"ocketFinalizeAccept: wrong magic (?P<magic>[0-9a-fA-F]{1,16}) != [0-9a-fA-F]{1,16}",
        Kind.CAUSE,
        cause="network.foreign",
        says="{stranger} connected to a port of NCCL on {node}; NCCL before 2.30 can hang after it",
        confidence=0.9,
        fix="keep scanners and scrapers away from the training network; upgrade NCCL",
        confirm="preflight run --only network.foreign",
        refine=decoded,
        stage=BOOTSTRAP,
        source="NCCL misc/socket.cc, 2.16 to 2.26; NVIDIA/nccl#1808",
    ),
    Rule(
        r"ocketFinalizeAccept: (?:didn't receive a valid magic from|wrong type)",
        Kind.SYMPTOM,
        cause="network.foreign",
        says="something that is no rank of this job connected to a port of NCCL on {node}",
        confidence=0.6,
        fix="keep scanners and scrapers away from the training network, and have one NCCL on all "
        "nodes",
        confirm="preflight run --only network.foreign,software.nccl",
        checks=("software.nccl",),
        stage=BOOTSTRAP,
        source="NCCL misc/socket.cc, 2.16 to 2.30",
    ),
    Rule(
        r"NCCL WARN.{0,60}Call to recv from " + ADDRESS + r" failed : " + TOLD,
        Kind.SYMPTOM,
        cause="network.idle",
        says="{who} lost a connection to {address}: something between drops those that are idle "
        "(a firewall, NAT or an overlay network)",
        confidence=0.7,
        fix="no NAT between the nodes (hostNetwork), or a longer idle timeout of the firewall",
        confirm="sysctl net.netfilter.nf_conntrack_tcp_timeout_established on nodes and gateways",
        checks=("network.firewall", "network.link"),
        refine=lost,
        source="NCCL misc/socket.cc; NVIDIA/nccl#1619",
    ),
    Rule(
        r"NCCL WARN.{0,60}(?:Call to (?:recv|send) (?:from|to) " + ADDRESS + r" failed : "
        r"(?:Connection reset by peer|Broken pipe)|Connection closed by remote peer)",
        Kind.CONSEQUENCE,
        says="{who} lost its peer",
        source="NCCL misc/socket.cc",
    ),
    Rule(
        r"nf_conntrack: (?:nf_conntrack: )?table full, dropping packet",
        Kind.SYMPTOM,
        cause="network.firewall",
        says="{node} drops packets: its firewall's table of connections is full",
        confidence=0.7,
        fix="sysctl -w net.netfilter.nf_conntrack_max=1048576",
        confirm="sysctl net.netfilter.nf_conntrack_count net.netfilter.nf_conntrack_max",
        checks=("network.ephemeral", "network.errors"),
        source="Linux net/netfilter/nf_conntrack_core.c",
    ),
    Rule(
        r"neighbou?r: arp_cache: neighbou?r table overflow!",
        Kind.SYMPTOM,
        cause="network.link",
        says="{node} knows too many neighbours: its table of addresses is full, packets are lost",
        confidence=0.6,
        fix="sysctl -w net.ipv4.neigh.default.gc_thresh2=8192 "
        "net.ipv4.neigh.default.gc_thresh3=16384",
        confirm="ip -s neigh | wc -l, sysctl net.ipv4.neigh.default.gc_thresh3",
        source="Linux net/core/neighbour.c",
    ),
    Rule(
        r"A process or daemon was unable to complete a TCP connection to another process",
        Kind.SYMPTOM,
        cause="network.ephemeral",
        says="Open MPI could not connect two nodes: a firewall closes their ports",
        confidence=0.7,
        fix=ALL_PORTS,
        confirm="preflight run --only network.ephemeral,network.firewall",
        checks=("network.firewall",),
        stage="launch",
        source="Open MPI",
    ),
)
TRIED = tuple(rule for rule in RULES if "tries again" in rule.says)


def find(story: Story) -> Iterator[Finding]:
    """Yield connections that were tried again and again, where nobody says that they came to be."""
    lines = [seen for rule in TRIED for seen in story.of_rule(rule)]
    if not lines or any(story.stated("last_enqueued")):
        return
    stuck = [seen for seen in lines if stays(seen, story)]
    if not stuck:
        return
    seen = stuck[0]
    address = seen.told.get("address", "")
    told = meaning({"address": address or "another rank", **seen.told})
    yield Finding(
        cause=told["cause"],
        kind=Kind.SYMPTOM,
        says=f"{story.called(seen.who)} tried again and again to connect: it {told['means']}",
        confidence=0.5,
        fix=told["mend"],
        evidence=tuple(stuck),
        confirm="preflight run --only network.ephemeral,network.firewall,network.interface",
        checks=("network.ephemeral", "network.firewall", "network.interface"),
    )


def stays(seen: Seen, story: Story) -> bool:
    """Whether a rank that tried again has not come through: its set-up has not ended."""
    return story.whose(seen.who) not in story.stated("complete")
