"""The GPUs of a node do an all_reduce among themselves, it is right, and as fast as on other nodes.

Why: it goes through NVLink, PCIe, shared memory and the driver, and not through the network: a GPU
    or a link that is broken or slow there slows the whole cluster, and is seen best without it.
Facts: local, devices, gpus and heard of those of collective.all_reduce.
Source: as of collective.all_reduce, by NCCL over all GPUs of a node that the job would use, on all
    nodes at the same time. What NVLink or PCIe should carry is derived as it is there. Less than
    90 % of the median of other nodes with as many GPUs is a warning, as nccl-tests fails below that
    part of what it is told to expect.
Fix: see `nvidia-smi topo -m`, `nvidia-smi nvlink --status` and `dmesg` there.
"""

from __future__ import annotations

from preflight.api import FAIL, Check, Point, Verdict, Want, fail, ok, skip, unknown
from preflight.node.busbw import fastest, points, remarks, slow_alone
from preflight.node.nccl_cause import found, joined
from preflight.node.ranks import Facts, by_tests, idle, in_words, is_good, own
from preflight.node.trials import all_together, surroundings


def compare(facts: Facts, want: Want) -> dict[str, Verdict]:
    return {node: judged(node, facts) for node in facts}


def judged(node: str, facts: Facts) -> Verdict:
    """Return the verdict of a node."""
    fact, run = facts[node], facts[node]["local"]
    if run is None:
        return without(node, facts)
    count = len(fact["devices"])
    if not is_good(run):
        what = "does not end" if run["at"] else "is wrong"
        where = f" (GPU {run['rank']})" if own(run) and not by_tests(fact["engine"]) else ""
        bad = fail(f"an all_reduce of its {count} GPUs {what}: {in_words(run)}{where}")
        return joined(bad, found({node: fact}, ended=False), node, facts)
    carrier = f"NCCL {fact['nccl']}"
    what = f"all_reduce of {count} GPUs ({by_tests(fact['engine']) or carrier})"
    slow = slow_alone(what, node, run, facts)
    if slow:
        return joined(slow, found({node: fact}, ended=True), node, facts)
    best = fastest(points([run])).busbw
    details = remarks({node: fact}, [run])
    return ok(f"{what}: busbw {best:.3g} GB/s, all sums right", details=details)


def without(node: str, facts: Facts) -> Verdict:
    """Return the verdict of a node whose GPUs did none."""
    fact = facts[node]
    if not fact["gpus"] and not fact["problem"]:
        return skip("no GPU")
    silent = idle(node, facts)
    if silent:
        # That its rank cannot start is told once, by collective.all_reduce.
        return unknown(silent.summary) if silent.status == FAIL else silent
    if "cpu" in fact["devices"]:
        return skip("torch sees no GPU: see software.pytorch")
    return skip("one GPU alone meets no other")


def curves(facts: Facts) -> dict[str, list[Point]]:
    runs = {node: fact["local"] for node, fact in facts.items()}
    return {node: points([run]) for node, run in runs.items() if run and is_good(run)}


CHECK = Check(
    exercise=all_together,
    args=surroundings,
    facts_of="collective.all_reduce",
    compare=compare,
    level="standard",
    explains=("collective.all_reduce", "collective.pairs"),
    curves=curves,
)
