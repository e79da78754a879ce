"""Two subnets with a router between them, and what it does to packets."""

from __future__ import annotations

from itertools import permutations

from tests.cluster.machine import execute
from tests.cluster.nodes import ALIAS, BRIDGE, SUBNET, Nodes

ROUTER = {f"{SUBNET}.0/26": f"{SUBNET}.62", f"{SUBNET}.64/26": f"{SUBNET}.126"}
"""Its address in each subnet: the controller is the router."""
SETTINGS = {"ip_forward": 1, "conf/all/send_redirects": 0, f"conf/{BRIDGE}/send_redirects": 0}
"""Both subnets are on one switch, so a router would tell the nodes to go past it."""


class Subnets(Nodes):
    """What can be put between two halves of a cluster."""

    def divide(self, *far: str) -> dict[str, str]:
        """Move some nodes to a subnet of their own, behind a router; return all addresses."""
        places = {
            node: f"{SUBNET}.{ALIAS + number}" if node in far else machine.address
            for number, (node, machine) in enumerate(self.machines.items(), 1)
        }
        self._route()
        hosts = "".join(f"{address} {node}\n" for node, address in places.items())
        near, beyond = ROUTER.values()
        for node, address in places.items():
            self.change_file(node, "/etc/hosts", f"127.0.0.1 localhost\n{hosts}")
            self._undo(self._move, node, f"{self.machines[node].address}/24")
            self._move(node, f"{address}/26", beyond if node in far else near)
        return places

    def between_subnets(self, rule: str) -> None:
        """Let the router do something to the packets that it forwards, such as `drop`."""
        # The bridge may have its own packets filtered too.
        ways = (f"ip saddr {one} ip daddr {other}" for one, other in permutations(ROUTER))
        rules = "\n".join(f"{way} {rule}" for way in ways)
        chain = f"chain faults {{ type filter hook forward priority 0; {rules}\n}}"
        execute("nft", "-f", "-", stdin=f"table ip router {{ {chain}\n}}")
        self._undo(execute, "nft", "delete", "table", "ip", "router")

    def _route(self) -> None:
        for address in ROUTER.values():
            execute("ip", "addr", "add", f"{address}/26", "dev", BRIDGE)
            self._undo(execute, "ip", "addr", "del", f"{address}/26", "dev", BRIDGE)
        for name, value in SETTINGS.items():
            path = f"/proc/sys/net/ipv4/{name}"
            old = execute("cat", path)
            self._undo(self._set, path, old)
            self._set(path, str(value))

    def _set(self, path: str, value: str) -> None:
        execute("tee", path, stdin=value)

    def _move(self, node: str, address: str, router: str = "") -> None:
        """Give a node this address alone, and a router."""
        lines = ["addr flush dev eth0", f"addr add {address} dev eth0"]
        lines += [f"route add default via {router}"] if router else []
        self.machines[node].run("ip", "-batch", "-", stdin="\n".join(lines))
