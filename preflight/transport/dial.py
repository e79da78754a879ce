"""How a byte stream to an SSH server comes about: TCP, or the user's ProxyCommand.

Knows nothing of SSH, so that what keeps a packet from arriving is told apart in one place.
"""

from __future__ import annotations

import errno
import os
import queue
import shlex
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any, Protocol

from preflight.errors import TransportError, printable
from preflight.transport.own_limits import used_up

HEARD_LIMIT = 256
"""Bytes kept of what the other side said first; more than any SSH version line (RFC 4253: 255)."""
WORDS_LIMIT = 160
"""Characters of another machine's words that a message shows: about two lines."""
UNSENT_S = 30
"""After which a connection is lost whose data nobody acknowledges (RFC 5482): beyond the time that
a switch takes to come back (classic spanning tree: 30 s), and long for a session to notice itself.
"""
CHUNK = 1 << 16
"""Bytes that are taken at once: the SSH library asks for a packet's length, then for its rest."""
PROXY_END_S = 1.0
"""How long a ProxyCommand may take to obey SIGTERM before it is killed."""

REASONS = {
    errno.ECONNREFUSED: (
        "refused",
        "connection refused",
        "see that sshd runs there and listens on this port; another one goes under ssh.port",
    ),
    errno.ETIMEDOUT: (
        "filtered",
        "no answer",
        "the machine is off, the address is wrong, or a firewall drops the packets",
    ),
    errno.EHOSTUNREACH: (
        "no route",
        "no route to host",
        "the machine is off, or a firewall rejects the packets",
    ),
    errno.ENETUNREACH: (
        "network unreachable",
        "network unreachable",
        "no route leads there: see `ip route` where it is dialled from, and on the routers between",
    ),
    errno.ECONNRESET: (
        "reset",
        "connection reset",
        "a firewall or the server cut the connection; see the server's own log",
    ),
}
"""Of each errno of `connect(2)`: kind, words and hint."""


WORDS = {
    errno.ECONNREFUSED: "refused",
    errno.ETIMEDOUT: "time",
    errno.EHOSTUNREACH: "no route",
    errno.ENETUNREACH: "unreachable",
}
"""What sshd of any system says of a forwarding that failed (strerror of its `connect`)."""


class Pipe(Protocol):
    """What a socket and an SSH channel have in common."""

    def recv(self, size: int, /) -> bytes:
        """Return some bytes, `b""` at the end."""

    def send(self, data: bytes, /) -> int:
        """Send some of it; return how much."""

    def shutdown(self, how: int, /) -> Any:
        """End one direction or both."""

    def close(self) -> Any:
        """Let go of it."""


class Wire:
    """A byte stream that blocks without polling, and whose `close` ends a blocked `recv`.

    Keeps the first bytes received, since an SSH library forgets what was not SSH.
    """

    def __init__(
        self,
        pipe: Pipe,
        address: str,
        on_close: Callable[[], str] = str,
        gone: Callable[[], str] = str,
    ) -> None:
        self.address = address
        self.gone = gone
        """Returns the jump host whose connection was lost, if this goes through one and it was."""
        self.heard = b""
        self.last_words = ""
        """What the process behind it said, once it is closed."""
        self._pipe = pipe
        self._taken = b""
        self._on_close = on_close
        self._lock = threading.Lock()
        self._closed = False  # the SSH library reads this name of a socket

    def recv(self, size: int) -> bytes:
        """Return some bytes, `b""` at the end; for one reader."""
        if not self._taken:
            self._taken = self._pipe.recv(max(size, CHUNK))
            if len(self.heard) < HEARD_LIMIT:
                self.heard += self._taken[:HEARD_LIMIT]
        data, self._taken = self._taken[:size], self._taken[size:]
        return data

    def send(self, data: bytes) -> int:
        """Send some of it; return how much."""
        return self._pipe.send(data)

    def settimeout(self, timeout: float | None) -> None:
        """Ignore it: a reader that wakes ten times a second is paid for by every open node."""

    def close(self) -> None:
        """Let go of it; never raises."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        with suppress(OSError, EOFError):
            self._pipe.shutdown(socket.SHUT_RDWR)
        with suppress(OSError, EOFError):
            self._pipe.close()
        self.last_words = self._on_close()


def foreign(said: bytes) -> str:
    """Return another machine's words, short and fit for a terminal."""
    text = said.decode("utf-8", "backslashreplace").strip()
    return printable(text[:WORDS_LIMIT]) + ("..." if len(text) > WORDS_LIMIT else "")


