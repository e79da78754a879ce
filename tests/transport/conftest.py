"""Real sshd processes on 127.0.0.1, with keys, known_hosts and home directories of their own."""

from __future__ import annotations

import base64
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from preflight.inventory import NodeSpec, SshSettings
from preflight.transport.known_hosts import host_name
from preflight.transport.ssh import SshConnection, SshTransport

SSHD = "/usr/sbin/sshd"
WAIT_S = 20.0


def keygen(path: Path, *options: str, kind: str = "ed25519", passphrase: str = "") -> Path:
    """Make a key pair; return the private file."""
    command = ["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-C", path.name, "-f", str(path)]
    subprocess.run([*command, *options], check=True, stdin=subprocess.DEVNULL)
    return path


def certify(authority: Path, key: Path, user: str, *options: str) -> None:
    """Sign a key; the certificate lies beside it."""
    command = ["ssh-keygen", "-q", "-s", str(authority), "-I", "test", "-n", user, *options]
    subprocess.run([*command, f"{key}.pub"], check=True)


def free_port() -> int:
    with closing(socket.socket()) as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@dataclass
class Server:
    """One sshd that is running."""

    port: int
    folder: Path
    process: subprocess.Popen[bytes]
    host_keys: dict[str, Path]
    said: Path

    def known(self, kind: str = "ed25519", name: str = "127.0.0.1") -> str:
        """Return its line for known_hosts."""
        key = self.host_keys[kind].with_suffix(".pub").read_text().split()
        return f"{host_name(name, self.port)} {key[0]} {key[1]}\n"

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(WAIT_S)


Starter = Callable[..., Server]


@pytest.fixture
def sshd(tmp_path: Path, home: Path) -> Iterator[Starter]:
    """A function that starts an sshd; keyword `settings` are lines of its configuration."""
    servers: list[Server] = []

    def start(settings: str = "", kinds: tuple[str, ...] = ("ed25519",)) -> Server:
        folder = tmp_path / f"sshd{len(servers)}"
        folder.mkdir()
        keys = {kind: keygen(folder / f"host_{kind}", kind=kind) for kind in kinds}
        Path("/run/sshd").mkdir(exist_ok=True)
        port = free_port()
        config = folder / "sshd_config"
        config.write_text(
            f"{settings}\nPort {port}\nListenAddress 127.0.0.1\nUsePAM no\nStrictModes no\n"
            f"PidFile none\nAuthorizedKeysFile {home}/authorized_keys\nPrintMotd no\n"
            "PasswordAuthentication no\nKbdInteractiveAuthentication no\n"
            + "".join(f"HostKey {key}\n" for key in keys.values())
        )
        said = folder / "log"
        with said.open("wb") as log:
            process = subprocess.Popen(
                [SSHD, "-D", "-e", "-f", str(config)], stdin=subprocess.DEVNULL, stderr=log
            )
        server = Server(port, folder, process, keys, said)
        servers.append(server)
        _until_listening(server)
        return server

    yield start
    for server in servers:
        server.stop()


def _until_listening(server: Server) -> None:
    deadline = threading.Event()
    timer = threading.Timer(WAIT_S, deadline.set)
    timer.start()
    try:
        while not deadline.wait(0.01):
            assert server.process.poll() is None, server.said.read_text()
            with closing(socket.socket()) as sock:
                if sock.connect_ex(("127.0.0.1", server.port)) == 0:
                    return
    finally:
        timer.cancel()
    raise AssertionError(server.said.read_text())


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The client's home directory, with a key that the servers accept and no agent."""
    folder = tmp_path / "home"
    (folder / ".ssh").mkdir(parents=True, mode=0o700)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    monkeypatch.setenv("SHELL", "/bin/sh")
    key = keygen(folder / "key")
    (folder / "authorized_keys").write_text(key.with_suffix(".pub").read_text())
    return folder


@dataclass
class Client:
    """The client's side of a test: its files, a transport, and what it was warned of."""

    home: Path
    warnings: list[str]

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

    def spec(self, server: Server | int | None = None, **ssh: Any) -> NodeSpec:
        """Return a node at 127.0.0.1; `address` and any of the ssh settings may be given."""
        address = ssh.pop("address", "127.0.0.1")
        port = server.port if isinstance(server, Server) else server
        settings = {"user": "root", "port": port, "key": self.home / "key"} | ssh
        return NodeSpec(name="gpu01", address=address, ssh=SshSettings(**settings))

    def connect(self, server: Server | int | None = None, **ssh: Any) -> SshConnection:
        return self.transport().connect(self.spec(server, **ssh))


@pytest.fixture
def client(home: Path) -> Client:
    return Client(home, [])


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """A real ssh-agent; the function adds keys to it."""
    path = tmp_path / "agent.sock"
    process = subprocess.Popen(
        ["ssh-agent", "-D", "-a", str(path)], stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL
    )
    environment = os.environ | {"SSH_AUTH_SOCK": str(path), "DISPLAY": ":0"}
    monkeypatch.setenv("SSH_AUTH_SOCK", str(path))

    def add(key: Path, passphrase: str = "") -> None:
        ask = tmp_path / "askpass"
        ask.write_text(f"#!/bin/sh\necho '{passphrase}'\n")
        ask.chmod(0o700)
        subprocess.run(
            ["ssh-add", "-q", str(key)],
            check=True,
            env=environment | {"SSH_ASKPASS": str(ask), "SSH_ASKPASS_REQUIRE": "force"},
            stdin=subprocess.DEVNULL,
        )

    gone = threading.Event()
    while not path.exists() and not gone.wait(0.01):
        assert process.poll() is None
    yield add
    with suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    process.wait(WAIT_S)


def read_all(stream: Any) -> bytes:
    """Return all that a command writes."""
    return b"".join(iter(lambda: stream.recv(65536), b""))


def run(connection: SshConnection, command: str) -> bytes:
    """Return what one command writes."""
    stream = connection.execute(command)
    try:
        return read_all(stream)
    finally:
        stream.close()


def blob_of(public: Path) -> bytes:
    return base64.b64decode(public.read_text().split()[1])
