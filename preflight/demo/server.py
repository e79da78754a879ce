"""An SSH server on 127.0.0.1 that lets one key in and runs its commands as a simulated node.

Beside `transport/ssh.py` the only place that imports paramiko.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Mapping
from typing import IO, cast

import paramiko
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from paramiko.common import (
    AUTH_FAILED,
    AUTH_SUCCESSFUL,
    OPEN_FAILED_UNKNOWN_CHANNEL_TYPE,
    OPEN_SUCCEEDED,
)

HOST = "127.0.0.1"
END_S = 2.0
"""For an agent to end after its standard input has; it needs milliseconds."""
CHUNK = 1 << 16
KILLED = 128
"""Added to a signal's number, as shells do."""


class Server:
    """Listens on a port of its own until it is closed.

    Args:
        host_key: the server's.
        client_key: the only key that is let in, for whatever user.
        environment: of the commands.
    """

    def __init__(
        self, host_key: paramiko.PKey, client_key: paramiko.PKey, environment: Mapping[str, str]
    ) -> None:
        self._host_key, self._client_key = host_key, client_key
        self._environment = environment
        self._transports: list[_Transport] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        _begin(self._accept)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                transport = _Transport(client)
                transport.add_server_key(self._host_key)
                self._transports.append(transport)
                # with an event it does not wait for the client
                door = _Door(self._client_key, self._start, transport)
                transport.start_server(threading.Event(), door)

    def _start(self, channel: paramiko.Channel, command: str) -> None:
        process = subprocess.Popen(
            ["/bin/sh", "-c", command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self._environment,
            cwd="/",
            start_new_session=True,  # Ctrl-C is the demo's; a command ends with its input
        )
        self._processes.append(process)
        _begin(_feed, channel, process)
        _begin(_drain, channel, process, _begin(_complain, channel, process))

    def close(self) -> None:
        """End all connections and what they started."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()
        for transport in self._transports:
            transport.close()
        for process in self._processes:
            _end(process)


def _begin(work: Callable[..., None], *args: object) -> threading.Thread:
    """Have work done beside everything else."""
    thread = threading.Thread(target=work, args=args, daemon=True)
    thread.start()
    return thread


def _end(process: subprocess.Popen[bytes]) -> None:
    """See that a command ends whose client is gone."""
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _feed(channel: paramiko.Channel, process: subprocess.Popen[bytes]) -> None:
    """Pass on what the client sends, until it ends."""
    with contextlib.suppress(OSError), cast(IO[bytes], process.stdin) as stdin:
        while data := channel.recv(CHUNK):
            stdin.write(data)
            stdin.flush()


def _drain(
    channel: paramiko.Channel, process: subprocess.Popen[bytes], complaining: threading.Thread
) -> None:
    """Pass on what the command writes, then how it ended."""
    with contextlib.suppress(OSError, EOFError, paramiko.SSHException):  # the client is gone
        with cast(IO[bytes], process.stdout) as stdout:
            while data := os.read(stdout.fileno(), CHUNK):
                channel.sendall(data)
        code = process.wait()
        complaining.join()
        channel.send_exit_status(code if code >= 0 else KILLED - code)
        channel.close()


def _complain(channel: paramiko.Channel, process: subprocess.Popen[bytes]) -> None:
    """Pass on what the command writes to standard error."""
    with contextlib.suppress(OSError), cast(IO[bytes], process.stderr) as stderr:
        while data := os.read(stderr.fileno(), CHUNK):
            channel.sendall_stderr(data)


class _Transport(paramiko.Transport):
    """Starts a command when its request is answered: a short one could else end before that."""

    def __init__(self, client: socket.socket) -> None:
        super().__init__(client)
        self.then: Callable[[], None] | None = None

    def _send_user_message(self, message: paramiko.Message) -> None:
        super()._send_user_message(message)  # type: ignore[misc]
        if self.then and threading.current_thread() is self:  # the thread that answers requests
            then, self.then = self.then, None
            then()


class _Door(paramiko.ServerInterface):
    """Lets one key in, and commands only."""

    def __init__(
        self,
        key: paramiko.PKey,
        start: Callable[[paramiko.Channel, str], None],
        transport: _Transport,
    ) -> None:
        self._key, self._start, self._transport = key, start, transport

    def get_allowed_auths(self, username: str) -> str:  # noqa: ARG002 - paramiko's signature
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:  # noqa: ARG002
        return AUTH_SUCCESSFUL if key == self._key else AUTH_FAILED

    def check_channel_request(self, kind: str, chanid: int) -> int:  # noqa: ARG002
        return OPEN_SUCCEEDED if kind == "session" else OPEN_FAILED_UNKNOWN_CHANNEL_TYPE

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        self._transport.then = lambda: self._start(channel, command.decode())
        return True


def new_key() -> tuple[paramiko.PKey, str]:
    """Return a new key, and the text of its file."""
    text = (
        Ed25519PrivateKey.generate()
        .private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
        .decode()
    )
    return paramiko.Ed25519Key(file_obj=io.StringIO(text)), text
