"""nccl-tests: how far its table came."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from preflight.triage import rule
from preflight.triage.family import Finding
from preflight.triage.rule import Kind, Rule
from preflight.triage.story import Seen, Story

DEVICE = Rule(
    r"# +Rank +(?P<rank>\d{1,7}) (?:Group +\d{1,7} )?Pid +(?P<pid>\d{1,9}) on +(?P<node>[\w.-]+) "
    r"device +\d{1,4}(?: \[(?P<on_gpu>[\w:.]{1,20})\])?",
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
FAILED = Rule(
    r"Test (?:NCCL|CUDA) failure \S{1,40}:\d{1,6} '(?P<failure>[^'/\r]{1,200}\w)",
    Kind.CONSEQUENCE,
    says="nccl-tests failed: {failure}",
    source="nccl-tests common.h; what NCCL warns of before it says more",
)
WRONG = rule.cause(
    r"# Out of bounds values : (?P<wrong>[1-9]\d{0,17}) FAILED",
    "gpu.health",
    "nccl-tests got {wrong} wrong values: what a GPU, NVLink or the network handed on was not what "
    "it was given",
    "run it on each node alone, then on pairs: whoever is in all that fail is the one; see Xid and "
    "ECC errors in its kernel log",
    "nccl-tests common.cu, util.cu",
    confidence=0.6,
    kind=Kind.SYMPTOM,
    checks=("gpu.nvlink", "rdma.gdr", "collective.pairs"),
    confirm="nvidia-smi -q -d ECC,ROW_REMAPPER on each node",
    stage="collective",
)
BY_ANOTHER = "remote process exited"
"""What is said where another rank was the first to fail."""
RULES = (DEVICE, HEAD, ROW, FAILED, WRONG)


def find(story: Story) -> Iterator[Finding]:
    """Yield that it failed, or that not even the first collective ended, and nobody says why."""
    if story.faults():
        return
    if failures := [seen for seen in story.of_rule(FAILED) if BY_ANOTHER not in seen.text]:
        yield failed(failures)
    elif not story.faults(Kind.CONSEQUENCE):
        yield from stuck(story)


def failed(lines: Sequence[Seen]) -> Finding:
    """Return that NCCL or CUDA failed, and only nccl-tests says so."""
    return Finding(
        cause="collective.all_reduce",
        kind=Kind.SYMPTOM,
        says=f"nccl-tests failed: {lines[0].told['failure']}; what failed is not in these logs",
        confidence=0.35,
        fix="run it again with NCCL_DEBUG=WARN, and give the log: it says what failed",
        evidence=tuple(lines),
        checks=("collective.pairs", "gpu.health"),
    )


def stuck(story: Story) -> Iterator[Finding]:
    """Yield that not even the first collective ended."""
    heads = story.of_rule(HEAD)
    if not heads or story.of_rule(ROW):
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
