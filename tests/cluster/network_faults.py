"""Faults of the network: what a switch, a firewall or a stray process does to a node."""

from __future__ import annotations

import json
import subprocess
from typing import Literal

from tests.cluster.machine import execute
from tests.cluster.nodes import ALIAS, BRIDGE, PORT, SUBNET, Nodes

PYTHON = "/usr/bin/python3"

Refusal = Literal[
    "tcp reset", "admin-prohibited", "host-unreachable", "net-unreachable", "port-unreachable"
]
FLAGS = "tcp flags & (fin | syn | rst | ack) =="

# Says `ready` once it listens; answers nobody.
LISTENER = """
import signal, socket, sys
listener = socket.create_server((sys.argv[1], int(sys.argv[2])), backlog=128)
print("ready", flush=True)
signal.pause()
"""


# 0x88B5 is the EtherType for experiments (IEEE 802).
FLOOD = """
import socket, sys, time
one = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
one.bind((sys.argv[1], 0))
while True:
    for _ in range(20):
        one.send(b"\\xff" * 6 + b"\\2" + b"\\0" * 5 + b"\\x88\\xb5" + b"\\0" * 50)
    time.sleep(0.005)
"""


class NetworkFaults(Nodes):
    """What can be put into the network."""

    def mtu(self, node: str, value: int, device: str = "eth0") -> None:
        """Set a device's MTU on the node alone, if it is a bridge with its ports."""
        ports = self.machines[node].path(f"/sys/class/net/{device}").glob("brif/*")
        for name in (*(port.name for port in ports), device):
            old = self.run(node, "cat", f"/sys/class/net/{name}/mtu").strip()
            self._undo(self.run, node, "ip", "link", "set", name, "mtu", old)
            self.run(node, "ip", "link", "set", name, "mtu", str(value))

    def kernel_ports(self, node: str, first: int, last: int) -> None:
        """Set which ports the kernel picks on the node, for listeners and for connections."""
        path = "/proc/sys/net/ipv4/ip_local_port_range"
        old = self.run(node, "cat", path).strip()
        self._undo(self.run, node, "sh", "-c", f"echo {old} > {path}")
        self.run(node, "sh", "-c", f"echo {first} {last} > {path}")

    def switch_mtu(self, value: int) -> None:
        """Set the MTU of the bridge and all its ports."""
        ports = [BRIDGE, *(f"{PORT}{number}" for number in range(1, len(self.names) + 1))]
        for port in ports:
            self._switch_port_mtu(port, value)

    def _switch_port_mtu(self, port: str, value: int) -> None:
        (link,) = json.loads(execute("ip", "-json", "link", "show", port))
        self._undo(execute, "ip", "link", "set", port, "mtu", str(link["mtu"]))
        execute("ip", "link", "set", port, "mtu", str(value))

    def container_bridge(self, node: str, name: str) -> None:
        """Make the network of a container runtime: a bridge, and one end of a veth in it."""
        ends = f"{name}a", f"{name}b"
        lines = [f"link add {name} type bridge", f"addr add 172.18.0.1/16 dev {name}"]
        lines += [f"link add {ends[0]} type veth peer name {ends[1]}"]
        lines += [f"link set {ends[0]} master {name} up", f"link set {ends[1]} up"]
        lines += [f"link set {name} up"]
        self._undo(self.run, node, "ip", "link", "del", name)
        self._undo(self.run, node, "ip", "link", "del", ends[0])
        self.machines[node].run("ip", "-batch", "-", stdin="\n".join(lines))

    def add_interface(self, node: str, name: str, subnet: str) -> None:
        """Put the node on one more network, over eth0 (macvlan)."""
        number = self.names.index(node) + 1
        lines = [f"link add link eth0 name {name} type macvlan mode bridge"]
        lines += [f"addr add {subnet}.{number}/24 dev {name}", f"link set {name} up"]
        self._undo(self.run, node, "ip", "link", "del", name)
        self.machines[node].run("ip", "-batch", "-", stdin="\n".join(lines))

    def drop(
        self,
        node: str,
        port: int | str,
        direction: Literal["input", "output"] = "input",
        source: str | None = None,
        device: str | None = None,
    ) -> None:
        """Lose new TCP connections and all UDP datagrams to a port or a range such as `1-99`.

        With `source` only what comes from there, with `device` only what comes in by it.
        """
        self._filter(node, port, direction, source, "drop", "drop", device)

    def reject(
        self,
        node: str,
        port: int | str,
        with_: Refusal = "admin-prohibited",
        source: str | None = None,
    ) -> None:
        """Refuse new TCP connections and all UDP datagrams to a port or a range of ports."""
        icmp = "port-unreachable" if with_ == "tcp reset" else with_
        udp = f"reject with icmp type {icmp}"
        self._filter(
            node, port, "input", source, "reject with tcp reset" if icmp != with_ else udp, udp
        )

    def _filter(
        self,
        node: str,
        port: int | str,
        hook: str,
        source: str | None,
        tcp: str,
        udp: str,
        device: str | None = None,
    ) -> None:
        origin = self.machines[source].address if source in self.machines else source
        match = f"ip saddr {origin} " if origin else ""
        match += f"iifname {device} " if device else ""
        syn = f"tcp dport {port} {FLAGS} syn"
        self._rules(node, hook, f"{match}{syn} {tcp}", f"{match}udp dport {port} {udp}")

    def _rules(self, node: str, hook: str, *rules: str) -> None:
        table, lines = f"fault{next(self._numbers)}", "\n".join(rules)
        chain = f"chain faults {{ type filter hook {hook} priority 0\n{lines}\n}}"
        self.machines[node].run("nft", "-f", "-", stdin=f"table ip {table} {{ {chain}\n}}")
        self._undo(self.run, node, "nft", "delete", "table", "ip", table)

    def reset(self, node: str, port: int) -> None:
        """Accept TCP connections to a port and cut each at once."""
        self._rules(node, "input", f"tcp dport {port} {FLAGS} ack reject with tcp reset")

    def drop_ssh(self, node: str) -> None:
        """Filter the SSH port: a connection gets no answer."""
        self.drop(node, 22)

    def unplug(self, node: str) -> None:
        """Take the node off the switch, as by its cable: what is open stays silent."""
        port = f"{PORT}{self.names.index(node) + 1}"
        self._undo(execute, "ip", "link", "set", port, "up")
        execute("ip", "link", "set", port, "down")

    def hold_port(
        self, node: str, port: int = 29500, user: str = "alice", address: str = "0.0.0.0"
    ) -> int:
        """Let a process of a user listen on a port, and return its pid on the node."""
        machine = self.machines[node]
        argv = [PYTHON, "-c", LISTENER, address, str(port)]
        pid = machine.start(*argv, as_user=user, says="ready")
        self._undo(machine.end, pid)
        return pid

    def second_address(self, node: str) -> str:
        """Give the node a second address, whose host key is known too, and return it."""
        address = f"{SUBNET}.{ALIAS + self.names.index(node) + 1}"
        self.run(node, "ip", "addr", "add", f"{address}/24", "dev", "eth0")
        self._undo(self.run, node, "ip", "addr", "del", f"{address}/24", "dev", "eth0")
        return address

    def rate_limit(
        self, node: str, mbit: int, direction: Literal["out", "in"] = "out", to: str | None = None
    ) -> None:
        """Let no more through than that, out of the node (`to` one other alone), or into it."""
        limit = f"tbf rate {mbit}mbit burst 128kb latency 50ms"
        if direction == "in":
            port = f"{PORT}{self.names.index(node) + 1}"
            execute("tc", "qdisc", "add", "dev", port, "root", *limit.split())
            self._undo(execute, "tc", "qdisc", "del", "dev", port, "root")
            return
        lines = [f"qdisc add dev eth0 root {limit}"]
        if to:
            lines = ["qdisc add dev eth0 root handle 1: htb"]
            lines += [f"class add dev eth0 parent 1: classid 1:1 htb rate {mbit}mbit burst 128kb"]
            match = f"match ip dst {self.machines[to].address}/32"
            lines += [f"filter add dev eth0 parent 1: protocol ip u32 {match} flowid 1:1"]
        self.machines[node].run("tc", "-batch", "-", stdin="\n".join(lines))
        self._undo(self.run, node, "tc", "qdisc", "del", "dev", "eth0", "root")

    def flood(self, node: str) -> None:
        """Send the node some thousand frames a second of a protocol that it does not speak."""
        port = f"{PORT}{self.names.index(node) + 1}"
        argv = ["setpriv", "--pdeathsig", "KILL", PYTHON, "-c", FLOOD, port]
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL)
        self._undo(process.wait)
        self._undo(process.kill)

    def add_cable(self, node: str, name: str, flaps: int = 0) -> None:
        """Add a device with a carrier that has gone and come back so many times."""
        end, number = f"{name}p", self.names.index(node) + 1
        lines = [f"link add {name} type veth peer name {end}", f"link set {name} up"]
        lines += [f"addr add 10.82.0.{number}/24 dev {name}", f"link set {end} up"]
        lines += [f"link set {end} down", f"link set {end} up"] * flaps
        self._undo(self.run, node, "ip", "link", "del", name)
        self.machines[node].run("ip", "-batch", "-", stdin="\n".join(lines))
