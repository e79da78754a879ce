"""Why an all_reduce by NCCL fails or is slow, by what NCCL says of itself on each node. Pure.

Sent to nodes: stdlib only, Python 3.8.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Mapping, Sequence, TypeVar

from preflight.api import Verdict, some
from preflight.node.nccl_log import Heard, in_words
from preflight.node.ranks import Ranked
from preflight.node.wires import RDMA

SOCKET, DIRECT = "Socket", "GDRDMA"
NO_RDMA = "mend RDMA on the nodes that use sockets, or set NCCL_IB_DISABLE=1 on all"
NO_PLUGIN = "have the same libnccl-net.so on all nodes, or set NCCL_NET_PLUGIN=none"
NO_DIRECT = (
    "modprobe nvidia_peermem, and name it in /etc/modules-load.d; or the open kernel modules with "
    "DMA-BUF"
)
ONE_NCCL = "have one NCCL on all nodes"
NO_PEER = (
    "see `nvidia-smi topo -p2p r` there, and NCCL_P2P_DISABLE and NCCL_P2P_LEVEL in its environment"
)
MOST = 4
"""Nodes of which is told what was heard, where nothing tells them apart."""


@dataclass(frozen=True)
class Cause:
    """What is wrong.

    Args:
        words: of all nodes, where none is odd.
        fix: what to do.
        at: of each node at which it is, in words.
    """

    words: str
    fix: str
    at: Mapping[str, str] = field(default_factory=dict)


Value = TypeVar("Value", int, str)
Facts = Mapping[str, Ranked]
Said = Mapping[str, Heard]


def found(facts: Facts, ended: bool) -> Cause | None:
    """Return what is wrong, as far as it was heard.

    Args:
        facts: of nodes that took part.
        ended: whether the all_reduce came to its end: then it was slow.
    """
    said = {node: fact["heard"] for node, fact in facts.items() if fact["heard"]}
    looks = SLOWS if ended else FAILS
    return next(filter(None, (look(facts, said) for look in looks)), None)


def joined(verdict: Verdict, cause: Cause | None, node: str, facts: Facts) -> Verdict:
    """Return a verdict with its cause, and with what NCCL said, for the row of a node."""
    told = (*verdict.details, *evidence(node, cause, facts))
    if cause is None or (cause.at and node not in cause.at):
        return replace(verdict, details=told)
    words = cause.at.get(node, cause.words)
    return replace(verdict, summary=f"{words}: {verdict.summary}", fix=cause.fix, details=told)


def evidence(node: str, cause: Cause | None, facts: Facts) -> list[str]:
    """Return what NCCL said of itself on a node, or on some where none is odd."""
    odd = cause.at if cause else {}
    usual = [one for one in facts if one not in odd]
    shown = [*([node] if node in odd else []), *usual[: 1 if odd else MOST]]
    told = []
    for one in shown:
        heard = facts[one]["heard"]
        if heard:
            told.append(f"NCCL on {one}: {in_words(heard)}")
            told += [f"NCCL on {one} warns: {words}" for words in heard["warnings"]]
    return told


# ---- what may be wrong -----------------------------------------------------------------------


def versions(facts: Facts, said: Said) -> Cause | None:
    """Return it if nodes have different NCCLs."""
    known = {node: said[node]["version"] or facts[node]["nccl"] for node in said}
    return differing({n: f"NCCL {one}" for n, one in known.items() if one}, ONE_NCCL)


def networks(facts: Facts, said: Said) -> Cause | None:
    """Return it if sockets carry the data though RDMA could, or not all have the same network."""
    by = {node: heard["network"] for node, heard in said.items() if heard["network"]}
    could = {
        node: f"uses sockets ({', '.join(said[node]['sockets']) or 'TCP'}), though "
        + in_use(ports(facts[node]))
        for node, name in by.items()
        if name == SOCKET and ports(facts[node])
    }
    if could:
        return of_all(could, said, NO_RDMA)
    fix = NO_RDMA if SOCKET in by.values() else NO_PLUGIN
    words = {n: "uses sockets" if one == SOCKET else f"network {one}" for n, one in by.items()}
    return differing(words, fix)


def ports(fact: Ranked) -> list[str]:
    """Return the devices of RDMA that are active, and that the job's environment leaves to NCCL."""
    wires = fact["wires"]
    if not wires or wires["by"] != RDMA:
        return []
    return list(dict.fromkeys(one["name"].split(":")[0] for one in wires["ports"]))


def in_use(names: Sequence[str]) -> str:
    """Return in words that ports are up."""
    return f"{some(names)} {'is' if len(names) == 1 else 'are'} active"


def bootstraps(facts: Facts, said: Said) -> Cause | None:
    """Return it if ranks of few nodes first meet by an address where others do not reach them."""
    by = {node: {h["interface"]: h["address"]} for node, h in said.items() if h["address"]}
    return apart(facts, by, "bootstraps by")


