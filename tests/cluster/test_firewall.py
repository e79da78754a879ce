"""Firewalls, proxies and strangers: the rule, the node, and nobody else."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cluster.blame import causes, results, summary
from tests.cluster.testbed import Testbed

MASTER = "10.78.0.1:29500"
CHECKS = ("network.firewall", "network.ephemeral", "network.port")
ONLY = [part for check in CHECKS for part in ("--only", check)]
BEGIN = """\
table inet filter {{ chain input {{ type filter hook input priority filter; policy drop
ct state vmap {{ established : accept, related : accept, invalid : drop }}
iif lo accept
meta l4proto {{ icmp, ipv6-icmp }} accept
tcp dport {ports} accept
{more}
}}
}}
"""
IPTABLES = ("-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT", "-i lo -j ACCEPT")


def wall(ports: str, more: str = "") -> str:
    """A host firewall that knows connections, and lets new ones come to some ports alone."""
    return BEGIN.format(ports=ports, more=more)


def run(bed: Testbed, *args: str, root: bool = True, **overrides: Any) -> dict[str, Any]:
    """Return the report of a run, as root where the rules are to be read."""
    for node in bed.names if root else ():
        bed.allow_sudo(node)
    ssh = {"ssh": {"become": "sudo"}} if root else {}
    _, report = bed.report("run", str(bed.inventory(**ssh, **overrides)), *(args or ONLY))
    return report


def result(report: dict[str, Any], check: str, node: str) -> dict[str, Any]:
    (found,) = [r for r in report["results"] if (r["check"], r["node"]) == (check, node)]
    return dict(found)


def explained(report: dict[str, Any]) -> list[str]:
    return sorted({e["check"] for cause in report["causes"] for e in cause["explains"]})


def test_a_firewall_that_lets_the_right_things_through(bed: Testbed) -> None:
    peers = "ip saddr 10.78.0.0/24 tcp dport { 29500, 32768-60999 } ct state new accept"
    for node in bed.names[:2]:
        bed.nft(node, wall("22", f'{peers}\nlimit rate 3/second log prefix "drop "'))
    accept = "-s 10.78.0.1,10.78.0.2,10.78.0.4 -j ACCEPT"
    lines = [f"-A INPUT {rule}" for rule in (*IPTABLES, "-p tcp --dport 22 -j ACCEPT", accept)]
    bed.iptables("tb3", *lines, "-P INPUT DROP")
    report = run(bed)
    assert causes(report) == []
    assert results(report, "fail", "warn", "unknown", "skip") == []
    both = "no rule loses what comes from the other nodes on TCP ports 29500, 32768-60999, or goes"
    assert summary(report, "network.firewall", "tb1") == f"{both} to them"
    assert summary(report, "network.firewall", "tb4") == "no rules: this node filters nothing"


def test_without_root_the_rules_are_not_read(bed: Testbed) -> None:
    bed.reject("tb1", 29500, source="10.78.0.2-10.78.0.4")
    report = run(bed, root=False)
    assert causes(report) == [("node", "network.port", ["tb1"])]
    assert summary(report, "network.firewall", "tb1") == "needs root"
    words = "rejected by 10.78.0.1, as by a firewall (ICMP administratively prohibited)"
    assert summary(report, "network.port", "tb1") == f"no other node reaches {MASTER}: {words}"


def test_the_rule_that_drops_the_launch_port(bed: Testbed) -> None:
    chain = "type filter hook input priority 0; tcp dport 29500 drop"
    bed.nft("tb1", f"table ip t {{ chain c {{ {chain}\n}}\n}}")
    report = run(bed)
    assert causes(report) == [("node", "network.firewall", ["tb1"])]
    assert explained(report) == ["network.port"]
    assert summary(report, "network.firewall", "tb1") == (
        "what comes from the other nodes on TCP port 29500 is dropped here by: "
        "tcp dport 29500 drop (nft, chain c of ip t)"
    )
    assert report["causes"][0]["fix"] == (
        "nft insert rule ip t c 'ip saddr { 10.78.0.1, 10.78.0.2/31, 10.78.0.4 } "
        "tcp dport 29500 accept', and keep it in /etc/nftables.conf"
    )


def test_the_fix_of_nft_mends_it(bed: Testbed) -> None:
    for node in bed.names:
        bed.nft(node, wall("{ 22, 29500 }"))
    report = run(bed)
    assert causes(report) == [("node", "network.firewall", list(bed.names))]
    assert explained(report) == ["network.ephemeral"]
    said = summary(report, "network.firewall", "tb2")
    assert said == (
        "what comes from the other nodes on TCP ports 32768-60999 is dropped here by: "
        "policy drop (nft, chain input of inet filter)"
    )
    command = report["causes"][0]["fix"].split(", and keep")[0]
    for node in bed.names:
        bed.run(node, "sh", "-c", command)
    assert causes(run(bed)) == []


@pytest.mark.parametrize("kind", ["nft", "legacy"])
def test_the_fix_of_iptables_mends_it(bed: Testbed, kind: str) -> None:
    ssh = "-p tcp -m multiport --dports 22,29500 -j ACCEPT"
    refuse = "-p tcp -j REJECT --reject-with icmp-host-prohibited"
    lines = [f"-A INPUT {rule}" for rule in (*IPTABLES, ssh, refuse)]
    bed.iptables("tb3", *lines, kind=kind)
    report = run(bed)
    assert causes(report) == [("node", "network.firewall", ["tb3"])]
    assert explained(report) == ["network.ephemeral"]
    program = "iptables" if kind == "nft" else "iptables-legacy"
    assert summary(report, "network.firewall", "tb3") == (
        "what comes from the other nodes on TCP ports 32768-60999 is rejected here by: "
        f"-A INPUT -p tcp -j REJECT --reject-with icmp-host-prohibited "
        f"({program}, chain INPUT of ip filter)"
    )
    said = summary(report, "network.ephemeral", "tb3")
    assert said.endswith("rejected by 10.78.0.3, as by a firewall (ICMP host prohibited)")
    command = report["causes"][0]["fix"].split(", and save")[0]
    bed.run("tb3", "sh", "-c", command)
    assert causes(run(bed)) == []


def test_a_policy_of_iptables(bed: Testbed) -> None:
    lines = [f"-A INPUT {rule}" for rule in (*IPTABLES, "-p tcp --dport 22 -j ACCEPT")]
    bed.iptables("tb1", *lines, "-P INPUT DROP", kind="legacy")
    report = run(bed)
    assert causes(report) == [("node", "network.firewall", ["tb1"])]
    assert explained(report) == ["network.ephemeral", "network.port"]
    assert summary(report, "network.firewall", "tb1") == (
        "what comes from the other nodes on TCP ports 29500, 32768-60999 is dropped here by: "
        "policy drop (iptables-legacy, chain INPUT of ip filter)"
    )


def test_one_node_is_kept_out(bed: Testbed) -> None:
    bed.drop("tb1", 29500, source="tb3")
    report = run(bed)
    assert causes(report) == [("node", "network.firewall", ["tb1"])]
    assert report["causes"][0]["explains"] == [{"check": "network.port", "node": "tb3"}]
    said = summary(report, "network.firewall", "tb1")
    assert said.startswith("what comes from tb3 on TCP port 29500 is dropped here by: ip saddr")


def test_a_firewall_that_lets_nothing_out(bed: Testbed) -> None:
    bed.drop("tb3", "29500-60999", "output")
    report = run(bed)
    assert causes(report) == [("node", "network.firewall", ["tb3"])]
    assert explained(report) == ["network.ephemeral", "network.port"]
    said = summary(report, "network.firewall", "tb3")
    assert said.startswith("what goes out to the other nodes on TCP ports 32768-60999 is dropped")


@pytest.mark.parametrize("how", ["tcp reset", "port-unreachable", "net-unreachable"])
def test_refusals(bed: Testbed, how: Any) -> None:
    bed.reject("tb2", "29500-60999", how, source="10.78.0.1-10.78.0.4")
    report = run(bed)
    assert causes(report) == [("node", "network.firewall", ["tb2"])]
    assert explained(report) == ["network.ephemeral"]


def test_a_proxy_that_accepts_and_says_nothing(bed: Testbed) -> None:
    bed.proxy("tb1", 29500)
    report = run(bed)
    assert causes(report) == [("node", "network.port", ["tb1"])]
    silent = "accepted, but our listener never answered, as behind a proxy or service mesh"
    assert summary(report, "network.port", "tb1") == f"no other node reaches {MASTER}: {silent}"
    assert results(report, "warn") == [
        (
            "network.firewall",
            "tb1",
            "what comes from the other nodes on TCP port 29500 is led elsewhere here, "
            "as to a proxy, by: tcp dport 29500 redirect to :15001 (nft, chain mesh of ip istio)",
        )
    ]


def test_what_no_rule_of_a_node_explains(bed: Testbed) -> None:
    bed.switch_acl("32768-60999", "tb2")
    report = run(bed)
    assert causes(report) == [("node", "network.ephemeral", ["tb2"])]
    found = result(report, "network.firewall", "tb2")
    assert (found["status"], found["summary"]) == ("pass", "no rules: this node filters nothing")
    assert "security group" in found["details"][-1]
    assert report["causes"][0]["fix"].endswith(
        "where network.firewall (as root) finds no such rule on either node, "
        "see the security group of the cloud or the ACLs of the switches"
    )


def test_a_rule_that_is_not_understood_fails_nobody(bed: Testbed) -> None:
    bed.nft("tb2", wall("22", "ip saddr . tcp dport { 10.78.0.0/24 . 29000-61000 } accept"))
    report = run(bed)
    assert causes(report) == []
    assert results(report, "warn", "unknown") == []
    details = result(report, "network.firewall", "tb2")["details"]
    words = "may lose some of it, for it is not understood what else matches: policy drop (nft,"
    assert details[0].startswith(words)


# ---- the launch port with another master ---------------------------------------------------


def test_a_node_that_could_not_be_the_master(bed: Testbed) -> None:
    bed.drop("tb3", 29500)
    pid = bed.hold_port("tb4")
    report = run(bed, root=False)
    assert causes(report) == []
    held, dropped = sorted(results(report, "warn"))[::-1]
    assert held[1:2] == ("tb4",)
    assert held[2].startswith(f"could not be the master: port 29500 is held by pid {pid} (python3")
    assert dropped == (
        "network.port",
        "tb3",
        "could not be the master: the other nodes do not reach it on port 29500: "
        "no answer in 4 s, as where a firewall drops it",
    )


def test_a_route_that_one_node_lacks(bed: Testbed) -> None:
    bed.no_route("tb3", "tb1")
    report = run(bed, "--only", "network.port", root=False)
    assert [check for _, check, _ in causes(report)] == ["network.port"]


# ---- strangers -----------------------------------------------------------------------------


def test_a_scraper_on_another_machine(bed: Testbed) -> None:
    bed.visit("tb4", "tb2", 29500, "GET /metrics HTTP/1.1\\r\\n\\r\\n")
    nodes = [bed.spec(node) for node in bed.names[:3]]
    report = run(bed, "--only", "network.foreign", root=False, nodes=nodes)
    ((check, node, said),) = results(report, "warn")
    assert (check, node) == ("network.foreign", "tb2")
    assert said.startswith("10.78.0.4 came to the launch port ")
    assert said.endswith(" times in 2 s: a metrics scraper (it said 'GET /metrics HTT')")
    assert summary(report, "network.foreign", "tb1").startswith("nobody came to port 29500 and ")
    assert results(report, "fail", "unknown") == []


def test_a_node_of_the_job_itself(bed: Testbed) -> None:
    bed.visit("tb4", "tb1", 29500, "\\x00\\xce\\xf7\\x85\\x3c")
    report = run(bed, "--only", "network.foreign", "--only", "network.port", root=False)
    ((_, node, said),) = results(report, "warn")
    assert (node, said[:33]) == ("tb1", "tb4 (10.78.0.4) came to the launc")
    assert "a rank of torch that looks for its master" in said
