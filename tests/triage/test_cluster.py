"""Which nodes of an inventory are asked for what logs blame."""

from __future__ import annotations

from pathlib import Path

from preflight import inventory
from preflight.triage import cluster
from tests.triage.test_cases import CHECKS, answer

TIMED_OUT = (
    "{node}:4000:5000 [0] misc/socket.cc:456 NCCL WARN socketStartConnect: Connect to "
    "10.0.0.9<34567> failed : Connection timed out\n"
)
RANK = "{node}:4000:5000 [0] NCCL INFO comm 0x7f rank {rank} nranks 8 cudaDev 0 - Init COMPLETE\n"


def asked(tmp_path: Path, lines: str, launch: str = "") -> cluster.Target:
    (tmp_path / "job.log").write_text(lines)
    (tmp_path / "inventory.yaml").write_text(f"nodes: [gpu01, gpu02, gpu03]\n{launch}")
    nodes = inventory.load(tmp_path / "inventory.yaml")
    return cluster.target(answer([str(tmp_path / "job.log")]), nodes, CHECKS)


def test_a_blamed_node_that_the_inventory_lacks_is_named(tmp_path: Path) -> None:
    lines = "".join(TIMED_OUT.format(node=name) for name in ("gpu01", "old07", "old08"))
    target = asked(tmp_path, lines)
    assert target.suspects == ["gpu01"]
    assert target.mapped == [
        f"old[07-08]: blamed by these logs and not asked, as {tmp_path / 'inventory.yaml'} has no "
        "such node, or several of that name"
    ]


def test_a_node_with_another_name_is_found_by_its_rank(tmp_path: Path) -> None:
    lines = "".join(
        RANK.format(node=name, rank=rank) + TIMED_OUT.format(node=name)
        for name, rank in (("gpu01", 0), ("pod-b", 4))
    )
    target = asked(tmp_path, lines, "launch: {gpus_per_node: 4}\n")
    assert target.suspects == ["gpu01", "gpu02"]
    assert target.mapped == [
        "rank 4 is taken to be on gpu02, by 4 GPUs a node: logs call its node 'pod-b', which "
        f"{tmp_path / 'inventory.yaml'} has not"
    ]
