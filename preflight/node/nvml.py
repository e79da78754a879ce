"""The GPUs of a node, as the driver and as the PCI bus have them.

Sent to nodes: stdlib only, Python 3.8.
"""

from __future__ import annotations

import re
from typing import Any, TypedDict

from preflight.api import Absent, Node, Unobservable

PCI = "/sys/bus/pci/devices"
NVIDIA, AMD = "0x10de", "0x1002"
GPU_CLASS = "0x03"
"""PCI base class of display controllers, 3D controllers among them; NVSwitches are bridges."""
AMD_CLASSES = (GPU_CLASS, "0x12")
"""Its MI300 are processing accelerators."""


class Gpu(TypedDict):
    """One GPU by its NVML index; what this GPU does not have is None."""

    index: int
    error: str
    """NVML's words where the GPU does not answer: then the rest is None."""
    name: str | None
    uuid: str | None
    memory: int | None
    mig: bool | None
    pci: str | None


class Gpus(TypedDict):
    """All that a node shows of its NVIDIA GPUs."""

    library: bool
    error: str
    """NVML's words where it does not start."""
    driver: str
    gpus: list[Gpu]
    bus: list[str]
    """PCI addresses of the GPUs that the kernel gave to the driver `nvidia`."""
    driverless: list[str]
    """PCI addresses of those that no driver has, or nouveau; not of those given to a guest."""
    amd: list[str]
    """PCI addresses of the GPUs that the driver `amdgpu` has."""
    device_files: int
    """How many /dev/nvidia<N> there are: fewer than on the bus in a container."""


def gpus(node: Node) -> Gpus:
    """Return the GPUs of a node; errors of NVML are facts.

    Source: NVML (nvmlDeviceGetCount_v2, Name, UUID, MemoryInfo, MigMode, PciInfo_v3),
    /sys/bus/pci/devices/*/{vendor,class,driver}, /dev.
    """
    bus, driverless, amd = on_the_bus(node)
    found = Gpus(
        library=True,
        error="",
        driver="",
        gpus=[],
        bus=bus,
        driverless=driverless,
        amd=amd,
        device_files=device_files(node),
    )
    try:
        found["driver"] = node.nvml("nvmlSystemGetDriverVersion")
        found["gpus"] = [gpu(node, index) for index in range(node.nvml("nvmlDeviceGetCount"))]
    except Absent:
        found["library"] = False
    except Unobservable as error:
        found["error"] = words(error)
    return found


def gpu(node: Node, index: int) -> Gpu:
    """Return one GPU."""
    facts = Gpu(index=index, error="", name=None, uuid=None, memory=None, mig=None, pci=None)
    try:
        facts["name"] = node.nvml("nvmlDeviceGetName", index)
        facts["uuid"] = asked(node, "nvmlDeviceGetUUID", index)
        memory = asked(node, "nvmlDeviceGetMemoryInfo", index)
        facts["memory"] = memory and memory["total"]
        mig = asked(node, "nvmlDeviceGetMigMode", index)
        facts["mig"] = mig and bool(mig[0])
        place = asked(node, "nvmlDeviceGetPciInfo", index)
        # NVML writes eight digits of the domain, the kernel four.
        facts["pci"] = place and place["busId"].lower()[-12:]
    except Unobservable as error:
        facts["error"] = words(error)
    return facts


def asked(node: Node, function: str, index: int) -> Any:
    """Return what an NVML function says of a GPU, None where this GPU has no such thing."""
    try:
        return node.nvml(function, index)
    except Absent:
        return None


class Occupant(TypedDict):
    """A process that computes on a GPU; what may not be seen of it is empty."""

    gpu: int
    pid: int
    program: str
    user: str


def occupants(node: Node) -> list[Occupant]:
    """Return who computes on this node's GPUs, as far as the driver tells.

    Source: nvmlDeviceGetComputeRunningProcesses; in a container it tells of none outside.
    """
    try:
        count = node.nvml("nvmlDeviceGetCount")
    except (Absent, Unobservable):
        return []
    return [occupant(node, index, pid) for index in range(count) for pid in computing(node, index)]


def computing(node: Node, index: int) -> list[int]:
    """Return the pids of those that compute on a GPU."""
    try:
        found = node.nvml("nvmlDeviceGetComputeRunningProcesses", index)
    except (Absent, Unobservable):
        return []
    return [one["pid"] for one in found]


def occupant(node: Node, index: int, pid: int) -> Occupant:
    """Return who a process is."""
    process = node.process(pid) or {}
    program, user = process.get("name") or "", process.get("username") or ""
    return Occupant(gpu=index, pid=pid, program=program, user=user)


def in_words(one: Occupant) -> str:
    """Return who computes on a GPU."""
    program = f" ({one['program']})" if one["program"] else ""
    user = f" of {one['user']}" if one["user"] else ""
    return f"pid {one['pid']}{program}{user} uses GPU {one['gpu']}"


def words(error: Exception) -> str:
    """Return NVML's own words."""
    return str(error).replace("NVML: ", "", 1).rstrip(".")


def on_the_bus(node: Node) -> tuple[list[str], list[str], list[str]]:
    """Return the PCI addresses of GPUs: those of NVIDIA's driver, NVIDIA's others, and AMD's."""
    bus: list[str] = []
    driverless: list[str] = []
    amd: list[str] = []
    for address in node.listdir(PCI) or ():
        vendor = (node.read(f"{PCI}/{address}/vendor") or "").strip()
        if vendor not in {NVIDIA, AMD}:
            continue
        kind = node.read(f"{PCI}/{address}/class") or ""
        if not kind.startswith(GPU_CLASS if vendor == NVIDIA else AMD_CLASSES):
            continue
        driver = (node.readlink(f"{PCI}/{address}/driver") or "").rsplit("/", 1)[-1]
        if driver == "nvidia":
            bus.append(address)
        elif driver == "amdgpu":
            amd.append(address)
        elif vendor == NVIDIA and driver in {"", "nouveau"}:
            driverless.append(address)
    return bus, driverless, amd


def device_files(node: Node) -> int:
    """Return how many GPUs have a device file."""
    return sum(bool(re.fullmatch(r"nvidia\d+", name)) for name in node.listdir("/dev") or ())
