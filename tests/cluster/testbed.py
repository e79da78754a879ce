"""A little cluster on one machine: nodes tb1, tb2, … on one bridge, and faults to put into them.

Every fault is undone by `restore`, in reverse order; the fixture `bed` calls it after each test.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import yaml

from tests.cluster.machine import ENVIRONMENT, Machine, execute, wait_until

SUBNET = "10.78.0"
CONTROLLER = f"{SUBNET}.254"
BRIDGE = "pftb0"
VETH = "pftbv"
"""Prefix of the bridge's ports; port N leads to node N."""
ALIAS = 100
"""Node N has a second address SUBNET.(ALIAS + N), once `second_address` has set it."""
USERS = {"root": 0, "alice": 2001}
PYTHON = "/usr/bin/python3"

Refusal = Literal["tcp reset", "admin-prohibited", "host-unreachable", "port-unreachable"]

SSHD_CONFIG = """\
Port 22
HostKey /etc/ssh/testbed_host_key
AuthorizedKeysFile /etc/ssh/testbed_authorized_keys
StrictModes no
UsePAM no
PermitRootLogin yes
PasswordAuthentication no
KbdInteractiveAuthentication no
MaxStartups 2000
UseDNS no
PidFile /run/sshd.pid
Subsystem sftp internal-sftp
"""

# Says `ready` once it listens; answers nobody.
LISTENER = """
import signal, socket, sys
listener = socket.create_server((sys.argv[1], int(sys.argv[2])), backlog=128)
print("ready", flush=True)
signal.pause()
"""