def sockets(facts: Facts, said: Said) -> Cause | None:
    """Return it if few nodes send by interfaces that lead elsewhere."""
    by = {n: h["sockets"] for n, h in said.items() if h["sockets"] and h["network"] == SOCKET}
    return apart(facts, by, "sends by")


def apart(facts: Facts, by: Mapping[str, Mapping[str, str]], does: str) -> Cause | None:
    """Return it if some nodes, less than half, use no interface on which the others are."""
    odd = [n for n, used in by.items() if not any(is_near(one, facts[n]) for one in used.values())]
    if not odd or 2 * len(odd) >= len(by):
        return None
    right = ",".join(sorted({fact["interface"] for fact in facts.values() if fact["interface"]}))
    return Cause(
        "",
        f"NCCL_SOCKET_IFNAME={right}, by which nodes reach each other, in launch.env",
        {
            node: f"{does} {' and '.join(f'{name} ({one})' for name, one in by[node].items())}, "
            f"the others reach it at {facts[node]['address']}"
            for node in odd
        },
    )


def is_near(address: str, fact: Ranked) -> bool:
    """Whether an address is that of the data plane, or in its subnet."""
    if address == fact["address"]:
        return True
    try:
        return ipaddress.ip_address(address.split("%")[0]) in ipaddress.ip_network(fact["subnet"])
    except ValueError:  # no subnet is known
        return False


def direct(facts: Facts, said: Said) -> Cause | None:  # noqa: ARG001 - as all that look
    """Return it if data of nodes goes through the memory of the host on its way to RDMA."""
    ways = {
        node: [one for one in heard["channels"] if one.startswith("NET/")]
        for node, heard in said.items()
    }
    by_rdma = {n: some for n, some in ways.items() if some and f"NET/{SOCKET}" not in some}
    lacking = {n for n, some in by_rdma.items() if not any(DIRECT in one for one in some)}
    return of_all(dict.fromkeys(sorted(lacking), "GPUDirect RDMA is missing"), by_rdma, NO_DIRECT)


def fewer_ports(facts: Facts, said: Said) -> Cause | None:  # noqa: ARG001 - as all that look
    """Return it if a node uses fewer RDMA ports than most."""
    counts = {node: len(heard["hcas"]) for node, heard in said.items() if heard["hcas"]}
    usual = most(counts)
    few = {node: count for node, count in counts.items() if usual and count < usual}
    words = {
        n: f"uses {count} RDMA port{'s' * (count > 1)}, the others {usual}"
        for n, count in few.items()
    }
    return Cause("", "see `ibv_devinfo` there, and NCCL_IB_HCA", words) if words else None


def within(facts: Facts, said: Said) -> Cause | None:
    """Return it if GPUs of a node that have NVLinks meet in shared memory."""
    words = "its GPUs meet in shared memory, though NVLinks are up"
    several = {node: heard for node, heard in said.items() if "SHM" in heard["channels"]}
    lacking = [
        node
        for node, heard in several.items()
        if has_links(facts[node]) and not any(one.startswith("P2P") for one in heard["channels"])
    ]
    return of_all(dict.fromkeys(lacking, words), said, NO_PEER)


def has_links(fact: Ranked) -> bool:
    """Whether GPUs of a node have NVLinks."""
    return bool(fact["wires"] and any(card["links"] for card in fact["wires"]["cards"]))


FAILS = (versions, bootstraps, networks)
SLOWS = (networks, sockets, direct, fewer_ports, within, versions)
"""What can be why, the first one first. Data that takes a longer way fails no all_reduce."""


# ---- who is odd ------------------------------------------------------------------------------


def most(values: Mapping[str, Value]) -> Value | None:
    """Return what more than half have, or None."""
    counted = Counter(values.values()).most_common(1)
    return counted[0][0] if counted and 2 * counted[0][1] > len(values) else None


def differing(values: Mapping[str, str], fix: str) -> Cause | None:
    """Return it if not all have the same; odd is what fewer than half have."""
    usual = most(values)
    if len(set(values.values())) < 2:
        return None
    if usual is None:
        nodes = {
            one: sorted(n for n, value in values.items() if value == one) for one in values.values()
        }
        return Cause(
            "; ".join(f"{one} on {some(there)}" for one, there in sorted(nodes.items())), fix
        )
    odd = {node: one for node, one in values.items() if one != usual}
    return Cause("", fix, {node: f"{one}, {usual} on the others" for node, one in odd.items()})


def of_all(at: Mapping[str, str], all_of: Mapping[str, object], fix: str) -> Cause | None:
    """Return it of some nodes; of all of them it is nobody's in particular."""
    if not at:
        return None
    if len(at) < len(all_of) or len(all_of) == 1:
        return Cause("", fix, at)
    return Cause(f"on all nodes, {next(iter(at.values()))}", fix)
