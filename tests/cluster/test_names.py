"""Faults of names: they mean the wrong thing or nothing, and resolvers that make one wait."""

from __future__ import annotations

import re
from typing import Any

from tests.cluster.blame import causes, results, summary
from tests.cluster.testbed import Testbed

HOSTS, RESOLV = "/etc/hosts", "/etc/resolv.conf"
CHECK = "network.names"

# Answers each question after a while: that there is no such name.
SLOW_SERVER = """
import socket, sys, threading
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("0.0.0.0", 53))
print("ready", flush=True)
def answer(question, client):
    server.sendto(question[:2] + b"\\x81\\x83" + question[4:6] + bytes(6) + question[12:], client)
while True:
    question, client = server.recvfrom(512)
    threading.Timer(float(sys.argv[1]), answer, (question, client)).start()
"""


def run(bed: Testbed, code: int = 1, **overrides: Any) -> dict[str, Any]:
    """Return the report of a run of these checks."""
    argv = ("--only", "network", "--only", "launch")
    done, report = bed.report("run", str(bed.inventory(**overrides)), *argv)
    assert done.returncode == code, done.stdout + done.stderr
    return report


def hosts(bed: Testbed, *nodes: str, more: str = "", **other: str) -> None:
    """Write /etc/hosts of nodes: all have their address, but for what is said here."""
    names = {**{name: machine.address for name, machine in bed.machines.items()}, **other}
    lines = [f"{address} {name}\n" for name, address in names.items() if address]
    for node in nodes:
        bed.change_file(node, HOSTS, "127.0.0.1 localhost\n" + "".join(lines) + more)


def name_server(bed: Testbed, *nodes: str, seconds: float = 0.0) -> None:
    """Give nodes a name server, on tb4, that knows no name and says so after a while."""
    machine = bed.machines["tb4"]
    pid = machine.start("/usr/bin/python3", "-c", SLOW_SERVER, str(seconds), says="ready")
    bed._undo(machine.end, pid)
    for node in nodes:
        bed.change_file(node, RESOLV, f"nameserver {machine.address}\n")


def test_all_is_well(bed: Testbed) -> None:
    report = run(bed, 0)
    assert results(report, "fail", "warn", "unknown") == []
    said = summary(report, CHECK, "tb3")
    assert said == "its own name tb3 means 10.78.0.3; it finds 3 other nodes by name"


def test_an_own_name_that_is_loopback(bed: Testbed) -> None:
    hosts(bed, "tb3", tb3="127.0.1.1")
    report = run(bed)
    assert causes(report) == [("node", CHECK, ["tb3"])]
    assert summary(report, CHECK, "tb3") == (
        "its own name tb3 means 127.0.1.1, a loopback address: "
        "Gloo would have the other nodes connect to themselves"
    )
    assert report["causes"][0]["fix"] == (
        "in /etc/hosts, write '10.78.0.3 tb3' in place of '127.0.1.1 tb3'; "
        "or tell Gloo the interface: GLOO_SOCKET_IFNAME=eth0 in launch.env"
    )
    report = run(bed, 0, launch={"env": {"GLOO_SOCKET_IFNAME": "eth0"}})
    assert results(report, "fail", "warn", "unknown") == []


def test_own_names_that_are_loopback_on_all(bed: Testbed) -> None:
    for node in bed.names:
        hosts(bed, node, **{node: "127.0.1.1"})
    report = run(bed)
    assert {check for _, check, _ in causes(report)} == {CHECK}
    assert [node for _, _, nodes in causes(report) for node in nodes] == list(bed.names)


def test_an_own_name_that_means_nothing_or_what_is_not_here(bed: Testbed) -> None:
    hosts(bed, "tb2", tb2="")
    hosts(bed, "tb4", tb4="10.78.0.99")
    report = run(bed)
    assert causes(report) == [("node", CHECK, ["tb2"]), ("node", CHECK, ["tb4"])]
    said = summary(report, CHECK, "tb2")
    assert said.startswith("its own name tb2 means nothing here (")
    assert said.endswith("): Gloo takes 127.0.0.1")
    assert summary(report, CHECK, "tb4") == (
        "its own name tb4 means 10.78.0.99, which no interface here has: Gloo takes 127.0.0.1"
    )


