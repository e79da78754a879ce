"""PyTorch is of one version and one build in the training environments of all nodes.

Why: ranks with other versions of torch exchange other collectives, in another order: a hang, or
    a loss that drifts. A build without CUDA trains on the CPU, or stops at once.
Facts: torch's version, the CUDA or ROCm it was built with, its folder; versions of numpy, triton
    and deepspeed beside it.
Source: torch/version.py and *.dist-info on sys.path of the training interpreter (see
    software.python); torch is not imported.
Fix: install the same wheel of torch on all nodes, or use one image.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Mapping

from preflight.api import Check, Expect, Verdict, Want, fail, same_everywhere, warn
from preflight.node.software import (
    Torch,
    Training,
    asked,
    by_hand,
    opened,
    together,
    training,
    versions,
)

BESIDE = ("deepspeed", "numpy", "triton")
"""What takes part in training: a difference here is seldom meant, and often the first sign."""


def compare(facts: Mapping[str, Training], want: Want) -> dict[str, Verdict]:
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
    verdicts = together(found, useless, *beside)
    places = {node: torch["path"] for node, torch in torches.items() if torch and torch["path"]}
    return {
        **silent,
        **verdicts,
        **{
            node: replace(verdicts[node], details=(*verdicts[node].details, place))
            for node, place in places.items()
        },
    }


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
    explains=("software.cuda", "software.nccl"),
)
