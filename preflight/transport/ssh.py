"""SSH to the nodes: logins that end in time, say why they failed, and cost little.

With `protocol.py` the only place that imports paramiko, so that its habits are dealt with once:
threads that poll, a time limit per step and none on the whole, a log on standard error, and reasons
that it drops. It is driven through events here. Where a login goes is said by `destination.py`,
with what by `identities.py`, and whom to believe by `trust.py`.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import cast

import paramiko
from paramiko.auth_handler import AuthHandler

from preflight.errors import ConfigError, TransportError, printable
from preflight.inventory import NodeSpec
from preflight.transport import Listener, LoginFacts
from preflight.transport.destination import Destination, destination
from preflight.transport.dial import ProxyCommand, Wire, dial, from_words
from preflight.transport.failures import (
    THROTTLED,
    TOO_MANY,
    broken,
    exec_refused,
    lost,
    lost_with,
    refused,
    too_many,
)
from preflight.transport.hops import Hops
from preflight.transport.identities import Offer, Offers, see_key
from preflight.transport.known_hosts import HostKey
from preflight.transport.own_limits import raise_files
from preflight.transport.protocol import Ear, Key, SshProtocol, StderrTail
from preflight.transport.ssh_config import SshConfig
from preflight.transport.trust import Trust

AGAIN_S = (0.5, 2.0)
"""After which a server is asked again that has too many logins under way; one takes 0.1 to 1 s."""
WINDOW = 256 * 1024
"""Bytes a node may send ahead of the reader: bounds the memory of a thousand open nodes."""


class SshTransport:
    """Logs in to nodes; made once a run, shared by all its threads.

    Args:
        warn: is told what the user should know but what stops nothing.

    Raises:
        ConfigError: an ssh_config file cannot be read.
    """

    def __init__(self, warn: Callable[[str], None] = lambda _: None) -> None:
        # paramiko's own threads would write their tracebacks on the user's terminal
        logging.getLogger("paramiko").setLevel(logging.CRITICAL + 1)
        raise_files()
        self._config = SshConfig(warn)
        self._trust = Trust(warn)
        self._offers = Offers()
        self._hops = Hops(self._login)
        self._destinations: dict[NodeSpec, Destination] = {}
        self._seen: set[Path | None] = set()

    def validate(self, specs: Iterable[NodeSpec]) -> None:
        """See that what these logins need on this machine is there; nothing is contacted.

        Raises:
            ConfigError: a key file or a known_hosts file is of no use.
        """
        for spec in specs:
            if spec.transport == "ssh":
                try:
                    self._see(spec)
                except ConfigError as error:
                    raise ConfigError(f"node {spec.name}: {error}") from error

    def _see(self, spec: NodeSpec) -> None:
        there: Destination | None = self._destination(spec)
        if spec.ssh.key not in self._seen:
            see_key(spec.ssh.key)
            self._seen.add(spec.ssh.key)
        while there:
            self._trust.types(there)
            there = there.via

    def _destination(self, spec: NodeSpec) -> Destination:
        if spec not in self._destinations:
            self._destinations[spec] = destination(spec, self._config)
        return self._destinations[spec]

    def connect(self, spec: NodeSpec) -> SshConnection:
        """Log in.

        Raises:
            TransportError: of a kind that tells what went wrong.
        """
        try:
            return self._login(self._destination(spec))
        except ConfigError as error:
            raise TransportError("configuration", str(error), "correct that file") from error

    def _login(self, there: Destination) -> SshConnection:
        """Log in; a server that is asked by too many at once is asked once more.

        Raises:
            TransportError: as `connect`.
        """
        try:
            return self._login_once(there)
        except TransportError as error:
            if error.kind != THROTTLED:
                raise
        # by chance, else all that were turned away come back together
        time.sleep(min(random.uniform(*AGAIN_S), there.login_timeout_s))
        return self._login_once(there)

    def _login_once(self, there: Destination) -> SshConnection:
        types = self._trust.types(there)
        with ExitStack() as ending:
            started = time.monotonic()
            wire = self._wire(there, ending)
            connected = time.monotonic()
            transport = SshProtocol(there, wire, types)
            ending.callback(transport.close)
            login = _Login(transport)
            host_key = login.exchange_keys()
            self._trust.check(there, host_key)
            auth = login.authenticate(self._offers.to(there))
            facts = LoginFacts(
                address=wire.address,
                user=there.user,
                server=printable(transport.remote_version.removeprefix("SSH-2.0-")),
                host_key=str(host_key),
                auth=auth,
                connect_s=connected - started,
                login_s=time.monotonic() - connected,
            )
            return SshConnection(transport, facts, ending.pop_all())

    def _wire(self, there: Destination, ending: ExitStack) -> Wire:
        if there.via:
            hop = self._hops.borrow(there.via)
            ending.callback(hop.give_back)
            wire = hop.forward(there)
        elif there.proxy_command:
            wire = ProxyCommand(there.proxy_command, there.address).wire
        else:
            wire = dial(there.host, there.port, there.connect_timeout_s)
        ending.callback(wire.close)
        return wire


class SshConnection:
    """A login on one node."""

    def __init__(self, transport: SshProtocol, facts: LoginFacts, ending: ExitStack) -> None:
        self.facts = facts
        self._transport = transport
        self._ending = ending
        self._lock = threading.Lock()

    def execute(self, command: str, listener: Listener) -> SshStream:
        """Start a command through the login shell.

        Raises:
            TransportError: refused, or the connection is gone.
        """
        limit_s = self._transport.there.login_timeout_s
        try:
            channel = self._transport.open_session(window_size=WINDOW, timeout=limit_s)
            stream = SshStream(channel, self._transport, listener)
            channel.event = _Limited(limit_s)
            channel.exec_command(command)
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise self._refused(error) from error
        return stream

    def forward(self, there: Destination) -> Wire:
        """Return a byte stream from this machine to another server.

        Raises:
            TransportError: this machine cannot reach it, or does not forward.
        """
        try:
            channel = self._transport.open_channel(
                "direct-tcpip", (there.host, there.port), ("", 0), timeout=there.connect_timeout_s
            )
        except (paramiko.SSHException, OSError, EOFError) as error:
            if self.lost():
                raise self._refused(error) from error
            words = self._transport.why() or printable(str(error))
            jump = self._transport.there.host
            raise from_words(there.host, there.port, jump, words) from error
        return Wire(channel, there.address, gone=self._gone)

    def lost(self) -> bool:
        """Whether the connection is gone."""
        return self._transport.is_lost()

    def close(self) -> None:
        """Log out; never raises, may be called twice."""
        with self._lock:
            self._transport.left = True
            self._ending.close()

    def _gone(self) -> str:
        transport = self._transport
        return (transport.wire.gone() or transport.there.address) if self.lost() else ""

    def _refused(self, error: Exception) -> TransportError:
        if self.lost():
            return _loss(self._transport)
        words = self._transport.why() or printable(str(error)).lower().rstrip(".")
        return exec_refused(self._transport.there, words)


def _loss(transport: SshProtocol) -> TransportError:
    """Return why a connection is lost: its own end, or a jump host's."""
    where, jump = transport.there.address, transport.wire.gone()
    return lost_with(where, jump) if jump else lost(where, transport.farewell)


