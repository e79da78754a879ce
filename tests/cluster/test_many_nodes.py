"""More nodes than all of which all pairs are tried: a sample finds who is to blame."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from preflight.node.pairs import ALL_UP_TO, MEETS
from tests.cluster.blame import causes, results, summary
from tests.cluster.testbed import Testbed

COUNT = ALL_UP_TO + 2
HIGH = "32768-60999"


@pytest.fixture
def many(testbed: Testbed, tmp_path: Path) -> Iterator[Testbed]:  # noqa: ARG001 - can be raised
    with Testbed(tmp_path, COUNT) as large, large.inside():
        introduce(large)
        yield large


def introduce(bed: Testbed) -> None:
    """Give every node the link-layer addresses of all others.

    Those that are looked up take a place in a table that the kernel has once for all namespaces
    (1,024 by net.ipv4.neigh.default.gc_thresh3), so that tests beside this one would suffer.
    """
    machines = bed.machines.values()
    links = {one.name: one.run("cat", "/sys/class/net/eth0/address").strip() for one in machines}
    for machine in machines:
        others = [one for one in machines if one is not machine]
        lines = [f"neigh add {o.address} lladdr {links[o.name]} dev eth0" for o in others]
        machine.run("ip", "-batch", "-", stdin="\n".join(lines))


def test_a_sample_of_pairs(many: Testbed) -> None:
    master, second, *_ = many.names
    closed, hole = many.names[COUNT // 2], many.names[-1]
    many.drop(closed, HIGH)
    many.lose_large(hole, 1450)
    names = ("ephemeral", "path_mtu", "latency", "names", "interface")
    checks = tuple(f"network.{name}" for name in names)
    _, report = many.report("run", str(many.inventory()), "--only", ",".join(checks), timeout=120)
    assert causes(report) == [
        ("node", "network.ephemeral", [closed]),
        ("node", "network.path_mtu", [hole]),
    ]
    assert {node for _, node, _ in results(report, "warn", "unknown", "fail")} == {closed, hole}
    for check in checks:
        assert f" (a sample of {COUNT - 1})" in summary(report, check, second)
    said = summary(report, "network.ephemeral", master)
    assert said.startswith(f"meets {COUNT - 2} of {COUNT - 1} nodes on random ports; with {closed}")
    made = report["facts"]["network.ephemeral"][second]["value"]["answers"]
    assert master in made
    assert MEETS // 2 <= len(made) <= MEETS + 1
