"""One node of the testbed: namespaces of its own, held by one process, with an sshd in them.

A machine sees the controller's file system through an overlay, so that it may change any file
and leaves none behind; killing its first process ends everything that runs in it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
}
POLL_S = 0.01
BOOT_LIMIT_S = 20
SSHD = "/usr/sbin/sshd"
SCRATCH = ("/tmp", "/run", "/dev/shm")
SHARED = tuple({str(Path(__file__).parents[2]), sys.prefix, sys.base_prefix})
"""What every node sees, as on a cluster's shared disk: preflight, and the Python that runs it."""

# Descriptor 9 keeps the upper directory reachable after the old root is gone: what the node's disk
# holds that the controller's does not. The first process only reaps; it must not be replaced by
# `sleep`, or orphans stay as zombies. An overlay takes a new interface of an old name for a stale
# file, so they are not seen through one.
INIT = """
set -e
hostname "$0"
mount -t tmpfs -o mode=755 testbed /mnt
mkdir /mnt/upper /mnt/work /mnt/class /mnt/class.work /mnt/net /mnt/root
exec 9</mnt/upper
mount -t overlay -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work overlay /mnt/root
cd /mnt/root
mount -t proc proc proc
mount -t sysfs sysfs sys
mount --bind sys/class/net /mnt/net
mount -t overlay -o lowerdir=sys/class,upperdir=/mnt/class,workdir=/mnt/class.work overlay sys/class
mount --bind /mnt/net sys/class/net
mount --bind /dev dev
mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts dev/pts
mount -t tmpfs -o mode=1777,nosuid,nodev,size=8g tmpfs dev/shm
mount -t tmpfs -o mode=755,nosuid,nodev tmpfs run
mount -t tmpfs -o mode=1777,nosuid,nodev tmpfs tmp
mkdir run/sshd run/lock
for shared; do
  if ! [ -e ".$shared/bin" ] && ! [ -e ".$shared/pyproject.toml" ]; then
    mkdir -p ".$shared"
    mount --bind "$shared" ".$shared"
  fi
done
pivot_root . mnt
umount -l mnt
cd /
sleep infinity >/dev/null 2>&1 &
echo $!
exec >/dev/null 2>&1
wait
"""


def wait_until(holds: Callable[[], Any], what: str, limit_s: float = 60) -> None:
    """Poll until something holds.

    Raises:
        TimeoutError: it did not in time; the message says what.
    """
    pause, deadline = threading.Event(), time.monotonic() + limit_s
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {limit_s} s")
        pause.wait(POLL_S)


def execute(*argv: str, stdin: str = "", timeout: float = 20) -> str:
    """Run a command and return its standard output.

    Raises:
        ChildProcessError: it failed; the message holds what it printed.
    """
    done = subprocess.run(
        argv, input=stdin, capture_output=True, text=True, timeout=timeout, env=ENVIRONMENT
    )
    if done.returncode:
        raise ChildProcessError(
            f"{' '.join(argv)}: exit code {done.returncode}: {done.stderr or done.stdout}"
        )
    return done.stdout


@dataclass
class Daemon:
    """A process that the testbed started in a machine, and that stays."""

    pid: int
    """As the machine sees it."""
    outer: subprocess.Popen[str]