def test_a_name_that_one_node_does_not_know(bed: Testbed) -> None:
    name_server(bed, "tb2")
    hosts(bed, "tb2", tb1="")
    report = run(bed, launch={"env": {"MASTER_ADDR": "tb1"}})
    assert causes(report) == [("node", CHECK, ["tb2"])]
    assert summary(report, CHECK, "tb2") == "does not find tb1: no such name"
    assert [e["check"] for e in report["causes"][0]["explains"]] == ["launch.plan"]
    assert report["causes"][0]["fix"] == "add to DNS, or to /etc/hosts: 10.78.0.1 tb1"


def test_a_name_that_is_another_node(bed: Testbed) -> None:
    hosts(bed, "tb4", tb1="10.78.0.2")
    report = run(bed, launch={"env": {"MASTER_ADDR": "tb1"}})
    assert causes(report) == [("node", CHECK, ["tb4"])]
    assert summary(report, CHECK, "tb4") == "takes tb1 for 10.78.0.2, which is tb2"
    assert [e["check"] for e in report["causes"][0]["explains"]] == ["launch.plan"]
    assert report["causes"][0]["fix"] == (
        "in /etc/hosts, write '10.78.0.1 tb1' in place of '10.78.0.2 tb1'"
    )


def test_a_name_that_is_this_node_itself(bed: Testbed) -> None:
    bed.container_bridge("tb2", "brn0")
    hosts(bed, "tb2", tb3="172.18.0.1")
    report = run(bed)
    assert causes(report) == [("node", CHECK, ["tb2"])]
    said = summary(report, CHECK, "tb2")
    assert said == "takes tb3 for 172.18.0.1, an address that tb2 has itself"


def test_a_link_local_address_that_every_node_has(bed: Testbed) -> None:
    hosts(bed, "tb1", "tb3", "tb4", tb2="169.254.20.10")
    report = run(bed)
    assert causes(report) == [("node", CHECK, ["tb2"])]
    assert summary(report, CHECK, "tb2") == (
        "its name tb2 means 169.254.20.10 to the other nodes, a link-local address"
    )


def test_an_old_address_that_all_others_have(bed: Testbed) -> None:
    hosts(bed, "tb1", "tb2", "tb4", tb3="10.78.0.99")
    report = run(bed)
    assert causes(report) == [("node", CHECK, ["tb3"])]
    assert summary(report, CHECK, "tb3") == (
        "its name tb3 means 10.78.0.99 to the other nodes, which no interface of tb3 has"
    )
    assert report["causes"][0]["fix"] == "in /etc/hosts of the other nodes, let tb3 be 10.78.0.3"


def test_a_master_that_nobody_knows(bed: Testbed) -> None:
    name_server(bed, "tb2", "tb3", "tb4")
    hosts(bed, "tb2", "tb3", "tb4", tb1="")
    report = run(bed, launch={"env": {"MASTER_ADDR": "tb1"}})
    assert causes(report) == [("cluster", CHECK, list(bed.names))]
    assert {e["check"] for e in report["causes"][0]["explains"]} == {"launch.plan"}


def test_a_master_address_that_is_wrong_is_no_fault_of_names(bed: Testbed) -> None:
    name_server(bed, *bed.names)
    report = run(bed, launch={"env": {"MASTER_ADDR": "tb2"}})
    assert causes(report) == [("cluster", "launch.plan", list(bed.names))]
    report = run(bed, launch={"env": {"MASTER_ADDR": "tb9"}})
    assert causes(report) == [("node", "launch.plan", list(bed.names))]