class Testbed:
    """N machines on a bridge that the controller reaches too.

    Only one is up at a time on a machine: names and addresses are fixed, a lock keeps others out.

    Args:
        tmp_path: holds keys, inventories, reports and compiled programs.
        count: how many nodes.
    """

    __test__ = False  # pytest takes any class whose name begins so for tests

    def __init__(self, tmp_path: Path, count: int = 4) -> None:
        self.tmp_path = tmp_path
        self.machines = {
            f"tb{number}": Machine(f"tb{number}", f"{SUBNET}.{number}")
            for number in range(1, count + 1)
        }
        self.names = tuple(self.machines)
        self.key = tmp_path / "keys" / "id_ed25519"
        self.known_hosts = tmp_path / "keys" / "known_hosts"
        self._numbers = itertools.count(1)
        self._bed = contextlib.ExitStack()
        self._faults = contextlib.ExitStack()

    def __enter__(self) -> Testbed:
        self.up()
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    # ---- life ----------------------------------------------------------------------------

    def up(self) -> None:
        """Start all nodes; returns when each one's SSH server answers."""
        lock = os.open(Path(tempfile.gettempdir(), "pftb.lock"), os.O_RDWR | os.O_CREAT)
        self._bed.callback(os.close, lock)
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            self._raise_up()
        except BaseException:
            self.down()
            raise

    def _raise_up(self) -> None:
        remove_network()  # a killed run leaves its bridge
        self._bed.callback(remove_network)
        for machine in self.machines.values():
            self._bed.callback(machine.halt)
            machine.boot()
        self._make_keys()
        for machine in self.machines.values():
            machine.booted()
        execute("ip", "-batch", "-", stdin=self._network())
        with ThreadPoolExecutor() as pool:
            list(pool.map(self._furnish, self.machines.values()))

    def _network(self) -> str:
        lines = [f"link add {BRIDGE} type bridge", f"addr add {CONTROLLER}/24 dev {BRIDGE}"]
        lines.append(f"link set {BRIDGE} up")
        for number, machine in enumerate(self.machines.values(), 1):
            port = f"{VETH}{number}"
            lines.append(f"link add {port} type veth peer name eth0 netns {machine.pid}")
            lines.append(f"link set {port} master {BRIDGE} up")
        return "\n".join(lines)

    def _make_keys(self) -> None:
        self.key.parent.mkdir(parents=True)
        for path in (self.key, *(self.key.with_name(name) for name in self.names)):
            execute("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "testbed", "-f", str(path))
        lines = []
        for number, (name, machine) in enumerate(self.machines.items(), 1):
            names = f"{name},{machine.address},{SUBNET}.{ALIAS + number}"
            public = self.key.with_name(f"{name}.pub").read_text().split()
            lines.append(f"{names} {public[0]} {public[1]}\n")
        self.known_hosts.write_text("".join(lines))

    def _furnish(self, machine: Machine) -> None:
        """Give a booted machine its address, users, host names and SSH server."""
        setup = f"addr add {machine.address}/24 dev eth0\nlink set lo up\nlink set eth0 up\n"
        machine.run("ip", "-batch", "-", stdin=setup)
        hosts = [f"{other.address} {other.name}\n" for other in self.machines.values()]
        machine.write("/etc/hosts", "127.0.0.1 localhost\n" + "".join(hosts))
        machine.write("/etc/hostname", f"{machine.name}\n")
        machine.write("/etc/machine-id", f"{uuid.uuid4().hex}\n")
        machine.write("/etc/ssh/sshd_config", SSHD_CONFIG)
        machine.write(
            "/etc/ssh/testbed_host_key", self.key.with_name(machine.name).read_bytes(), 0o600
        )
        machine.write("/etc/ssh/testbed_authorized_keys", self.key.with_suffix(".pub").read_bytes())
        machine.write("/root/.bashrc", "")  # bash under sshd reads it for every command
        for file, line in (
            ("passwd", "alice:x:2001:2001::/home/alice:/bin/sh"),
            ("group", "train:x:2001:"),
            ("shadow", "alice:*:20000:0:99999:7:::"),
        ):
            path = machine.path(f"/etc/{file}")
            path.write_text(f"{path.read_text()}{line}\n")
        machine.path("/home/alice").mkdir(mode=0o755)
        os.chown(machine.path("/home/alice"), 2001, 2001)
        machine.start_sshd()
        wait_until(machine.answers, f"{machine.name}: answer of sshd")

    def down(self) -> None:
        """End all nodes and everything in them, and take the bridge away."""
        self._faults.pop_all()  # they go with the nodes
        self._bed.close()

    def restore(self) -> None:
        """Undo all faults, kill what a test left in the nodes, forget the controller's home."""
        self._faults.close()
        for machine in self.machines.values():
            machine.kill([*machine.processes()])
        shutil.rmtree(self.tmp_path / "home", ignore_errors=True)

    # ---- the controller ------------------------------------------------------------------

    def spec(self, node: str, **more: Any) -> dict[str, Any]:
        """Return the entry of a node in an inventory."""
        return {"name": node, "address": self.machines[node].address, **more}

    def inventory(self, **overrides: Any) -> Path:
        """Write an inventory of all nodes and return its path.

        `ssh` is merged with the default one; everything else given replaces the default.
        """
        content: dict[str, Any] = {
            "cluster": "testbed",
            "ssh": {"user": "alice", "key": str(self.key), "known_hosts": str(self.known_hosts)},
            "nodes": [self.spec(name) for name in self.names],
        }
        for key, value in overrides.items():
            old = content.get(key)
            content[key] = {**old, **value} if isinstance(old, dict) else value
        path = self.tmp_path / f"{next(self._numbers)}" / "inventory.yaml"
        path.parent.mkdir()
        path.write_text(yaml.safe_dump(content, sort_keys=False))
        return path

    def environment(self) -> dict[str, str]:
        """Return the environment in which the controller runs: a home of its own, no SSH agent."""
        home = self.tmp_path / "home"
        home.mkdir(exist_ok=True)
        return {**ENVIRONMENT, "HOME": str(home)}

    def start(self, *args: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """Start `preflight` on the controller; the caller ends it."""
        return subprocess.Popen(
            [sys.executable, "-m", "preflight", *args],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.tmp_path,
            env={**self.environment(), **(env or {})},
        )

    def preflight(
        self, *args: str, timeout: float = 60, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run `preflight` on the controller, killed when it takes longer than `timeout`."""
        with self.start(*args, env=env) as process:
            try:
                out, err = process.communicate(timeout=timeout)
            except BaseException:
                process.kill()
                raise
        return subprocess.CompletedProcess(args, process.returncode, out, err)

    def report(
        self, *args: str, timeout: float = 60, env: Mapping[str, str] | None = None
    ) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
        """Run `preflight` with `--json`, and return how it ended and the report.

        Raises:
            FileNotFoundError: it wrote none; the message holds what it printed.
        """
        path = self.tmp_path / f"report-{next(self._numbers)}.json"
        done = self.preflight(*args, "--json", str(path), timeout=timeout, env=env)
        if not path.exists():
            raise FileNotFoundError(f"no report, exit code {done.returncode}: {done.stderr}")
        report: dict[str, Any] = json.loads(path.read_text())
        return done, report

    def ssh(
        self, node: str, command: str, user: str = "alice", timeout: float = 20
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a node through its SSH server, with OpenSSH's client."""
        options = [f"UserKnownHostsFile={self.known_hosts}", "BatchMode=yes", "LogLevel=ERROR"]
        options.append("KexAlgorithms=curve25519-sha256")  # the default one costs 0.15 s more
        argv = ["ssh", "-F", "none", "-i", str(self.key)]
        argv += [part for option in options for part in ("-o", option)]
        return subprocess.run(
            [*argv, f"{user}@{self.machines[node].address}", command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            env=self.environment(),
        )

    # ---- inside a node -------------------------------------------------------------------

    def run(self, node: str, *argv: str, as_user: str | None = None, timeout: float = 20) -> str:
        """Run a command on a node as root or another user; return its standard output."""
        return self.machines[node].run(*argv, as_user=as_user, timeout=timeout)

    def popen(self, node: str, *argv: str, as_user: str | None = None) -> subprocess.Popen[str]:
        """Start a command on a node, streams as pipes; the caller ends it."""
        return self.machines[node].popen(*argv, as_user=as_user)

    def survivors(self, node: str) -> list[str]:
        """Return the command lines of all processes on a node that the testbed did not start."""
        return sorted(self.machines[node].processes().values())

    def files(self, node: str) -> set[str]:
        """Return all paths on a node that are not the controller's own: new, changed or hidden."""
        return self.machines[node].files()

    # ---- faults of the network -----------------------------------------------------------

    def _undo(self, function: Callable[..., Any], *args: Any) -> None:
        self._faults.callback(function, *args)

    def mtu(self, node: str, value: int, device: str = "eth0") -> None:
        """Set a device's MTU on the node alone; its switch port keeps its own."""
        old = self.run(node, "cat", f"/sys/class/net/{device}/mtu").strip()
        self._undo(self.run, node, "ip", "link", "set", device, "mtu", old)
        self.run(node, "ip", "link", "set", device, "mtu", str(value))

    def switch_mtu(self, value: int) -> None:
        """Set the MTU of the bridge and all its ports."""
        ports = [BRIDGE, *(f"{VETH}{number}" for number in range(1, len(self.names) + 1))]
        for port in ports:
            old = Path(f"/sys/class/net/{port}/mtu").read_text().strip()
            self._undo(execute, "ip", "link", "set", port, "mtu", old)
            execute("ip", "link", "set", port, "mtu", str(value))

    def drop(
        self,
        node: str,
        port: int | str,
        direction: Literal["input", "output"] = "input",
        source: str | None = None,
    ) -> None:
        """Lose new TCP connections and all UDP datagrams to a port or a range such as `1-99`."""
        self._filter(node, port, direction, source, "drop", "drop")

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
        self, node: str, port: int | str, hook: str, source: str | None, tcp: str, udp: str
    ) -> None:
        table = f"fault{next(self._numbers)}"
        origin = self.machines[source].address if source in self.machines else source
        match = f"ip saddr {origin} " if origin else ""
        rules = f"""table ip {table} {{ chain faults {{
            type filter hook {hook} priority 0
            {match}tcp dport {port} tcp flags & (fin | syn | rst | ack) == syn {tcp}
            {match}udp dport {port} {udp}
            }}
        }}"""
        self.machines[node].run("nft", "-f", "-", stdin=rules)
        self._undo(self.run, node, "nft", "delete", "table", "ip", table)

    def drop_ssh(self, node: str) -> None:
        """Filter the SSH port: a connection gets no answer."""
        self.drop(node, 22)

    def unplug(self, node: str) -> None:
        """Take the node off the switch, as by its cable: what is open stays silent."""
        port = f"{VETH}{self.names.index(node) + 1}"
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


def remove_network() -> None:
    """Take away the bridge and whatever ports it has."""
    for path in Path("/sys/class/net").iterdir():
        if path.name == BRIDGE or path.name.startswith(VETH):
            with contextlib.suppress(ChildProcessError):  # a port goes with its node, in its time
                execute("ip", "link", "del", path.name)