@dataclass
class Machine:
    """One node: name, address, and the process that holds it."""

    name: str
    address: str
    pid: int = 0
    _outer: subprocess.Popen[str] | None = None
    _bed: dict[int, Daemon | None] = field(default_factory=dict)
    """Processes of the testbed's own, by the machine's pid."""

    def boot(self) -> None:
        """Start its first process; `booted` waits for it."""
        argv = ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--uts", "--ipc", "--net"]
        argv += ["--pid", "--fork", "--kill-child", "--propagation", "private"]
        self._outer = subprocess.Popen(
            [*argv, "sh", "-c", INIT, self.name, *SHARED],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
            start_new_session=True,
        )

    def booted(self) -> None:
        """Wait until its namespaces and mounts are in place.

        Raises:
            ChildProcessError: its first process ended; the message holds what it printed.
        """
        assert self._outer
        assert self._outer.stdout
        assert self._outer.stderr
        sleeper = self._outer.stdout.readline()
        if not sleeper:
            raise ChildProcessError(f"{self.name}: {self._outer.stderr.read()}")
        self._bed = {1: None, int(sleeper): None}
        self.pid = int(Path(f"/proc/{self._outer.pid}/task/{self._outer.pid}/children").read_text())

    def halt(self) -> None:
        """End everything that runs in it."""
        if self._outer is None:
            return
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)  # the one that started it reaps it, and ends
        else:
            self._outer.kill()
        for outer in (self._outer, *(daemon.outer for daemon in self._bed.values() if daemon)):
            outer.communicate(timeout=BOOT_LIMIT_S)
        self._outer, self.pid = None, 0

    def path(self, path: str) -> Path:
        """Return where the controller sees a path of this machine.

        Raises:
            ValueError: an absolute link is on the way, which would lead to the controller's file.
        """
        here = Path(f"/proc/{self.pid}/root")
        for part in Path(path).parts[1:]:
            here /= part
            if here.is_symlink() and here.readlink().is_absolute():
                raise ValueError(f"{self.name}: {path}: {here} is an absolute link")
        return here

    def write(self, path: str, content: str | bytes, mode: int = 0o644) -> None:
        """Write one of its files, and the directories above it."""
        file = self.path(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)
        file.chmod(mode)

    def argv(self, argv: Sequence[str], as_user: str | None = None) -> list[str]:
        """Return the command that runs another one in this machine."""
        enter = ["nsenter", "-t", str(self.pid), "-m", "-u", "-i", "-n", "-p", "--"]
        if as_user:
            group = self.account(as_user)[3]
            enter += ["setpriv", "--reuid", as_user, "--regid", group, "--init-groups"]
            enter += ["--reset-env", "--"]
        return [*enter, *argv]

    def account(self, user: str) -> list[str]:
        """Return the fields of a user's line in its /etc/passwd."""
        lines = self.path("/etc/passwd").read_text().splitlines()
        return next(line.split(":") for line in lines if line.startswith(f"{user}:"))

    def run(
        self, *argv: str, as_user: str | None = None, stdin: str = "", timeout: float = 20
    ) -> str:
        """Run a command in it and return its standard output.

        Raises:
            ChildProcessError: it failed; the message holds what it printed.
        """
        return execute(*self.argv(argv, as_user), stdin=stdin, timeout=timeout)

    def popen(
        self,
        *argv: str,
        as_user: str | None = None,
        env: Mapping[str, str] | None = None,
        pass_fds: Sequence[int] = (),
    ) -> subprocess.Popen[str]:
        """Start a command in it, with its three streams as pipes; the caller ends it."""
        return subprocess.Popen(
            self.argv(argv, as_user),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**ENVIRONMENT, **(env or {})},
            pass_fds=pass_fds,
        )

    def start(
        self, *argv: str, as_user: str | None = None, pass_fds: Sequence[int] = (), says: str = ""
    ) -> int:
        """Start a daemon, wait for the line that it `says`, and return its pid in the machine.

        Raises:
            ChildProcessError: it ended instead; the message holds what it printed.
        """
        wrapped = ["sh", "-c", 'echo $$; exec "$@"', "sh", *argv]
        outer = self.popen(*wrapped, as_user=as_user, pass_fds=pass_fds)
        assert outer.stdout
        pid, said = int(outer.stdout.readline()), outer.stdout.readline() if says else ""
        self._bed[pid] = Daemon(pid, outer)
        if said.strip() != says:
            self.end(pid)
            raise ChildProcessError(f"{self.name}: {argv[0]} said {said!r}, not {says!r}")
        return pid

    def end(self, pid: int) -> None:
        """End a daemon that `start` started."""
        daemon = self._bed.pop(pid)
        assert daemon
        with contextlib.suppress(ChildProcessError):  # it may be gone already
            self.run("kill", "-9", str(pid))
        daemon.outer.communicate(timeout=BOOT_LIMIT_S)

    def start_sshd(self, *under: str) -> None:
        """Start its SSH server, under another command where one is given."""
        self.run(*under, SSHD)
        pidfile = self.path("/run/sshd.pid")
        # It exists before it is filled.
        wait_until(lambda: pidfile.exists() and pidfile.read_text(), f"{self.name}: sshd")
        self._bed[int(pidfile.read_text())] = None

    def stop_sshd(self) -> None:
        """Stop its SSH server, not the sessions that are open; the port is then free."""
        pid = int(self.path("/run/sshd.pid").read_text())
        self.run("kill", str(pid))
        wait_until(lambda: not self.path(f"/proc/{pid}").exists(), f"{self.name}: end of sshd")
        del self._bed[pid]

    def answers(self, port: int = 22) -> bool:
        """Whether something on the port speaks first, as an SSH server does."""
        try:
            with socket.create_connection((self.address, port), timeout=5) as connection:
                return bool(connection.recv(1))
        except OSError:
            return False

    def processes(self) -> dict[int, str]:
        """Return the command line of each process in it that the testbed did not start."""
        found = {}
        for entry in self.path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) not in self._bed:
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                    line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
                    found[int(entry.name)] = line or f"[{(entry / 'comm').read_text().strip()}]"
        return found

    def kill(self, pids: Sequence[int]) -> None:
        """Kill processes in it; those that are gone already do not matter."""
        for pid in pids:
            with contextlib.suppress(ChildProcessError):
                self.run("kill", "-9", str(pid))

    def files(self) -> set[str]:
        """Return all that its disk has or hides beyond the controller's, and its scratch files."""
        upper = Path(f"/proc/{self.pid}/fd/9")
        disk = {Path("/", path.relative_to(upper)): path for path in walk(upper)}
        # A directory that both have is here only because something below it is.
        own = {str(path) for path, real in disk.items() if not (real.is_dir() and path.is_dir())}
        root = self.path("/")
        return own.union(
            f"/{path.relative_to(root)}"
            for name in SCRATCH
            for path in walk(self.path(name), {root / path[1:] for path in SHARED})
        )

    def remove(self, path: str) -> None:
        """Remove one of its files or trees, if there is one."""
        target = self.path(path)
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)


def walk(top: Path, without: Collection[Path] = ()) -> Iterator[Path]:
    """Yield every path below a directory; what vanishes meanwhile is left out."""
    for folder, folders, files in os.walk(top):
        folders[:] = [name for name in folders if Path(folder, name) not in without]
        yield from (Path(folder, name) for name in (*folders, *files))
