"""Slow paths between nodes: each is named, with whom it is about, and no other node blamed."""

from __future__ import annotations

from typing import Any

from tests.cluster.blame import causes, results, summary
from tests.cluster.hardware import gpu_values
from tests.cluster.testbed import Testbed

CHECK = "network.bandwidth"


def run(bed: Testbed, **overrides: Any) -> dict[str, Any]:
    """Return the report of a run of the check."""
    inventory = bed.inventory(**overrides)
    _, report = bed.report("run", str(inventory), "--level", "deep", "--only", CHECK)
    assert report["facts"][CHECK]
    return report


def test_a_sound_network(bed: Testbed) -> None:
    report = run(bed)
    assert causes(report) == []
    assert results(report, "fail", "warn", "unknown", "skip") == []
    assert " with tb2, tb3, tb4" in summary(report, CHECK, "tb1")


def test_a_node_with_a_slow_link(bed: Testbed) -> None:
    bed.rate_limit("tb2", 200)
    bed.rate_limit("tb2", 200, "in")
    report = run(bed)
    assert causes(report) == [("node", CHECK, ["tb2"])]
    said = summary(report, CHECK, "tb2")
    assert said.startswith("TCP between it and the other nodes at 0.")
    assert said.endswith(" Gb/s is usual")
    words = "; TCP with tb2 is slow, which is told there"
    assert words in summary(report, CHECK, "tb1")


def test_one_direction(bed: Testbed) -> None:
    bed.rate_limit("tb3", 200)
    report = run(bed)
    assert causes(report) == [("node", CHECK, ["tb3"])]
    assert summary(report, CHECK, "tb3").startswith("TCP from it to the other nodes at 0.")


def test_the_other_direction(bed: Testbed) -> None:
    bed.rate_limit("tb3", 200, "in")
    report = run(bed)
    assert causes(report) == [("node", CHECK, ["tb3"])]
    assert summary(report, CHECK, "tb3").startswith("TCP from the other nodes to it at 0.")


def test_one_way_of_one_pair(bed: Testbed) -> None:
    bed.rate_limit("tb1", 200, to="tb4")
    report = run(bed)
    assert causes(report) == [("pair", CHECK, ["tb1", "tb4"])]
    assert summary(report, CHECK, "tb1").startswith("TCP from it to tb4 at 0.")


def test_two_nodes_blame_none_alone(bed: Testbed) -> None:
    bed.rate_limit("tb1", 200)
    report = run(bed, nodes=[bed.spec("tb1"), bed.spec("tb2")])
    assert causes(report) == [("pair", CHECK, ["tb1", "tb2"])]


def test_what_was_promised(bed: Testbed) -> None:
    for node in bed.names:
        bed.rate_limit(node, 200)
    report = run(bed, expect={"tcp_gbps": 1})
    assert causes(report) == [("cluster", CHECK, list(bed.names))]
    said = summary(report, CHECK, "tb1")
    assert said.startswith("TCP between the nodes at 0.")
    assert said.endswith(" Gb/s, 1 Gb/s is expected")


def test_nothing_is_sent_beside_a_running_job(bed: Testbed) -> None:
    job = bed.hold_port("tb2", 4444, user="root")
    bed.nvml("tb2", gpu_values(2) | {"gpu1.process": job})
    report = run(bed)
    assert causes(report) == []
    assert results(report, "skip") == [
        (CHECK, "tb2", f"busy: pid {job} (python3) of root uses GPU 1")
    ]
    assert "tb2" not in summary(report, CHECK, "tb1")
