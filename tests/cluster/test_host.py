"""Faults of hosts, put in for real."""

from __future__ import annotations

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
