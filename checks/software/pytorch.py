"""PyTorch is of one version and one build in the training environments of all nodes.

Why: ranks with other versions of torch exchange other collectives, in another order: a hang, or
    a loss that drifts. A build without CUDA trains on the CPU, or stops at once. One without code
    for the GPU's architecture stops with "no kernel image is available for execution".
Facts: torch's version, the CUDA or ROCm it was built with, the GPU architectures it has code for,
    its folder; versions of numpy, triton and deepspeed beside it; compute capability of the GPUs.
Source: torch/version.py, the list of architectures in torch/lib/libtorch_python.so (what
    torch.cuda.get_arch_list() returns) and *.dist-info on sys.path of the training interpreter
    (see software.python); torch is not imported. NVML's nvmlDeviceGetCudaComputeCapability.
    Which code runs on which GPU: CUDA C++ Programming Guide, "Application Compatibility".
    Of more GPUs than launch.gpus_per_node only so many need code.
Fix: install the same wheel of torch on all nodes, or use one image; for a GPU newer than torch's
    architectures, a newer torch or one built with a newer CUDA.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Mapping

from preflight.api import Check, Expect, Verdict, Want, fail, same_everywhere, some, warn
from preflight.node.software import (
    Torch,
    Training,
    asked,
    believed,
    by_hand,
    opened,
    together,
    training,
    versions,
)

BESIDE = ("deepspeed", "numpy", "triton")
"""What takes part in training: a difference here is seldom meant, and often the first sign."""


def compare(facts: Mapping[str, Training], want: Want) -> dict[str, Verdict]:
    return believed(facts, compared(facts, want), want, "torch")


def compared(facts: Mapping[str, Training], want: Want) -> dict[str, Verdict]:
    said, silent = opened(facts)
    torches = {node: inside["torch"] for node, inside in said.items()}
    reproduce = by_hand(want, '-c "import torch; print(torch.__version__, torch.version.cuda)"')
    builds = {node: build(torch) if torch else None for node, torch in torches.items()}
    found = versions(builds, "PyTorch", want.get("expect.torch"), reproduce=reproduce)
    if not any(torches.values()):
        return {**silent, **found}
    promised = want.get("launch.gpus_per_node", 0)
    useless = {
        node: fail(
            f"PyTorch {builds[node]} cannot use the {promised} GPUs of launch.gpus_per_node",
            observed=builds[node],
            fix="install a CUDA build of torch: https://pytorch.org/get-started/locally",
            reproduce=reproduce,
        )
        for node, torch in torches.items()
        if torch and torch["path"] and promised and not (torch["cuda"] or torch["hip"])
    }
    foreign = {
        node: no_code(torch, facts[node]["capabilities"], promised, reproduce)
        for node, torch in torches.items()
        if torch and torch["archs"]
    }
    beside = [
        same_everywhere(
            {node: inside["packages"].get(name) for node, inside in said.items()},
            name,
            say=warn,
            fix=f"install the same {name} on all nodes",
            reproduce=by_hand(want, "-m pip list"),
        )
        for name in BESIDE
    ]
    verdicts = together(found, useless, {n: v for n, v in foreign.items() if v}, *beside)
    places = {node: torch["path"] for node, torch in torches.items() if torch and torch["path"]}
    return {
        **silent,
        **verdicts,
        **{
            node: replace(verdicts[node], details=(*verdicts[node].details, place))
            for node, place in places.items()
        },
    }


def no_code(torch: Torch, gpus: list[str], promised: int, hint: str) -> Verdict | None:
    """Return what is wrong where torch has no code for some GPU, None if it has for all.

    Enough of those that it has code for do for the promise: the others may be for a display.
    """
    numbers = [tuple(map(int, gpu.split("."))) for gpu in gpus]
    archs = torch["archs"]
    without = [f"sm_{x}{y}" for x, y in numbers if not any(runs(arch, x, y) for arch in archs)]
    fitting = len(gpus) - len(without)
    if not without or (promised and fitting >= promised):
        return None
    kinds = list(dict.fromkeys(without))
    few = f" ({len(without)} of {len(gpus)})" if fitting else ""
    return (warn if fitting and not promised else fail)(
        f"PyTorch {build(torch)} has no code for the GPU's {some(kinds)}{few}, "
        f"only {', '.join(archs)}",
        observed=" ".join(archs),
        expected=" ".join(kinds),
        fix=f"install a build of torch for {some(kinds)}: https://pytorch.org/get-started/locally",
        reproduce=hint,
        explains=(),  # which code it has says nothing of its CUDA and NCCL
    )


def runs(arch: str, major: int, minor: int) -> bool:
    """Return whether code for an architecture runs on a GPU of a compute capability.

    Machine code (sm_86) runs on GPUs of its major number and the same or a later minor one,
    PTX (compute_86) on all later ones; what ends in `a` only on its own, in `f` on its family.
    """
    kind, number = arch.split("_")
    only, own = number.lstrip("0123456789"), divmod(int(number.rstrip("af")), 10)
    if only == "a":
        return own == (major, minor)
    if kind == "sm" or only == "f":
        return own[0] == major and own[1] <= minor
    return own <= (major, minor)


def build(torch: Torch) -> str:
    """Return version and build in words."""
    if torch["path"] is None:
        return torch["version"]
    gpu = f"CUDA {torch['cuda']}" if torch["cuda"] else "CPU only"
    return "{} ({})".format(torch["version"], f"ROCm {torch['hip']}" if torch["hip"] else gpu)


CHECK = Check(
    probe=training,
    args=asked,
    compare=compare,
    expects=(Expect("torch", str, "", "PyTorch version, such as 2.4, or 2.4.0+cu124"),),
    explains=("software.cuda", "software.nccl", "collective.all_reduce"),
)
