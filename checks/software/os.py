"""Architecture, CPU, kernel and distribution are the same on all nodes.

Why: a program is built for one architecture: where they are mixed, neither one environment nor one
    container image serves all nodes. Another CPU, kernel or distribution makes stragglers, and one
    node that behaves unlike the rest. NCCL before 2.22.3 chooses algorithms by the CPU's vendor:
    where vendors are mixed, ranks choose different ones and the first collective hangs.
Facts: kernel (release), distribution and its version, cpu_vendor, cpu_model, machine.
Source: uname(2), /etc/os-release, /proc/cpuinfo (on Arm the vendor is `CPU implementer`, the model
    `CPU part`; on POWER, which names no vendor, the vendor is uname's machine),
    https://github.com/NVIDIA/nccl/issues/1136.
Fix: give the node the kernel and distribution of the others and reboot it.
"""

from __future__ import annotations

import re
from typing import Mapping, TypedDict

from preflight.api import (
    Check,
    Expect,
    Node,
    Unobservable,
    Verdict,
    Want,
    same_everywhere,
    warn,
)
from preflight.node.software import together, versions

VENDOR_NAMES = {"GenuineIntel": "Intel", "AuthenticAMD": "AMD", "0x41": "Arm"}
YEAR_MONTH = re.compile(r"\d\d\.\d\d")
"""Ubuntu's versions: 22.04 and 22.10 are two releases, while Rocky's 9.3 and 9.4 are one."""
MIXED = (
    "NCCL before 2.22.3 chooses algorithms by the CPU's vendor: ranks choose different ones, and "
    "hang (NVIDIA/nccl#1136)"
)
MIXED_FIX = "see that software.nccl says 2.22.3 or newer; else upgrade NCCL, or take the node out"
APART = "give one job nodes of one architecture: take the others out of the inventory"


class System(TypedDict):
    kernel: str
    distribution: str
    """Name and release, such as `ubuntu 22.04` or `rocky 9`; empty if it does not say."""
    cpu_vendor: str
    cpu_model: str
    machine: str


def system(node: Node) -> System:
    cpu = dict(pairs(node.read("/proc/cpuinfo") or "", ":"))
    if not cpu:
        raise Unobservable("/proc/cpuinfo tells nothing")
    uname = node.uname()
    vendor = cpu.get("vendor_id") or cpu.get("CPU implementer") or uname["machine"]
    release = dict(pairs(node.read("/etc/os-release") or "", "="))
    version = release.get("VERSION_ID", "")
    if not YEAR_MONTH.fullmatch(version):
        version = version.split(".")[0]
    return System(
        kernel=uname["release"],
        distribution=f"{release.get('ID', '')} {version}".strip(),
        cpu_vendor=VENDOR_NAMES.get(vendor, vendor),
        cpu_model=cpu.get("model name")
        or cpu.get("cpu")
        or "part {}".format(cpu.get("CPU part", "unknown")),
        machine=uname["machine"],
    )


def pairs(text: str, sign: str) -> list[tuple[str, str]]:
    """Return the pairs of the first paragraph of a file: the first CPU of cpuinfo."""
    lines = [line.partition(sign) for line in text.strip().split("\n\n")[0].splitlines()]
    return [(name.strip(), value.strip().strip("\"'")) for name, _, value in lines]


def compare(facts: Mapping[str, System], want: Want) -> dict[str, Verdict]:
    machines = {node: fact["machine"] for node, fact in facts.items()}
    vendors = {node: fact["cpu_vendor"] for node, fact in facts.items()}
    models = {node: fact["cpu_model"] for node, fact in facts.items()}
    kernels = {node: fact["kernel"] for node, fact in facts.items()}
    systems = {node: fact["distribution"] or None for node, fact in facts.items()}
    alike = same_everywhere(machines, "architecture", fix=APART, reproduce="uname -m")
    return together(
        {node: verdict for node, verdict in alike.items() if verdict.status != "pass"},
        same_everywhere(
            vendors, "CPU vendor", say=warn, details=(MIXED,), fix=MIXED_FIX, reproduce="lscpu"
        ),
        same_everywhere(models, "CPU", say=warn, reproduce="lscpu"),
        versions(kernels, "kernel", want.get("expect.kernel"), say=warn, reproduce="uname -r"),
        same_everywhere(systems, "distribution", say=warn, reproduce="cat /etc/os-release"),
    )


CHECK = Check(
    probe=system,
    compare=compare,
    expects=(Expect("kernel", str, "", "kernel release, such as 5.15.0-105-generic, or 5.15"),),
    explains=("collective.all_reduce", "collective.pairs"),
)
