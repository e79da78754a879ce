"""One NVIDIA driver on all nodes, the loaded kernel module and its library being one version.

Why: after an upgrade without a reboot, the new library refuses to talk to the old module: running
    jobs go on, and no new one starts. With other drivers on other nodes, NCCL and CUDA take other
    code paths.
Facts: module, the version of the loaded kernel module; nvml, the version that NVML says; problem,
    what NVML says instead, and only then library, the version in the file name of NVML's library;
    amd, how many GPUs of AMD there are, where nothing of NVIDIA's driver is.
Source: /proc/driver/nvidia/version, /sys/module/nvidia/version, nvmlSystemGetDriverVersion, the
    link libnvidia-ml.so.1, /sys/bus/pci/devices, https://github.com/lyulyul/shine-cluster/issues/30.
Fix: install one driver version on all nodes and reboot; hold its packages back from
    unattended-upgrades.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Mapping, TypedDict

from preflight.api import (
    FAIL,
    Absent,
    Check,
    Expect,
    Node,
    Unobservable,
    Verdict,
    Want,
    fail,
    skip,
    unknown,
    warn,
)
from preflight.node.nvml import on_the_bus
from preflight.node.software import together, versions

MODULE = re.compile(r"Kernel Module\s+(?:for \S+\s+)?(\d+(?:\.\d+)+)")
LIBRARIES = (
    "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1",
    "/usr/lib/aarch64-linux-gnu/libnvidia-ml.so.1",
    "/usr/lib64/libnvidia-ml.so.1",
)
MISMATCH = "mismatch"
"""In NVML's words for error 18, NVML_ERROR_LIB_RM_VERSION_MISMATCH, by pynvml and nvidia-smi."""
NOT_LOADED = "Driver Not Loaded"
"""pynvml's words for error 9, NVML_ERROR_DRIVER_NOT_LOADED."""
RELOAD = (
    "reboot; or stop what uses the GPUs and reload the module: "
    "modprobe -r nvidia_uvm nvidia_drm nvidia_modeset nvidia && modprobe nvidia"
)
LOAD = "modprobe nvidia; if that fails, see dmesg | grep -i nvrm"
LIBRARY = (
    "install the libraries of the driver too, of the module's version: libnvidia-compute (Ubuntu), "
    "nvidia-driver-cuda-libs (RHEL)"
)
DIFFERING = (
    *("software.cuda", "collective.local"),
    *("collective.all_reduce", "collective.pairs"),
)
"""What can follow from another version; it takes no GPU away."""
BY_HAND = "cat /proc/driver/nvidia/version; nvidia-smi"


class Driver(TypedDict):
    module: str | None
    nvml: str | None
    problem: str
    """What NVML says is wrong; empty too where there is no NVML."""
    library: str | None
    amd: int


def driver(node: Node) -> Driver:
    found = Driver(module=module(node), nvml=None, problem="", library=None, amd=0)
    try:
        found["nvml"] = node.nvml("nvmlSystemGetDriverVersion")
    except Absent:
        found["amd"] = 0 if found["module"] else len(on_the_bus(node)[2])
    except Unobservable as problem:
        found["problem"] = str(problem)
        found["library"] = library(node)
    return found


def module(node: Node) -> str | None:
    """Return the version of the loaded kernel module, None if there is none."""
    text = node.read("/proc/driver/nvidia/version")
    if text is None:
        text = node.read("/sys/module/nvidia/version")
        return text and text.strip()
    match = MODULE.search(text)
    if match is None:
        raise Unobservable(f"/proc/driver/nvidia/version is not understood: {text[:80]!r}")
    return match.group(1)


def library(node: Node) -> str | None:
    """Return the version at the end of the file that libnvidia-ml.so.1 leads to."""
    for path in LIBRARIES:
        match = re.search(r"\.so\.(\d+\.[\d.]+)$", node.realpath(path))
        if match:
            return match.group(1)
    return None


def compare(facts: Mapping[str, Driver], want: Want) -> dict[str, Verdict]:
    found = {node: fact["module"] or fact["nvml"] for node, fact in facts.items()}
    promised = want.get("launch.gpus_per_node", 0)
    anywhere = any(found.values())
    foreign = {
        node: skip("no NVIDIA driver; GPUs of AMD: {}".format(fact["amd"]))
        for node, fact in facts.items()
        if not anywhere and fact["amd"] >= max(promised, 1)
    }
    facts = {node: fact for node, fact in facts.items() if node not in foreign}
    found = {node: version for node, version in found.items() if node not in foreign}
    without = [node for node in found if promised and not found[node]]
    present = {node: version for node, version in found.items() if node not in without}
    verdicts = versions(present, "NVIDIA driver", want.get("expect.driver"), reproduce=BY_HAND)
    for node, verdict in verdicts.items():
        if verdict.status == FAIL and found[node]:
            verdicts[node] = replace(verdict, explains=DIFFERING)
        elif verdict.status == FAIL and not_loaded(facts[node]):
            verdicts[node] = replace(verdict, details=(facts[node]["problem"],), fix=LOAD)
    needed = bool(promised) or any(fact["nvml"] for fact in facts.values())
    return together(
        foreign,
        {node: one for node, fact in facts.items() for one in broken(fact, needed)},
        {node: lacking(facts[node], promised) for node in without},
        verdicts,
    )


def lacking(fact: Driver, promised: int) -> Verdict:
    """Return the verdict of a node without a driver, where GPUs are promised."""
    what = "the NVIDIA driver is not loaded" if not_loaded(fact) else "no NVIDIA driver"
    return fail(
        f"{what}, launch.gpus_per_node is {promised}",
        fix=LOAD if not_loaded(fact) else None,
        reproduce=BY_HAND,
    )


def broken(fact: Driver, needed: bool) -> list[Verdict]:
    """Return the verdict of a node whose driver is not in order by itself, if it is not."""
    version, other = fact["module"], fact["nvml"] or fact["library"]
    if MISMATCH in fact["problem"] or (version and fact["nvml"] and version != fact["nvml"]):
        return [
            fail(
                f"kernel module {version or 'of another version'}, "
                f"NVML library {other or 'of another version'}: "
                "the driver was upgraded under the loaded module",
                observed=version,
                expected=other,
                fix=RELOAD,
                reproduce=BY_HAND,
            )
        ]
    if version and not (fact["nvml"] or fact["problem"]):
        words = f"kernel module {version} is loaded, but there is no libnvidia-ml.so.1"
        return [(fail if needed else warn)(words, fix=LIBRARY, reproduce=BY_HAND)]
    if fact["problem"] and not not_loaded(fact):
        return [unknown(f"{fact['problem']} (kernel module {version or 'not loaded'})")]
    return []


def not_loaded(fact: Driver) -> bool:
    """Whether the library is there and its kernel module is not."""
    return NOT_LOADED in fact["problem"]


CHECK = Check(
    probe=driver,
    compare=compare,
    expects=(Expect("driver", str, "", "NVIDIA driver version, such as 550.54.15, or 550"),),
    explains=(
        *("gpu.inventory", "gpu.health", "gpu.fabric", "gpu.nvlink", "gpu.p2p"),
        *DIFFERING,
    ),
)
