"""Faults between pairs of nodes: whoever is to blame is named, and nobody else."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cluster.blame import causes, results, summary
from tests.cluster.network_faults import Refusal
from tests.cluster.testbed import Testbed

HIGH = "32768-60999"
DROPPED = "no answer in 4 s, as where a firewall drops it"
REACH = "on random high ports"


def run(bed: Testbed, *args: str, **overrides: Any) -> dict[str, Any]:
    """Return the report of a run that has found something wrong."""
    done, report = bed.report(
        "run", str(bed.inventory(**overrides)), "--only", "network.ephemeral", *args
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return report


def test_all_meet(bed: Testbed) -> None:
    done, report = bed.report("run", str(bed.inventory()), "--only", "network.ephemeral")
    assert done.returncode == 0, done.stdout
    said = summary(report, "network.ephemeral", "tb2")
    assert said == "meets tb1, tb3, tb4 on random ports, both ways"
    assert results(report, "warn", "unknown", "skip") == []


def test_a_node_that_lets_nothing_in(bed: Testbed) -> None:
    bed.drop("tb3", HIGH)
    report = run(bed)
    assert causes(report) == [("node", "network.ephemeral", ["tb3"])]
    said = summary(report, "network.ephemeral", "tb3")
    assert said == f"the other nodes do not reach it {REACH}: {DROPPED}"
    assert report["causes"][0]["pairs"] == {
        node: {"tb3": "no answer"} for node in ("tb1", "tb2", "tb4")
    }


def test_a_node_that_lets_nothing_out(bed: Testbed) -> None:
    bed.drop("tb3", HIGH, "output")
    report = run(bed)
    assert causes(report) == [("node", "network.ephemeral", ["tb3"])]
    said = summary(report, "network.ephemeral", "tb3")
    assert said.startswith(f"it does not reach the other nodes {REACH}: ")


@pytest.mark.parametrize(
    ("refusal", "words"),
    [
        ("tcp reset", "refused although our listener was there, as where a firewall resets it"),
        (
            "admin-prohibited",
            "rejected by 10.78.0.2, as by a firewall (ICMP administratively prohibited)",
        ),
        ("host-unreachable", "rejected by 10.78.0.2, as by a firewall (ICMP host unreachable)"),
        ("net-unreachable", "rejected by 10.78.0.2, as by a firewall (ICMP network unreachable)"),
        ("port-unreachable", "rejected by 10.78.0.2, as by a firewall (ICMP port unreachable)"),
    ],
)
def test_a_node_that_rejects(bed: Testbed, refusal: Refusal, words: str) -> None:
    bed.reject("tb2", HIGH, refusal)
    report = run(bed)
    assert causes(report) == [("node", "network.ephemeral", ["tb2"])]
    said = summary(report, "network.ephemeral", "tb2")
    assert said == f"the other nodes do not reach it {REACH}: {words}"


def test_a_pair_blames_neither_end_for_the_others(bed: Testbed) -> None:
    bed.drop("tb2", HIGH, source="tb4")
    bed.drop("tb4", HIGH, source="tb2")
    report = run(bed)
    assert causes(report) == [("pair", "network.ephemeral", ["tb2", "tb4"])]
    said = summary(report, "network.ephemeral", "tb2")
    assert said == f"it and tb4 do not reach each other {REACH}: {DROPPED}"


def test_one_way_between_two(bed: Testbed) -> None:
    bed.drop("tb2", HIGH, source="tb4")
    report = run(bed)
    assert causes(report) == [("pair", "network.ephemeral", ["tb4", "tb2"])]
    said = summary(report, "network.ephemeral", "tb4")
    assert said == f"it does not reach tb2 {REACH}: {DROPPED}"


def test_two_nodes_at_once(bed: Testbed) -> None:
    bed.drop("tb3", HIGH)
    bed.reject("tb1", HIGH, "host-unreachable")
    report = run(bed)
    assert causes(report) == [
        ("node", "network.ephemeral", ["tb1"]),
        ("node", "network.ephemeral", ["tb3"]),
    ]


def test_two_halves_of_the_cluster(bed: Testbed) -> None:
    for node, others in (("tb1", ("tb3", "tb4")), ("tb2", ("tb3", "tb4"))):
        for other in others:
            bed.drop(node, HIGH, source=other)
            bed.drop(other, HIGH, source=node)
    report = run(bed)
    ((kind, check, nodes),) = causes(report)
    assert (kind, check) == ("cluster", "network.ephemeral")
    assert sorted(nodes) in (["tb1", "tb2"], ["tb3", "tb4"])


def test_nobody_meets(bed: Testbed) -> None:
    for node in bed.names:
        bed.drop(node, HIGH)
    report = run(bed)
    assert causes(report) == [("cluster", "network.ephemeral", list(bed.names))]


def test_a_link_that_is_down_explains_what_follows(bed: Testbed) -> None:
    for node in bed.names:
        bed.add_interface(node, "me0", "10.91.0")
    bed.run("tb2", "ip", "link", "set", "me0", "down")
    done, report = bed.report(
        "run",
        str(bed.inventory(launch={"interface": "me0"})),
        *("--only", "network.link", "--only", "network.ephemeral"),
    )
    assert done.returncode == 1, done.stdout
    assert causes(report) == [("node", "network.link", ["tb2"])]
