"""The data plane has the same MTU on all nodes.

Why: a node that sends larger frames than another one takes loses them without an error: the
    ranks connect, small messages pass, and the first large all_reduce hangs.
Facts: interfaces (address, mtu, speed, kind, flags of each that other nodes could reach, in the
    kernel's order), data_plane (names: which of them carry the job's data, and why: who chose
    them; idle: named and not usable; aside: bridges of containers and the like, which are not
    judged). Names may differ from node to node.
Source: netdevice(7) SIOCGIFMTU and getifaddrs(3) by psutil; NCCL_SOCKET_IFNAME of launch.env, the
    shell, ~/.nccl.conf and /etc/nccl.conf, with NCCL 2.30's rules.
Fix: give the interface the other nodes' MTU with `ip link set dev NAME mtu VALUE`, and in the
    network's configuration (netplan, NetworkManager, ifcfg) so that it stays.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Mapping, Sequence

from preflight.api import Check, Expect, Verdict, Want, fail, same_everywhere, some
from preflight.node.launch import wanted
from preflight.node.net import (
    NCCLS,
    Interface,
    Network,
    comparable,
    interfaces,
    strayed,
    usual_choice,
)

NAME_IT = (
    "name the interface for all nodes: launch.interface, or launch.env with NCCL_SOCKET_IFNAME"
)
WHICH = "see which are the right interfaces, name them (launch.interface), and give them one MTU"


def compare(facts: Mapping[str, Network], want: Want) -> dict[str, Verdict]:
    used = comparable(facts)
    values = {node: mtus(found) for node, found in used.items() if found}
    verdicts = same_everywhere(values, "MTU", want.get("expect.mtu"), shown)
    usual = usual_choice(facts)
    named = len({names(found) for found in used.values() if found}) > 1
    told = {}
    for node, verdict in verdicts.items():
        told[node] = about(facts[node], used[node], usual, verdict)
        if verdict.scope == "cluster" and named:
            told[node] = replace(told[node], summary=apart(used), fix=WHICH, explained_by=None)
    return {
        node: told[node] if node in told else fail(fact["data_plane"]["problem"])
        for node, fact in facts.items()
    }


def mtus(found: Sequence[Interface]) -> Any:
    """Return the one MTU of all interfaces; where they differ, each value once."""
    values = sorted({one["mtu"] for one in found})
    return values[0] if len(values) == 1 else values


def shown(value: Any) -> str:
    """Return an MTU, or several, as text."""
    return " and ".join(map(str, value)) if isinstance(value, list) else str(value)


def names(found: Sequence[Interface]) -> str:
    return ", ".join(one["name"] for one in found)


def apart(used: Mapping[str, Sequence[Interface]]) -> str:
    """Return what all nodes have, where neither MTU nor names are the same."""
    kinds: dict[str, list[str]] = {}
    for node, found in used.items():
        if found:
            kinds.setdefault(f"{names(found)} with MTU {shown(mtus(found))}", []).append(node)
    return "differs: " + "; ".join(f"{kind} on {some(nodes)}" for kind, nodes in kinds.items())


def about(
    fact: Network, found: Sequence[Interface], usual: str | None, verdict: Verdict
) -> Verdict:
    """Return a verdict that names the interfaces, and the command that mends them.

    A node that uses other interfaces than most may have the right MTU on each; what other nodes
    have is then no reason to change it.
    """
    see = "; ".join("ip link show dev {}".format(one["name"]) for one in found)
    verdict = replace(verdict, reproduce=see)
    stray, other = strayed(fact, usual), usual is not None and usual != names(found)
    if verdict.status != "pass" and not other:
        verdict = replace(verdict, explained_by=())
    if verdict.scope == "cluster":
        return verdict
    if verdict.status != "pass" and stray:
        words = f"{stray}: MTU {shown(verdict.observed)}, not {shown(verdict.expected)}"
        return replace(verdict, summary=words, fix=f"{NAME_IT}={usual}")
    has = "has" if len(found) == 1 else "have"
    verdict = replace(verdict, summary=f"{names(found)} {has} {verdict.summary}")
    if not isinstance(verdict.expected, int):
        return verdict
    wrong = [one["name"] for one in found if one["mtu"] != verdict.expected]
    fix = " && ".join(f"ip link set dev {name} mtu {verdict.expected}" for name in wrong)
    if len(found) > 1 and fact["data_plane"]["why"] == NCCLS:
        fix = f"{fix}; or, where that carries no data, {NAME_IT}"
    elif other:
        fix = f"if {names(found)} is the right interface (most nodes use {usual}): {fix}"
    return replace(verdict, fix=fix)


CHECK = Check(
    probe=interfaces,
    args=wanted,
    compare=compare,
    expects=(Expect("mtu", int, "bytes", "MTU of the data plane's interfaces"),),
    explains=(
        *("network.path_mtu", "network.bandwidth"),
        *("collective.all_reduce", "collective.pairs"),
    ),
)
