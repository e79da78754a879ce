"""paramiko's parts, changed where its habits cost time or hide a reason.

With `ssh.py` the only place that imports paramiko: that one drives logins, this one says what a
transport, a key and a command's standard error are.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import cast

import paramiko
from paramiko.buffered_pipe import BufferedPipe
from paramiko.message import Message
from paramiko.packet import Packetizer

from preflight.transport.destination import Destination
from preflight.transport.dial import Wire, foreign
from preflight.transport.identities import Identity

FAST_KEX = ("curve25519-sha256@libssh.org",)
FAST_CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com")
"""Cheapest of what paramiko has: one call a packet, no HMAC in Python."""
STDERR_TAIL = 2048


class StderrTail(BufferedPipe):  # type: ignore[type-arg] # not subscriptable at run time
    """Standard error, taken as it comes, so that a node that chatters is never blocked."""

    def __init__(self, channel: paramiko.Channel) -> None:
        super().__init__()
        self.kept = b""
        self._channel = channel

    def feed(self, data: bytes) -> None:
        """Take what has come, and let the server send more."""
        super().feed(data)
        self.kept = (self.kept + self._channel.recv_stderr(len(data)))[-STDERR_TAIL:]


class Ear(BufferedPipe):  # type: ignore[type-arg] # not subscriptable at run time
    """Standard output, handed on as it comes: a thread that reads costs more than it does."""

    def __init__(self, channel: paramiko.Channel, hear: Callable[[bytes], None]) -> None:
        super().__init__()
        self._channel = channel
        self._hear = hear
        self._ended = threading.Lock()

    def feed(self, data: bytes) -> None:
        """Take what has come, and let the server send more."""
        super().feed(data)
        if not self._ended.locked():
            self._hear(self._channel.recv(len(data)))

    def close(self) -> None:
        """Hand on the end, once; whoever calls may hold the channel's lock."""
        super().close()
        if self._ended.acquire(blocking=False):
            self._hear(b"")


class Packets(Packetizer):
    """The packets of one connection."""

    def start_handshake(self, timeout: float) -> None:
        """Start no timer thread: the whole login has one limit, kept by the thread that waits."""


class Key(paramiko.PKey):
    """A key or certificate as paramiko wants it, signed for by a file or by the agent."""

    def __init__(self, identity: Identity) -> None:
        self.public_blob = None
        self._identity = identity

    def get_name(self) -> str:
        """Return its type."""
        return self._identity.public.type

    def asbytes(self) -> bytes:
        """Return its public blob."""
        return self._identity.public.blob

    def sign_ssh_data(self, data: bytes, algorithm: str | None = None) -> Message:
        """Return the signature."""
        try:
            signature = self._identity.sign(data, algorithm or self.get_name())
        except OSError:
            # an agent that will not sign: an empty signature is refused, and the next key tried
            signature = b""
        return Message(signature)


class SshProtocol(paramiko.Transport):
    """Keeps the reasons that paramiko only logs, and asks for what is known and cheap."""

    def __init__(self, there: Destination, wire: Wire, types: frozenset[str]) -> None:
        # paramiko needs of a socket just what Wire has
        super().__init__(cast("paramiko.Channel", wire), packetizer_class=Packets)
        self.there = there
        self.wire = wire
        self.banner_timeout = there.login_timeout_s
        self.farewell = ""  # what the server said when it ended the connection
        self.left = False  # whether this side ended it
        self._refusals: dict[int, str] = {}
        self._opening = threading.local()
        options = self.get_security_options()
        options.kex = _first(options.kex, FAST_KEX)
        options.ciphers = _first(options.ciphers, FAST_CIPHERS)
        known = [n for n in options.key_types if n in types or ("ssh-rsa" in types and "rsa" in n)]
        options.key_types = _first(options.key_types, known)

    def why(self) -> str:
        """Return why the channel was refused that this thread asked for last."""
        return self._refusals.pop(getattr(self._opening, "channel", -1), "")

    def is_lost(self) -> bool:
        """Whether the connection is gone: its thread tells channels so before it says so itself."""
        return not self.is_active() or self.saved_exception is not None

    def _next_channel(self) -> int:
        # called by the thread that opens, and the only place that tells it the number
        self._opening.channel = number = int(super()._next_channel())  # type: ignore[misc]
        return number

    def _parse_channel_open_failure(self, message: Message) -> None:
        number, code = message.get_int(), message.get_int()
        prohibited = "administratively prohibited: " if code == 1 else ""
        self._refusals[number] = prohibited + foreign(message.get_binary())
        message.rewind()
        super()._parse_channel_open_failure(message)  # type: ignore[misc]

    def _parse_disconnect(self, message: Message) -> None:
        message.get_int()
        self.farewell = foreign(message.get_binary())


def _first(names: Sequence[str], wanted: Iterable[str]) -> tuple[str, ...]:
    """Return the names, the wanted ones before the others, each part in its own order."""
    front = [name for name in wanted if name in names]
    return (*front, *(name for name in names if name not in front))
