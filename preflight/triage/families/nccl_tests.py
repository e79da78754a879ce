"""nccl-tests: how far its table came."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.triage.family import Finding
from preflight.triage.rule import Kind, Rule
from preflight.triage.story import Story

DEVICE = Rule(
    r"# +Rank +(?P<rank>\d{1,7}) (?:Group +\d{1,7} )?Pid +(?P<pid>\d{1,9}) on +(?P<node>[\w.-]+) "
    r"device +\d{1,4}(?: \[(?P<device>[\w:.]{1,20})\])?",
    Kind.FACT,
    source="nccl-tests common.cu, 2.9 to 2.19",
)
HEAD = Rule(r"# +\(B\) +\(elements\) ", Kind.FACT, source="nccl-tests: the table's head")
ROW = Rule(
    r" (?:float|half|double|bfloat16|u?int(?:8|32|64)|f8e\dm\d) +(?:sum|prod|min|max|avg|none) ",
    Kind.FACT,
    stage="collective",
    source="nccl-tests: a line of the table, once its size is measured",
)
RULES = (DEVICE, HEAD, ROW)


def find(story: Story) -> Iterator[Finding]:
    """Yield that not even the first collective ended, and nobody says why."""
    heads = story.of_rule(HEAD)
    told = story.faults(Kind.CONSEQUENCE, Kind.SYMPTOM, Kind.CAUSE)
    if not heads or told or story.of_rule(ROW):
        return
    devices = story.of_rule(DEVICE)
    nodes = {seen.who.node for seen in devices}
    if len(nodes) == 1 and len(devices) > 1:
        yield Finding(
            cause="gpu.p2p",
            kind=Kind.SYMPTOM,
            says=f"the first collective of nccl-tests did not end, between the {len(devices)} GPUs "
            f"of {nodes.pop()}: copies from GPU to GPU hang",
            confidence=0.55,
            fix="switch ACS off on the PCIe bridges above the GPUs, or boot with iommu=pt; replace "
            "a driver of branch 560; NCCL_P2P_DISABLE=1 to go on without",
            evidence=tuple(heads),
            confirm="run it again with NCCL_P2P_DISABLE=1: if it ends then, that was it",
            checks=("gpu.nvlink", "collective.local"),
        )
    else:
        yield Finding(
            cause="collective.all_reduce",
            kind=Kind.SYMPTOM,
            says="the first collective of nccl-tests did not end",
            confidence=0.4,
            fix="run it again with NCCL_DEBUG=INFO, and give the log: it says how far each rank is",
            evidence=tuple(heads),
            checks=("collective.pairs", "network.firewall", "network.path_mtu", "rdma.port"),
        )