def test_a_cluster_that_goes_by_addresses(bed: Testbed) -> None:
    for node in bed.names:
        hosts(bed, node, **{name: "" for name in bed.names if name != node})
    report = run(bed, 0)
    assert [node for _, node, _ in results(report, "warn")] == list(bed.names)
    said = summary(report, CHECK, "tb1")
    assert said == "no node finds another one by name, which torchrun's c10d rendezvous needs"


def test_a_full_name_that_only_its_node_knows(bed: Testbed) -> None:
    hosts(bed, "tb3", more="10.78.0.3 tb3.lan tb3\n", tb3="")
    report = run(bed)
    assert causes(report) == [("node", CHECK, ["tb3"])]
    said = summary(report, CHECK, "tb3")
    assert said.startswith("its name tb3.lan means nothing to the other nodes: ")
    assert report["causes"][0]["fix"] == "add to DNS, or to /etc/hosts: 10.78.0.3 tb3.lan tb3"


def test_a_full_name_that_is_localhost(bed: Testbed) -> None:
    hosts(bed, "tb2", more="127.0.0.1 localhost.localdomain tb2\n", tb2="")
    report = run(bed)
    assert causes(report) == [("node", CHECK, ["tb2"])]
    said = summary(report, CHECK, "tb2")
    assert said == (
        "its full name is localhost, which torchrun would tell the others as MASTER_ADDR"
    )


def test_names_of_digits_and_names_of_two(bed: Testbed) -> None:
    for node, name in (("tb2", "1234"), ("tb4", "tb3")):
        bed._undo(bed.run, node, "hostname", node)
        bed.run(node, "hostname", name)
    report = run(bed)
    assert causes(report) == [("node", CHECK, ["tb2"]), ("node", CHECK, ["tb4"])]
    assert summary(report, CHECK, "tb2") == (
        "its host name 1234 is made of digits only, and taken for the address 0.0.4.210"
    )
    assert summary(report, CHECK, "tb4") == "its host name tb3 is that of tb3 too"


def test_families_that_are_mixed(bed: Testbed) -> None:
    for number, node in enumerate(bed.names, 1):
        bed.run(node, "ip", "addr", "add", f"fd78::{number}/64", "dev", "eth0", "nodad")
        bed._undo(bed.run, node, "ip", "addr", "del", f"fd78::{number}/64", "dev", "eth0")
    hosts(bed, "tb3", tb3="fd78::3")
    report = run(bed)
    assert causes(report) == [("node", CHECK, ["tb3"])]
    assert summary(report, CHECK, "tb3") == (
        "its own name means IPv6 first, the 3 others have IPv4 first: Gloo does not pair them"
    )


def test_a_dead_resolver(bed: Testbed) -> None:
    bed.drop("tb4", 53)
    bed.change_file("tb2", RESOLV, "nameserver 10.78.0.4\n")
    report = run(bed, 0)
    assert results(report, "fail", "warn", "unknown") == []
    hosts(bed, "tb2", tb3="")
    report = run(bed)
    assert causes(report) == [("node", CHECK, ["tb2"])]
    said = summary(report, CHECK, "tb2")
    words = "no answer of the resolver (/etc/resolv.conf names 10.78.0.4)"
    assert said == f"does not find tb3: {words}"
    (tb2,) = [r for r in report["results"] if (r["check"], r["node"]) == (CHECK, "tb2")]
    for detail in tb2["details"]:  # what hangs is left behind in time
        assert re.search(r" took [56]\.\d s without an answer", detail)
    assert len(tb2["details"]) == 2


def test_a_slow_resolver(bed: Testbed) -> None:
    name_server(bed, "tb1", seconds=1.5)
    hosts(bed, "tb1", tb2="", more="10.78.0.2 unnamed\n")
    report = run(bed)
    assert causes(report) == [("node", CHECK, ["tb1"])]
    assert summary(report, CHECK, "tb1") == "does not find tb2: no such name"
    (tb1,) = [r for r in report["results"] if (r["check"], r["node"]) == (CHECK, "tb1")]
    assert tb1["details"][0].startswith("looking up tb2 took ")
