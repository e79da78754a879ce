"""Every node has the GPUs that were promised, and the same as the others.

Why: a missing GPU leaves its rank out, and all others wait for it in the first collective; another
    model, less memory or MIG on one node make that node run out of memory, or NCCL choose
    another path there.
Facts: library, error and driver of NVML; gpus: index, error, name, uuid, memory (bytes), mig and
    pci of each; bus and driverless: NVIDIA's GPUs on the PCI bus; device_files: /dev/nvidia<N>.
Source: NVML (driver >= 450), /sys/bus/pci/devices/*/{vendor,class,driver}, /dev.
Fix: look for "fallen off the bus" or Xid in `dmesg`; reset the GPU with
    `nvidia-smi --gpu-reset -i N`, or reboot; if it stays away, have the hardware looked at.
"""

from __future__ import annotations

import statistics
from collections import Counter
from typing import Mapping, Sequence

from preflight.api import (
    Check,
    Expect,
    Verdict,
    Want,
    fail,
    ok,
    same_everywhere,
    skip,
    some,
    warn,
)
from preflight.node.nvml import Gpu, Gpus, gpus

LEAST_MEMORY = 0.95
"""Of the others' median. ECC and another driver's reserve take less than 5 % on HBM; the next
smaller model of a kind has at least a third less."""
GIB = 1 << 30
SEE = "nvidia-smi -L"
MISMATCH = "NVML/RM version mismatch"
PLAIN = "the loaded kernel module is of another driver than the library: a reboot was left out"


def compare(facts: Mapping[str, Gpus], want: Want) -> dict[str, Verdict]:
    promised = want.get("launch.gpus_per_node", 0)
    if not promised and not any(fact["gpus"] for fact in facts.values()):
        return {node: without(fact) for node, fact in facts.items()}
    lacking = {node: missing(fact) for node, fact in facts.items()}
    if all(lacking.values()) and len(facts) > 1:
        lacking = dict.fromkeys(facts, ())  # all see only a part, as in containers
    own = {node: alone(fact, lacking[node], want) for node, fact in facts.items()}
    healthy = {node: fact for node, fact in facts.items() if own[node] is None}
    beside = alike(healthy, promised)
    return {node: own[node] or softened(beside[node], lacking[node]) for node in facts}


def without(fact: Gpus) -> Verdict:
    """Return the verdict of a node where no node has a GPU, and none is promised."""
    if fact["error"] not in {"", "Driver Not Loaded"}:
        return broken(fact)
    there = [*fact["bus"], *fact["driverless"]]
    if there:
        return warn(
            f"no GPU in the driver, but {len(there)} of NVIDIA's on the PCI bus: {some(there)}",
            observed=0,
            expected=len(there),
            fix="install the NVIDIA driver, or load it: modprobe nvidia",
            reproduce="lspci -d 10de:",
        )
    return skip("no GPU on any node, and none promised")


# ---- what one node shows by itself ---------------------------------------------------------


def broken(fact: Gpus) -> Verdict:
    """Return the verdict of an NVML that does not start."""
    words = PLAIN if MISMATCH in fact["error"] else fact["error"]
    return fail(
        "NVML does not start: " + words,
        observed=fact["error"],
        fix="load the driver that fits the library: reboot, or reload the nvidia modules",
        reproduce="nvidia-smi",
    )


def alone(fact: Gpus, lacking: Sequence[str], want: Want) -> Verdict | None:
    """Return what is wrong with a node whatever the others have; None: nothing."""
    if fact["error"]:
        return broken(fact)
    return lost(fact["gpus"]) or short(fact, lacking, want) or other_model(fact["gpus"], want)


def lost(found: Sequence[Gpu]) -> Verdict | None:
    """Return the verdict of GPUs that do not answer."""
    silent = [gpu for gpu in found if gpu["error"]]
    if not silent:
        return None
    numbers = [str(gpu["index"]) for gpu in silent]
    who = f"GPU {numbers[0]} does" if len(silent) == 1 else f"GPUs {some(numbers, 8)} do"
    return fail(
        "{} not answer: {}".format(who, silent[0]["error"]),
        observed=numbers,
        fix="nvidia-smi --gpu-reset -i {}, or reboot; see dmesg for the Xid".format(
            ",".join(numbers)
        ),
        reproduce=SEE,
    )


def short(fact: Gpus, lacking: Sequence[str], want: Want) -> Verdict | None:
    """Return the verdict of a node with too few GPUs, by promise or by its own PCI bus."""
    count, promised = len(fact["gpus"]), want.get("launch.gpus_per_node", 0)
    if count >= promised and (not lacking or promised or len(want.nodes) == 1):
        return None
    expected = promised or count + len(lacking)
    summary = f"{count} of {expected} GPUs"
    if lacking:
        summary += f": {some(lacking)} on the PCI bus, not in the driver"
    elif not fact["library"]:
        summary += ": no NVIDIA driver"
    return fail(summary, observed=count, expected=expected, reproduce=SEE)


