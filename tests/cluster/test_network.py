"""Faults of the network and the launch environment: each is named, with its node, and no other."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cluster.blame import causes, results, summary
from tests.cluster.network_faults import Refusal
from tests.cluster.testbed import Testbed

MASTER = "10.78.0.1:29500"


def run(bed: Testbed, *args: str, **overrides: Any) -> dict[str, Any]:
    """Return the report of a run of these checks, which has found something wrong."""
    done, report = bed.report(
        "run", str(bed.inventory(**overrides)), "--only", "network", "--only", "launch", *args
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return report


def test_a_sound_network(bed: Testbed) -> None:
    done, report = bed.report("run", str(bed.inventory()), "--only", "network", "--only", "launch")
    assert (done.returncode, causes(report)) == (0, [])
    assert results(report, "fail", "warn", "unknown") == []
    said = summary(report, "network.port", "tb1")
    assert said == f"port 29500 is free; 3 of 3 other nodes reach it at {MASTER}"
    said = summary(report, "network.port", "tb3")
    assert said == f"reaches {MASTER} of tb1 from 10.78.0.3 (eth0)"


def test_a_launch_port_of_those_that_the_kernel_picks(bed: Testbed) -> None:
    for node in bed.names:
        bed.kernel_ports(node, 40000, 40007)
        bed.drop(node, "40000-40002")  # so that dials to random ports wait meanwhile
        bed.drop(node, "40004-40007")
    report = run(bed, "--skip", "network.foreign", launch={"port": 40003})
    assert causes(report) == [("cluster", "network.ephemeral", list(bed.names))]
    said = [summary(report, "network.port", node) for node in bed.names]
    assert said == [
        "port 40003 is free; 3 of 3 other nodes reach it at 10.78.0.1:40003",
        *(f"reaches 10.78.0.1:40003 of tb1 from 10.78.0.{n} (eth0)" for n in (2, 3, 4)),
    ]


def test_mtu_of_one_node(bed: Testbed) -> None:
    bed.mtu("tb3", 1400)
    report = run(bed)
    assert causes(report) == [("node", "network.mtu", ["tb3"])]
    said = summary(report, "network.mtu", "tb3")
    assert said == "eth0 has MTU 1400, the 3 others have 1500"
    assert report["causes"][0]["fix"] == "ip link set dev eth0 mtu 1500"
    assert results(report, "warn", "unknown") == []


def test_an_mtu_that_all_have_and_nobody_wants(bed: Testbed) -> None:
    report = run(bed, expect={"mtu": 9000})
    assert causes(report) == [("node", "network.mtu", list(bed.names))]
    assert summary(report, "network.mtu", "tb1") == "eth0 has MTU 1500, expected 9000"


def test_two_nodes_whose_mtu_differs_blame_none(bed: Testbed) -> None:
    bed.mtu("tb2", 1400)
    report = run(bed, nodes=[bed.spec("tb1"), bed.spec("tb2")])
    assert causes(report) == [("cluster", "network.mtu", ["tb1", "tb2"])]


def test_a_slow_link(bed: Testbed) -> None:
    for node, speed in (("tb1", 100_000), ("tb2", 25_000), ("tb3", 100_000), ("tb4", 100_000)):
        bed.add_nic(node, "hs0", speed)
    report = run(bed, launch={"interface": "hs0"})
    assert causes(report) == [("node", "network.link", ["tb2"])]
    said = summary(report, "network.link", "tb2")
    assert said == "hs0: link speed 25 Gb/s, the 3 others have 100 Gb/s"
    said = summary(report, "network.port", "tb4")
    assert said == "reaches 10.79.0.1:29500 of tb1 from 10.79.0.4 (hs0)"


def test_an_interface_that_one_node_lacks(bed: Testbed) -> None:
    for node in ("tb1", "tb2", "tb4"):
        bed.add_nic(node, "hs1")
    report = run(bed, launch={"env": {"NCCL_SOCKET_IFNAME": "hs1"}})
    assert causes(report) == [("node", "launch.env", ["tb3"])]
    said = summary(report, "launch.env", "tb3")
    assert said == "NCCL_SOCKET_IFNAME=hs1 matches no interface here: eth0, lo"
    assert {e["check"] for e in report["causes"][0]["explains"]} >= {"network.link", "network.mtu"}


def test_a_data_interface_that_is_down(bed: Testbed) -> None:
    for node in bed.names:
        bed.add_nic(node, "hs2")
    bed.run("tb2", "ip", "link", "set", "hs2", "down")
    report = run(bed, launch={"interface": "hs2"})
    assert causes(report) == [("node", "network.link", ["tb2"])]
    assert summary(report, "network.link", "tb2") == "hs2 is down"
    assert report["causes"][0]["fix"] == "ip link set dev hs2 up"
    explained = {e["check"] for e in report["causes"][0]["explains"]}
    assert {"network.ephemeral", "network.port", "network.route"} <= explained


def test_a_port_that_is_held(bed: Testbed) -> None:
    pid = bed.hold_port("tb1", user="alice")
    report = run(bed)
    assert causes(report) == [("node", "network.port", ["tb1"])]
    said = summary(report, "network.port", "tb1")
    assert said.startswith(f"port 29500 is held by pid {pid} (python3) of alice for ")
    assert report["causes"][0]["fix"].startswith(f"kill {pid}, ")
    assert results(report, "unknown", "warn") == []


def test_a_port_that_somebody_else_holds(bed: Testbed) -> None:
    bed.hold_port("tb1", user="root", address="127.0.0.1")
    report = run(bed)
    assert causes(report) == [("node", "network.port", ["tb1"])]
    assert summary(report, "network.port", "tb1") == (
        "port 29500 is held by a process of root, whose pid only root and root can see"
    )


def test_a_master_behind_a_firewall(bed: Testbed) -> None:
    bed.drop("tb1", 29500)
    report = run(bed)
    assert causes(report) == [("node", "network.port", ["tb1"])]
    said = summary(report, "network.port", "tb1")
    assert said == f"no node reaches {MASTER}: no answer in 4 s, as where a firewall drops it"


REFUSALS: dict[Refusal, str] = {
    "tcp reset": "refused although our listener was there, as where a firewall resets it",
    "port-unreachable": "rejected by 10.78.0.1, as by a firewall (ICMP port unreachable)",
    "admin-prohibited": (
        "rejected by 10.78.0.1, as by a firewall (ICMP administratively prohibited)"
    ),
    "host-unreachable": "rejected by 10.78.0.1, as by a firewall (ICMP host unreachable)",
}
NO_ARP = "no route to host, as where a firewall rejects it or the address is gone"


@pytest.mark.parametrize("how", REFUSALS)
def test_a_master_that_rejects_all(bed: Testbed, how: Refusal) -> None:
    bed.reject("tb1", 29500, how, source="10.78.0.2-10.78.0.4")
    report = run(bed)
    assert causes(report) == [("node", "network.port", ["tb1"])]
    said = summary(report, "network.port", "tb1")
    assert said == f"no other node reaches {MASTER}: {REFUSALS[how]}"


def test_a_master_that_drops_one_node(bed: Testbed) -> None:
    bed.drop("tb1", 29500, source="tb3")
    report = run(bed)
    assert causes(report) == [("pair", "network.port", ["tb3", "tb1"])]
    assert summary(report, "network.port", "tb3") == (
        f"does not reach {MASTER} of tb1 from 10.78.0.3 (eth0): "
        "no answer in 4 s, as where a firewall drops it"
    )


def test_a_master_that_drops_the_only_other_node(bed: Testbed) -> None:
    bed.drop("tb1", 29500, source="tb2")
    report = run(bed, nodes=[bed.spec("tb1"), bed.spec("tb2")])
    assert causes(report) == [("pair", "network.port", ["tb2", "tb1"])]


def test_a_low_port(bed: Testbed) -> None:
    report = run(bed, launch={"port": 500})
    assert causes(report) == [("node", "network.port", ["tb1"])]
    said = summary(report, "network.port", "tb1")
    assert said == "port 500 may not be opened by the login user: below 1024"


# ---- faults in pairs: the one does not hide the other, unless it brings it about --------------


def test_a_slow_link_hides_neither_a_held_port_nor_an_mtu(bed: Testbed) -> None:
    for node in bed.names:
        bed.add_nic(node, "hp0", 25_000 if node == "tb1" else 100_000)
    bed.mtu("tb1", 1500, "hp0")
    pid = bed.hold_port("tb1")
    report = run(bed, launch={"interface": "hp0"})
    assert causes(report) == [
        ("node", "network.link", ["tb1"]),
        ("node", "network.mtu", ["tb1"]),
        ("node", "network.port", ["tb1"]),
    ]
    assert report["causes"][2]["fix"].startswith(f"kill {pid}, ")
    assert [cause["explains"] for cause in report["causes"]] == [[], [], []]


def test_links_that_differ_hide_no_firewall(bed: Testbed) -> None:
    for node in ("tb1", "tb2"):
        bed.add_nic(node, "hp1", 25_000 if node == "tb1" else 100_000)
    bed.drop("tb1", 29500)
    report = run(bed, nodes=[bed.spec("tb1"), bed.spec("tb2")], launch={"interface": "hp1"})
    assert causes(report) == [
        ("cluster", "network.link", ["tb1", "tb2"]),
        ("node", "network.port", ["tb1"]),
    ]


def test_a_variable_that_matches_nothing_hides_no_held_port(bed: Testbed) -> None:
    for node in ("tb2", "tb3", "tb4"):
        bed.add_nic(node, "hp2")
    bed.hold_port("tb1")
    report = run(bed, launch={"env": {"NCCL_SOCKET_IFNAME": "hp2"}})
    assert causes(report) == [
        ("node", "launch.env", ["tb1"]),
        ("node", "network.port", ["tb1"]),
    ]
    explained = [e["check"] for e in report["causes"][0]["explains"]]
    assert {"network.interface", "network.link", "network.mtu"} <= {*explained}


def test_a_variable_of_no_interface_explains_no_network(bed: Testbed) -> None:
    bed.change_file("tb3", "/home/alice/.nccl.conf", "NCCL_ALGO=Ring\n")
    bed.mtu("tb3", 1400)
    bed.drop("tb1", 29500, source="tb3")
    assert sorted(causes(run(bed))) == [
        ("node", "launch.env", ["tb3"]),
        ("node", "network.mtu", ["tb3"]),
        ("pair", "network.port", ["tb3", "tb1"]),
    ]


def test_a_link_that_is_down_explains_the_port_and_not_the_mtu(bed: Testbed) -> None:
    for node in bed.names:
        bed.add_nic(node, "hp3")
    bed.mtu("tb2", 1500, "hp3")
    bed.run("tb2", "ip", "link", "set", "hp3", "down")
    report = run(bed, launch={"interface": "hp3"})
    assert causes(report) == [
        ("node", "network.link", ["tb2"]),
        ("node", "network.mtu", ["tb2"]),
    ]
    explained = [e["check"] for e in report["causes"][0]["explains"]]
    assert {"network.ephemeral", "network.port"} <= {*explained}
    assert "network.mtu" not in explained


def test_nobody_reaches_the_master_and_one_would_not_anyway(bed: Testbed) -> None:
    bed.reject("tb1", 29500, source="10.78.0.2-10.78.0.4")
    bed.drop("tb3", 29500, "output")
    report = run(bed)
    assert causes(report) == [("node", "network.port", ["tb1"])]
    said = summary(report, "network.port", "tb1")
    assert said == f"no other node reaches {MASTER}: {REFUSALS['admin-prohibited']}"
    ((_, node, words),) = results(report, "unknown")
    assert node == "tb3"
    assert words.endswith("; no other node reaches it either, so see to tb1 first")


# ---- which way, which interfaces -----------------------------------------------------------


def test_a_master_address_behind_a_firewall(bed: Testbed) -> None:
    for node in bed.names:
        bed.add_nic(node, "hw0")
    bed.drop("tb1", 29500, device="eth0")
    launch = {"interface": "hw0", "env": {"MASTER_ADDR": "tb1"}}
    report = run(bed, launch=launch)
    assert causes(report) == [("node", "network.port", ["tb1"])]
    said = summary(report, "network.port", "tb1")
    words = "no answer in 4 s, as where a firewall drops it"
    assert said == f"no other node reaches {MASTER} (MASTER_ADDR): {words}"


def test_a_master_address_that_is_open(bed: Testbed) -> None:
    for node in bed.names:
        bed.add_nic(node, "hw1")
    inventory = bed.inventory(launch={"interface": "hw1", "env": {"MASTER_ADDR": "tb1"}})
    done, report = bed.report("run", str(inventory), "--only", "network.port")
    assert done.returncode == 0
    (tb2,) = [r for r in report["results"] if (r["check"], r["node"]) == ("network.port", "tb2")]
    assert tb2["summary"] == "reaches 10.79.0.1:29500 of tb1 from 10.79.0.2 (hw1)"
    assert tb2["details"] == [f"reaches {MASTER} (MASTER_ADDR) of tb1 from 10.78.0.2 (eth0)"]


def test_a_master_whose_interface_answers_no_arp(bed: Testbed) -> None:
    for node in bed.names:
        bed.add_nic(node, "hw2")
    bed.run("tb1", "ip", "link", "set", "hw2", "arp", "off")
    report = run(bed, launch={"interface": "hw2"})
    assert causes(report) == [("node", "network.ephemeral", ["tb1"])]
    said = summary(report, "network.port", "tb1")
    assert said == f"no other node reaches 10.79.0.1:29500: {NO_ARP}"


def test_a_rail_that_is_down(bed: Testbed) -> None:
    for node in bed.names:
        bed.add_interface(node, "rb0", "10.81.0")
    bed.run("tb2", "ip", "link", "set", "rb0", "down")
    report = run(bed, launch={"env": {"NCCL_SOCKET_IFNAME": "eth0,rb0"}})
    assert causes(report) == [("node", "network.link", ["tb2"])]
    assert summary(report, "network.link", "tb2") == "rb0 is down"
    assert report["causes"][0]["fix"] == "ip link set dev rb0 up"


def test_a_rail_that_one_node_lacks(bed: Testbed) -> None:
    for node in bed.names:
        if node != "tb3":
            bed.add_interface(node, "ethr", "10.81.0")
    report = run(bed, launch={"env": {"NCCL_SOCKET_IFNAME": "eth"}})
    assert causes(report) == [("node", "network.interface", ["tb3"])]
    said = summary(report, "network.interface", "tb3")
    assert said == "interfaces of the data plane: 1, the 3 others have 2; here eth0"


def test_bridges_of_containers_are_no_data_plane(bed: Testbed) -> None:
    for node in bed.names:
        bed.mtu(node, 1400)
    bed.container_bridge("tb2", "br-4f2a")
    inventory = bed.inventory(launch={"env": {"NCCL_SOCKET_IFNAME": "^lo,docker"}})
    done, report = bed.report("run", str(inventory), "--only", "network")
    assert (done.returncode, causes(report)) == (0, [])
    ((check, node, words),) = results(report, "warn", "unknown")
    assert (check, node) == ("network.interface", "tb2")
    assert words.startswith("by NCCL_SOCKET_IFNAME=^lo,docker (launch.env), NCCL would use br-4f2a")
    assert summary(report, "network.mtu", "tb2") == "eth0 has MTU 1400"


def test_another_interface_is_chosen_on_one_node(bed: Testbed) -> None:
    bed.add_tap("tb2", "ib0", 10_000, mtu=2044, address="10.80.0.2/24")
    report = run(bed)
    assert causes(report) == [("node", "network.interface", ["tb2"])]
    assert summary(report, "network.interface", "tb2") == (
        "NCCL would use ib0 (10.80.0.2; NCCL's choice), which no other node reaches: "
        "no route to that network; most nodes use eth0 in 10.78.0.0/24"
    )
    assert report["causes"][0]["fix"] == "set NCCL_SOCKET_IFNAME=eth0"
    said = summary(report, "network.mtu", "tb2")
    assert said == "ib0 is chosen here (NCCL's choice), eth0 on most nodes: MTU 2044, not 1500"


def test_a_second_interface_counts_where_nobody_named_the_first(bed: Testbed) -> None:
    for node in bed.names:
        bed.add_interface(node, "data7", "10.81.0")
    bed.mtu("tb3", 1400, "data7")
    report = run(bed)
    assert causes(report) == [("node", "network.mtu", ["tb3"])]
    said = summary(report, "network.mtu", "tb3")
    assert said == "eth0, data7 have MTU 1400 and 1500, the 3 others have 1500"
    assert report["causes"][0]["fix"].startswith("ip link set dev data7 mtu 1500; or,")
    assert results(report, "warn", "unknown") == []


def test_an_interface_without_an_address_that_nccl_takes(bed: Testbed) -> None:
    for number, node in enumerate(bed.names, 1):
        bed.add_tap(node, "ibl0", 10_000, address=f"fe80::{number}/64")
    done, report = bed.report("run", str(bed.inventory()), "--only", "network")
    assert (done.returncode, causes(report)) == (0, [])
    words = "ibl0 has only a link-local address (NCCL's choice)"
    assert results(report, "warn", "unknown") == [
        ("network.interface", n, words) for n in bed.names
    ]
    said = summary(report, "network.port", "tb3")
    assert said == f"reaches {MASTER} of tb1 from 10.78.0.3 (eth0)"


# ---- the launch environment ----------------------------------------------------------------


def test_a_variable_of_one_node(bed: Testbed) -> None:
    for node in bed.names:
        bed.change_file(node, "/etc/nccl.conf", "NCCL_ALGO=Tree\n")
    bed.change_file("tb4", "/home/alice/.nccl.conf", "NCCL_ALGO=Ring\n")
    report = run(bed)
    assert causes(report) == [("node", "launch.env", ["tb4"])]
    assert summary(report, "launch.env", "tb4") == "NCCL_ALGO Ring, the 3 others have Tree"
    assert report["causes"][0]["fix"] == "set NCCL_ALGO=Tree in /home/alice/.nccl.conf"
    assert results(report, "unknown", "warn") == []


def test_a_file_of_one_node_that_names_nothing_or_sets_nothing(bed: Testbed) -> None:
    for node in bed.names:
        bed.change_file(node, "/etc/nccl.conf", "NCCL_SOCKET_IFNAME=eth0\n")
    bed.change_file("tb2", "/etc/nccl.conf", "NCCL_SOCKET_IFNAME=eth9\n")
    bed.change_file("tb3", "/home/alice/.nccl.conf", "NCCL_IB_TIMEOUT = 22\n")
    report = run(bed)
    assert causes(report) == [("node", "launch.env", ["tb2"])]
    assert report["causes"][0]["fix"] == "set NCCL_SOCKET_IFNAME=eth0 in /etc/nccl.conf"
    assert results(report, "warn") == [
        (
            "launch.env",
            "tb3",
            "/home/alice/.nccl.conf has 'NCCL_IB_TIMEOUT = 22', which sets nothing: "
            "NCCL reads NAME=VALUE",
        )
    ]


def test_an_hca_that_one_node_lacks(bed: Testbed) -> None:
    for node in ("tb1", "tb3", "tb4"):
        bed.infiniband(node, "mlx5_0")
    report = run(bed, launch={"env": {"NCCL_IB_HCA": "mlx5"}})
    assert causes(report) == [("node", "launch.env", ["tb2"])]
    said = summary(report, "launch.env", "tb2")
    assert said == "NCCL_IB_HCA=mlx5 names mlx5, which is not here: no RDMA device"


def test_warnings_of_the_environment(bed: Testbed) -> None:
    bed.infiniband("tb2")
    env = {"NCCL_IB_DISABLE": 1, "NCCL_SOCKET_IFNAM": "eth0"}
    done, report = bed.report(
        "run", str(bed.inventory(launch={"env": env})), "--only", "launch.env"
    )
    misspelt = "no NCCL up to 2.30 reads NCCL_SOCKET_IFNAM, did you mean NCCL_SOCKET_IFNAME?"
    assert done.returncode == 0
    assert results(report, "fail", "unknown") == []
    assert results(report, "warn") == [("launch.env", node, misspelt) for node in bed.names]
    (tb2,) = [r for r in report["results"] if (r["check"], r["node"]) == ("launch.env", "tb2")]
    assert tb2["details"] == ["NCCL_IB_DISABLE=1 keeps NCCL on TCP, though mlx5_0:1 is active"]


def test_a_working_directory_that_one_node_lacks(bed: Testbed) -> None:
    for node in ("tb1", "tb2", "tb4"):
        bed.change_file(node, "/srv/job/train.py", "")
    report = run(bed, launch={"workdir": "/srv/job"})
    assert causes(report) == [("node", "launch.paths", ["tb3"])]
    said = summary(report, "launch.paths", "tb3")
    assert said == "/srv/job does not exist; fine on the 3 others"


def test_an_interpreter_that_may_not_be_executed(bed: Testbed) -> None:
    for node in bed.names:
        mode = 0o644 if node == "tb2" else 0o755
        bed.change_file(
            node, "/srv/env/bin/python", '#!/bin/sh\nexec /usr/bin/python3 "$@"\n', mode
        )
    report = run(bed, "--only", "software", launch={"python": "/srv/env/bin/python"})
    kinds = causes(report)
    assert kinds == [("node", "launch.paths", ["tb2"])]
    said = summary(report, "launch.paths", "tb2")
    assert said == "/srv/env/bin/python may not be executed by the login user; fine on the 3 others"
