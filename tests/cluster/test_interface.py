"""Interfaces chosen by mistake, and ways that are not by the data plane."""

from __future__ import annotations

from typing import Any

from tests.cluster.blame import causes, results, summary
from tests.cluster.testbed import Testbed


def run(bed: Testbed, *args: str, **overrides: Any) -> dict[str, Any]:
    """Return the report of a run of the network checks."""
    inventory = str(bed.inventory(**overrides))
    _, report = bed.report("run", inventory, "--only", "network", "--only", "launch", *args)
    return report


def fix(report: dict[str, Any]) -> str:
    return str(report["causes"][0]["fix"])


# ---- network.interface ---------------------------------------------------------------------


def test_what_is_odd_and_harmless(bed: Testbed) -> None:
    for node in bed.names:
        bed.add_interface(node, "ifa0", "10.81.0")
        bed.container_bridge(node, "docker0")
    report = run(bed)
    assert (causes(report), results(report, "warn", "unknown")) == ([], [])
    assert summary(report, "network.interface", "tb2") == (
        "NCCL would use eth0 (10.78.0.2), ifa0 (10.81.0.2); "
        "Gloo and TensorPipe would use eth0 (10.78.0.2)"
    )
    assert summary(report, "network.route", "tb2") == "goes to tb1, tb3, tb4 by eth0, ifa0"


def test_an_address_that_all_nodes_have(bed: Testbed) -> None:
    for node in bed.names:
        bed.add_tap(node, "ibd0", 10_000, address="169.254.20.10/32")
    report = run(bed)
    assert causes(report) == [("node", "network.interface", list(bed.names))]
    said = "NCCL would use ibd0 (169.254.20.10), an address of tb2, tb3, tb4 too: NCCL's choice"
    assert summary(report, "network.interface", "tb1") == said
    assert fix(report) == "set NCCL_SOCKET_IFNAME=eth0"


def test_loopback_by_a_variable(bed: Testbed) -> None:
    report = run(bed, launch={"env": {"NCCL_SOCKET_IFNAME": "lo"}})
    assert causes(report) == [("node", "network.interface", list(bed.names))]
    said = summary(report, "network.interface", "tb3")
    assert said.startswith("NCCL would use lo, which leads to no other node: NCCL_SOCKET_IFNAME=lo")


def test_an_address_on_loopback(bed: Testbed) -> None:
    for number, node in enumerate(bed.names, 1):
        bed.run(node, "ip", "addr", "add", f"10.90.0.{number}/32", "dev", "lo")
    try:
        report = run(bed, launch={"env": {"NCCL_SOCKET_IFNAME": "lo"}})
    finally:
        for number, node in enumerate(bed.names, 1):
            bed.run(node, "ip", "addr", "del", f"10.90.0.{number}/32", "dev", "lo")
    assert [kind[1] for kind in causes(report)] == ["network.interface"] * 4
    said = summary(report, "network.interface", "tb3")
    assert said.endswith("; 10.90.0.3 is on lo too, where it cannot be chosen")


def test_a_variable_of_gloo_that_names_nothing(bed: Testbed) -> None:
    report = run(bed, launch={"env": {"GLOO_SOCKET_IFNAME": "eth7"}})
    assert causes(report) == [("node", "launch.env", list(bed.names))]
    said = "Gloo: no interface 'eth7' with an address: GLOO_SOCKET_IFNAME=eth7 (launch.env)"
    assert summary(report, "network.interface", "tb1") == said


def test_an_interface_of_gloo_that_nobody_reaches(bed: Testbed) -> None:
    for number, node in enumerate(bed.names, 1):
        bed.add_tap(node, "ifg0", 10_000, address=f"10.82.0.{number}/24")
    env = {"GLOO_SOCKET_IFNAME": "ifg0", "NCCL_SOCKET_IFNAME": "eth0"}
    report = run(bed, launch={"env": env})
    assert causes(report) == [("cluster", "network.interface", list(bed.names))]
    said = summary(report, "network.interface", "tb1")
    assert said.startswith(
        "Gloo would use ifg0 (10.82.0.1; GLOO_SOCKET_IFNAME=ifg0 (launch.env)), which no node "
        "reaches: "
    )
    assert fix(report) == "set GLOO_SOCKET_IFNAME=eth0"


