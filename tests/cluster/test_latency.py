"""Nodes that are far away, or whose packets are lost; nobody else is blamed."""

from __future__ import annotations

import re
from typing import Any

from tests.cluster.blame import causes, results, summary
from tests.cluster.testbed import Testbed

CHECK = "network.latency"


def run(bed: Testbed, code: int = 0, **overrides: Any) -> dict[str, Any]:
    """Return the report of a run of this check."""
    done, report = bed.report("run", str(bed.inventory(**overrides)), "--only", CHECK)
    assert done.returncode == code, done.stdout + done.stderr
    return report


def ms(text: str) -> float:
    """Return the first time in a summary, in milliseconds."""
    found = re.search(r"take ([\d.]+) (us|ms)", text)
    assert found
    return float(found[1]) / (1000 if found[2] == "us" else 1)


def warned(report: dict[str, Any]) -> dict[str, str]:
    """Return what was warned of, by node; of no other check."""
    found = results(report, "warn", "unknown")
    assert {check for check, _, _ in found} <= {CHECK}
    return {node: words for _, node, words in found}


def test_all_is_near(bed: Testbed) -> None:
    report = run(bed)
    assert warned(report) == {}
    said = summary(report, CHECK, "tb1")
    assert said.startswith("round trips with tb2, tb3, tb4 take ")
    assert said.endswith("nothing lost")
    assert ms(said) < 5


def test_a_node_of_another_site(bed: Testbed) -> None:
    bed.delay("tb3", 10)
    said = warned(run(bed))
    assert list(said) == ["tb3"]
    assert said["tb3"].startswith("round trips between it and the other nodes take ")
    assert said["tb3"].endswith("; as between sites: training is held back by it")
    assert 20 <= ms(said["tb3"]) < 40


def test_one_direction_of_a_node(bed: Testbed) -> None:
    bed.delay("tb2", 20, "out")
    said = warned(run(bed))
    assert list(said) == ["tb2"]
    assert 20 <= ms(said["tb2"]) < 40


def test_one_pair(bed: Testbed) -> None:
    bed.delay("tb2", 10, peer="tb4")
    report = run(bed)
    said = warned(report)
    assert list(said) == ["tb2"]
    assert said["tb2"].startswith("round trips between it and tb4 take ")
    assert 20 <= ms(said["tb2"]) < 40


def test_a_node_behind_something_slow(bed: Testbed) -> None:
    bed.delay("tb1", 1)
    said = warned(run(bed))
    assert list(said) == ["tb1"]
    assert said["tb1"].endswith("is more than a switch or a tunnel nearby adds")
    assert 2 <= ms(said["tb1"]) < 5


def test_two_nodes_of_two_sites(bed: Testbed) -> None:
    bed.delay("tb2", 10)
    said = warned(run(bed, nodes=[bed.spec("tb1"), bed.spec("tb2")]))
    assert list(said) == ["tb1"]
    assert said["tb1"].startswith("round trips between it and tb2 take ")
    assert 20 <= ms(said["tb1"]) < 40


def test_a_node_that_loses(bed: Testbed) -> None:
    bed.lose("tb3", 20)
    report = run(bed, 1)
    assert causes(report) == [("node", CHECK, ["tb3"])]
    said = summary(report, CHECK, "tb3")
    assert re.match(r"\d+ % of the packets from the other nodes to it are lost", said)
    assert warned(report) == {}


def test_a_pair_that_loses_one_way(bed: Testbed) -> None:
    bed.lose("tb3", 20, "tb1")
    report = run(bed, 1)
    assert causes(report) == [("pair", CHECK, ["tb1", "tb3"])]
    said = summary(report, CHECK, "tb1")
    assert re.match(r"\d+ % of the packets from it to tb3 are lost: ", said)


def test_a_pair_that_loses_both_ways(bed: Testbed) -> None:
    bed.lose("tb3", 20, "tb1")
    bed.lose("tb1", 20, "tb3")
    report = run(bed, 1)
    assert causes(report) == [("pair", CHECK, ["tb1", "tb3"])]
    said = summary(report, CHECK, "tb1")
    assert re.match(r"\d+ % of the packets between it and tb3 are lost: ", said)


def test_filtered_datagrams(bed: Testbed) -> None:
    bed.drop_udp("tb3")
    report = run(bed)
    assert warned(report) == {}
    said = summary(report, CHECK, "tb3")
    assert said.endswith("by TCP where UDP is filtered: losses are not told there")


def test_a_part_of_the_ports_is_filtered(bed: Testbed) -> None:
    for node in bed.names:
        bed.kernel_ports(node, 40000, 40015)
        bed.drop(node, "40000-40007")
    done, report = bed.report("run", str(bed.inventory()), "--only", CHECK)
    assert done.returncode in (0, 3), done.stdout  # by which ports the kernel picks
    assert results(report, "fail", "warn") == []


def test_far_away_and_filtered(bed: Testbed) -> None:
    bed.drop_udp("tb3")
    bed.delay("tb3", 10)
    said = warned(run(bed))
    assert list(said) == ["tb3"]
    assert said["tb3"].startswith("round trips between it and the other nodes take ")
    assert 20 <= ms(said["tb3"]) < 40
