"""Nccl-tests by real mpirun and srun, over nodes whose GPUs and all_reduce_perf are stand-ins."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.blame import causes, results, summary
from tests.cluster.hardware import gpu_values
from tests.cluster.machine import wait_until
from tests.cluster.nccl_tests import PROGRAM
from tests.cluster.slurm import allocation
from tests.cluster.test_collective import TORCH
from tests.cluster.testbed import Testbed

CHECK, LOCAL = "collective.all_reduce", "collective.local"
WELL = "all_reduce of 1 GiB over 4 nodes (nccl-tests 2.19.6, NCCL 2.27.6, 8 GPUs): busbw 50 GB/s"
LOADER = "error while loading shared libraries: libmpi.so.40: cannot open shared object file"


@pytest.fixture
def equipped(bed: Testbed) -> Testbed:
    """Nodes with two GPUs each, and an all_reduce_perf that meets by Open MPI; tb1 gets to all."""
    for node in bed.names:
        bed.nccl_tests(node)
    bed.ssh_from("tb1")
    return bed


def run(
    bed: Testbed, engine: str = "nccl-tests", only: str = CHECK, **overrides: Any
) -> dict[str, Any]:
    """Return the report of a run, by which no node has anything more than before."""
    launch = {"all_reduce": {"engine": engine}, **overrides.pop("launch", {})}
    ssh = {"user": overrides.pop("user", "root")}
    before = {node: bed.files(node) for node in bed.names}
    under = {key: overrides.pop(key) for key in ("env", "under") if key in overrides}
    inventory = bed.inventory(ssh=ssh, launch=launch, **overrides)
    _, report = bed.report("run", str(inventory), "--only", only, **under)
    assert not [line for node in bed.names for line in bed.survivors(node) if "slurm" not in line]
    if not under:
        assert {node: bed.files(node) for node in bed.names} == before
    return report


def fact(report: dict[str, Any], node: str = "tb1") -> dict[str, Any]:
    found: dict[str, Any] = report["facts"][CHECK][node]["value"]
    return found


def details(report: dict[str, Any], node: str = "tb1") -> list[str]:
    rows = [one for one in report["results"] if (one["check"], one["node"]) == (CHECK, node)]
    found: list[str] = rows[0]["details"]
    return found


def unknowns(report: dict[str, Any]) -> set[str]:
    """Return what all nodes say that cannot tell, which is the same."""
    found = {words for check, _, words in results(report, "unknown") if check == CHECK}
    assert len(results(report, "unknown")) == len(report["nodes"])
    return found


def test_all_is_well(equipped: Testbed) -> None:
    equipped.ssh_from("tb1", "alice")
    secret = {"SITE_PHRASE": "open sesame", "HF_TOKEN": "hf_sesame"}
    report = run(equipped, "auto", "collective", user="alice", launch={"env": secret})
    assert causes(report) == []
    assert results(report, "warn", "unknown", "fail") == []
    assert summary(report, CHECK, "tb1") == f"{WELL}, all sums right"
    assert summary(report, LOCAL, "tb2").startswith(
        "all_reduce of 2 GPUs (nccl-tests 2.19.6, NCCL 2.27.6): busbw 49.9 GB/s, all sums right"
    )
    hosts = ",".join(f"{node}:2" for node in equipped.names)
    command = next(line for line in details(report) if line.startswith("by hand: "))
    assert command.startswith(f"by hand: mpirun --host {hosts} -np 8 --bind-to none ")
    assert command.endswith(f" {PROGRAM} -b 32K -e 1G -f 32 -n 10 -w 0 -c 1 -g 1")
    assert "sesame" not in str(report["facts"][CHECK])
    times = [fact(report, node)["run"]["sizes"][3]["ranks"] for node in equipped.names]
    assert [len(ranks) for ranks in times] == [2] * 4
    assert times[0][0] > times[0][1] > times[1][0]  # as the stand-in says


@pytest.mark.parametrize("version", ["2.9.0", "2.14.0"])
def test_old_versions(equipped: Testbed, version: str) -> None:
    for node in equipped.names:
        equipped.play(node, version=version)
    report = run(equipped)
    assert causes(report) == []
    assert "(nccl-tests before 2.17.4, 8 GPUs): busbw 50 GB/s" in summary(report, CHECK, "tb1")


def test_without_mpi_torch_does_it(equipped: Testbed) -> None:
    equipped.nccl_tests("tb2", by="")
    report = run(equipped, "auto", launch={"python": str(TORCH)})
    assert summary(report, CHECK, "tb1").startswith("all_reduce of ")
    assert ", Gloo): busbw " in summary(report, CHECK, "tb1")
    assert details(report)[-1] == (
        f"not by nccl-tests: {PROGRAM} was built without MPI on tb2: build it with MPI=1"
    )


def test_each_process_is_alone(equipped: Testbed) -> None:
    for node in equipped.names:
        equipped.nccl_tests(node, by="PMI2")
    assert unknowns(run(equipped)) == {
        "nccl-tests: mpirun on tb1: each of 8 processes is alone: "
        "the program was built without MPI, or with another one than this"
    }


def test_a_library_that_is_missing(equipped: Testbed) -> None:
    folder = f"/usr/lib/{multiarch(equipped)}"
    equipped.change_file("tb2", f"{folder}/libmpi.so.40", None)
    assert unknowns(run(equipped)) == {
        f"nccl-tests: {PROGRAM} does not start: {LOADER}: No such file or directory on tb2"
    }


def multiarch(bed: Testbed) -> str:
    return bed.run("tb1", "gcc", "-print-multiarch").strip()


def test_not_on_one_node(equipped: Testbed) -> None:
    equipped.change_file("tb4", PROGRAM, None)
    assert unknowns(run(equipped)) == {"nccl-tests: no all_reduce_perf on PATH on tb4"}


def test_ssh_that_would_ask(equipped: Testbed) -> None:
    equipped.change_file("tb1", "/root/.ssh/known_hosts", "")
    words = "nccl-tests: mpirun on tb1: Host key verification failed."
    assert unknowns(run(equipped)) == {words}


def test_no_mpirun(equipped: Testbed) -> None:
    equipped.change_file("tb1", "/usr/bin/orterun", None)
    assert unknowns(run(equipped)) == {"nccl-tests: no mpirun on tb1"}


def test_connections_that_are_dropped(equipped: Testbed) -> None:
    equipped.drop("tb1", "1024-65535")
    words = "nccl-tests: mpirun on tb1: mpirun does not come to an end in 20 s"
    assert unknowns(run(equipped)) == {words}


def test_output_that_is_cut_off(equipped: Testbed) -> None:
    script = f'#!/bin/sh\n# MPI_Init\n{PROGRAM} "$@" | sed "/1048576/,\\$d"\n'
    for node in equipped.names:
        equipped.change_file(node, "/opt/site/all_reduce_perf", script, 0o755)
    launch = {"env": {"PATH": "/opt/site:/usr/bin:/bin"}}
    assert unknowns(run(equipped, launch=launch)) == {"nccl-tests: its output ends too soon"}


def test_numbers_that_are_none(equipped: Testbed) -> None:
    for node in equipped.names:
        equipped.play(node, nan=1)
    words = "nccl-tests: a time or bandwidth that is no number, of 1073741824 bytes"
    assert unknowns(run(equipped)) == {words}


def test_wrong_values(equipped: Testbed) -> None:
    for node in equipped.names:
        equipped.play(node, wrong=5)
    report = run(equipped)
    assert causes(report) == [("cluster", CHECK, list(equipped.names))]
    assert summary(report, CHECK, "tb1") == "an all_reduce of 4 nodes is wrong: 5 wrong values"


def test_a_node_whose_nccl_fails(equipped: Testbed) -> None:
    equipped.play("tb3", fail="unhandled system error / Call to ibv_reg_mr failed")
    report = run(equipped)
    assert causes(report) == [("node", CHECK, ["tb3"])]
    assert summary(report, CHECK, "tb3") == (
        "an all_reduce of 4 nodes does not end: "
        "in the all_reduce: unhandled system error: Call to ibv_reg_mr failed"
    )


def test_a_rank_that_is_killed(equipped: Testbed) -> None:
    equipped.play("tb3", die=1)
    report = run(equipped, only="collective")
    assert {(kind, tuple(nodes)) for kind, _, nodes in causes(report)} == {("node", ("tb3",))}
    words = "its rank was ended by SIGKILL, as the kernel does when memory runs out"
    assert summary(report, CHECK, "tb3") == f"an all_reduce of 4 nodes does not end: {words}"
    assert summary(report, LOCAL, "tb3") == f"an all_reduce of its 2 GPUs does not end: {words}"


def test_a_hang(equipped: Testbed) -> None:
    equipped.play("tb3", hang="row")
    report = run(equipped)
    assert causes(report) == [("cluster", CHECK, list(equipped.names))]
    assert summary(report, CHECK, "tb1") == (
        "an all_reduce of 4 nodes does not end: in the all_reduce: no end, cut off"
    )
    assert Path(PROGRAM).name not in str([equipped.survivors(node) for node in equipped.names])


def at_once(bed: Testbed) -> list[int]:
    """Return the pids of the mpirun that has ranks on all nodes, once they are there."""
    if not all(f"{PROGRAM} -b" in str(bed.survivors(node)) for node in bed.names):
        return []
    there = bed.machines["tb1"].processes()
    return [pid for pid, line in there.items() if "mpirun -x" in line and PROGRAM in line]


def test_an_mpirun_that_has_to_be_killed_leaves_no_files(equipped: Testbed) -> None:
    equipped.play("tb3", hang="row")
    with ThreadPoolExecutor() as pool:
        going = pool.submit(run, equipped)
        wait_until(lambda: at_once(equipped), "ranks of mpirun", 60)
        equipped.machines["tb1"].run("kill", "-STOP", *map(str, at_once(equipped)))
        report = going.result()
    assert CHECK not in [check for check, _, _ in results(report, "pass")]


def test_nothing_is_left_when_it_is_interrupted(equipped: Testbed) -> None:
    equipped.play("tb3", hang="row")
    inventory = equipped.inventory(ssh={"user": "root"})
    before = {node: equipped.files(node) for node in equipped.names}
    with equipped.start("run", str(inventory), "--only", CHECK) as process:
        wait_until(lambda: at_once(equipped), "ranks of mpirun", 60)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    wait_until(lambda: not any(map(equipped.survivors, equipped.names)), "all has ended", 20)
    assert {node: equipped.files(node) for node in equipped.names} == before


# ---- why -------------------------------------------------------------------------------------


def heard(bed: Testbed, node: str, **more: str) -> dict[str, str]:
    """Return what NCCL says on a node whose one InfiniBand port carries the data."""
    place = f"eth0:{bed.machines[node].address}"
    told = {"bootstrap": place, "hcas": "[0]mlx5_0:1/IB", "network": "IB"}
    return {**told, "via": "NET/IB/0/GDRDMA", **more}


@pytest.fixture
def slow(equipped: Testbed) -> Testbed:
    """Nodes with an InfiniBand port each, and an all_reduce far below what they could carry."""
    for node in equipped.names:
        equipped.infiniband(node)
        equipped.play(node, gbps=40, **heard(equipped, node))
    return equipped


NCCL = "(nccl-tests 2.19.6, NCCL 2.27.6, 8 GPUs)"
MEASURED = f"all_reduce of 1 GiB over 4 nodes {NCCL}: busbw 5 GB/s, 30 GB/s are expected"
ASKED = {"all_reduce": {"min_busbw_gbs": 30}}
OWN = {"NCCL_DEBUG": "VERSION", "NCCL_DEBUG_SUBSYS": "ALL", "NCCL_DEBUG_FILE": "/tmp/nccl"}


def test_slow_as_one_node_uses_sockets(slow: Testbed) -> None:
    place = f"[0]eth0:{slow.machines['tb3'].address}<0>"
    more = heard(slow, "tb3", network="Socket", sockets=place, via="NET/Socket/0")
    slow.play("tb3", gbps=40, **more, warning="NET/IB : no port is usable")
    report = run(slow, launch={"env": OWN}, expect=ASKED)
    assert causes(report) == [("node", CHECK, ["tb3"])]
    words = "uses sockets (eth0), though mlx5_0 is active"
    assert summary(report, CHECK, "tb3") == f"{words}: {MEASURED}"
    assert summary(report, CHECK, "tb1").endswith("; data with tb3 is slow, told there")
    assert fact(report, "tb3")["heard"]["channels"] == {"NET/Socket": 2}
    assert "NCCL on tb3 warns: NET/IB : no port is usable" in details(report, "tb3")
    assert "NCCL_DEBUG=" not in fact(report)["engine"]["command"]


def test_slow_without_gpudirect_on_two_nodes(slow: Testbed) -> None:
    for node in ("tb2", "tb4"):
        slow.play(node, gbps=40, **heard(slow, node, via="NET/IB/0"))
    report = run(slow, expect=ASKED)
    words = "GPUDirect RDMA is missing"
    assert results(report, "fail") == [
        (CHECK, node, f"{words}: {MEASURED}") for node in ("tb2", "tb4")
    ]


def test_slow_and_nccl_says_nothing_of_it(slow: Testbed) -> None:
    report = run(slow, expect=ASKED)
    assert causes(report) == [("cluster", CHECK, list(slow.names))]
    assert summary(report, CHECK, "tb1") == MEASURED
    assert len([line for line in details(report) if line.startswith("NCCL on ")]) == 4


def test_a_hang_as_one_node_bootstraps_elsewhere(slow: Testbed) -> None:
    slow.play("tb4", hang="row", **heard(slow, "tb4", bootstrap="docker0:172.17.0.1"))
    report = run(slow)
    assert causes(report) == [("node", CHECK, ["tb4"])]
    address = slow.machines["tb4"].address
    assert summary(report, CHECK, "tb4") == (
        f"bootstraps by docker0 (172.17.0.1), the others reach it at {address}: "
        "an all_reduce of 4 nodes does not end: in the all_reduce: no end, cut off"
    )
    assert Path(PROGRAM).name not in str([slow.survivors(node) for node in slow.names])


def test_by_srun_in_a_job(configured: Testbed) -> None:
    job, nodes = configured.slurm(), ("tb1", "tb2", "tb3")
    for node in nodes:
        configured.nccl_tests(node, by="PMI2")
        configured.infiniband(node)
        configured.play(node, gbps=40, **heard(configured, node))
    configured.play("tb2", gbps=40, **heard(configured, "tb2", via="NET/IB/0"))
    report = run(
        configured,
        launch={"env": {"SLURM_MPI_TYPE": "pmi2"}},
        nodes=[configured.spec(node) for node in nodes],
        env=job,
        under=allocation("--nodelist=tb[1-3]"),
        expect=ASKED,
    )
    assert causes(report) == [("node", CHECK, ["tb2"])]
    assert summary(report, CHECK, "tb2") == (
        "GPUDirect RDMA is missing: all_reduce of 1 GiB over 3 nodes "
        "(nccl-tests 2.19.6, NCCL 2.27.6, 6 GPUs): busbw 5 GB/s, 30 GB/s are expected"
    )
    assert fact(report)["engine"]["command"].startswith("srun --jobid=1 --overlap ")


def test_slow_alone_past_its_nvlinks(equipped: Testbed) -> None:
    links: dict[str, Any] = {f"gpu{gpu}.nvlink{link}": 1 for gpu in range(2) for link in range(18)}
    for node in equipped.names:
        equipped.nvml(node, gpu_values(2, **links))
    equipped.play("tb2", gbps=100, via="SHM/direct/direct")
    report = run(equipped, only="collective")
    words = summary(report, LOCAL, "tb2")
    assert words.startswith(
        "its GPUs meet in shared memory, though NVLinks are up: all_reduce of 2"
    )
    assert words.endswith("measured 12.5")
    assert fact(report, "tb2")["heard"]["channels"] == {"SHM": 1}
    assert [fact(report, node)["heard"] for node in ("tb1", "tb3", "tb4")] == [None] * 3


def test_versions_that_differ(equipped: Testbed) -> None:
    for node in equipped.names:
        equipped.play(node, nccl="2.22.3")
    equipped.play("tb1", nccl="2.22.3", fail="internal error")
    equipped.play("tb2", nccl="2.21.5")
    report = run(equipped)
    what = "an all_reduce of 4 nodes does not end: in the all_reduce: internal error"
    assert summary(report, CHECK, "tb2") == f"NCCL 2.21.5, NCCL 2.22.3 on the others: {what}"
    assert summary(report, CHECK, "tb1") == what
