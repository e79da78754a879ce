"""Faults of hosts, put in for real."""

from __future__ import annotations

from typing import Any

from tests.cluster.blame import causes, results, summary
from tests.cluster.testbed import Testbed


def test_a_skewed_clock(bed: Testbed) -> None:
    bed.skew("tb3", 90)
    done, report = bed.report("run", str(bed.inventory()))
    assert causes(report) == [("node", "host.clock", ["tb3"])]
    assert summary(report, "host.clock", "tb3").startswith("the clock is +90.0 s off")
    assert done.returncode == 1
    assert results(report, "warn", "unknown") == []


def test_a_container_sized_shm(bed: Testbed) -> None:
    bed.shm("tb2", "64m")
    done, report = bed.report("run", str(bed.inventory()))
    assert causes(report) == [("node", "host.shm", ["tb2"])]
    assert done.returncode == 1


def test_fewer_descriptors_and_less_memlock_on_one_node(bed: Testbed) -> None:
    bed.limits("tb4", memlock=65536, nofile=1024)
    done, report = bed.report("run", str(bed.inventory()))
    assert [row[:2] for row in results(report, "fail", "warn", "unknown")] == [
        ("host.limits", "tb4")
    ]
    assert done.returncode == 0
    _, report = bed.report("run", str(bed.inventory(expect={"nofile": 4096})))
    assert causes(report) == [("node", "host.limits", ["tb4"])]


def test_a_small_skew_is_a_warning(bed: Testbed) -> None:
    bed.skew("tb3", -4)
    done, report = bed.report("run", str(bed.inventory()), "--only", "host")
    assert done.returncode == 0
    ((check, node, words),) = results(report, "fail", "warn", "unknown")
    assert (check, node) == ("host.clock", "tb3")
    assert words == "the clock is -4.0 s off the others'"


def test_little_memlock_matters_where_rdma_is_used(bed: Testbed) -> None:
    for node in bed.names:
        bed.infiniband(node)
        bed.limits(node, memlock=8 << 20)
    launch: dict[str, Any] = {"gpus_per_node": 8}
    done, report = bed.report("run", str(bed.inventory(launch=launch)), "--only", "host")
    assert done.returncode == 1
    assert causes(report) == [("node", "host.limits", list(bed.names))]
    words = "memlock is 8 MiB, RDMA (mlx5_0:1) needs 1 GiB or more"
    assert report["causes"][0]["summary"] == words
    launch["env"] = {"NCCL_NET": "Socket"}
    done, report = bed.report("run", str(bed.inventory(launch=launch)), "--only", "host")
    assert (done.returncode, results(report, "fail", "unknown")) == (0, [])


def test_few_processes_for_a_user_and_none_for_root(bed: Testbed) -> None:
    bed.limits("tb2", nproc="512:")
    _, report = bed.report("run", str(bed.inventory()), "--only", "host")
    words = "soft nproc is 512, ranks and loaders need 4096 or more"
    assert results(report, "fail", "warn", "unknown") == [("host.limits", "tb2", words)]
    as_root = bed.inventory(ssh={"user": "root"})
    _, report = bed.report("run", str(as_root), "--only", "host")
    assert results(report, "fail", "warn", "unknown") == []


def test_a_shm_that_users_may_not_write(bed: Testbed) -> None:
    bed.run("tb2", "chmod", "755", "/dev/shm")
    try:
        done, report = bed.report("run", str(bed.inventory()), "--only", "host")
    finally:
        bed.run("tb2", "chmod", "1777", "/dev/shm")
    assert done.returncode == 1
    assert causes(report) == [("node", "host.shm", ["tb2"])]
    assert report["causes"][0]["summary"] == "/dev/shm has mode 755, expected 1777"


def test_a_shm_that_crashed_jobs_filled(bed: Testbed) -> None:
    bed.shm("tb2", "128m")
    bed.run("tb2", "fallocate", "-l", "120m", "/dev/shm/nccl-AbCdEf")
    try:
        done, report = bed.report("run", str(bed.inventory()), "--only", "host")
    finally:
        bed.run("tb2", "rm", "/dev/shm/nccl-AbCdEf")
    assert done.returncode == 1
    assert causes(report) == [("node", "host.shm", ["tb2"])]
    words = "/dev/shm is full: 8 MiB of 128 MiB free; 1 nccl-* files hold 120 MiB, the oldest for"
    assert report["causes"][0]["summary"] == f"{words} 0 h"
