"""Two subnets and a router: what is wrong between them is one cause, which names them."""

from __future__ import annotations

from typing import Any

from tests.cluster.blame import causes, results, summary
from tests.cluster.testbed import Testbed

NEAR, FAR = "tb1, tb2 (the nodes of 10.78.0.0/26)", "tb3, tb4 (the nodes of 10.78.0.64/26)"
DROPPED = "no answer in 4 s, as where a firewall drops it"


def run(bed: Testbed, code: int, *args: str) -> dict[str, Any]:
    """Return the report of a run on two subnets of two nodes each."""
    nodes = [bed.spec(n, address=at) for n, at in bed.divide("tb3", "tb4").items()]
    inventory = str(bed.inventory(nodes=nodes))
    done, report = bed.report("run", inventory, *(args or ("--only", "network")))
    assert done.returncode == code, done.stdout + done.stderr
    return report


def test_a_router_that_lets_all_through(bed: Testbed) -> None:
    report = run(bed, 0)
    assert causes(report) == []
    assert results(report, "fail", "warn", "unknown") == []


def test_a_router_that_drops_connections(bed: Testbed) -> None:
    bed.between_subnets("tcp dport 29000-60999 drop")
    report = run(bed, 1)
    assert causes(report) == [("cluster", "network.ephemeral", ["tb1", "tb2"])]
    assert {e["check"] for e in report["causes"][0]["explains"]} == {"network.port"}
    said = summary(report, "network.ephemeral", "tb2")
    none = f"{NEAR} reach each other and none of the other nodes on"
    assert said == f"{none} random high ports: {DROPPED}"
    warned = f"with another master: {none} port 29500: {DROPPED}"
    assert {said for _, _, said in results(report, "warn")} == {warned}


def test_a_router_that_drops_large_packets(bed: Testbed) -> None:
    bed.between_subnets("meta length > 1400 drop")
    report = run(bed, 1)
    assert causes(report) == [("cluster", "network.path_mtu", ["tb1", "tb2"])]
    said = summary(report, "network.path_mtu", "tb1")
    assert said.startswith(f"packets above 1400 bytes between {NEAR} and the other nodes are lost")


def test_a_router_that_loses_packets(bed: Testbed) -> None:
    bed.between_subnets("numgen random mod 100 < 30 drop")
    report = run(bed, 1)
    assert causes(report) == [("cluster", "network.latency", ["tb1", "tb2"])]
    said = summary(report, "network.latency", "tb1")
    assert f" of the packets between {NEAR} and the other nodes are lost: " in said


def test_a_router_that_is_slow(bed: Testbed) -> None:
    bed.between_subnets("limit rate over 5 mbytes/second drop")
    report = run(bed, 1, "--only", "network.bandwidth", "--level", "deep")
    ((kind, check, nodes),) = causes(report)
    assert (kind, check) == ("cluster", "network.bandwidth")
    named = {"tb1": NEAR, "tb3": FAR}[nodes[0]]
    said = summary(report, check, nodes[0])
    assert said.startswith(f"TCP between {named} and the other nodes at ")
