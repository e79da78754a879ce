"""This machine as a node, without SSH: `transport: local`."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import subprocess
import tempfile
import threading
import time
from typing import IO, cast

from preflight.errors import TransportError
from preflight.inventory import NodeSpec
from preflight.transport import Connection, Listener, LoginFacts, Stream
from preflight.transport.own_limits import GIVEN, used_up
from preflight.transport.ssh_config import local_user

STDERR_TAIL = 2048
CHUNK = 1 << 16
KILLED = "see whether it was killed, and why: dmesg"
END_S = 0.5
"""How long a command may take to end once its stdin has; then it is killed. Agents need 0.01 s."""


class LocalStream:
    """One command of this machine; `preflight.transport.Stream` is its contract."""

    def __init__(self, command: str, listener: Listener) -> None:
        # A file and not a pipe: nobody reads it while the command runs, and it must not block.
        self._last_words = ""
        self._sending, self._ending = threading.Lock(), threading.Lock()
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        files = "unlimited" if GIVEN == resource.RLIM_INFINITY else GIVEN
        try:
            process = subprocess.Popen(
                ["/bin/sh", "-c", f"ulimit -S -n {files}; {command}"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                bufsize=0,
                start_new_session=True,  # Ctrl-C is the controller's; the agent ends with its stdin
            )
        except OSError:
            self._stderr.close()
            raise
        self._stdin, self._stdout = cast(IO[bytes], process.stdin), cast(IO[bytes], process.stdout)
        os.set_blocking(self._stdin.fileno(), False)
        self._process = process
        threading.Thread(target=self._listen, args=(listener,), daemon=True).start()

    def send(self, data: bytes, limit_s: float) -> None:
        """Send all of it."""
        until = time.monotonic() + limit_s
        try:
            with self._sending:
                writable = select.poll()
                writable.register(self._stdin, select.POLLOUT)
                while data:
                    left = until - time.monotonic()
                    if not writable.poll(max(0.0, left * 1000)) and left <= 0:
                        raise TransportError(
                            "silent",
                            f"the agent on this machine took no input for {limit_s:g} s",
                            "this machine hangs: see dmesg, and its load",
                        )
                    with contextlib.suppress(BlockingIOError):
                        data = data[os.write(self._stdin.fileno(), data) :]
        except (OSError, ValueError) as error:
            raise TransportError("lost", "the agent on this machine has ended", KILLED) from error

    def _listen(self, listener: Listener) -> None:
        with contextlib.suppress(OSError, ValueError):  # closed by another thread
            while data := os.read(self._stdout.fileno(), CHUNK):
                if not listener.hear(data):
                    self.close()
        listener.end(None, self.stderr_tail())

    def stderr_tail(self) -> str:
        """Return the last it wrote to standard error."""
        with self._ending:
            return self._last_words if self._stderr.closed else self._tail()

    def _tail(self) -> str:
        end = os.fstat(self._stderr.fileno()).st_size
        tail = os.pread(self._stderr.fileno(), STDERR_TAIL, max(0, end - STDERR_TAIL))
        return tail.decode("utf-8", "replace")

    def close_stdin(self) -> None:
        """End its standard input, unless somebody is at it: then only `close` ends both."""
        if self._sending.acquire(blocking=False):
            self._stdin.close()
            self._sending.release()

    def close(self) -> None:
        """End it: politely by its stdin, then by force."""
        self.close_stdin()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):  # it is stuck in the kernel
                self._process.wait(END_S)
        if self._sending.acquire(timeout=END_S):  # whoever was at it has met the end by now
            self._stdin.close()
            self._sending.release()
        with self._ending:
            if not self._stderr.closed:
                self._last_words = self._tail()
            self._stdout.close()
            self._stderr.close()


class LocalConnection:
    """This machine, already logged in."""

    def __init__(self) -> None:
        self.facts = LoginFacts(
            address="local",
            user=local_user(),
            server="",
            host_key="",
            auth="none",
            connect_s=0.0,
            login_s=0.0,
        )
        self._streams: list[LocalStream] = []

    def execute(self, command: str, listener: Listener) -> Stream:
        """Start a command."""
        try:
            self._streams.append(LocalStream(command, listener))
        except OSError as error:
            words = f"cannot start a process: {(error.strerror or str(error)).lower()}"
            hint = "see whether /bin/sh runs, and free memory"
            raise used_up(error) or TransportError("local", words, hint) from error
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
