"""iperf3 in place of our own streams: what it finds is judged alike, and where it is of no use."""

from __future__ import annotations

import re
import subprocess
from typing import Any

import pytest

from tests.cluster.blame import causes, results, summary
from tests.cluster.machine import wait_until
from tests.cluster.test_bandwidth import CHECK, run
from tests.cluster.testbed import Testbed

ASKED = {"iperf3": True}
STAND_IN = "/usr/local/bin/iperf3"
"""Goes before the real one, as PATH has it."""
SCRIPT = '#!/bin/sh\ncase "$1" in {}) exec /usr/bin/iperf3 "$@";; esac\n{}\n'
"""The real one with some options, and something else with others."""


@pytest.fixture(scope="module")
def tool() -> str:
    """What the report is to call the iperf3 of the nodes, which is the controller's."""
    said = subprocess.run(["iperf3", "--version"], capture_output=True, text=True, check=True)
    return "iperf3 " + said.stdout.split()[1]


def facts(report: dict[str, Any], node: str) -> dict[str, Any]:
    found: dict[str, Any] = report["facts"][CHECK][node]["value"]
    return found


def left(bed: Testbed) -> list[str]:
    return [line for node in bed.names for line in bed.survivors(node) if "iperf" in line]


def test_a_sound_network(bed: Testbed, tool: str) -> None:
    report = run(bed, expect=ASKED)
    assert causes(report) == []
    assert results(report, "fail", "warn", "skip") == []
    for node in bed.names:
        found = facts(report, node)
        assert found["instrument"] == tool
        assert sorted(found["drawn"]) == [other for other in bed.names if other != node]
        for one in found["drawn"].values():
            assert one["error"] == ""
            assert one["gbps"] > 0
            assert isinstance(one["retransmits"], int)
            assert len(one["busy"]) == 2
        assert summary(report, CHECK, node).startswith(f"TCP ({tool}) at ")
    (details,) = {tuple(r["details"]) for r in report["results"] if r["check"] == CHECK}
    assert details == (f"measured with 8 TCP streams of {tool}, 1 s each way",)
    wait_until(lambda: not left(bed), "all of iperf3 has ended")


def test_a_node_with_a_slow_link(bed: Testbed, tool: str) -> None:
    bed.rate_limit("tb2", 200)
    bed.rate_limit("tb2", 200, "in")
    report = run(bed, expect=ASKED)
    assert causes(report) == [("node", CHECK, ["tb2"])]
    said = summary(report, CHECK, "tb2")
    pattern = rf"TCP \({re.escape(tool)}\) between it and the other nodes at 0\.\d+"
    assert re.match(pattern, said)
    assert said.endswith(" Gb/s is usual")
    words = f"TCP ({tool}) with tb2 is slow, which is told there"
    assert words in summary(report, CHECK, "tb1")


def test_a_node_without_it(bed: Testbed, tool: str) -> None:
    bed.change_file("tb3", "/usr/bin/iperf3", None)
    report = run(bed, expect=ASKED)
    assert causes(report) == []
    (row,) = [r for r in report["results"] if (r["check"], r["node"]) == (CHECK, "tb3")]
    assert (row["status"], row["summary"]) == (
        "unknown",
        "no iperf3, which expect.iperf3 asks for",
    )
    assert row["fix"].startswith("install iperf3 3.2 or newer: apt-get install iperf3")
    assert sorted(facts(report, "tb1")["drawn"]) == ["tb2", "tb4"]
    assert summary(report, CHECK, "tb1").startswith(f"TCP ({tool}) at ")


@pytest.mark.parametrize(
    ("real", "otherwise", "said"),
    [
        ("no", "sleep 1000", "iperf3: no answer in 3 s"),
        ("--version|-c", "echo rubbish", "iperf3 -s does not listen: it says 'rubbish'"),
        ("--version|-s", "sleep 1000", "iperf3 -c: no answer in 6 s"),
    ],
    ids=["hangs", "server says rubbish", "client hangs"],
)
def test_one_that_is_of_no_use(
    bed: Testbed, tool: str, real: str, otherwise: str, said: str
) -> None:
    bed.change_file("tb2", STAND_IN, SCRIPT.format(real, otherwise), 0o755)
    report = run(bed, expect=ASKED)
    assert causes(report) == []
    assert (CHECK, "tb2", said) in results(report, "unknown")
    for node in ("tb1", "tb3", "tb4"):
        assert summary(report, CHECK, node).startswith(f"TCP ({tool}) at ")
    wait_until(lambda: not [*bed.survivors("tb2"), *left(bed)], "all has ended")


def test_large_packets_that_are_lost(bed: Testbed, tool: str) -> None:
    bed.lose_large("tb3", 1000)
    report = run(bed, nodes=[bed.spec(node) for node in bed.names[:3]], expect=ASKED)
    assert causes(report) == [("node", CHECK, ["tb3"])]
    said = summary(report, CHECK, "tb3")
    # What the ends tell each other may be lost too: then it is both ways.
    ways = "between it and the other nodes|from the other nodes to it"
    assert re.match(rf"TCP \({re.escape(tool)}\) ({ways}) at 0 Gb/s, ", said)
    assert said.endswith(": nothing comes through, as where large packets are lost")
