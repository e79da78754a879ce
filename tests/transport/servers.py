"""Real servers on 127.0.0.1 for the tests of the SSH transport, and the client's side of a test."""

from __future__ import annotations

import getpass
import os
import socket
import subprocess
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import psutil

from preflight.inventory import NodeSpec, SshSettings
from preflight.transport import Connection
from preflight.transport.known_hosts import host_name
from preflight.transport.ssh import SshConnection, SshTransport
from tests.pulled import Pulled

SSHD = "/usr/sbin/sshd"
WAIT_S = 20.0
ME = getpass.getuser()
"""Who runs the tests: whom an sshd that is not root's lets in."""


def keygen(path: Path, *options: str, kind: str = "ed25519", passphrase: str = "") -> Path:
    """Make a key pair; return the private file."""
    command = ["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-C", path.name, "-f", str(path)]
    subprocess.run([*command, *options], check=True, stdin=subprocess.DEVNULL)
    return path


def certify(authority: Path, key: Path, user: str) -> None:
    """Sign a key; the certificate lies beside it."""
    command = ["ssh-keygen", "-q", "-s", str(authority), "-I", "test", "-n", user, f"{key}.pub"]
    subprocess.run(command, check=True)


def public(key: Path) -> str:
    """Return the public half of a key file."""
    return Path(f"{key}.pub").read_text()


def fingerprint_of(key: Path) -> str:
    """Return what ssh-keygen says of a key."""
    out = subprocess.run(["ssh-keygen", "-lf", f"{key}.pub"], check=True, capture_output=True)
    return out.stdout.decode().split()[1]


def free_port() -> int:
    with closing(socket.socket()) as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class Server:
    """One sshd; it accepts what `authorized_keys` in the client's home says."""

    def __init__(self, folder: Path, home: Path, settings: str, kinds: tuple[str, ...]) -> None:
        folder.mkdir()
        if os.geteuid() == 0:  # else sshd has no use for it
            Path("/run/sshd").mkdir(exist_ok=True)
        self.host_keys = {kind: keygen(folder / f"host_{kind}", kind=kind) for kind in kinds}
        self.port = free_port()
        self.log = folder / "log"
        config = folder / "sshd_config"
        lines = [
            *settings.splitlines(),
            f"Port {self.port}",
            "ListenAddress 127.0.0.1",
            "UsePAM no",
            "StrictModes no",
            "PidFile none",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            f"AuthorizedKeysFile {home}/authorized_keys",
            f"SetEnv HOME={folder}",  # else the login shell reads the tester's own start files
            *(f"HostKey {key}" for key in self.host_keys.values()),
        ]
        config.write_text("\n".join(lines) + "\n")
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [SSHD, "-D", "-e", "-f", str(config)], stdin=subprocess.DEVNULL, stderr=log
            )
        self._wait()

    def known(self, kind: str = "ed25519", name: str = "127.0.0.1") -> str:
        """Return its line for known_hosts."""
        algorithm, encoded, *_ = public(self.host_keys[kind]).split()
        return f"{host_name(name, self.port)} {algorithm} {encoded}\n"

    def logins(self) -> list[psutil.Process]:
        """Return the processes of its connections; each has a session of its own."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def stop(self) -> None:
        left = self.logins()
        self.process.terminate()
        self.process.wait(WAIT_S)
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def _wait(self) -> None:
        late = threading.Event()
        timer = threading.Timer(WAIT_S, late.set)
        timer.start()
        try:
            while not late.wait(0.01):
                assert self.process.poll() is None, self.log.read_text()
                with closing(socket.socket()) as sock:
                    # Until sshd greets, it has only the kernel's word, and its process comes later.
                    if sock.connect_ex(("127.0.0.1", self.port)) == 0 and sock.recv(4) == b"SSH-":
                        return
        finally:
            timer.cancel()
        raise AssertionError(self.log.read_text())


class StartSshd(Protocol):
    def __call__(self, settings: str = "", kinds: tuple[str, ...] = ("ed25519",)) -> Server:
        """Start an sshd with these lines of configuration and kinds of host keys."""


class AddKey(Protocol):
    def __call__(self, key: Path, passphrase: str = "") -> None:
        """Give a key to the agent."""


class Listener:
    """A server that is no sshd: `talk` has each connection, in a thread of its own."""

    def __init__(self, talk: Callable[[socket.socket], None]) -> None:
        self._talk = talk
        self._taken: list[socket.socket] = []
        self._sock = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._sock.getsockname()[1])
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                taken, _ = self._sock.accept()
                self._taken.append(taken)
                self._threads.append(threading.Thread(target=self._serve, args=(taken,)))
                self._threads[-1].start()

    def _serve(self, taken: socket.socket) -> None:
        with suppress(OSError), taken:
            self._talk(taken)

    def stop(self) -> None:
        for sock in (self._sock, *self._taken):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        for thread in self._threads:
            thread.join(WAIT_S)


@dataclass
class Client:
    """The client's side of a test: its home directory, and what it was warned of."""

    home: Path
    warnings: list[str] = field(default_factory=list)

    @property
    def known_hosts(self) -> Path:
        return self.home / ".ssh" / "known_hosts"

    def config(self, text: str) -> None:
        (self.home / ".ssh" / "config").write_text(text)

    def knows(self, *lines: str) -> None:
        with self.known_hosts.open("a") as file:
            file.writelines(lines)

    def transport(self) -> SshTransport:
        return SshTransport(self.warnings.append)

    def spec(self, port: int | None, **ssh: Any) -> NodeSpec:
        """Return a node at 127.0.0.1; `address` and any ssh setting may be given."""
        address = ssh.pop("address", "127.0.0.1")
        settings = {"user": ME, "port": port, "key": self.home / "key"} | ssh
        return NodeSpec(name="gpu01", address=address, ssh=SshSettings(**settings))

    def connect(self, port: int | None, **ssh: Any) -> SshConnection:
        return self.transport().connect(self.spec(port, **ssh))


def read_all(stream: Pulled) -> bytes:
    """Return all that a command writes."""
    return b"".join(iter(lambda: stream.recv(65536), b""))


def run(connection: Connection, command: str) -> bytes:
    """Return what one command writes."""
    stream = Pulled(connection, command)
    try:
        return read_all(stream)
    finally:
        stream.close()
