"""The nodes of the testbed: raised together on one bridge, ended together."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import subprocess
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.cluster.machine import Machine, execute, wait_until
from tests.cluster.network import Network

SUBNET = "10.78.0"
CONTROLLER = f"{SUBNET}.254"
BRIDGE = "pftb0"
PORT = "pftbv"
"""Port N of the bridge leads to node N."""
ALIAS = 100
"""Node N has a second address SUBNET.(ALIAS + N), once `second_address` has set it."""
ENDING_S = 10
"""For a process to be gone once it has begun to end."""

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


class Nodes:
    """N machines on a bridge that the controller reaches too, from `inside` of their network.

    Any number of such clusters can be up at a time.

    Args:
        tmp_path: holds keys, inventories, reports and compiled programs.
        count: how many nodes.
    """

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
        self._programs: dict[tuple[str, tuple[str, ...]], bytes] = {}

    def up(self) -> None:
        """Start all nodes; returns when each one's SSH server answers."""
        self._network = Network()
        self._bed.callback(self._network.close)
        try:
            with self.inside():
                self._raise_up()
        except BaseException:
            self.down()
            raise

    def inside(self) -> contextlib.AbstractContextManager[None]:
        """Let this thread be the controller's, in the network of the nodes."""
        return self._network.inside()

    def _raise_up(self) -> None:
        for machine in self.machines.values():
            self._bed.callback(machine.halt)
            machine.boot()
        self._make_keys()
        for machine in self.machines.values():
            machine.booted()
        execute("ip", "-batch", "-", stdin=self._bridge())
        with ThreadPoolExecutor() as pool:
            list(pool.map(self._furnish, self.machines.values()))

    def _bridge(self) -> str:
        lines = [f"link add {BRIDGE} type bridge", f"addr add {CONTROLLER}/24 dev {BRIDGE}"]
        lines.append(f"link set {BRIDGE} up")
        for number, machine in enumerate(self.machines.values(), 1):
            port = f"{PORT}{number}"
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
        """End all nodes and everything in them."""
        self._faults.pop_all()  # they go with the nodes
        self._bed.close()

    def restore(self) -> None:
        """Undo all faults, kill what a test left in the nodes, forget the controller's home."""
        try:
            self._faults.close()
        finally:
            for machine in self.machines.values():
                machine.kill([*machine.processes()])
            wait_until(lambda: not any(map(self.survivors, self.names)), "all is killed")
            shutil.rmtree(self.tmp_path / "home", ignore_errors=True)

    def run(self, node: str, *argv: str, as_user: str | None = None, timeout: float = 20) -> str:
        """Run a command on a node as root or another user; return its standard output."""
        return self.machines[node].run(*argv, as_user=as_user, timeout=timeout)

    def popen(self, node: str, *argv: str, as_user: str | None = None) -> subprocess.Popen[str]:
        """Start a command on a node, streams as pipes; the caller ends it."""
        return self.machines[node].popen(*argv, as_user=as_user)

    def survivors(self, node: str) -> list[str]:
        """Return the command lines of all processes on a node that the testbed did not start.

        One without a command line is ending, which takes a while where CPUs are busy.
        """
        there: list[str] = []

        def settled() -> bool:
            there[:] = sorted(self.machines[node].processes().values())
            return not any(line.startswith("[") for line in there)

        with contextlib.suppress(TimeoutError):  # a zombie that nobody reaps is a survivor
            wait_until(settled, "", ENDING_S)
        return there

    def files(self, node: str) -> set[str]:
        """Return all paths on a node that are not the controller's own: new, changed or hidden."""
        return self.machines[node].files()

    # What every fault is made of.

    def _undo(self, function: Callable[..., Any], *args: Any) -> None:
        self._faults.callback(function, *args)

    def change_file(
        self, node: str, path: str, content: str | bytes | None, mode: int | None = None
    ) -> None:
        """Write a file of the node, or remove it; directories above it are made where missing."""
        machine, file = self.machines[node], self.machines[node].path(path)
        self._make_directory(node, str(Path(path).parent))
        if file.exists():
            old = file.read_bytes(), file.stat().st_mode & 0o7777
            self._undo(machine.write, path, *old)
            mode = old[1] if mode is None else mode
        else:
            self._undo(machine.remove, path)
        if content is None:
            machine.remove(path)
        else:
            machine.write(path, content, 0o644 if mode is None else mode)

    def _make_directory(self, node: str, path: str) -> None:
        """Make a directory and those above it; what was made is removed again."""
        real = self.machines[node].path(path)
        made = [folder for folder in (real, *real.parents) if not folder.exists()]
        for folder in reversed(made):
            folder.mkdir()
            self._undo(remove_empty, folder)

    def _built(self, source: str, *flags: str) -> bytes:
        """Compile one of the C files beside this one, once a session, and return the program."""
        if (source, flags) not in self._programs:
            out = self.tmp_path / "program"
            code = Path(__file__).with_name(source)
            execute("gcc", "-O2", "-Wall", "-o", str(out), str(code), *flags)
            self._programs[source, flags] = out.read_bytes()
        return self._programs[source, flags]

    def _mounted(self, node: str, path: str) -> bool:
        table = Path(f"/proc/{self.machines[node].pid}/mountinfo").read_text()
        return any(line.split()[4] == path for line in table.splitlines())

    def _detach(self, node: str, path: str) -> None:
        """Take a mount away, unless a fault did."""
        if self._mounted(node, path):
            self.run(node, "umount", "-l", path)


def remove_empty(folder: Path) -> None:
    """Remove a directory, unless something else is in it by now."""
    with contextlib.suppress(OSError):
        folder.rmdir()
