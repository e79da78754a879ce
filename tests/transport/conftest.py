"""Real sshd processes, a real ssh-agent and a home directory for each test of the SSH transport."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.transport.servers import (
    WAIT_S,
    AddKey,
    Client,
    Listener,
    Server,
    StartSshd,
    keygen,
    public,
)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The client's home directory, with a key that the servers accept and no agent."""
    folder = tmp_path / "home"
    (folder / ".ssh").mkdir(parents=True, mode=0o700)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("SHELL", "/bin/sh")
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    (folder / "authorized_keys").write_text(public(keygen(folder / "key")))
    return folder


@pytest.fixture
def client(home: Path) -> Client:
    return Client(home)


@pytest.fixture
def sshd(tmp_path: Path, home: Path) -> Iterator[StartSshd]:
    servers: list[Server] = []

    def start(settings: str = "", kinds: tuple[str, ...] = ("ed25519",)) -> Server:
        server = Server(tmp_path / f"sshd{len(servers)}", home, settings, kinds)
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.stop()


@pytest.fixture
def listen() -> Iterator[Callable[[Callable[[socket.socket], None]], int]]:
    """A function that starts a server that is no sshd, and returns its port."""
    listeners: list[Listener] = []

    def start(talk: Callable[[socket.socket], None]) -> int:
        listeners.append(Listener(talk))
        return listeners[-1].port

    yield start
    for listener in listeners:
        listener.stop()


def takes(path: Path) -> bool:
    """Whether somebody listens at a Unix socket: its file is there some moments before."""
    with socket.socket(socket.AF_UNIX) as sock:
        return sock.connect_ex(str(path)) == 0


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AddKey]:
    """A real ssh-agent; the function adds keys to it."""
    path = tmp_path / "agent.sock"
    process = subprocess.Popen(
        ["ssh-agent", "-D", "-a", str(path)], stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL
    )
    monkeypatch.setenv("SSH_AUTH_SOCK", str(path))
    ask = tmp_path / "askpass"

    def add(key: Path, passphrase: str = "") -> None:
        ask.write_text(f"#!/bin/sh\necho '{passphrase}'\n")
        ask.chmod(0o700)
        environment = os.environ | {"SSH_ASKPASS": str(ask), "SSH_ASKPASS_REQUIRE": "force"}
        command = ["ssh-add", "-q", str(key)]
        subprocess.run(command, check=True, env=environment, stdin=subprocess.DEVNULL)

    late = threading.Event()
    timer = threading.Timer(WAIT_S, late.set)
    timer.start()
    while not takes(path) and not late.wait(0.01):
        assert process.poll() is None
    timer.cancel()
    yield add
    process.terminate()
    process.wait(WAIT_S)
