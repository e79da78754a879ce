"""Faults of a node itself: its users, its SSH server, its interpreter, its clock and limits."""

from __future__ import annotations

import shlex
from collections.abc import Callable

from tests.cluster.machine import execute
from tests.cluster.network_faults import LISTENER, PYTHON
from tests.cluster.nodes import Nodes

HIDDEN = "hidden."
"""Prefix under which `no_python` keeps the interpreters."""


class HostFaults(Nodes):
    """What can be put into one node."""

    # ---- users ---------------------------------------------------------------------------

    def _edit(self, node: str, path: str, edit: Callable[[list[str]], list[str]]) -> None:
        """Change a colon-separated file line by line."""
        lines = self.machines[node].path(path).read_text().splitlines()
        self.change_file(
            node, path, "".join(f"{':'.join(edit(line.split(':')))}\n" for line in lines)
        )

    def _set_field(self, node: str, user: str, index: int, value: str) -> None:
        def edit(fields: list[str]) -> list[str]:
            return [*fields[:index], value, *fields[index + 1 :]] if fields[0] == user else fields

        self._edit(node, "/etc/passwd", edit)

    def change_uid(self, node: str, user: str, uid: int, gid: int | None = None) -> None:
        """Give a user another uid on one node; with `gid`, its primary group another gid."""
        old = self.machines[node].account(user)[3]
        self._set_field(node, user, 2, str(uid))
        if gid is not None:
            self._set_field(node, user, 3, str(gid))
            self._edit(
                node,
                "/etc/group",
                lambda line: [*line[:2], str(gid), *line[3:]] if line[2] == old else line,
            )

    def add_group(self, node: str, group: str, gid: int, *members: str) -> None:
        """Add a group with members."""
        old = self.machines[node].path("/etc/group").read_text()
        self.change_file(node, "/etc/group", f"{old}{group}:x:{gid}:{','.join(members)}\n")

    def add_user(self, node: str, user: str, uid: int) -> None:
        """Add a user; its home is not made."""
        old = self.machines[node].path("/etc/passwd").read_text()
        self.change_file(node, "/etc/passwd", f"{old}{user}:x:{uid}:{uid}::/home/{user}:/bin/sh\n")

    def remove_user(self, node: str, user: str) -> None:
        """Take a user out of the node's user database."""
        lines = self.machines[node].path("/etc/passwd").read_text().splitlines(keepends=True)
        kept = [line for line in lines if not line.startswith(f"{user}:")]
        self.change_file(node, "/etc/passwd", "".join(kept))

    def login_shell(self, node: str, user: str, shell: str) -> None:
        """Give a user another login shell, such as /usr/bin/fish."""
        self._set_field(node, user, 6, shell)

    def hang_login(self, node: str, user: str = "alice") -> None:
        """Accept the user's login; the shell then never does anything."""
        shell = "/usr/local/bin/hang"
        self.change_file(node, shell, "#!/bin/sh\nexec sleep infinity\n", 0o755)
        self.login_shell(node, user, shell)

    def login_noise(self, node: str, text: str) -> None:
        """Print something to the standard output of every session, before its command runs."""
        self.change_file(node, "/etc/ssh/sshrc", f"printf '%s\\n' {shlex.quote(text)}\n")

    def allow_sudo(self, node: str, user: str = "alice") -> None:
        """Let a user run anything as root without a password."""
        rule = f"{user} ALL=(ALL:ALL) NOPASSWD: ALL\n"
        self.change_file(node, "/etc/sudoers.d/testbed", rule, 0o440)

    # ---- the SSH server ------------------------------------------------------------------

    def _restart_sshd(self, node: str, *under: str) -> None:
        self.machines[node].stop_sshd()
        self.machines[node].start_sshd(*under)

    def stop_sshd(self, node: str) -> None:
        """Stop the SSH server: its port refuses. Open sessions stay."""
        self.machines[node].stop_sshd()
        self._undo(self.machines[node].start_sshd)

    def silent_sshd(self, node: str) -> None:
        """Put something in the SSH server's place that lets connect and then says nothing."""
        self.stop_sshd(node)
        machine = self.machines[node]
        pid = machine.start(PYTHON, "-c", LISTENER, "0.0.0.0", "22", says="ready")
        self._undo(machine.end, pid)

    def change_host_key(self, node: str) -> None:
        """Give the SSH server a host key that `known_hosts` does not have."""
        key = self.tmp_path / f"key-{next(self._numbers)}"
        execute("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key))
        self._undo(self._restart_sshd, node)
        self.change_file(node, "/etc/ssh/testbed_host_key", key.read_bytes())
        self._restart_sshd(node)

    def kill_connections(self, node: str) -> None:
        """Kill the server's end of every SSH session, as a crash would."""
        processes = self.machines[node].processes()
        self.machines[node].kill([p for p, line in processes.items() if line.startswith("sshd")])

    def limits(self, node: str, **limits: int | str) -> None:
        """Set limits that new sessions inherit, such as `memlock=65536` (bytes) or `nofile=1024`.

        Without them sessions have those of the tests themselves; even root can only lower them
        where it lacks CAP_SYS_RESOURCE.
        """
        self._undo(self._restart_sshd, node)
        options = [f"--{name}={value}" for name, value in limits.items()]
        self._restart_sshd(node, "prlimit", *options)

    # ---- interpreter, clock, memory ------------------------------------------------------

    def no_python(self, node: str) -> None:
        """Hide every python3 that an SSH session would find."""
        for folder in ("/usr/bin", "/usr/local/bin"):
            for program in self.machines[node].path(folder).glob("python3*"):
                hidden = program.with_name(f"{HIDDEN}{program.name}")
                self._undo(hidden.rename, program)
                program.rename(hidden)

    def skew(self, node: str, seconds: float, period_s: float = 0) -> None:
        """Shift the clock that processes started from now on read.

        With a period it jumps, there and back again.
        """
        library = "/usr/lib/testbed-skew.so"
        built = self._built("skew.c", "-shared", "-fPIC", "-lm")
        self.change_file(node, library, built, 0o755)
        self.change_file(node, "/etc/testbed-skew", f"{seconds} {period_s}\n")
        self.change_file(node, "/etc/ld.so.preload", f"{library}\n")

    def shm(self, node: str, size: str = "64m") -> None:
        """Resize /dev/shm, as a container runtime's default does."""
        self.run(node, "mount", "-o", f"remount,size={size}", "/dev/shm")
        self._undo(self.run, node, "mount", "-o", "remount,size=8g", "/dev/shm")
