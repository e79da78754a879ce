"""The network interface that NCCL and Gloo take: one that no other node can reach, or none.

Left to itself NCCL takes the first that is neither lo nor docker*, if there is no ib*; before 2.9
it named all of them. Gloo takes that of the address that the node's own name leads to.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from preflight.triage.family import Finding
from preflight.triage.rule import Kind, Rule
from preflight.triage.story import Seen, Story

IFACE = "network.interface"
STAGE = "bootstrap"
CONFIRM = "preflight run --only network.interface; by hand: ip -br address on each node"
CHOOSE = (
    "export NCCL_SOCKET_IFNAME=NAME and GLOO_SOCKET_IFNAME=NAME, the interface that all nodes "
    "share, or leave out the others: NCCL_SOCKET_IFNAME=^lo,docker,veth"
)
ODD = (
    r"(?:veth|docker|br-[0-9a-f]{12}|virbr|cni|flannel|cali|cilium|lxc|lxd|podman|ip6tnl|tunl|tun|tap|sit|gre"
    r"|wg|vxlan|nodelocaldns|kube-|usb|wl)[\w.@-]{0,15}"
)
"""Interfaces of containers on one node, tunnels, and what else joins no two nodes of a cluster."""
TAKES = Rule(
    r"(?:Bootstrap ?: Using|NET/Socket : Using) .*?"
    r"(?P<odd>\b" + ODD + r"):(?P<odd_address>[0-9a-fA-F][\w.:%]{1,60})<\d{1,5}>",
    Kind.FACT,
    says="{who} takes {odd}",
    stage=STAGE,
    source="NCCL bootstrap.cc, transport/net_socket.cc",
)
NONE = Rule(
    r"Bootstrap : no socket interface found|NET/Socket : no interface found|"
    r"NET/Socket : No usable listening interface found|NET/IB : No IP interface found",
    Kind.CAUSE,
    cause=IFACE,
    says="NCCL of {who} found no interface that fits NCCL_SOCKET_IFNAME",
    confidence=0.9,
    fix="name one that is there (ip -br address), or several: NCCL_SOCKET_IFNAME=enp4s0,enp6s0; "
    "a beginning is enough: enp",
    confirm=CONFIRM,
    checks=("launch.env",),
    stage=STAGE,
    source="NCCL bootstrap.cc, transport/net_socket.cc, net_ib.cc, 2.4 to 2.30",
)
FAMILY = Rule(
    r"connecting to address .*with family (?P<family>\d{1,6}) is neither AF_INET",
    Kind.SYMPTOM,
    cause="software.nccl",
    says="{who} was given an address that is none: another rank has another NCCL, or found no "
    "interface",
    confidence=0.6,
    fix="have one NCCL on all nodes",
    confirm="preflight run --only software.nccl,network.interface",
    checks=(IFACE,),
    stage=STAGE,
    source="NCCL misc/socket.cc since 2.8; NVIDIA/nccl#1267, #1837",
)
RULES = (
    TAKES,
    NONE,
    FAMILY,
    Rule(
        r"No interface found in the same subnet as remote address (?P<remote>[\w.:%\[\]]{2,80})",
        Kind.CAUSE,
        cause=IFACE,
        says="{who} has no interface in the network of {remote}, which NCCL_COMM_ID names",
        confidence=0.85,
        fix=CHOOSE,
        confirm=CONFIRM,
        checks=("network.route", "launch.env"),
        stage=STAGE,
        source="NCCL misc/socket.cc up to 2.26",
    ),
    Rule(
        r"no device found (?:matching|after excluding) (?P<wanted>.{1,80}), verify "
        r"NCCL_OOB_NET_IFNAME",
        Kind.CAUSE,
        cause=IFACE,
        says="{who} has no device that fits NCCL_OOB_NET_IFNAME={wanted}",
        confidence=0.9,
        fix="name one that all nodes have, or leave NCCL_OOB_NET_IFNAME unset",
        confirm=CONFIRM,
        checks=("launch.env",),
        stage=STAGE,
        source="NCCL bootstrap.cc since 2.24",
    ),
    Rule(
        r"Unable to find (?:address for|interface for): (?P<wanted>[\w.:@%-]{1,64})",
        Kind.CAUSE,
        cause=IFACE,
        says="{who} has no interface {wanted} with an address, which Gloo was to use "
        "(GLOO_SOCKET_IFNAME)",
        confidence=0.93,
        fix="export GLOO_SOCKET_IFNAME=NAME, one that is there: ip -br address",
        confirm=CONFIRM,
        checks=("launch.env",),
        stage=STAGE,
        source="gloo transport/tcp/device.cc",
    ),
    Rule(
        r"gloo/transport/tcp/socket\.cc:\d{1,5}\] .{0,60}connect: Network is unreachable",
        Kind.SYMPTOM,
        cause=IFACE,
        says="{who} has no route to the address of another rank: Gloo took an interface of "
        "another network on one of the nodes",
        confidence=0.75,
        fix="export GLOO_SOCKET_IFNAME=NAME on all nodes, of the network that they share: "
        "ip -br address",
        confirm=CONFIRM,
        checks=("network.route", "launch.env"),
        stage=STAGE,
        source="gloo transport/tcp/socket.cc, torch 2.13",
    ),
    Rule(
        r"Every node should have a unique IP address\. Got (?P<nodes>\d{1,6}) nodes with "
        r"(?P<addresses>\d{1,6}) unique IP",
        Kind.CAUSE,
        cause=IFACE,
        says="Ray knows {nodes} nodes, and vLLM found {addresses} addresses of them: vLLM takes "
        "that of the default route, Ray was given another",
        confidence=0.93,
        fix="on each node: export VLLM_HOST_IP=ADDRESS, ray start --node-ip-address=ADDRESS, its "
        "address in the network that all nodes share",
        confirm="ip route get 8.8.8.8 on each node: is src the address that `ray status` shows?",
        checks=("network.route",),
        stage="launch",
        source="vLLM executor/ray_distributed_executor.py",
    ),
    Rule(
        r"No available node types can fulfill resource request \{.*'node:(?P<wanted>"
        r"[\w.:]{2,60})'",
        Kind.SYMPTOM,
        cause=IFACE,
        says="Ray waits for a node {wanted} that it does not know: vLLM takes the address of the "
        "default route, Ray was given another",
        confidence=0.85,
        fix="on each node: export VLLM_HOST_IP=ADDRESS, ray start --node-ip-address=ADDRESS, its "
        "address in the network that all nodes share",
        confirm="ray list nodes: is {wanted} among them?",
        checks=("network.route", "network.names"),
        stage="launch",
        source="Ray autoscaler, vLLM",
    ),
)


def find(story: Story) -> Iterator[Finding]:
    """Yield what only several lines tell."""
    yield from unreachable(story)
    yield from unfit(story)
    yield from nobody_there(story)


NOT_SHARED = re.compile(r"127\.|169\.254\.|fe80:|::1$")
"""Addresses by which no other node is reached."""


def unreachable(story: Story) -> Iterator[Finding]:
    """Yield an interface that no other node reaches, where connections did not come to be."""
    if not trouble(story):
        return
    here = [*story.stated("address").values()]
    nodes = {seen.who.node for seen in here}
    own = [seen for seen in here if NOT_SHARED.match(seen.told["address"]) and len(nodes) > 1]
    odd = [seen for seen in story.of_rule(TAKES) if seen.told["odd"]]
    for lines, interface, address in (
        (own, "interface", "address"),
        (odd, "odd", "odd_address"),
    ):
        if not lines:
            continue
        told = lines[0].told
        name, where = told.get(interface, "an interface"), told[address]
        yield Finding(
            cause=IFACE,
            kind=Kind.SYMPTOM,
            says=f"NCCL takes {name} ({where}), by which no other node is reached",
            confidence=0.85 if failed(story) else 0.65,
            fix=ON_LO if name == "lo" else CHOOSE,
            evidence=tuple(lines),
            confirm=CONFIRM,
            checks=("launch.env", "network.route"),
        )
        return
    yield from different(here)


ON_LO = (
    "export NCCL_SOCKET_IFNAME=NAME of an interface with an address that others reach; NCCL takes "
    "only the first address of one: an address that is on lo (BGP to the host) is to go to dummy0"
)


def trouble(story: Story) -> bool:
    """Whether connections did not come to be, or a rank has not ended its set-up."""
    if failed(story):
        return True
    begun, done = story.stated("init"), story.stated("complete")
    tried = any("why" in seen.told for seen in story.events(Kind.FACT))
    return any(who not in done for who in begun) or (tried and not done)


def failed(story: Story) -> bool:
    """Whether somebody says that a connection did not come to be."""
    causes = (seen.told.get("cause", seen.rule.cause) for seen in story.events(Kind.SYMPTOM))
    return any(cause.startswith("network.") for cause in causes)


def different(here: list[Seen]) -> Iterator[Finding]:
    """Yield that nodes use the same address, or addresses of different networks."""
    by_node = {seen.who.node: seen for seen in here if seen.who.node}
    lines = [*by_node.values()]
    addresses = [seen.told["address"] for seen in lines]
    if len(lines) > 1 and len(set(addresses)) < len(addresses):
        twice = next(one for one in addresses if addresses.count(one) > 1)
        some = [seen for seen in lines if seen.told["address"] == twice]
        yield Finding(
            cause=IFACE,
            kind=Kind.SYMPTOM,
            says=f"{len(some)} nodes use the same address, {twice}",
            confidence=0.8,
            fix=CHOOSE,
            evidence=tuple(some),
            confirm=CONFIRM,
            checks=("access.identity",),
        )
        return
    by_network: dict[str, Seen] = {}
    for seen in lines:
        first, dot, _ = seen.told["address"].partition(".")
        if dot:  # IPv4
            by_network.setdefault(first, seen)
    if len(by_network) > 1:
        one, two, *_ = by_network.values()
        yield Finding(
            cause=IFACE,
            kind=Kind.SYMPTOM,
            says=f"{one.who.node} uses {shown(one)}, {two.who.node} {shown(two)}: these may be "
            "networks that do not reach each other",
            confidence=0.66,
            fix=CHOOSE,
            evidence=(one, two),
            confirm=CONFIRM,
            checks=("network.route", "launch.env"),
        )


def shown(seen: Seen) -> str:
    """Return an interface and its address in words."""
    return f"{seen.told.get('interface', '')} ({seen.told['address']})".strip()


def unfit(story: Story) -> Iterator[Finding]:
    """Yield that one NCCL_SOCKET_IFNAME was set on nodes whose interfaces have other names."""
    lines = story.of_rule(NONE)
    lacking = sorted({node for seen in lines if (node := story.node_of(seen.who))})
    others = [*story.stated("address").values()]
    wanted = [*story.stated("socket_ifname").values()]
    if not lacking or not others or not wanted:
        return
    if {story.node_of(seen.who) for seen in others} & {*lacking}:
        return
    name = wanted[0].told["socket_ifname"]
    yield Finding(
        cause="launch.env",
        kind=Kind.CAUSE,
        says=f"NCCL_SOCKET_IFNAME={name} fits no interface of {', '.join(lacking)}; others have",
        confidence=0.94,
        fix="name all of them, with commas, or a beginning that they share; or set it by node in "
        "/etc/nccl.conf",
        evidence=(*lines, wanted[0], others[0]),
        nodes=tuple(lacking),
        confirm="preflight run --only launch.env,network.interface",
        checks=(IFACE,),
    )


def nobody_there(story: Story) -> Iterator[Finding]:
    """Yield that a rank found no interface and said nothing of it, as NCCL 2.27.7 does."""
    lines = story.of_rule(FAMILY)
    told = [seen.told["nccl_version"] for seen in story.stated("nccl_version").values()]
    wanted = [*story.stated("socket_ifname").values()]
    if not lines or not wanted or len(set(told)) > 1:
        return
    yield Finding(
        cause=IFACE,
        kind=Kind.SYMPTOM,
        says=f"a rank found no interface that fits NCCL_SOCKET_IFNAME="
        f"{wanted[0].told['socket_ifname']}",
        confidence=0.7 if len(told) > 1 else 0.5,
        fix="name one that is there on each node (ip -br address)",
        evidence=(*lines, wanted[0]),
        confirm=CONFIRM,
        checks=("software.nccl", "launch.env"),
    )