def test_a_host_name_that_means_another_network(bed: Testbed) -> None:
    for number, node in enumerate(bed.names, 1):
        bed.add_tap(node, "ifh0", 10_000, address=f"10.83.0.{number}/24")
        hosts = [f"10.83.0.{number} {node}"]
        hosts += [f"10.78.0.{n} {o}" for n, o in enumerate(bed.names, 1) if o != node]
        bed.change_file(node, "/etc/hosts", "127.0.0.1 localhost\n" + "\n".join(hosts) + "\n")
    report = run(bed, "--skip", "network.names", launch={"interface": "eth0"})
    assert causes(report) == []
    told = results(report, "warn", "unknown")
    assert [(check, node) for check, node, _ in told] == [
        ("network.interface", node) for node in bed.names
    ]
    assert told[0][2].startswith(
        "Gloo and TensorPipe would use ifh0 (10.83.0.1; the host name tb1), which no node reaches"
    )


def test_a_rail_that_no_node_reaches(bed: Testbed) -> None:
    for number, node in enumerate(bed.names, 1):
        bed.add_tap(node, "ifr0", 10_000, address=f"10.84.0.{number}/24")
    report = run(bed, launch={"env": {"NCCL_SOCKET_IFNAME": "eth0,ifr0"}})
    assert causes(report) == [("cluster", "network.interface", list(bed.names))]
    assert summary(report, "network.interface", "tb1").startswith(
        "NCCL would use ifr0 (10.84.0.1; NCCL_SOCKET_IFNAME=eth0,ifr0 (launch.env)), which no node"
    )


def test_a_network_of_pods_that_is_not_routed(bed: Testbed) -> None:
    for number, node in enumerate(bed.names, 1):
        lines = ["link add podhost type veth peer name podnet"]
        lines += [f"addr add 10.0.{number}.23/32 dev podhost"]
        lines += ["link set podhost up", "link set podnet up"]
        bed.machines[node].run("ip", "-batch", "-", stdin="\n".join(lines))
        bed._undo(bed.run, node, "ip", "link", "del", "podhost")
    report = run(bed)
    assert causes(report) == [("cluster", "network.interface", list(bed.names))]
    assert summary(report, "network.interface", "tb1") == (
        "NCCL would use podhost (10.0.1.23; NCCL's choice), which no node reaches: "
        "no route to that network"
    )
    assert report["causes"][0]["fix"] == "set NCCL_SOCKET_IFNAME=eth0"


def test_another_interface_that_is_as_good(bed: Testbed) -> None:
    for node in bed.names:
        bed.add_interface(node, "ifs0", "10.85.0")
    bed.change_file("tb2", "/etc/nccl.conf", "NCCL_SOCKET_IFNAME=ifs0\n")
    for node in ("tb1", "tb3", "tb4"):
        bed.change_file(node, "/etc/nccl.conf", "NCCL_SOCKET_IFNAME=eth0\n")
    report = run(bed, "--skip", "launch.env")
    told = results(report, "warn", "unknown", "fail")
    assert ("network.interface", "tb2") in [(check, node) for check, node, _ in told]
    said = summary(report, "network.interface", "tb2")
    assert said == (
        "ifs0 is chosen here (NCCL_SOCKET_IFNAME=ifs0 (/etc/nccl.conf)), eth0 on most nodes"
    )


def test_a_firewall_is_not_a_wrong_choice(bed: Testbed) -> None:
    for node in bed.names:
        bed.add_interface(node, "ifw0", "10.86.0")
    bed.drop("tb2", "1024-65535", device="eth0")
    report = run(bed, launch={"interface": "eth0"})
    assert "network.interface" not in [check for check, _, _ in results(report, "fail", "warn")]


def test_another_subnet_on_one_node(bed: Testbed) -> None:
    for node in bed.names:
        bed.add_interface(node, "ifo0", "10.94.7" if node == "tb3" else "10.94.0")
    report = run(bed, launch={"interface": "ifo0"})
    assert causes(report) == [("node", "network.interface", ["tb3"])]
    assert report["causes"][0]["fix"] == "give ifo0 an address in 10.94.0.0/24; it has 10.94.7.3"
    said = summary(report, "network.path_mtu", "tb3")
    assert said == "no route between it and the other nodes, so what size passes cannot be told"


# ---- network.route -------------------------------------------------------------------------