def endpoint(host: str, port: int) -> str:
    """Return `host:port`, brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def dial(host: str, port: int, limit_s: float) -> Wire:
    """Connect by TCP, trying each address the name has.

    Raises:
        TransportError: of the first address's failure.
    """
    deadline = time.monotonic() + limit_s
    addresses = _resolve(host, port, limit_s)
    first: TransportError | None = None
    for position, (family, address) in enumerate(addresses):
        share = (deadline - time.monotonic()) / (len(addresses) - position)
        try:
            return _connect(family, address, max(share, 0.001))
        except OSError as error:
            first = first or used_up(error) or _unreachable(error, host, port, limit_s)
    raise first or TransportError("unresolved", f"{host!r} has no address", "give the node one")


def _connect(family: int, address: Any, limit_s: float) -> Wire:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.settimeout(limit_s)
        sock.connect(address)
        sock.settimeout(None)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            # else a sender waits a quarter of an hour for a machine that went down
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNSENT_S * 1000)
    except OSError:
        sock.close()
        raise
    return Wire(sock, endpoint(str(address[0]), int(address[1])))


def _resolve(host: str, port: int, limit_s: float) -> list[tuple[int, Any]]:
    with suppress(socket.gaierror, UnicodeError):
        return _addresses(host, port, socket.AI_NUMERICHOST)
    # getaddrinfo has no time limit of its own, and a broken resolver may keep it for minutes
    answers: queue.SimpleQueue[list[tuple[int, Any]] | OSError] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answers.put(_addresses(host, port, 0))
        except (OSError, UnicodeError) as error:
            answers.put(error if isinstance(error, OSError) else socket.gaierror(str(error)))

    threading.Thread(target=ask, daemon=True).start()
    hint = no_name(host, "here")
    try:
        answer = answers.get(timeout=limit_s)
    except queue.Empty:
        message = f"{host!r} was not resolved within {limit_s:g} s"
        raise TransportError("unresolved", message, hint) from None
    if isinstance(answer, OSError):
        words = (answer.strerror or str(answer)).lower()
        raise TransportError("unresolved", f"{host!r} does not resolve: {words}", hint)
    return answer


def _addresses(host: str, port: int, flags: int) -> list[tuple[int, Any]]:
    found = socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM, 0, flags)
    return [(family, address) for family, _, _, _, address in found]


def no_name(host: str, where: str) -> str:
    """Return what to do about a name without an address."""
    look = f"getent hosts {shlex.quote(host)}"
    return f"see `{look}` {where}; give the node its address, or correct its name"


def from_words(host: str, port: int, jump: str, words: str) -> TransportError:
    """Return why a jump host could not reach a server, told from the words it gave for it."""
    where = f"{endpoint(host, port)} from jump host {jump}"
    for number, sign in WORDS.items():
        if sign in words.lower():
            kind, meaning, hint = REASONS[number]
            return TransportError(kind, f"{where}: {meaning}", hint)
    if "prohibited" in words.lower():
        hint = f"see AllowTcpForwarding and PermitOpen in the sshd_config of {jump}"
        return TransportError("jump", f"{where}: the jump host does not forward: {words}", hint)
    if any(sign in words.lower() for sign in ("unknown host", "not known", "resol")):
        hint = no_name(host, "there")
        return TransportError(
            "unresolved", f"{where}: does not resolve there: {words.lower()}", hint
        )
    words = words.lower() or "no reason given"
    return TransportError("jump", f"{where}: {words}", f"see sshd's log on {jump}")


def _unreachable(error: OSError, host: str, port: int, limit_s: float) -> TransportError:
    if isinstance(error, TimeoutError) and error.errno is None:
        kind, words, hint = REASONS[errno.ETIMEDOUT]
        words = f"{words} within {limit_s:g} s"
    else:
        unknown = (
            "unreachable",
            (error.strerror or str(error)).lower(),
            "see the address of the node",
        )
        kind, words, hint = REASONS.get(error.errno or 0, unknown)
    return TransportError(kind, f"{endpoint(host, port)}: {words}", hint)


class ProxyCommand:
    """The user's ProxyCommand: a process whose standard input and output reach the server."""

    def __init__(self, command: str, address: str) -> None:
        with ExitStack() as ending:
            try:
                ours, its = socket.socketpair()
                ending.callback(ours.close)
                with its:
                    self._said = ending.enter_context(tempfile.TemporaryFile())
                    # as ssh does it: the user's shell, replaced by the command
                    self._process = subprocess.Popen(
                        [os.environ.get("SHELL") or "/bin/sh", "-c", f"exec {command}"],
                        stdin=its.fileno(),
                        stdout=its.fileno(),
                        stderr=self._said,
                        start_new_session=True,
                    )
            except OSError as error:
                words = (error.strerror or str(error)).lower()
                hint = "correct ProxyCommand in ~/.ssh/config, or the variable SHELL"
                failure = TransportError("proxy", f"ProxyCommand {command!r}: {words}", hint)
                raise used_up(error) or failure from error
            ending.pop_all()
        self.wire = Wire(ours, address, self._end)

    def _end(self) -> str:
        self._signal(signal.SIGTERM)
        try:
            self._process.wait(PROXY_END_S)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            self._process.wait()
        with self._said:
            self._said.seek(0, os.SEEK_END)
            self._said.seek(max(0, self._said.tell() - HEARD_LIMIT))
            return foreign(self._said.read())

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)
