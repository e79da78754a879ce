"""Two faults of unlike kinds at once: both are causes, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from tests.cluster.blame import causes, results
from tests.cluster.hardware import gpu_values
from tests.cluster.testbed import Testbed

LAUNCH, HIGH = 29500, "32768-60999"
WALL = """
table inet filter {
    chain input {
        type filter hook input priority filter; policy drop
        ct state vmap { established : accept, related : accept, invalid : drop }
        iif lo accept
        meta l4proto { icmp, ipv6-icmp, udp } accept
        tcp dport 22 accept
    }
}
"""
FIRST, SECOND, THIRD, LAST = range(4)
"""Places of the nodes; the first one is the master."""

Cause = tuple[str, str, tuple[int, ...]]
"""Kind, check and nodes."""


class Fault(NamedTuple):
    """What can be wrong, and what a run is to say of it."""

    put_in: Callable[[Testbed, str], Any]
    where: int
    cause: Cause


def other(bed: Testbed, node: str) -> str:
    """Return the node that a fault of a pair is with: the one after it, and not the master."""
    return bed.names[bed.names.index(node) % (len(bed.names) - 1) + 1]


def wrong_hosts(bed: Testbed, node: str) -> None:
    """Let one node take another one for a third."""
    names = {name: machine.address for name, machine in bed.machines.items()}
    names[bed.names[FIRST]] = names[bed.names[SECOND]]
    lines = [f"{address} {name}\n" for name, address in names.items()]
    bed.change_file(node, "/etc/hosts", "127.0.0.1 localhost\n" + "".join(lines))


def older_driver(bed: Testbed, node: str) -> None:
    """Give all nodes GPUs, and one of them an older driver."""
    for name in bed.names:
        bed.nvml(name, gpu_values(driver="535.161.08" if name == node else "550.54.15"))


def other_network(bed: Testbed, node: str) -> None:
    """Give one node an interface that NCCL prefers, on a network of its own."""
    number = bed.names.index(node) + 1
    bed.add_tap(node, f"ibp{number}", 10_000, mtu=2044, address=f"10.80.0.{number}/24")


def on(check: str, node: int, *more: int, kind: str = "node") -> Cause:
    return kind, check, (node, *more)


MTU = Fault(lambda bed, node: bed.mtu(node, 1400), SECOND, on("network.mtu", SECOND))
HELD = Fault(lambda bed, node: bed.hold_port(node), FIRST, on("network.port", FIRST))
CLOSED = Fault(lambda bed, node: bed.reject(node, LAUNCH), FIRST, on("network.port", FIRST))
DROPPED = Fault(lambda bed, node: bed.drop(node, HIGH), THIRD, on("network.ephemeral", THIRD))
KEPT_OUT = Fault(
    lambda bed, node: bed.drop(node, HIGH, source=other(bed, node)),
    SECOND,
    on("network.ephemeral", THIRD, SECOND, kind="pair"),
)
WALLED = Fault(lambda bed, node: bed.nft(node, WALL), SECOND, on("network.firewall", SECOND))
HOLE = Fault(lambda bed, node: bed.lose_large(node, 1450), SECOND, on("network.path_mtu", SECOND))
SMALL_PORT = Fault(lambda bed, node: bed.port_mtu(node, 1400), LAST, on("network.path_mtu", LAST))
LOSSY = Fault(lambda bed, node: bed.lose(node, 30), THIRD, on("network.latency", THIRD))
NO_ROUTE = Fault(
    lambda bed, node: bed.no_route(node, bed.names[FIRST]),
    THIRD,
    on("network.route", THIRD, FIRST, kind="pair"),
)
NAMES = Fault(wrong_hosts, LAST, on("network.names", LAST))
NETWORK = Fault(other_network, SECOND, on("network.interface", SECOND))
CLOCK = Fault(lambda bed, node: bed.skew(node, 90), SECOND, on("host.clock", SECOND))
SHM = Fault(lambda bed, node: bed.shm(node), LAST, on("host.shm", LAST))
DRIVER = Fault(older_driver, LAST, on("software.driver", LAST))
VARIABLE = Fault(
    lambda bed, node: bed.change_file(node, "/home/alice/.nccl.conf", "NCCL_ALGO=Ring\n"),
    LAST,
    on("launch.env", LAST),
)
BOTH = {
    "an MTU, and a master that refuses": (MTU, CLOSED),
    "closed ports, and a name that is wrong": (DROPPED, NAMES),
    "a black hole and a wall, on one node": (WALLED, HOLE),
    "losses, and a port that is held": (LOSSY, HELD),
    "a pair that does not meet, and a small switch port": (KEPT_OUT, SMALL_PORT),
    "a route that is missing, and an MTU": (NO_ROUTE, MTU),
    "a clock, and closed ports": (CLOCK, DROPPED),
    "another network, and little shared memory": (NETWORK, SHM),
    "an older driver, and a black hole": (DRIVER, HOLE),
    "a variable, and a port that is held": (VARIABLE, HELD),
    "an older driver, and a name that is wrong, on one node": (DRIVER, NAMES),
}


@pytest.mark.parametrize("faults", BOTH.values(), ids=list(BOTH))
def test_both_are_causes(bed: Testbed, faults: tuple[Fault, Fault]) -> None:
    ssh = {}
    if WALLED in faults:  # rules are read as root alone
        ssh["become"] = "sudo"
        for node in bed.names:
            bed.allow_sudo(node)
    for fault in faults:
        fault.put_in(bed, bed.names[fault.where])
    done, report = bed.report("run", str(bed.inventory(ssh=ssh)))
    assert done.returncode == 1
    named = [
        (kind, check, [bed.names[place] for place in places])
        for kind, check, places in (fault.cause for fault in faults)
    ]
    assert sorted(causes(report)) == sorted(named)
    concerned = {node for _, _, nodes in named for node in nodes}
    assert {node for _, node, _ in results(report, "fail", "warn", "unknown")} <= concerned
