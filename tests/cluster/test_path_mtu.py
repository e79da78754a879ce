"""Full-size packets that do not pass: where, and which way; nobody else is blamed."""

from __future__ import annotations

from typing import Any

from tests.cluster.blame import causes, results, summary
from tests.cluster.hardware import DATA_BRIDGE, DATA_PORT
from tests.cluster.machine import execute
from tests.cluster.testbed import Testbed

CHECK = "network.path_mtu"


def run(bed: Testbed, code: int = 1, **overrides: Any) -> dict[str, Any]:
    """Return the report of a run of the network checks."""
    done, report = bed.report("run", str(bed.inventory(**overrides)), "--only", "network")
    assert done.returncode == code, done.stdout + done.stderr
    return report


def test_all_passes(bed: Testbed) -> None:
    report = run(bed, 0)
    assert summary(report, CHECK, "tb1") == "packets of 1500 bytes pass to and from tb2, tb3, tb4"


def test_a_node_behind_a_smaller_port(bed: Testbed) -> None:
    bed.port_mtu("tb3", 1400)
    report = run(bed)
    assert causes(report) == [("node", CHECK, ["tb3"])]
    assert summary(report, CHECK, "tb3") == (
        "packets above 1400 bytes between it and the other nodes are lost without an error;"
        " the interfaces there have MTU 1500"
    )
    assert summary(report, CHECK, "tb1") == (
        "packets of 1500 bytes pass to and from tb2, tb4;"
        " those to or from tb3 do not, which is told there"
    )
    assert results(report, "warn", "unknown") == []


def test_a_switch_that_is_smaller_than_all(bed: Testbed) -> None:
    bed.switch_mtu(1300)
    report = run(bed)
    assert causes(report) == [("cluster", CHECK, list(bed.names))]
    assert summary(report, CHECK, "tb2") == (
        "packets above 1300 bytes between the nodes are lost without an error;"
        " the interfaces there have MTU 1500"
    )


def test_large_packets_to_one_node(bed: Testbed) -> None:
    bed.lose_large("tb2", 1450)
    report = run(bed)
    assert causes(report) == [("node", CHECK, ["tb2"])]
    said = summary(report, CHECK, "tb2")
    assert said.startswith("packets above 1450 bytes from the other nodes to it are lost")


def test_large_packets_of_one_pair_both_ways(bed: Testbed) -> None:
    bed.lose_large("tb2", 1450, "tb4")
    bed.lose_large("tb4", 1450, "tb2")
    report = run(bed)
    assert causes(report) == [("pair", CHECK, ["tb2", "tb4"])]
    said = summary(report, CHECK, "tb2")
    assert said.startswith("packets above 1450 bytes between it and tb4 are lost without an error")


def test_large_packets_of_one_pair_one_way(bed: Testbed) -> None:
    bed.lose_large("tb4", 1450, "tb1")
    report = run(bed)
    assert causes(report) == [("pair", CHECK, ["tb1", "tb4"])]
    said = summary(report, CHECK, "tb1")
    assert said.startswith("packets above 1450 bytes from it to tb4 are lost without an error")
    assert report["causes"][0]["fix"].startswith("let packets of 1500 bytes through on the way")


def test_two_faults_are_two_causes(bed: Testbed) -> None:
    bed.port_mtu("tb3", 1400)
    bed.lose_large("tb4", 1450, "tb1")
    found = sorted(causes(run(bed)))
    assert found == [("node", CHECK, ["tb3"]), ("pair", CHECK, ["tb1", "tb4"])]


def test_an_mtu_of_one_node_is_no_black_hole(bed: Testbed) -> None:
    bed.mtu("tb3", 1400)
    report = run(bed)
    assert causes(report) == [("node", "network.mtu", ["tb3"])]
    assert summary(report, CHECK, "tb3") == "packets of 1400 bytes pass to and from tb1, tb2, tb4"


def test_two_nodes_whose_mtu_is_larger_than_the_switch(bed: Testbed) -> None:
    for node in ("tb1", "tb2"):
        bed.mtu(node, 3000)
    report = run(bed, expect={"mtu": 1500})
    assert causes(report) == [("node", "network.mtu", ["tb1", "tb2"])]
    assert {e["check"] for e in report["causes"][0]["explains"]} == {CHECK}


def test_a_router_that_says_so(bed: Testbed) -> None:
    bed.behind_router("tb2", "tb4", "rt", 1400)
    nodes = [bed.spec(name) for name in ("tb1", "tb2", "tb3")]
    report = run(bed, 0, nodes=nodes, launch={"interface": "rt"})
    ((check, node, said),) = [one for one in results(report, "warn") if one[0] == CHECK]
    assert (check, node) == (CHECK, "tb2")
    assert said == (
        "packets above 1400 bytes from the other nodes to it are too large for 10.82.1.4, which"
        ' says so (ICMP "fragmentation needed"); the interfaces there have MTU 1500'
    )
    assert causes(report) == []


def test_jumbo_frames(bed: Testbed) -> None:
    for node in bed.names:
        bed.add_nic(node, "jb0")
    report = run(bed, 0, launch={"interface": "jb0"})
    assert summary(report, CHECK, "tb1") == "packets of 9000 bytes pass to and from tb2, tb3, tb4"
    for port in (DATA_BRIDGE, f"{DATA_PORT}4"):
        execute("ip", "link", "set", port, "mtu", "1500")
    report = run(bed, launch={"interface": "jb0"})
    assert causes(report) == [("node", CHECK, ["tb4"])]
    said = summary(report, CHECK, "tb4")
    assert said.startswith("packets above 1500 bytes between it and the other nodes are lost")
    assert said.endswith("the interfaces there have MTU 9000")


def test_filtered_datagrams_are_no_black_hole(bed: Testbed) -> None:
    bed.drop_udp("tb3")
    report = run(bed, 3)
    assert causes(report) == []
    assert [one for one in results(report, "unknown") if one[0] == CHECK] == [
        (
            CHECK,
            "tb3",
            "UDP filtered: even small datagrams between it and the other nodes are not answered, so"
            " what size passes cannot be told",
        )
    ]


def test_rejected_datagrams_are_no_black_hole(bed: Testbed) -> None:
    bed.reject_udp("tb3")
    report = run(bed, 3)
    ((_, node, said),) = [one for one in results(report, "unknown") if one[0] == CHECK]
    assert node == "tb3"
    assert said.startswith(
        "UDP filtered: even small datagrams between it and the other nodes are rejected by"
        " 10.78.0.3 (ICMP administratively prohibited)"
    )


def test_lost_packets_are_no_black_hole(bed: Testbed) -> None:
    bed.lose("tb3", 15)
    done, report = bed.report("run", str(bed.inventory()), "--only", CHECK)
    assert (done.returncode, causes(report)) == (0, [])
