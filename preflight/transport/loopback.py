"""This machine as a node, without SSH: `transport: local`."""

from __future__ import annotations

import contextlib
import getpass
import os
import signal
import subprocess
import tempfile
from typing import IO, cast

from preflight.errors import TransportError
from preflight.inventory import NodeSpec
from preflight.transport import Connection, LoginFacts, Stream

STDERR_TAIL = 2048


class LocalStream:
    """One command of this machine; `preflight.transport.Stream` is its contract."""

    def __init__(self, command: str) -> None:
        # A file and not a pipe: nobody reads it while the command runs, and it must not block.
        self._last_words = ""
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        process = subprocess.Popen(
            ["/bin/sh", "-c", command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            start_new_session=True,  # Ctrl-C is the controller's; the agent ends with its stdin
        )
        self._stdin, self._stdout = cast(IO[bytes], process.stdin), cast(IO[bytes], process.stdout)
        self._process = process

    def send(self, data: bytes) -> None:
        """Send all of it."""
        try:
            self._stdin.write(data)
            self._stdin.flush()
        except (OSError, ValueError) as error:
            raise TransportError("lost", "the agent on this machine has ended") from error

    def recv(self, size: int) -> bytes:
        """Return some bytes of its standard output."""
        try:
            return os.read(self._stdout.fileno(), size)
        except (OSError, ValueError):  # closed by another thread
            return b""

    def stderr_tail(self) -> str:
        """Return the last it wrote to standard error."""
        if self._stderr.closed:
            return self._last_words
        end = os.fstat(self._stderr.fileno()).st_size
        tail = os.pread(self._stderr.fileno(), STDERR_TAIL, max(0, end - STDERR_TAIL))
        return tail.decode("utf-8", "replace")

    def close_stdin(self) -> None:
        """End its standard input."""
        with contextlib.suppress(OSError):  # the agent is gone already
            self._stdin.close()

    def close(self) -> None:
        """End it: politely by its stdin, then by force."""
        self.close_stdin()
        try:
            self._process.wait(2)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(2)
        self._last_words = self.stderr_tail()
        self._stdout.close()
        self._stderr.close()


class LocalConnection:
    """This machine, already logged in."""

    def __init__(self) -> None:
        self.facts = LoginFacts(
            address="local",
            user=getpass.getuser(),
            server="",
            host_key="",
            auth="none",
            connect_s=0.0,
            login_s=0.0,
        )
        self._streams: list[LocalStream] = []

    def execute(self, command: str) -> Stream:
        """Start a command."""
        self._streams.append(LocalStream(command))
        return self._streams[-1]

    def close(self) -> None:
        """End what was started."""
        for stream in self._streams:
            stream.close()


class LocalTransport:
    """Connects to this machine."""

    def connect(self, spec: NodeSpec) -> Connection:  # noqa: ARG002 - every transport's signature
        """Return a connection; it cannot fail."""
        return LocalConnection()
