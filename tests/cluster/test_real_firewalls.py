"""ufw and firewalld as they are installed: what they lose is put down to them, and they mend it."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from tests.cluster.blame import causes, results, summary
from tests.cluster.testbed import Testbed

CHECKS = ("network.firewall", "network.ephemeral", "network.port")
LOST = "what comes from the other nodes on TCP port"

real_ufw = pytest.mark.skipif(not shutil.which("ufw"), reason="no ufw")
real_firewalld = pytest.mark.skipif(not shutil.which("firewalld"), reason="no firewalld")


def run(bed: Testbed, *checks: str) -> dict[str, Any]:
    """Return the report of a run as root, and see that its exit code fits."""
    for node in bed.names:
        bed.allow_sudo(node)
    only = [part for check in checks or CHECKS for part in ("--only", check)]
    done, report = bed.report("run", str(bed.inventory(ssh={"become": "sudo"})), *only)
    assert done.returncode == bool(report["causes"]), done.stdout + done.stderr
    return report


def assert_well(report: dict[str, Any]) -> None:
    assert causes(report) == []
    assert results(report, "fail", "warn", "unknown", "skip") == []


def mended(bed: Testbed, node: str, report: dict[str, Any]) -> dict[str, Any]:
    """Do on a node what the report says, and return the next one."""
    (cause,) = report["causes"]
    bed.run(node, "sh", "-c", cause["fix"])
    return run(bed)


@real_ufw
def test_ufw_drops_what_it_does_not_know(bed: Testbed) -> None:
    bed.ufw("tb1")
    report = run(bed)
    assert causes(report) == [("node", "network.firewall", ["tb1"])]
    assert {e["check"] for e in report["causes"][0]["explains"]} == {*CHECKS[1:]}
    assert summary(report, "network.firewall", "tb1") == (
        f"{LOST}s 29500, 32768-60999 is dropped here by:"
        " policy drop (ufw, chain INPUT of ip filter)"
    )
    first = "ufw allow proto tcp from 10.78.0.1 to any port 29500,32768:60999 && ufw allow"
    assert report["causes"][0]["fix"].startswith(first)
    assert_well(mended(bed, "tb1", report))


@real_ufw
def test_ufw_denies_a_port_before_it_allows_it(bed: Testbed) -> None:
    bed.ufw("tb1", "deny 29500/tcp", "allow from 10.78.0.0/24")
    report = run(bed)
    assert causes(report) == [("node", "network.firewall", ["tb1"])]
    assert {e["check"] for e in report["causes"][0]["explains"]} == {"network.port"}
    assert summary(report, "network.firewall", "tb1") == (
        f"{LOST} 29500 is dropped here by: -A ufw-user-input -p tcp -m tcp --dport 29500 -j DROP"
        " (ufw, chain ufw-user-input of ip filter)"
    )
    assert report["causes"][0]["fix"].startswith("ufw prepend allow proto tcp from 10.78.0.1 to")
    assert_well(mended(bed, "tb1", report))


@real_ufw
def test_ufw_that_lets_the_right_things_through(bed: Testbed) -> None:
    ports = "allow proto tcp from 10.78.0.0/24 to any port 29500,32768:60999"
    bed.ufw("tb1", ports)
    bed.ufw("tb2", ports)
    assert_well(run(bed))


@real_firewalld
def test_firewalld_rejects_what_its_zone_does_not_know(bed: Testbed) -> None:
    bed.firewalld("tb1")
    report = run(bed)
    assert causes(report) == [("node", "network.firewall", ["tb1"])]
    assert {e["check"] for e in report["causes"][0]["explains"]} == {*CHECKS[1:]}
    assert summary(report, "network.firewall", "tb1") == (
        f"{LOST}s 29500, 32768-60999 is rejected here by:"
        " reject with icmpx type admin-prohibited (firewalld, zone public)"
    )
    assert report["causes"][0]["fix"] == (
        "firewall-cmd --permanent --zone=trusted --add-source=10.78.0.1 --add-source=10.78.0.2/31"
        " --add-source=10.78.0.4 && firewall-cmd --reload"
    )
    assert_well(mended(bed, "tb1", report))


@real_firewalld
def test_firewalld_drops_a_zone_of_sources(bed: Testbed) -> None:
    zone = "--zone=drop"
    bed.firewalld("tb1", f"{zone} --add-source=10.78.0.0/24", f"{zone} --add-service=ssh")
    report = run(bed)
    assert causes(report) == [("node", "network.firewall", ["tb1"])]
    assert summary(report, "network.firewall", "tb1") == (
        f"{LOST}s 29500, 32768-60999 is dropped here by: drop (firewalld, zone drop)"
    )
    assert report["causes"][0]["fix"] == (
        "firewall-cmd --permanent --zone=drop --add-port=29500/tcp --add-port=32768-60999/tcp"
        " && firewall-cmd --reload"
    )
    assert_well(mended(bed, "tb1", report))


@real_firewalld
def test_firewalld_that_lets_the_right_things_through(bed: Testbed) -> None:
    zone = "--zone=public"
    bed.firewalld("tb1", f"{zone} --add-port=29500/tcp", f"{zone} --add-port=32768-60999/tcp")
    bed.firewalld("tb2", "--zone=trusted --add-source=10.78.0.0/24")
    assert_well(run(bed))


@real_ufw
@real_firewalld
def test_firewalls_that_know_the_nodes_disturb_no_network_check(bed: Testbed) -> None:
    bed.ufw("tb1", "allow from 10.78.0.0/24")
    bed.firewalld("tb2", "--zone=trusted --add-source=10.78.0.0/24")
    report = run(bed, "network")
    assert causes(report) == []
    assert results(report, "fail", "warn", "unknown") == []


@real_ufw
@real_firewalld
def test_nothing_is_left_of_them(bed: Testbed) -> None:
    before = bed.files("tb1"), bed.files("tb2")
    bed.ufw("tb1")
    bed.firewalld("tb2")
    bed.restore()
    assert (bed.files("tb1"), bed.files("tb2")) == before
    for node in ("tb1", "tb2"):
        assert bed.run(node, "nft", "list", "ruleset") == ""
        assert bed.survivors(node) == []
