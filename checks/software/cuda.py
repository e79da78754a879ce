"""The CUDA runtime of training is the same on all nodes, and the driver supports it.

Why: a runtime of a newer major version than the driver stops with "CUDA driver version is
    insufficient for CUDA runtime version", on that node only. Another toolkit builds extensions
    that the other nodes do not load.
Facts: the CUDA that torch was built with, else that of the nvidia-cuda-runtime wheel; the
    toolkit; the newest CUDA that the driver supports.
Source: torch/version.py and *.dist-info of the training interpreter; version.json of $CUDA_HOME or
    /usr/local/cuda, else nvcc --version; cuDriverGetVersion of the libcuda.so.1 that training
    would load, else nvmlSystemGetCudaDriverVersion_v2. A newer minor version runs since CUDA 11:
    https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html.
Fix: upgrade the driver, or install a build for the CUDA version that it supports.
"""

from __future__ import annotations

import re
from typing import Mapping

from preflight.api import (
    PASS,
    SKIP,
    WARN,
    Check,
    Expect,
    Verdict,
    Want,
    fail,
    ok,
    same_everywhere,
    skip,
    unknown,
    warn,
)
from preflight.node.software import (
    Inside,
    Training,
    asked,
    believed,
    by_hand,
    opened,
    together,
    training,
    versions,
)

MINOR_COMPATIBLE = 11
"""The first major version within which a newer runtime runs on an older driver; see Source."""
LEAST_DRIVER = {11: "450", 12: "525", 13: "580"}
"""The oldest driver for each major version of the runtime; table 1 of the page in Source."""


def compare(facts: Mapping[str, Training], want: Want) -> dict[str, Verdict]:
    return believed(facts, compared(facts, want), want, "cuda")


def compared(facts: Mapping[str, Training], want: Want) -> dict[str, Verdict]:
    said, silent = opened(facts)
    runtimes = {node: runtime(inside) for node, inside in said.items()}
    reproduce = by_hand(want, '-c "import torch; print(torch.version.cuda)"')
    found = versions(runtimes, "CUDA runtime", want.get("expect.cuda"), reproduce=reproduce)
    toolkits = {node: short(inside["toolkit"]) for node, inside in said.items()}
    built = same_everywhere(
        {node: toolkit for node, toolkit in toolkits.items() if toolkit},
        "CUDA toolkit",
        say=warn,
        fix="install the same CUDA toolkit on all nodes, or set CUDA_HOME in launch.env",
        reproduce="cat /usr/local/cuda/version.json; nvcc --version",
    )
    if not any(runtimes.values()):
        differing = {node: verdict for node, verdict in built.items() if verdict.status == WARN}
        return {**silent, **together(found, differing)}
    drivers = {node: support(facts[node], runtimes[node]) for node in said}
    verdicts = together(found, drivers, built)
    for node, driver in drivers.items():
        if driver.status == SKIP and verdicts[node].status == PASS:
            verdicts[node] = driver
    return {**silent, **verdicts}


def runtime(inside: Inside) -> str | None:
    """Return the CUDA version of training, such as 12.4; a toolkit that lies there is not used."""
    torch, packages = inside["torch"], inside["packages"]
    if torch and torch["path"]:
        return short(torch["cuda"])
    wheels = [packages[name] for name in sorted(packages) if name.startswith("nvidia-cuda-runtime")]
    return short(wheels[0]) if wheels else None


def short(version: str | None) -> str | None:
    """Return the first two numbers of a version."""
    return version and ".".join(version.split(".")[:2])


def support(fact: Training, needed: str | None) -> Verdict:
    """Return whether a node's driver supports the runtime."""
    inside = fact["inside"]
    number = (inside and inside["driver_cuda"]) or fact["nvml_cuda"]
    if not number:
        return unknown(fact["nvml_problem"]) if fact["nvml_problem"] else skip("no NVIDIA driver")
    major, minor = divmod(number, 1000)
    least = f"{major}.{minor // 10}"
    says = ok(f"the driver supports {least}")
    match = re.fullmatch(r"(\d+)\.(\d+)", needed or "")
    if match is None or (int(match.group(1)), int(match.group(2))) <= (major, minor // 10):
        return says
    wanted = int(match.group(1))
    if wanted == major >= MINOR_COMPATIBLE:
        return ok(f"the driver supports {least} and, by minor version compatibility, {needed}")
    driver = LEAST_DRIVER.get(wanted)
    return fail(
        f"CUDA runtime {needed}, the driver supports {least}",
        observed=needed,
        expected=least,
        fix=driver and f"install NVIDIA driver {driver} or newer, or a build for CUDA {major}",
        reproduce="nvidia-smi",
    )


CHECK = Check(
    probe=training,
    args=asked,
    compare=compare,
    expects=(Expect("cuda", str, "", "CUDA runtime of the training environment, such as 12.4"),),
    explains=("collective.local", "collective.all_reduce"),
)
