"""RDMA devices and their ports. Sent to nodes: stdlib only, Python 3.8."""

from __future__ import annotations

from typing import Collection, TypedDict

from preflight.api import Node
from preflight.node.net import matches

CLASS = "/sys/class/infiniband"
LAYERS = ("InfiniBand", "Ethernet")


class Port(TypedDict):
    """One port of a device, numbered from 1."""

    number: int
    active: bool
    link_layer: str
    """`InfiniBand`, `Ethernet` (RoCE) or `Unspecified` (EFA)."""


class Device(TypedDict):
    """What NCCL calls an HCA, such as `mlx5_0`."""

    name: str
    ports: list[Port]


def devices(node: Node) -> list[Device]:
    """Return the RDMA devices, ordered by name; none where the kernel has no such class.

    Source: /sys/class/infiniband/*/ports/*/{state,link_layer} (sysfs-class-infiniband).
    """
    return [Device(name=name, ports=ports(node, name)) for name in node.listdir(CLASS) or ()]


def ports(node: Node, device: str) -> list[Port]:
    """Return the ports of a device."""
    found = []
    for number in node.listdir(f"{CLASS}/{device}/ports") or ():
        place = f"{CLASS}/{device}/ports/{number}"
        found.append(
            Port(
                number=int(number),
                active=(node.read(place + "/state") or "").startswith("4:"),
                link_layer=(node.read(place + "/link_layer") or "").strip(),
            )
        )
    return found


def active(found: list[Device]) -> list[str]:
    """Return `device:port` of every active port."""
    return [
        "{}:{}".format(d["name"], p["number"]) for d in found for p in d["ports"] if p["active"]
    ]


def of_nccl(found: Collection[Device]) -> list[Device]:
    """Return the devices with the ports that NCCL's own transport takes: none of EFA's.

    Source: NCCL 2.30 src/transport/net_ib/init.cc: it passes over other link layers.
    """
    return [
        Device(name=one["name"], ports=[p for p in one["ports"] if p["link_layer"] in LAYERS])
        for one in found
    ]


def has_port(found: Collection[Device], entry: str) -> bool:
    """Whether an entry `device[:port]` of NCCL_IB_HCA means a port of this node."""
    port = [*entry.split(":"), ""][1]
    return any(
        matches(entry, device["name"])
        and (not port or any(str(p["number"]) == port for p in device["ports"]))
        for device in found
    )


def is_down(found: Collection[Device], entry: str) -> bool:
    """Whether an entry of NCCL_IB_HCA means ports of this node, and none that is active."""
    live = [
        Device(name=device["name"], ports=[port for port in device["ports"] if port["active"]])
        for device in found
    ]
    up = [device for device in live if device["ports"]]
    return has_port(found, entry) and not has_port(up, entry)
