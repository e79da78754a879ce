"""Launch plans that do not add up, put into real nodes."""

from __future__ import annotations

from typing import Any

from tests.cluster.blame import causes, results, summary
from tests.cluster.testbed import Testbed

CHECK = "launch.plan"


def run(bed: Testbed, **overrides: Any) -> dict[str, Any]:
    """Return the report of a run of the checks of the launch environment."""
    _, report = bed.report("run", str(bed.inventory(**overrides)), "--only", "launch")
    return report


def shell(bed: Testbed, node: str, lines: str) -> None:
    """Have the login user's shell of a node set variables."""
    bed.login_shell(node, "alice", "/bin/bash")
    bed.change_file(node, "/home/alice/.bashrc", lines)


def test_a_master_address_that_is_not_the_master(bed: Testbed) -> None:
    report = run(bed, launch={"env": {"MASTER_ADDR": "localhost"}})
    assert causes(report) == [("cluster", CHECK, ["tb2", "tb3", "tb4"])]
    said = summary(report, CHECK, "tb2")
    assert said == "MASTER_ADDR=localhost is this node itself, not the master tb1"
    report = run(bed, launch={"env": {"MASTER_ADDR": "10.78.0.2"}})
    assert causes(report) == [("cluster", CHECK, list(bed.names))]
    said = summary(report, CHECK, "tb4")
    assert said == "MASTER_ADDR=10.78.0.2 is tb2, but the master is tb1"


def test_a_master_address_of_no_node(bed: Testbed) -> None:
    shell(bed, "tb3", "export MASTER_ADDR=192.168.0.1\n")
    for node in ("tb1", "tb2", "tb4"):
        shell(bed, node, "export MASTER_ADDR=tb1\n")
    report = run(bed)
    assert causes(report) == [("node", CHECK, ["tb3"])]
    said = summary(report, CHECK, "tb3")
    assert said == "MASTER_ADDR=192.168.0.1 is no address of the master tb1 (10.78.0.1)"


def test_a_plan_that_adds_up(bed: Testbed) -> None:
    for number, node in enumerate(bed.names):
        shell(bed, node, f"export NODE_RANK={number} WORLD_SIZE=4\n")
    report = run(bed, launch={"env": {"MASTER_ADDR": "tb1", "MASTER_PORT": 29500}})
    assert causes(report) == []
    assert summary(report, CHECK, "tb2") == "4 nodes, rank 0 on tb1"


def test_a_rank_in_the_shell_of_one_node(bed: Testbed) -> None:
    shell(bed, "tb2", "export RANK=3\n")
    report = run(bed)
    assert causes(report) == [("node", CHECK, ["tb2"])]
    assert summary(report, CHECK, "tb2") == "RANK=3 (the shell), not set on tb1, tb3, tb4"
    assert results(report, "warn", "unknown") == []


def test_fewer_gpus_than_ranks(bed: Testbed) -> None:
    for node in bed.names:
        bed.nvml(node)
    shell(bed, "tb2", "export CUDA_VISIBLE_DEVICES=0,1\n")
    inventory = bed.inventory(launch={"gpus_per_node": 8})
    _, report = bed.report("run", str(inventory), "--only", "gpu.inventory,launch.plan")
    assert causes(report) == [("node", CHECK, ["tb2"])]
    said = "CUDA_VISIBLE_DEVICES=0,1 (the shell) leaves 2 of 8 GPUs, the plan has 8 ranks a node"
    assert summary(report, CHECK, "tb2") == said


def test_a_node_that_has_lost_gpus_is_one_cause(bed: Testbed) -> None:
    inventory = bed.inventory(launch={"gpus_per_node": 8})
    for node in bed.names[1:]:
        bed.nvml(node)
    _, report = bed.report("run", str(inventory), "--only", "gpu.inventory,launch.plan")
    assert causes(report) == [("node", "gpu.inventory", ["tb1"])]
    assert report["causes"][0]["explains"] == [{"check": CHECK, "node": "tb1"}]


def test_a_report_gives_the_commands_their_address(bed: Testbed) -> None:
    inventory = str(bed.inventory(launch={"master": "tb2"}))
    path = str(bed.tmp_path / "launch.json")
    done = bed.preflight(
        "run", inventory, "--only", "network.port,network.interface", "--json", path
    )
    assert done.returncode == 0, done.stdout
    done = bed.preflight("launch", inventory, "--from-report", path, "--", "train.py")
    assert done.stdout.splitlines()[:2] == [
        "# tb2",
        "env NCCL_SOCKET_IFNAME==eth0 GLOO_SOCKET_IFNAME=eth0 torchrun --nnodes=4"
        " --nproc_per_node=1 --node_rank=0 --master_addr=10.78.0.2 --master_port=29500 train.py",
    ]
