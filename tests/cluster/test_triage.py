"""From a log to the cluster: what is wrong there is shown, and what no longer is is told so."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from tests.cluster.testbed import Testbed

TIMED_OUT = """\
tb1:4000:5000 [0] NCCL INFO Bootstrap : Using eth0:10.78.0.1<0>
tb1:4000:5000 [0] misc/socket.cc:456 NCCL WARN socketStartConnect: Connect to 10.78.0.2<41234> \
failed : Connection timed out
"""
WAITED = """\
[rank2]: RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out \
waiting 1800000ms for send operation to complete
"""


def triage(
    bed: Testbed, log: str, **overrides: Any
) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """Return what is printed, and the answer."""
    (bed.tmp_path / "job.log").write_text(log)
    path = bed.tmp_path / "answer.json"
    inventory = str(bed.inventory(**overrides))
    done = bed.preflight("triage", "job.log", "-i", inventory, "--json", str(path))
    assert done.returncode == 0, done.stderr
    return done, json.loads(path.read_text())


def words(text: str) -> str:
    """Return what is printed without its lines' ends."""
    return " ".join(text.split())


def test_the_rule_that_closes_the_ports(bed: Testbed) -> None:
    for node in bed.names:
        bed.allow_sudo(node)
    chain = "type filter hook input priority 0; tcp dport 32768-60999 drop"
    bed.nft("tb2", f"table ip t {{ chain c {{ {chain}\n}}\n}}")
    done, answer = triage(bed, TIMED_OUT, ssh={"become": "sudo"})
    first = answer["hypotheses"][0]
    assert (first["cause"], first["nodes"]) == ("network.ephemeral", ["tb1"])
    assert first["confirmed"] == "yes"
    (shown,) = first["shown"]
    assert (shown["check"], shown["nodes"], shown["status"]) == (
        "network.firewall",
        ["tb2"],
        "fail",
    )
    assert shown["fix"].startswith("nft insert rule ip t c ")
    assert answer["asked"]["nodes"] == ["tb1"]
    assert done.stdout.splitlines()[2].startswith("CONFIRMED  tb1 had no answer")
    assert "now: the cluster shows it: tb2: what comes from the other nodes" in words(done.stdout)
    assert shown["fix"] in words(done.stdout)


def test_large_packets_are_lost_to_the_node_of_a_rank(bed: Testbed) -> None:
    bed.port_mtu("tb3", 1400)
    done, answer = triage(bed, WAITED, launch={"gpus_per_node": 1})
    first = answer["hypotheses"][0]
    assert first["confirmed"] == "yes"
    assert [(one["check"], one["nodes"]) for one in first["shown"]] == [
        ("network.path_mtu", ["tb3"])
    ]
    assert answer["asked"]["nodes"] == ["tb3"]
    assert answer["asked"]["mapped"] == [
        "rank 2 is taken to be on tb3, by 1 GPU a node: no log names its node"
    ]
    assert "packets above 1400 bytes between it and the other nodes are lost" in words(done.stdout)


def test_a_healthy_cluster_does_not_show_it_now(bed: Testbed) -> None:
    done, answer = triage(bed, TIMED_OUT)
    first = answer["hypotheses"][0]
    assert first["confirmed"] == "no"
    assert {one["status"] for one in first["shown"]} == {"pass", "skip"}
    assert "now: the cluster does not show it now, it may have been so then: " in words(done.stdout)
    without = bed.preflight("triage", "job.log", "--json", "-")
    before = json.loads(without.stdout)
    assert first["confidence"] < before["hypotheses"][0]["confidence"]
    assert before["hypotheses"][0]["confirmed"] is None
    assert before["command"].startswith("preflight run INVENTORY --only network.firewall,network.")


def test_a_node_that_is_not_reached_leaves_the_command(bed: Testbed) -> None:
    bed.drop_ssh("tb1")
    done, answer = triage(bed, TIMED_OUT, ssh={"connect_timeout_s": 1})
    assert answer["hypotheses"][0]["confirmed"] == "unknown"
    assert answer["asked"]["unreached"] == ["tb1"]
    assert "To see whether the cluster shows it" in done.stdout
    assert answer["command"] in done.stdout
