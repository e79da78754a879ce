"""Faults of the way between nodes: what is too large for it, and what it delays or loses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.cluster.machine import execute
from tests.cluster.network_faults import NetworkFaults
from tests.cluster.nodes import BRIDGE, PORT

DATA = "10.82"
"""Networks on both sides of a router are DATA.1 and DATA.2; node N has the address N there."""
WIRE = Path(__file__).with_name("wire.py")


class PathFaults(NetworkFaults):
    """What can be put into the way between nodes."""

    def port_mtu(self, node: str, value: int) -> None:
        """Set the MTU of the node's port of the switch: larger frames are lost, both ways.

        The bridge's own is set too, so that the controller's connections heed it.
        """
        for port in (BRIDGE, f"{PORT}{self.names.index(node) + 1}"):
            self._switch_port_mtu(port, value)

    def lose_large(self, node: str, above: int, source: str | None = None) -> None:
        """Lose larger packets that come to the node from one other, or from all."""
        self._rules(node, "input", f"{self._from(source)} meta length > {above} drop")

    def drop_udp(self, node: str, source: str | None = None) -> None:
        """Lose all datagrams that come to the node from one other, or from all."""
        self._rules(node, "input", f"{self._from(source)} meta l4proto udp drop")

    def reject_udp(self, node: str) -> None:
        """Turn away all datagrams that come to the node."""
        rule = "meta l4proto udp reject with icmp type admin-prohibited"
        self._rules(node, "input", f"{self._from(None)} {rule}")

    def lose(self, node: str, percent: int, source: str | None = None) -> None:
        """Lose a part of all packets that come to the node from one other, or from all."""
        rule = f"numgen random mod 100 < {percent} drop"
        self._rules(node, "input", f"{self._from(source)} {rule}")

    def _from(self, source: str | None) -> str:
        """Return a match of what comes from a node, or from all, the controller not included."""
        if source:
            return f"ip saddr {self.machines[source].address}"
        first, *_, last = (machine.address for machine in self.machines.values())
        return f"ip saddr {first}-{last}"

    def behind_router(self, node: str, router: str, name: str, mtu: int) -> None:
        """Put a node on a network of its own, behind another one that routes to all others.

        The router's interface there takes packets of `mtu` bytes, and says so of larger ones. All
        interfaces are macvlans on eth0.
        """
        others = [one for one in self.names if one not in (node, router)]
        hop = self.names.index(router) + 1
        for one, nets in ((router, "12"), (node, "2"), *((other, "1") for other in others)):
            lines = []
            for net in nets:
                device = name if len(nets) == 1 else f"{name}{net}"
                size = mtu if len(nets) > 1 and net == "2" else 1500
                lines += [f"link add link eth0 name {device} type macvlan mode bridge"]
                lines += [f"addr add {DATA}.{net}.{self.names.index(one) + 1}/24 dev {device}"]
                lines += [f"link set {device} mtu {size} up"]
                self._undo(self.run, one, "ip", "link", "del", device)
            if len(nets) == 1:
                far = {"1": "2", "2": "1"}[nets]
                lines += [f"route add {DATA}.{far}.0/24 via {DATA}.{nets}.{hop}"]
            self.machines[one].run("ip", "-batch", "-", stdin="\n".join(lines))
        self._undo(self._forward, router, 0)
        self._forward(router, 1)

    def _forward(self, node: str, value: int) -> None:
        self.run(node, "sh", "-c", f"echo {value} > /proc/sys/net/ipv4/ip_forward")

    def delay(self, node: str, ms: float, direction: str = "both", peer: str = "") -> None:
        """Delay what goes to the node, comes from it, or both; with `peer` only from or to that.

        A program relays all frames between the node's port and the switch.
        """
        port = f"{PORT}{self.names.index(node) + 1}"
        ends = f"{PORT}a", f"{PORT}b"
        execute("ip", "link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        self._undo(execute, "ip", "link", "del", ends[0])
        self._undo(execute, "ip", "link", "set", port, "master", BRIDGE)
        execute("ip", "link", "set", port, "nomaster")
        execute("ip", "link", "set", ends[1], "master", BRIDGE)
        for one in (*ends, port):
            execute("ip", "link", "set", one, "up")
        address = self.machines[peer].address if peer else ""
        argv = ["setpriv", "--pdeathsig", "KILL", sys.executable, str(WIRE)]
        argv += [port, ends[0], str(ms), direction, address]
        wire = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        self._undo(ended, wire)
        assert wire.stdout
        if wire.stdout.readline() != "ready\n":
            raise ChildProcessError("wire.py did not start")


def ended(process: subprocess.Popen[str]) -> None:
    """Kill a process, and wait for its end."""
    process.kill()
    process.communicate(timeout=10)