class _Limited(threading.Event):
    """An event that is set when a limit has passed: paramiko waits for a command's for ever."""

    def __init__(self, limit_s: float) -> None:
        super().__init__()
        self._limit_s = limit_s

    def wait(self, timeout: float | None = None) -> bool:
        if not super().wait(self._limit_s if timeout is None else timeout):
            self.set()
        return True


class SshStream:
    """The two byte streams of one command."""

    def __init__(
        self, channel: paramiko.Channel, transport: SshProtocol, listener: Listener
    ) -> None:
        self._channel = channel
        self._transport = transport
        self._listener = listener
        self._stderr = StderrTail(channel)
        self._closed = False
        channel.in_stderr_buffer = self._stderr
        channel.in_buffer = Ear(channel, self._hear)

    def send(self, data: bytes, limit_s: float) -> None:
        """Send all of it.

        Raises:
            TransportError: the connection is gone, or not all was taken within the limit.
        """
        until = time.monotonic() + limit_s
        try:
            while data:
                self._wait_for_room(until - time.monotonic(), limit_s)
                sent = self._channel.send(data)
                if not sent:  # paramiko's sendall would try for ever
                    raise EOFError
                data = data[sent:]
        except (OSError, EOFError, paramiko.SSHException) as error:
            raise self._lost("before it had read its input") from error

    def _wait_for_room(self, left_s: float, limit_s: float) -> None:
        # paramiko has one time limit for both directions, and the reader must have none
        channel = self._channel
        with channel.out_buffer_cv:
            if not channel.out_buffer_cv.wait_for(
                lambda: channel.out_window_size or channel.closed or channel.eof_sent, left_s
            ):
                address = self._transport.there.address
                message = f"{address}: took no input for {limit_s:g} s"
                raise TransportError("silent", message, "the machine hangs, or its network is gone")

    def _hear(self, data: bytes) -> None:
        if not data:
            whole = self._channel.eof_received or self._closed or self._transport.left
            error = None if whole else self._lost("before its output ended")
            self._listener.end(error, self.stderr_tail())
        elif not self._listener.hear(data):
            self.close()

    def stderr_tail(self) -> str:
        """Return the last 2 KiB it wrote to standard error so far, decoded with replacement."""
        return self._stderr.kept.decode("utf-8", "replace")

    def close_stdin(self) -> None:
        """End its standard input; never raises."""
        with suppress(OSError, EOFError, paramiko.SSHException):
            self._channel.shutdown_write()

    def close(self) -> None:
        """Let go of it; never raises, may be called twice."""
        self._closed = True
        with suppress(OSError, EOFError, paramiko.SSHException):
            self._channel.close()

    def _lost(self, when: str) -> TransportError:
        if self._transport.is_lost():
            return _loss(self._transport)
        address = self._transport.there.address
        hint = "see the login shell's start files there, and dmesg for what was killed"
        return TransportError("lost", f"{address}: the command ended {when}", hint)


