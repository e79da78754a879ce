"""Faults of firewalls and strangers: rules of all kinds, proxies, and who comes to a port."""

from __future__ import annotations

from tests.cluster.firewalls import Firewalls
from tests.cluster.machine import execute
from tests.cluster.network_faults import LISTENER, PYTHON
from tests.cluster.nodes import PORT
from tests.cluster.subnets import Subnets

PROXY = 15001
"""As of Istio's sidecar."""

# Comes to a port again and again; says `ready` first.
VISITOR = """
import socket, sys, time
print("ready", flush=True)
while True:
    try:
        with socket.create_connection((sys.argv[1], int(sys.argv[2])), 1) as one:
            one.sendall(sys.argv[3].encode().decode("unicode_escape").encode("latin-1"))
            time.sleep(0.2)
    except OSError:
        time.sleep(0.02)
"""


class Walls(Firewalls, Subnets):
    """What can be put between the nodes, or on their ports."""

    def nft(self, node: str, rules: str) -> None:
        """Load rules of nftables, in place of all that are there."""
        self.machines[node].run("nft", "-f", "-", stdin=rules)
        self._undo(self.run, node, "nft", "flush", "ruleset")

    def iptables(self, node: str, *lines: str, kind: str = "nft") -> None:
        """Run iptables of a kind, `nft` or `legacy`, once for each line."""
        program = f"iptables-{kind}"
        for hook in ("INPUT", "OUTPUT"):
            self._undo(self.run, node, program, "-F", hook)
            self._undo(self.run, node, program, "-P", hook, "ACCEPT")
        for line in lines:
            self.run(node, program, *line.split())

    def proxy(self, node: str, port: int) -> None:
        """Lead what comes to a port to another one, where it is accepted and not answered."""
        machine = self.machines[node]
        pid = machine.start(PYTHON, "-c", LISTENER, "0.0.0.0", str(PROXY), says="ready")
        self._undo(machine.end, pid)
        rule = f"tcp dport {port} redirect to :{PROXY}"
        chain = f"chain mesh {{ type nat hook prerouting priority -100; {rule}\n}}"
        self.nft(node, f"table ip istio {{ {chain}\n}}")

    def switch_acl(self, ports: str, towards: str) -> None:
        """Let the switch lose TCP to some ports of one node."""
        out = f"{PORT}{self.names.index(towards) + 1}"
        rule = f'oifname "{out}" tcp dport {ports} drop'
        chain = f"chain acl {{ type filter hook forward priority 0; {rule}\n}}"
        execute("nft", "-f", "-", stdin=f"table bridge pftb {{ {chain}\n}}")
        self._undo(execute, "nft", "delete", "table", "bridge", "pftb")

    def no_route(self, node: str, to: str) -> None:
        """Take the route to one other node away."""
        route = "unreachable", f"{self.machines[to].address}/32"
        self.run(node, "ip", "route", "add", *route)
        self._undo(self.run, node, "ip", "route", "del", *route)

    def visit(self, node: str, target: str, port: int, says: str = "") -> None:
        """Let a process of a node come to a port of another one, again and again."""
        machine = self.machines[node]
        address = self.machines[target].address
        pid = machine.start(PYTHON, "-c", VISITOR, address, str(port), says, says="ready")
        self._undo(machine.end, pid)
