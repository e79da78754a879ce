"""The data plane has the same MTU on all nodes.

Why: a node that sends larger frames than another one takes loses them without an error: the
    ranks connect, small messages pass, and the first large all_reduce hangs.
Facts: interfaces (address, mtu, speed, kind, flags of each that other nodes could reach, in the
    kernel's order), data_plane (which of them carry the job's data, and who chose them).
    Their names may differ from node to node.
Source: netdevice(7) SIOCGIFMTU and getifaddrs(3) by psutil; NCCL_SOCKET_IFNAME of launch.env, the
    shell, ~/.nccl.conf and /etc/nccl.conf, with NCCL 2.30's rules.
Fix: give the interface the other nodes' MTU with `ip link set dev NAME mtu VALUE`, and in the
    network's configuration (netplan, NetworkManager, ifcfg) so that it stays.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Mapping, Sequence

from preflight.api import Check, Expect, Verdict, Want, fail, same_everywhere
from preflight.node.launch import wanted
from preflight.node.net import Interface, Network, interfaces, main_interfaces


def compare(facts: Mapping[str, Network], want: Want) -> dict[str, Verdict]:
    used = {node: main_interfaces(fact) for node, fact in facts.items()}
    values = {node: mtus(found) for node, found in used.items() if found}
    verdicts = same_everywhere(values, "MTU", want.get("expect.mtu"), shown)
    told = {node: about(used[node], verdict) for node, verdict in verdicts.items()}
    return {
        node: told[node] if node in told else fail(fact["data_plane"]["problem"])
        for node, fact in facts.items()
    }


def mtus(found: Sequence[Interface]) -> Any:
    """Return the one MTU of all interfaces; where they differ, all of them."""
    values = sorted(one["mtu"] for one in found)
    return values[0] if len(set(values)) == 1 else values


def shown(value: Any) -> str:
    """Return an MTU, or several, as text."""
    return " and ".join(map(str, value)) if isinstance(value, list) else str(value)


def about(found: Sequence[Interface], verdict: Verdict) -> Verdict:
    """Return a verdict that names the interfaces, and the command that mends them."""
    names = [one["name"] for one in found]
    if verdict.scope != "cluster":
        has = " has " if len(names) == 1 else " have "
        verdict = replace(verdict, summary=", ".join(names) + has + verdict.summary)
    wrong = [one["name"] for one in found if one["mtu"] != verdict.expected]
    fix = None
    if isinstance(verdict.expected, int):
        fix = " && ".join(f"ip link set dev {name} mtu {verdict.expected}" for name in wrong)
    see = "; ".join(f"ip link show dev {name}" for name in names)
    return replace(verdict, fix=fix, reproduce=see)


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