class _Login:
    """The steps of one login, all within one time limit."""

    def __init__(self, transport: SshProtocol) -> None:
        self._transport = transport
        self._there = transport.there
        self._deadline = time.monotonic() + transport.there.login_timeout_s

    def exchange_keys(self) -> HostKey:
        """Agree on keys; return the server's host key, of a type that is known if it has one.

        Raises:
            TransportError: not an SSH server, or lost, or too late.
        """
        done = threading.Event()
        self._transport.start_client(event=done)
        self._wait(done)
        key = cast("paramiko.PKey", self._transport.host_key)
        return HostKey(key.get_name(), key.asbytes())

    def authenticate(self, offer: Offer) -> str:
        """Try one identity after the other; return which was accepted.

        Raises:
            TransportError: none was, or lost, or too late.
        """
        tried: list[str] = []
        allowed: Sequence[str] = ()
        for identity in offer.identities:
            tried.append(identity.label)
            if self._accepted(AuthHandler.auth_publickey, tried, Key(identity)):
                return identity.label
            error = self._transport.get_exception()
            allowed = getattr(error, "allowed_types", allowed)
            if allowed and "publickey" not in allowed:
                break
        return self._without_key(offer, tried, allowed)

    def _without_key(self, offer: Offer, tried: Sequence[str], allowed: Sequence[str]) -> str:
        if not allowed:  # the only way to be told the methods, and some servers want no key
            if self._accepted(AuthHandler.auth_none, tried):
                return "none"
            allowed = getattr(self._transport.get_exception(), "allowed_types", ())
        raise refused(self._there, tried, allowed, offer.problems)

    def _accepted(self, method: Callable[..., object], tried: Sequence[str], *args: object) -> bool:
        done = threading.Event()
        handler = self._transport.auth_handler = AuthHandler(self._transport)
        try:
            with suppress(EOFError, OSError):  # the connection is gone: `_wait` tells why
                method(handler, self._there.user, *args, done)
            self._wait(done)
        except TransportError:
            if TOO_MANY in self._transport.farewell.lower():
                raise too_many(self._there, tried) from None
            raise
        return self._transport.is_authenticated()

    def _wait(self, done: threading.Event) -> None:
        transport, wire = self._transport, self._transport.wire
        in_time = done.wait(max(0.0, self._deadline - time.monotonic()))
        if in_time and transport.is_active():
            return
        error = transport.get_exception()
        transport.close()
        wire.close()
        words = transport.farewell or printable(str(error or ""))
        odd = isinstance(error, paramiko.ssh_exception.IncompatiblePeer)
        raise broken(self._there, wire, in_time=in_time, words=words, incompatible=odd)
