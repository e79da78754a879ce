"""GPUs, NVLink, NVSwitch and the driver, by what CUDA, NCCL, NVML and the kernel say."""

from __future__ import annotations

from collections.abc import Mapping

from preflight.triage.rule import Kind, Rule

RESET = "restart the job; if it comes again, nvidia-smi --gpu-reset -i INDEX, then a reboot"
DRAIN = "take the node out, reset the GPU or reboot; if it comes again, have the GPU replaced"
FABRIC = "install and start nvidia-fabricmanager of the driver's very version, then reset the GPUs"
IN_KERNEL = "dmesg on {node}: lines of NVRM and Xid"
NVLINK = {"74", "144", "145", "146", "147", "148", "149", "150"}
PROGRAM = {"13", "31", "43", "45"}
"""Xids by which a program ends itself: NVIDIA's table of Xid errors."""
MEMORY = {"48", "62", "63", "64", "92", "94", "95", "140"}
HARMLESS = {"63", "92", "94", "121", "137", "154"}
"""Of themselves they end no job."""
XIDS = {
    "13": "the program did something that is not allowed (graphics engine exception)",
    "31": "the program used a wrong address (memory page fault)",
    "43": "the program was stopped (reset channel)",
    "45": "the program's work was removed, as when it is killed",
    "46": "the GPU stopped processing",
    "48": "an uncorrectable error in GPU memory (double-bit ECC)",
    "62": "the GPU's microcontroller halted",
    "63": "a row of GPU memory is to be remapped",
    "64": "a row of GPU memory could not be remapped",
    "74": "an NVLink failed",
    "79": "the GPU has fallen off the bus",
    "92": "many correctable errors in GPU memory",
    "94": "a contained error in GPU memory",
    "95": "an uncontained error in GPU memory",
    "109": "a context switch timed out",
    "119": "the GPU's system processor (GSP) did not answer",
    "120": "the GPU's system processor (GSP) failed",
    "140": "an unrecovered error in GPU memory",
}


def of_xid(told: Mapping[str, str]) -> Mapping[str, str] | None:
    """Return what an Xid means, or None: it ends no job."""
    number = told["xid"]
    if number in HARMLESS or number == "45":
        return None
    means = XIDS.get(number, "a fault of the GPU")
    if number in NVLINK:
        return {"cause": "gpu.nvlink", "means": "an NVLink failed", "mend": DRAIN}
    if number in PROGRAM:
        return {"cause": "job.rank_crashed", "means": means, "mend": "see the program; " + RESET}
    return {"cause": "gpu.health", "means": means, "mend": DRAIN}


def of_cuda(told: Mapping[str, str]) -> Mapping[str, str] | None:
    """Return which CUDA error it is by its number or its words."""
    words = told["error"].lower()
    for part, (cause, means, mend) in CUDA.items():
        if part in words:
            return {"cause": cause, "means": means, "mend": mend}
    return None