def test_one_of_two_nodes_without_a_route(bed: Testbed) -> None:
    for node in ("tb1", "tb2"):
        bed.add_interface(node, "rtl0", "10.93.1")
    bed.run("tb2", "ip", "route", "del", "10.93.1.0/24", "dev", "rtl0")
    nodes = [bed.spec("tb1"), bed.spec("tb2")]
    report = run(bed, nodes=nodes, launch={"interface": "rtl0"})
    assert causes(report)[0] == ("pair", "network.route", ["tb2", "tb1"])
    assert report["causes"][0]["summary"].startswith("tb2 has no way to tb1 (10.93.1.1): no route")
    assert report["causes"][0]["fix"] == "ip route add 10.93.1.0/24 dev rtl0"
    assert len(report["causes"]) == 1


def test_two_interfaces_of_all_nodes_in_one_subnet(bed: Testbed) -> None:
    for node in bed.names:
        bed.add_interface(node, "rtx0", "10.95.0")
    for number, node in enumerate(bed.names, 101):
        bed.add_interface(node, "rtx1", "10.95.1")
        bed.run(node, "ip", "addr", "add", f"10.95.0.{number}/24", "dev", "rtx1")
        bed.run(node, "ip", "addr", "del", f"10.95.1.{number - 100}/24", "dev", "rtx1")
    report = run(bed, launch={"interface": "rtx1"})
    assert causes(report) == [("cluster", "network.route", list(bed.names))]
    assert report["causes"][0]["summary"] == (
        "tb1 goes to tb2 (10.95.0.102) by rtx0, not by rtx1: "
        "10.95.0.0/24 of rtx1 and 10.95.0.0/24 of rtx0 overlap; so it is with 2 more"
    )


def test_a_second_interface_in_the_same_subnet(bed: Testbed) -> None:
    bed.add_tap("tb3", "rts0", 10_000, address="10.78.0.3/25")
    report = run(bed, launch={"interface": "eth0"})
    assert causes(report)[0] == ("node", "network.route", ["tb3"])
    assert summary(report, "network.route", "tb3") == (
        "goes to tb1 (10.78.0.1) by rts0, not by eth0: "
        "10.78.0.0/24 of eth0 and 10.78.0.0/25 of rts0 overlap; so it is with 2 more"
    )


def test_a_node_without_a_route(bed: Testbed) -> None:
    for node in bed.names:
        bed.add_interface(node, "rtn0", "10.87.0")
    bed.run("tb2", "ip", "route", "del", "10.87.0.0/24", "dev", "rtn0")
    report = run(bed, launch={"interface": "rtn0"})
    assert causes(report) == [("node", "network.route", ["tb2"])]
    assert summary(report, "network.route", "tb2") == (
        "has no way to tb1 (10.87.0.1): no route; so it is with 2 more"
    )


def test_a_way_by_another_interface(bed: Testbed) -> None:
    for node in bed.names:
        bed.add_interface(node, "rtd0", "10.88.1" if node == "tb2" else "10.88.0")
        far, device = ("0", "eth0") if node == "tb2" else ("1", "rtd0")
        bed.run(node, "ip", "route", "add", f"10.88.{far}.0/24", "dev", device)
    try:
        report = run(bed, launch={"interface": "rtd0"})
    finally:
        bed.run("tb2", "ip", "route", "del", "10.88.0.0/24", "dev", "eth0")
    said = "goes to tb1 (10.88.0.1) by eth0, not by rtd0; so it is with 2 more"
    assert results(report, "warn", "fail", "unknown") == [("network.route", "tb2", said)]


def test_answers_by_another_interface(bed: Testbed) -> None:
    for node in bed.names:
        bed.add_interface(node, "rta0", "10.89.0")
    bed.run("tb2", "ip", "route", "add", "10.89.0.0/24", "dev", "eth0", "table", "77")
    bed.run("tb2", "ip", "rule", "add", "from", "10.89.0.2", "table", "77")
    try:
        report = run(bed, launch={"interface": "rta0"})
    finally:
        bed.run("tb2", "ip", "rule", "del", "from", "10.89.0.2", "table", "77")
        bed.run("tb2", "ip", "route", "flush", "table", "77")
    assert summary(report, "network.route", "tb2").startswith(
        "answers tb1 (10.89.0.1) from 10.89.0.2 of rta0 by eth0"
    )
    assert "network.route" in [cause[1] for cause in causes(report)] or results(report, "warn")
