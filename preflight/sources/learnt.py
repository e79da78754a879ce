"""What one look at the nodes tells an inventory: a pure function of the facts of three probes.

Only what all nodes that answered have alike is learnt; nothing is averaged or guessed.
"""

from __future__ import annotations

import glob
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from preflight.node.mounts import Mounts
from preflight.node.net import IFNAME, INNER, NCCLS, Interface, Network, main_interfaces, reachable
from preflight.node.nvml import Gpus
from preflight.report.folding import some

LOOPBACK = "lo"
FEW = 3
"""So many different values are told; more are only counted."""


class Seen(NamedTuple):
    """One thing that was looked for; its value is None where nodes differ or do not tell."""

    value: Any
    why: str
    """On how many nodes it was seen, or why there is no value."""
    is_sure: bool = True
    """False: it is one of several that it might be, and nobody said which."""


class Learnt(NamedTuple):
    """All that was looked for."""

    gpus: Seen
    interface: Seen
    mtu: Seen
    mounts: Seen
    """Entries of `expect.mounts`: what all nodes have mounted over the network."""


def learnt(
    nodes: int,
    gpus: Mapping[str, Gpus],
    networks: Mapping[str, Network],
    mounts: Mapping[str, Mounts],
) -> Learnt:
    """Return what is alike on all nodes that answered.

    Args:
        nodes: how many there are.
        gpus: facts of `preflight.node.nvml.gpus` by node, of those that answered.
        networks: likewise, of `preflight.node.net.interfaces`.
        mounts: likewise, of `preflight.node.mounts.mounts`.
    """
    planes = {node: _plane(fact) for node, fact in networks.items()}
    names = {node: [one["name"] for one in plane] for node, plane in planes.items()}
    mtus = {node: plane[0]["mtu"] for node, plane in planes.items() if plane}
    entries = _shared([*mounts.values()])
    interface, mtu = _interface(nodes, names), _alike(nodes, mtus)
    others = _others(networks)
    if interface.value is not None and others:
        too = f"{_listed(others)} {'are' if len(others) > 1 else 'is'} there too"
        mtu = mtu._replace(why=f"of {interface.value}; {too}")
        interface = Seen(interface.value, f"NCCL would pick {interface.value}; {too}", False)
    return Learnt(
        gpus=_gpus(nodes, gpus),
        interface=interface,
        mtu=mtu,
        mounts=Seen(entries, _on(nodes, len(mounts))),
    )


def _alike(nodes: int, values: Mapping[str, Any]) -> Seen:
    """Return the one value of all nodes."""
    by_value: dict[Any, list[str]] = {}
    for node, value in values.items():
        by_value.setdefault(value, []).append(node)
    if not by_value:
        return Seen(None, "no node answered")
    if len(by_value) == 1:
        return Seen(next(iter(by_value)), _on(nodes, len(values)))
    if len(by_value) > FEW:
        return Seen(None, f"{len(by_value)} different values")
    return Seen(None, ", ".join(f"{value} on {some(those)}" for value, those in by_value.items()))


def _on(nodes: int, answered: int) -> str:
    return "seen on all nodes" if answered == nodes else f"seen on {answered} of {nodes} nodes"


def _gpus(nodes: int, facts: Mapping[str, Gpus]) -> Seen:
    partial = [node for node, fact in facts.items() if not _is_whole(fact)]
    if partial:  # what is broken now must not become what is promised
        return Seen(None, f"not all GPUs answer on {some(partial)}")
    seen = _alike(nodes, {node: len(fact["gpus"]) for node, fact in facts.items()})
    return Seen(None, "no node that answered shows a GPU") if seen.value == 0 else seen


def _is_whole(fact: Gpus) -> bool:
    """Whether the driver shows all GPUs that this node has, or may see from its container."""
    lost = any(gpu["error"] for gpu in fact["gpus"])
    lacking = len(fact["gpus"]) < len(fact["bus"]) <= fact["device_files"]
    return not (fact["error"] or fact["driverless"] or lost or lacking)


def _plane(fact: Network) -> list[Interface]:
    """Return the data plane; where NCCL is left to choose, its first interface stands for all."""
    found = main_interfaces(fact)
    return found[:1] if fact["data_plane"]["why"] == NCCLS else found


def _interface(nodes: int, names: Mapping[str, Sequence[str]]) -> Seen:
    words = {node: " and ".join(several) or "none" for node, several in names.items()}
    seen = _alike(nodes, words)
    if seen.value is None:
        return seen
    if seen.value == LOOPBACK:
        return Seen(None, "nothing but the loopback is up")
    if any(len(several) != 1 for several in names.values()):
        return Seen(None, f"NCCL would take {seen.value}")
    return seen


def _others(networks: Mapping[str, Network]) -> list[str]:
    """Return what the data plane could be too, where NCCL is left to choose."""
    found: dict[str, None] = {}
    for fact in networks.values():
        chosen = fact["data_plane"]
        if not chosen["why"].startswith(IFNAME):
            for one in fact["interfaces"]:
                outer = one["running"] and reachable(one) and one["kind"] not in INNER
                if outer and one["name"] not in chosen["names"][:1]:
                    found[one["name"]] = None
    return [*found]


def _listed(names: Sequence[str]) -> str:
    """Return `a, b and c`, the rest of many only counted."""
    few = names if len(names) <= FEW else [*names[: FEW - 1], f"{len(names) - FEW + 1} more"]
    return " and ".join(filter(None, (", ".join(few[:-1]), few[-1])))


def _shared(facts: Sequence[Mounts]) -> list[dict[str, str]]:
    """Return the mounts that all nodes have and that answer everywhere."""
    tables = [{mount["path"]: mount for mount in fact["network"]} for fact in facts]
    common = (
        [path for path in tables[0] if all(path in table for table in tables)] if tables else []
    )
    found = []
    for path in common:
        if all(_answers(fact, path) for fact in facts):
            sources = {table[path]["source"] for table in tables}
            types = {table[path]["type"] for table in tables}
            same = {"type": types, "source": sources}
            # both are patterns there
            one = {key: glob.escape(*has) for key, has in same.items() if len(has) == 1}
            found.append({"path": path, **one})
    return found


def _answers(fact: Mounts, path: str) -> bool:
    visit = fact["visits"].get(path)
    return visit is not None and not visit["error"] and visit["readable"]