CUDA = {
    "system not yet initialized": (
        "gpu.fabric",
        "the NVSwitches are not set up (CUDA error 802): Fabric Manager does not run",
        FABRIC,
    ),
    "driver version is insufficient": (
        "software.driver",
        "the driver is too old for this CUDA",
        "install a newer driver, or PyTorch and NCCL built for an older CUDA",
    ),
    "uncorrectable ecc": ("gpu.health", "its GPU memory has an uncorrectable error (ECC)", DRAIN),
    "invalid device ordinal": (
        "gpu.inventory",
        "it asks for a GPU that it does not see: more ranks than GPUs, or one GPU a task",
        "see launch.gpus_per_node and CUDA_VISIBLE_DEVICES; under Slurm --gpu-bind=none with "
        "--gpus-per-node",
    ),
    "no cuda-capable device": (
        "gpu.inventory",
        "it sees no GPU at all",
        "nvidia-smi -L in the job's environment (container, cgroup, CUDA_VISIBLE_DEVICES)",
    ),
    "all cuda-capable devices are busy": (
        "gpu.processes",
        "its GPU is held by another process",
        "nvidia-smi --query-compute-apps=pid,name --format=csv; end what is left over",
    ),
    "operation cannot be performed in the present state": (
        "gpu.fabric",
        "NVLink SHARP memory cannot be bound (CUDA error 401): NVSwitch or Fabric Manager is in a "
        "bad state",
        f"{FABRIC}; NCCL_NVLS_ENABLE=0 to go on without it",
    ),
    "unspecified launch failure": (
        "job.rank_crashed",
        "a kernel of the program failed",
        "run with CUDA_LAUNCH_BLOCKING=1; see the kernel's log for an Xid",
    ),
    "illegal memory access": (
        "job.rank_crashed",
        "a kernel of the program used memory that is not its own",
        "run with CUDA_LAUNCH_BLOCKING=1; see the kernel's log for an Xid",
    ),
    "device-side assert": (
        "job.rank_crashed",
        "an assertion in a kernel of the program failed",
        "run with CUDA_LAUNCH_BLOCKING=1",
    ),
}
"""What errors of CUDA say of the machine, by words of theirs; of others nothing."""
SEEN_IN = (
    r"(?:Cuda failure(?: \d{1,4})? |Test CUDA failure \S{1,40} |CUDA error: |CUDA error "
    r"|Error 802: )"
)
RULES = (
    Rule(
        r"NVRM: Xid \(PCI:(?P<pci>[0-9a-fA-F:.]{1,20})\): (?P<xid>\d{1,3}),",
        Kind.CAUSE,
        cause="{cause}",
        says="Xid {xid} of the GPU {pci} on {node}: {means}",
        confidence=0.9,
        fix="{mend}",
        confirm="nvidia-smi -q on {node}",
        checks=("gpu.health", "host.kernel_log"),
        refine=of_xid,
        source="Linux kernel log; NVIDIA's table of Xid errors",
    ),
    Rule(
        r"NVRM: (?:GPU [0-9a-fA-F:.]{1,20}: )?(?:GPU has )?fallen off the bus"
        r"|Unable to determine the device handle for GPU ?\S{1,20}: (?:Unknown Error|GPU is lost)"
        r"|GPU is lost\.",
        Kind.CAUSE,
        cause="gpu.health",
        says="a GPU of {node} is gone from the bus",
        confidence=0.9,
        fix="power-cycle the node, reseat the GPU; if it comes again, have it replaced",
        confirm="nvidia-smi -L on {node}, and dmesg",
        checks=("gpu.inventory", "gpu.pcie"),
        source="Linux kernel log; NVML",
    ),
    Rule(
        r"SXid \(PCI:(?P<pci>[0-9a-fA-F:.]{1,20})\): (?P<sxid>\d{1,6}), Fatal, (?P<what>.{1,60})",
        Kind.CAUSE,
        cause="gpu.fabric",
        says="a fault of the NVSwitch {pci} on {node} (SXid {sxid}: {what})",
        confidence=0.85,
        fix="restart nvidia-fabricmanager with no GPU in use, or reboot the node",
        confirm="journalctl -u nvidia-fabricmanager on {node}",
        checks=("gpu.nvlink",),
        source="Linux kernel log",
    ),
    Rule(
        SEEN_IN + r"'?(?P<error>[A-Za-z][A-Za-z -]{4,120})",
        Kind.CAUSE,
        cause="{cause}",
        says="{who}: {means}",
        confidence=0.88,
        fix="{mend}",
        confirm="preflight run --only gpu,software",
        checks=("gpu.health",),
        refine=of_cuda,
        source="CUDA's error strings, as NCCL, nccl-tests and PyTorch print them",
    ),
    Rule(
        r"nvls\.cc:\d{1,5} NCCL WARN Cuda failure (?:1 )?'invalid argument'"
        r"|Failed to bind NVLink SHARP \(NVLS\) Multicast memory",
        Kind.CAUSE,
        cause="gpu.fabric",
        says="{who} cannot bind NVLink SHARP memory: Fabric Manager or the NVSwitches of {node} "
        "are in a bad state",
        confidence=0.92,
        fix=f"{FABRIC}; NCCL_NVLS_ENABLE=0 to go on without it",
        confirm="nvidia-smi -q | grep -A2 Fabric, systemctl status nvidia-fabricmanager on {node}",
        checks=("gpu.nvlink", "collective.local"),
        stage="transport setup",
        source="NCCL transport/nvls.cc since 2.17",
    ),
    Rule(
        r"Failed to bind NVLink SHARP \(NVLS\) Multicast memory",
        Kind.SYMPTOM,
        cause="gpu.nvlink",
        says="{who} cannot bind NVLink SHARP memory: an NVLink of {node} may be in a bad state, "
        "which tests of single GPUs do not show",
        confidence=0.5,
        fix=DRAIN,
        confirm="all_reduce_perf -g 8 on {node}, nvidia-smi nvlink -s",
        checks=("collective.local",),
        stage="transport setup",
        source="NCCL transport/nvls.cc since 2.17; NVIDIA/DCGM#304",
    ),
    Rule(
        r"fabric manager NVIDIA GPU driver interface version (?P<fabric>[\d.]{1,20}) don.t match "
        r"with driver version (?P<driver>[\d.]{1,20})",
        Kind.CAUSE,
        cause="gpu.fabric",
        says="Fabric Manager of {node} is of driver {fabric}, the driver is {driver}",
        confidence=0.95,
        fix="install nvidia-fabricmanager {driver} and start it",
        confirm="systemctl status nvidia-fabricmanager on {node}",
        checks=("software.driver",),
        source="Fabric Manager's log",
    ),
    Rule(
        r"MNNVL \(cliqueSize \d{1,5}\) is available but not working|MNNVL .{0,80}Check the IMEX",
        Kind.CAUSE,
        cause="gpu.fabric",
        says="{who} cannot use NVLink between nodes: the IMEX daemons or channels are not set up",
        confidence=0.9,
        fix="nvidia-imex-ctl -N; give the container /dev/nvidia-caps-imex-channels/channel0; "
        "NCCL_MNNVL_ENABLE=0 to go on without it",
        confirm="ls /dev/nvidia-caps-imex-channels on {node}",
        stage="transport setup",
        source="NCCL since 2.25",
    ),
    Rule(
        r"Failed to initialize NVML: Driver/library version mismatch",
        Kind.CAUSE,
        cause="software.driver",
        says="the loaded driver of {node} and its library are of different versions: one was "
        "upgraded",
        confidence=0.95,
        fix="reboot {node}, or reload the nvidia modules; hold the packages",
        confirm="cat /proc/driver/nvidia/version on {node}",
        source="NVML",
    ),
    Rule(
        r"P2P is disabled between NVLINK connected GPUs (?P<one>\d{1,3}) and (?P<other>\d{1,3})",
        Kind.SYMPTOM,
        cause="gpu.nvlink",
        says="{who}: NVLink between GPUs {one} and {other} of {node} does not work",
        confidence=0.8,
        fix=DRAIN,
        confirm="nvidia-smi nvlink -s on {node}",
        checks=("gpu.p2p",),
        stage="transport setup",
        source="NCCL graph/paths.cc since 2.12.7",
    ),
    Rule(
        r"p2p\.cc:\d{1,5} NCCL WARN Cuda failure (?:\d{1,4} )?'(?P<error>[^']{1,80})'|failed to "
        r"peer with device \d{1,3}",
        Kind.SYMPTOM,
        cause="gpu.p2p",
        says="{who} has no peer access to another GPU of its node",
        confidence=0.6,
        fix="let each task see all GPUs of the node (Slurm: --gpu-bind=none); NCCL_P2P_DISABLE=1 "
        "to go on",
        confirm="nvidia-smi topo -p2p r on {node}",
        checks=("gpu.inventory",),
        stage="transport setup",
        source="NCCL transport/p2p.cc",
    ),
    Rule(
        r"pcieport \S{1,20}: AER: (?:Uncorrect|Multiple Uncorrect)|PCIe Bus Error: "
        r"severity=Uncorrect",
        Kind.SYMPTOM,
        cause="gpu.pcie",
        says="the PCIe bus of {node} has uncorrectable errors",
        confidence=0.6,
        fix="reseat the card; see cable and riser",
        confirm="lspci -vv and dmesg on {node}",
        source="Linux drivers/pci/pcie/aer.c",
    ),
    Rule(
        r"nvidia-peermem nv_get_p2p_free_callback:\d{1,5} ERROR",
        Kind.CONSEQUENCE,
        says="{node} freed memory that RDMA still had: its process ended",
        source="nvidia-peermem",
    ),
)