def missing(fact: Gpus) -> tuple[str, ...]:
    """Return the GPUs that are on the PCI bus and not in the driver.

    Those that the driver has been given count only where all of them have a device file: in a
    container the bus shows the whole machine's.
    """
    known = {gpu["pci"] for gpu in fact["gpus"]}
    bus = fact["bus"] if fact["device_files"] >= len(fact["bus"]) else []
    return tuple(place for place in [*bus, *fact["driverless"]] if place not in known)


def other_model(found: Sequence[Gpu], want: Want) -> Verdict | None:
    """Return the verdict of a node with another model than the inventory says."""
    expected = want.get("expect.gpu_model", "")
    others = [gpu for gpu in found if expected.casefold() not in str(gpu["name"]).casefold()]
    if not others:
        return None
    return fail(
        f"{models(others)}, expected {expected}",
        observed=models(found),
        expected=expected,
        fix="take the node out of the inventory, or correct expect.gpu_model",
        reproduce=SEE,
    )


# ---- what differs between nodes ------------------------------------------------------------


def alike(facts: Mapping[str, Gpus], promised: int) -> dict[str, Verdict]:
    """Return what sets a node apart from the others: count and model, memory, MIG mode."""
    shapes = {
        node: kinds(fact["gpus"]) if promised else models(fact["gpus"])
        for node, fact in facts.items()
    }
    shaped = same_everywhere(shapes, "GPUs:", reproduce=SEE)
    small = smaller(facts)
    modes = same_everywhere(
        {node: mig(fact["gpus"]) for node, fact in facts.items()},
        "MIG",
        fix="set it as on the other nodes: nvidia-smi -mig 0 (or 1), then reset the GPUs",
        reproduce="nvidia-smi --query-gpu=index,mig.mode.current --format=csv",
    )
    verdicts = {}
    for node, fact in facts.items():
        odd = [v for v in (shaped[node], small.get(node), modes[node]) if v and v.status != "pass"]
        verdicts[node] = odd[0] if odd else ok(described(fact["gpus"]))
    return verdicts


def softened(verdict: Verdict, lacking: Sequence[str]) -> Verdict:
    """Return a warning where all is as promised, or there is nothing to compare with."""
    if verdict.status != "pass" or not lacking:
        return verdict
    return warn(
        f"{verdict.summary}; {some(lacking)} on the PCI bus, not in the driver",
        observed=list(lacking),
        reproduce=SEE,
    )


def smaller(facts: Mapping[str, Gpus]) -> dict[str, Verdict]:
    """Return the verdicts of nodes whose GPUs have less memory than the others'."""
    least = {
        node: min((gpu["memory"] for gpu in fact["gpus"] if gpu["memory"]), default=0)
        for node, fact in facts.items()
    }
    usual = statistics.median_low([memory for memory in least.values() if memory] or [0])
    return {
        node: fail(
            f"GPUs with {memory / GIB:.0f} GiB, the others' have {usual / GIB:.0f} GiB",
            observed=memory,
            expected=usual,
            fix="see whether the model, ECC or a vGPU profile differs",
            reproduce="nvidia-smi --query-gpu=name,memory.total,ecc.mode.current --format=csv",
        )
        for node, memory in least.items()
        if 0 < memory < usual * LEAST_MEMORY
    }


def models(found: Sequence[Gpu]) -> str:
    """Return count and model of GPUs, such as `8 x NVIDIA H100 80GB HBM3`."""
    counted = Counter(str(gpu["name"]) for gpu in found)
    return ", ".join(f"{count} x {name}" for name, count in sorted(counted.items())) or "none"


def kinds(found: Sequence[Gpu]) -> str:
    """Return the models of GPUs without their count: more than are promised do no harm."""
    return ", ".join(sorted({str(gpu["name"]) for gpu in found})) or "none"


def mig(found: Sequence[Gpu]) -> str:
    """Return on which GPUs MIG is on."""
    on = [str(gpu["index"]) for gpu in found if gpu["mig"]]
    if not on:
        return "off"
    return "on" if len(on) == len(found) else "on for GPU " + some(on, 8)


def described(found: Sequence[Gpu]) -> str:
    """Return the GPUs of a node in one line."""
    least = min((gpu["memory"] for gpu in found if gpu["memory"]), default=0)
    words = models(found) + (f", {least / GIB:.0f} GiB" if least else "")
    return words if mig(found) == "off" else f"{words}, MIG {mig(found)}"


CHECK = Check(
    probe=gpus,
    compare=compare,
    expects=(Expect("gpu_model", str, "", "Such as H100: a part of the name is enough."),),
    explains=(
        *("gpu.health", "gpu.nvlink", "gpu.topology", "gpu.p2p", "gpu.gemm", "gpu.fabric"),
        *("collective.local", "collective.all_reduce", "collective.pairs"),
    ),
)
