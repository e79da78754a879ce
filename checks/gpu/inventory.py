"""Every node has the GPUs that were promised, and the same as the others.

Why: a missing GPU leaves its rank out, and all others wait for it in the first collective; another
    model, less memory or MIG on one node make that node run out of memory, or NCCL choose
    another path there.
    Of more GPUs than launch.gpus_per_node those with the most memory count, since CUDA's default
    order is fastest first: the others, for a display, are not the job's. MIG devices are not
    counted, and neither are AMD's GPUs looked at.
Facts: library, error and driver of NVML; gpus: index, error, name, uuid, memory (bytes), mig and
    pci of each; bus and driverless: NVIDIA's GPUs on the PCI bus, and amd: AMD's; device_files:
    /dev/nvidia<N>.
Source: NVML (driver >= 450), /sys/bus/pci/devices/*/{vendor,class,driver}, /dev. CUDA_DEVICE_ORDER
    in the CUDA C++ Programming Guide.
Fix: look for "fallen off the bus" or Xid in `dmesg`; reset the GPU with
    `nvidia-smi --gpu-reset -i N`, or reboot; if it stays away, have the hardware looked at.
"""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import replace
from typing import Mapping, Sequence

from preflight.api import (
    WARN,
    Check,
    Expect,
    Verdict,
    Want,
    fail,
    ok,
    same_everywhere,
    skip,
    some,
    unknown,
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
NOT_LOADED, GPU_LOST = "Driver Not Loaded", "GPU is lost"
FIXES = {
    MISMATCH: "load the driver that fits the library: reboot, or reload the nvidia modules",
    NOT_LOADED: "modprobe nvidia; if that fails, see dmesg | grep -i nvrm",
    GPU_LOST: "reboot; see dmesg for the Xid",
}
"""Of NVML's words that say that the GPUs cannot be used."""
LOOK = (
    "see what nvidia-smi says and dmesg | grep -i nvrm; the login user must be able to open "
    "/dev/nvidiactl, and a container may have lost it: restart that"
)
INSTALL = "install the NVIDIA driver with its libraries, or take the node out of the inventory"
NO_DRIVER = ": no NVIDIA driver"
PART = (
    "see dmesg for the Xid; where jobs are given a part of the GPUs, say with launch.gpus_per_node "
    "how many"
)
ONE_KIND = "give one job nodes with the same GPUs: take the others out of the inventory"
MORE = (
    "say with launch.gpus_per_node how many the job uses; or have the others lost some? "
    "lspci -d 10de:"
)
MOST_SLICES = 7
"""MIG devices of one GPU: NVIDIA Multi-Instance GPU User Guide."""


def compare(facts: Mapping[str, Gpus], want: Want) -> dict[str, Verdict]:
    promised = want.get("launch.gpus_per_node", 0)
    foreign = of_amd(facts, promised)
    facts = {node: fact for node, fact in facts.items() if node not in foreign}
    if not promised and not any(fact["gpus"] for fact in facts.values()):
        return {**foreign, **{node: without(fact) for node, fact in facts.items()}}
    lacking = {node: missing(fact) for node, fact in facts.items()}
    partial = len(facts) > 1 and all(lacking.values())  # all see only a part, as in containers
    blamed = {} if partial and not promised else lacking
    own = {node: alone(fact, blamed.get(node, ()), want) for node, fact in facts.items()}
    usable = {n: facts[n] for n, v in own.items() if v is None or v.status == "warn"}
    if partial:
        lacking = {
            node: () if promised else tuple(one for one in places if one in facts[node]["bus"])
            for node, places in lacking.items()
        }
    beside = alike(usable, promised)
    found = {node: softened(verdict, lacking[node]) for node, verdict in beside.items()}
    for node, verdict in own.items():
        if verdict and (node not in found or found[node].status != "fail"):
            found[node] = verdict
    return {**foreign, **found}


def of_amd(facts: Mapping[str, Gpus], promised: int) -> dict[str, Verdict]:
    """Return the verdicts of nodes with as many GPUs of AMD, where no node has any of NVIDIA."""
    if any(fact["gpus"] or fact["bus"] or fact["driverless"] for fact in facts.values()):
        return {}
    return {
        node: skip("GPUs of AMD ({}): preflight looks at NVIDIA's".format(len(fact["amd"])))
        for node, fact in facts.items()
        if len(fact["amd"]) >= max(promised, 1)
    }


def without(fact: Gpus) -> Verdict:
    """Return the verdict of a node where no node has a GPU, and none is promised."""
    if fact["error"] not in {"", NOT_LOADED}:
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
    """Return the verdict of an NVML that does not start: known to be fatal, or in its own words."""
    error = fact["error"]
    fix = next((fix for words, fix in FIXES.items() if words in error), None)
    return (fail if fix else unknown)(
        "NVML does not start: " + (PLAIN if MISMATCH in error else error),
        observed=error,
        fix=fix or LOOK,
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
    if any(gpu["mig"] for gpu in fact["gpus"]) and expected <= count * MOST_SLICES:
        return warn(
            f"{models(fact['gpus'])} with MIG, launch.gpus_per_node is {promised}: "
            "MIG devices are not counted",
            observed=count,
            expected=promised,
            fix="see that there are as many MIG devices: nvidia-smi -L",
            reproduce=SEE,
        )
    summary, fix = f"{count} of {expected} GPUs", None
    if not fact["library"]:
        there = len(fact["bus"])
        summary += f": no libnvidia-ml.so.1, {there} on the PCI bus" if there else NO_DRIVER
        fix = INSTALL
    elif lacking:
        summary += f": {some(lacking)} on the PCI bus, not in the driver"
    return fail(summary, observed=count, expected=expected, fix=fix, reproduce=SEE)


def missing(fact: Gpus) -> tuple[str, ...]:
    """Return the GPUs that are on the PCI bus and not in the driver.

    Those that the driver has been given count only where all of them have a device file: in a
    container the bus shows the whole machine's.
    """
    known = {gpu["pci"] for gpu in fact["gpus"]}
    bus = fact["bus"] if fact["device_files"] >= len(fact["bus"]) else []
    return tuple(place for place in [*bus, *fact["driverless"]] if place not in known)


def other_model(found: Sequence[Gpu], want: Want) -> Verdict | None:
    """Return the verdict of a node with too few GPUs of the inventory's model."""
    expected, promised = want.get("expect.gpu_model", ""), want.get("launch.gpus_per_node", 0)
    others = [gpu for gpu in found if expected.casefold() not in str(gpu["name"]).casefold()]
    fitting = len(found) - len(others)
    if not others or (promised and fitting >= promised):
        return None
    fix = None if fitting else "take the node out of the inventory, or correct expect.gpu_model"
    if fitting and not promised:
        fix = "say with launch.gpus_per_node how many GPUs the job uses"
    return (warn if fitting and not promised else fail)(
        f"{models(others)}, expected {expected}",
        observed=models(found),
        expected=expected,
        fix=fix,
        reproduce=SEE,
    )


def used(found: Sequence[Gpu], promised: int) -> list[Gpu]:
    """Return the GPUs of the job: of more than are promised, those with the most memory."""
    most = sorted(found, key=lambda gpu: -(gpu["memory"] or 0))
    return sorted(most[: promised or None], key=lambda gpu: gpu["index"])


# ---- what differs between nodes ------------------------------------------------------------


def alike(facts: Mapping[str, Gpus], promised: int) -> dict[str, Verdict]:
    """Return what sets a node apart from the others: count and model, memory, MIG mode."""
    gpus = {node: used(fact["gpus"], promised) for node, fact in facts.items()}
    shapes = {node: kinds(own) if promised else models(own) for node, own in gpus.items()}
    shaped = same_everywhere(shapes, "GPUs:", reproduce=SEE)
    small = smaller(gpus)
    modes = same_everywhere(
        {node: mig(own) for node, own in gpus.items()},
        "MIG",
        fix="set it as on the other nodes: nvidia-smi -mig 0 (or 1), then reset the GPUs",
        reproduce="nvidia-smi --query-gpu=index,mig.mode.current --format=csv",
    )
    usual = next((gpus[node] for node in gpus if shaped[node].status == "pass"), [])
    verdicts = {}
    for node, fact in facts.items():
        one = replace(shaped[node], fix=shape_fix(gpus[node], shaped[node]))
        if len(gpus[node]) > len(usual) > 0 and kinds(gpus[node]) == kinds(usual):
            one = replace(one, status=WARN, fix=MORE)
        odd = [v for v in (one, small.get(node), modes[node]) if v and v.status != "pass"]
        verdicts[node] = odd[0] if odd else ok(described(fact["gpus"]))
    return verdicts


def shape_fix(found: Sequence[Gpu], verdict: Verdict) -> str | None:
    """Return what mends another count or model; None, the check's own, if GPUs got lost."""
    if verdict.status == "pass":
        return None
    if not found:
        return INSTALL
    strange = [gpu for gpu in found if str(gpu["name"]) not in str(verdict.expected)]
    return ONE_KIND if strange else None


def softened(verdict: Verdict, lacking: Sequence[str]) -> Verdict:
    """Return a warning where all is as promised, or there is nothing to compare with."""
    if verdict.status != "pass" or not lacking:
        return verdict
    return warn(
        f"{verdict.summary}; {some(lacking)} on the PCI bus, not in the driver",
        observed=list(lacking),
        fix=PART,
        reproduce=SEE,
    )


def smaller(found: Mapping[str, Sequence[Gpu]]) -> dict[str, Verdict]:
    """Return the verdicts of nodes whose GPUs have less memory than the others'."""
    least = {
        node: min((gpu["memory"] for gpu in gpus if gpu["memory"]), default=0)
        for node, gpus in found.items()
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
        "launch.plan",
        *("gpu.health", "gpu.nvlink", "gpu.topology", "gpu.p2p", "gpu.gemm", "gpu.fabric"),
        *("collective.local", "collective.all_reduce", "collective.pairs"),
    ),
)
