"""What a job's data goes through on a node: ports, NVLinks and PCIe, as far as rates are known.

Sent to nodes: stdlib only, Python 3.8.
"""

from __future__ import annotations

from typing import Any, Mapping, Sequence, TypedDict

from preflight.api import Absent, Node, Unobservable
from preflight.node.kernel import is_virtual
from preflight.node.launch import NET, Setting, settings, tcp_only
from preflight.node.net import entries, interfaces, link_gbps, main_interfaces, reachable
from preflight.node.nvml import asked
from preflight.node.rdma import CLASS, Device, active, devices, has_port, of_nccl

HCA = "NCCL_IB_HCA"
TCP, RDMA = "TCP", "RDMA"
LANES = {"2.5": 0.1875, "5.0": 0.375, "8.0": 0.75, "16.0": 1.5, "32.0": 3.0, "64.0": 6.0}
"""GB/s each way of a lane, by its GT/s, that data gets of it.

Source: NCCL 2.30 src/graph/topo.cc, kvDictPciGen: 12 GB/s of sixteen lanes of 8 GT/s.
"""
MOST_LINKS, SWITCH = 36, 2
"""NVML_NVLINK_MAX_LINKS and NVML_NVLINK_DEVICE_TYPE_SWITCH of nvml.h 13."""


class Port(TypedDict):
    """A port that NCCL would take, of RDMA or an interface of TCP."""

    name: str
    gbps: float
    """0: not told."""
    slot: str
    """The PCI address without its function: ports of one card share its lanes. Empty for TCP."""
    slot_gbs: float
    """GB/s that data gets of those lanes; 0: not told."""


class Card(TypedDict):
    """A GPU's ways to others of its node."""

    capability: int
    """CUDA's, as 90 for 9.0."""
    links: int
    """NVLinks that are active."""
    peers: list[int]
    """Indices of the GPUs at their other ends; all other ones where a switch is there."""
    is_switched: bool
    """Whether all links lead to any of them, by a switch."""
    generation: int
    """Of PCIe, that card and slot can do: an idle one goes slower; 0: not told."""
    width: int


class Wires(TypedDict):
    """What NCCL's data goes through."""

    by: str
    """`RDMA` or `TCP`."""
    ports: list[Port]
    unsure: str
    """Why the rates of the ports are not to be relied on; empty where they are."""
    cards: list[Card]


def wires(node: Node, launch: Mapping[str, Any]) -> Wires:
    """Return what NCCL's data would go through, by its own choice or the job's environment.

    Source: /sys/class/infiniband/*/ports/*/rate and */device/{current_link_speed,
    current_link_width} (sysfs-class-infiniband, sysfs-bus-pci); NVML.
    """
    environment = settings(node, launch)["found"]
    found = devices(node)
    usable = [] if tcp_only(environment) else chosen(of_nccl(found), environment)
    return Wires(
        by=RDMA if usable else TCP,
        ports=[rdma_port(node, one) for one in usable] or tcp_ports(node, launch),
        unsure=doubt(node, environment, found, usable),
        cards=cards(node),
    )


def doubt(
    node: Node,
    environment: Mapping[str, Setting],
    found: list[Device],
    usable: Sequence[Device],
) -> str:
    """Return why the rates of the ports are not to be relied on, if they are not."""
    net = environment[NET]["value"] if NET in environment else ""
    if net and not net.lower().startswith(("ib", "socket")):
        return f"what {NET}={net} goes through is not known"
    if not usable and not tcp_only(environment) and active(found):
        return "the RDMA devices here are not for NCCL's own transport"
    # A port of InfiniBand is given to a virtual machine whole.
    whole = usable and all(one["ports"][0]["link_layer"] == "InfiniBand" for one in usable)
    if is_virtual(node) and not whole:
        return "a virtual machine's share of a link is not told"
    return ""


def chosen(found: Sequence[Device], environment: Mapping[str, Setting]) -> list[Device]:
    """Return the active ports that NCCL_IB_HCA leaves, each as a device with that port."""
    rule = environment[HCA]["value"] if HCA in environment else ""
    ones = [
        Device(name=device["name"], ports=[port])
        for device in found
        for port in device["ports"]
        if port["active"]
    ]
    listed = entries(rule)
    return [
        one
        for one in ones
        if (not listed or any(has_port([one], entry) for entry in listed)) != rule.startswith("^")
    ]


def rdma_port(node: Node, one: Device) -> Port:
    """Return a port of RDMA; that of a bond tells no rate that one connection could have."""
    name, number = one["name"], one["ports"][0]["number"]
    place = f"{CLASS}/{name}"
    rate, *_ = [*(node.read(f"{place}/ports/{number}/rate") or "").split(), "0"]
    slot = node.realpath(f"{place}/device").rsplit("/", 1)[-1].rsplit(".", 1)[0]
    lane = (node.read(f"{place}/device/current_link_speed") or "").split(" ")[0]
    width = (node.read(f"{place}/device/current_link_width") or "0").strip()
    return Port(
        name=f"{name}:{number}",
        gbps=0.0 if "bond" in name else float(rate),
        slot=slot,
        slot_gbs=LANES.get(lane, 0.0) * int(width),
    )


def tcp_ports(node: Node, launch: Mapping[str, Any]) -> list[Port]:
    """Return the interfaces of the data plane."""
    network = interfaces(node, launch)
    return [
        Port(name=one["name"], gbps=link_gbps(network, reachable(one)), slot="", slot_gbs=0.0)
        for one in main_interfaces(network)
    ]


def cards(node: Node) -> list[Card]:
    """Return the GPUs that answer, ordered by NVML index; none without NVML."""
    try:
        count = node.nvml("nvmlDeviceGetCount")
        places = [node.nvml("nvmlDeviceGetPciInfo", index)["busId"] for index in range(count)]
        return [card(node, index, places) for index in range(count)]
    except (Absent, Unobservable):
        return []


def card(node: Node, index: int, places: Sequence[str]) -> Card:
    """Return a GPU's ways to others."""
    major, minor = node.nvml("nvmlDeviceGetCudaComputeCapability", index)
    links = [link for link in range(MOST_LINKS) if is_active(node, index, link)]
    ways = [ends(node, index, link, places) for link in links]
    return Card(
        capability=10 * major + minor,
        links=len(links),
        peers=sorted({peer for way in ways for peer in way} - {index}),
        is_switched=bool(ways) and all(len(way) == len(places) for way in ways),
        generation=asked(node, "nvmlDeviceGetMaxPcieLinkGeneration", index) or 0,
        width=asked(node, "nvmlDeviceGetMaxPcieLinkWidth", index) or 0,
    )


def is_active(node: Node, index: int, link: int) -> bool:
    """Whether a GPU has an NVLink of this number, and it is up."""
    try:
        return bool(node.nvml("nvmlDeviceGetNvLinkState", index, link))
    except (Absent, Unobservable):
        return False


def ends(node: Node, index: int, link: int, places: Sequence[str]) -> list[int]:
    """Return the GPUs to which an NVLink leads: by a switch to all of them."""
    try:
        if node.nvml("nvmlDeviceGetNvLinkRemoteDeviceType", index, link) == SWITCH:
            return list(range(len(places)))
        there = node.nvml("nvmlDeviceGetNvLinkRemotePciInfo", index, link)["busId"]
    except (Absent, Unobservable):
        return []
    return [places.index(there)] if there in places else []
