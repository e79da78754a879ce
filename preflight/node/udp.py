"""Datagrams between our own nodes: the echo, and a talk with one. Sent to nodes: Python 3.8.

The echo answers none but those who say a secret, and always in few bytes: that it is our own, what
it was sent, how much of that has come, for how much it had no room, and how long it held it.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import sys
import time
from typing import Any, Iterator, List, NamedTuple, Tuple, TypedDict

from preflight.api import Node, Opened, PortNumber, Unobservable
from preflight.node.ports import Asked, family_of, interface_of

ASK = "!16sII"
"""Secret, the talk that it belongs to, number."""
REPLY = "!16sIIIIIQ"
"""Secret, talk, number, bytes that came, datagrams of this talk that came so far, datagrams of all
talks that there was no room for so far, ns that it was held."""
SMALL = 64
"""Bytes of the smallest datagram: no more than what anything carries; its reply is shorter."""
BUFFER = 1 << 20
"""Bytes asked for incoming datagrams; the kernel gives net.core.rmem_max."""
TIMESTAMPNS = 35
"""SO_TIMESTAMPNS and SCM_TIMESTAMPNS of asm-generic/socket.h: when the kernel got a datagram."""
RXQ_OVFL = 40
"""SO_RXQ_OVFL, ditto: how many datagrams the socket had dropped for want of room."""
STAMP = "@ll"
"""struct timespec."""
STALE_NS = 1_000_000_000
"""A datagram that is older when it is read was stamped by another clock than that which is read."""
AT_ONCE = 64
"""Datagrams that are taken before looking up from them."""
Told = List[Tuple[int, int, bytes]]
"""What the kernel tells beside a datagram: level, type and data of each (cmsg(3))."""


class Place(TypedDict):
    """Where a node's echo is, and the interface that has the address."""

    port: PortNumber
    interface: str
    mtu: int
    """0 where it is not told."""


class Sent(Asked, total=False):
    """How datagrams were sent."""

    own_port: int
    """Our end's; left out where none could be sent."""


class Echoed(NamedTuple):
    """A reply."""

    number: int
    size: int
    """Bytes of the datagram that came there."""
    come: int
    """Datagrams of this talk that had come there by then."""
    dropped: int
    """Datagrams of all talks that came there by then, and were too many for a busy node."""
    seconds: float
    """The round trip, without the time that it was held; by the kernel's clock for incoming ones,
    so that how busy this node is does not count."""


def echo(node: Node, opened: Opened[Place], address: str, ask: str, answer: str) -> None:
    """Answer datagrams to this address until told to stop."""
    try:
        one = stamped(family_of(address))
    except OSError as error:
        raise Unobservable(f"no UDP socket: {error.strerror}") from error
    with one:
        try:
            one.bind((address, 0))
        except OSError as error:
            raise Unobservable(f"no UDP port on {address}: {error.strerror}") from error
        name = interface_of(node, address)
        mtu = (node.read(f"/sys/class/net/{name}/mtu") or "0").strip()
        opened.ready(Place(port=one.getsockname()[1], interface=name, mtu=int(mtu)))
        serve(one, opened, bytes.fromhex(ask), bytes.fromhex(answer))


def stamped(family: int) -> socket.socket:
    """Return a socket whose incoming datagrams bear the time."""
    one = socket.socket(family, socket.SOCK_DGRAM)
    one.setblocking(False)
    with contextlib.suppress(OSError):
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
        one.setsockopt(socket.SOL_SOCKET, TIMESTAMPNS, 1)
        one.setsockopt(socket.SOL_SOCKET, RXQ_OVFL, 1)
    return one


def serve(one: socket.socket, opened: Opened[Any], ask: bytes, answer: bytes) -> None:
    """Answer those who say the secret, nobody else."""
    poller = select.poll()
    for fd in (one.fileno(), opened.fileno()):
        poller.register(fd, select.POLLIN)
    counts: dict[tuple[str, int, int], int] = {}
    buffer = bytearray(65536)
    while opened.fileno() not in {fd for fd, _ in poller.poll()}:
        for size, told, whence in incoming(one, buffer):
            if size < SMALL or buffer[:16] != ask:
                continue
            _, talk, number = struct.unpack_from(ASK, buffer)
            key = (whence[0], whence[1], talk)
            count = counts[key] = counts.get(key, 0) + 1
            said = (answer, talk, number, size, count, dropped(told))
            held = max(0, time.time_ns() - arrival(told))
            with contextlib.suppress(OSError):  # it is lost, then
                one.sendto(struct.pack(REPLY, *said, held), whence)


def incoming(one: socket.socket, buffer: bytearray) -> Iterator[tuple[int, Told, Any]]:
    """Yield size, what the kernel tells, and sender of each datagram that is there.

    The content is in the buffer. Errors of earlier datagrams are passed over.
    """
    for _ in range(AT_ONCE):
        try:
            size, told, _, whence = one.recvmsg_into([buffer], 128)
        except BlockingIOError:
            return
        except OSError:
            continue
        yield size, told, whence


def dropped(told: Told) -> int:
    """Return how many datagrams a socket had dropped when it took this one in."""
    for level, kind, data in told:
        if (level, kind) == (socket.SOL_SOCKET, RXQ_OVFL):
            return int.from_bytes(data, sys.byteorder)
    return 0


def arrival(told: Told) -> int:
    """Return when the kernel got a datagram, in ns since the epoch; now if it does not say."""
    now = time.time_ns()
    for level, kind, data in told:
        if (level, kind) == (socket.SOL_SOCKET, TIMESTAMPNS):
            seconds, nanoseconds = struct.unpack(STAMP, data)
            stamp = int(seconds) * 1_000_000_000 + int(nanoseconds)
            # Of another clock, or one that was set meanwhile: of no use beside the time of sending.
            return stamp if 0 <= now - stamp < STALE_NS else now
    return now


class Talk:
    """Datagrams to one echo.

    Args:
        address: of the echo.
        port: of the echo.
        words: the secret that is said, and the one that is to come back.
        talk: a number that no other talk from this node to that echo has; a late reply of another
            one is none of this.
        own_port: that of an earlier talk, taken again where it is free, since a firewall may let
            through some ports only; 0: any.

    Raises:
        OSError: there is no socket, or no way there.
    """

    def __init__(
        self, address: str, port: int, words: tuple[str, str], talk: int, own_port: int = 0
    ) -> None:
        self.socket = stamped(family_of(address))
        self._ask, self._answer = (bytes.fromhex(word) for word in words)
        self._talk = talk
        self._sent: list[int] = []
        self._buffer = bytearray(256)
        try:
            if own_port:
                with contextlib.suppress(OSError):
                    self.socket.bind(("", own_port))
            self.socket.connect((address, port))
        except OSError:
            self.close()
            raise

    @property
    def own_port(self) -> int:
        """Our end's."""
        return int(self.socket.getsockname()[1])

    def fileno(self) -> int:
        """Return the descriptor of its socket."""
        return self.socket.fileno()

    @property
    def sent(self) -> int:
        """How many datagrams were sent, the lost ones included."""
        return len(self._sent)

    def say(self, size: int = SMALL) -> int:
        """Send one of so many bytes, and return its number.

        Raises:
            OSError: it may not be sent, or an earlier one was turned away.
        """
        number = len(self._sent)
        head = struct.pack(ASK, self._ask, self._talk, number)
        data = head + bytes(size - len(head))
        self._sent.append(time.time_ns())
        self.socket.send(data)
        return number

    def hear(self) -> Iterator[Echoed]:
        """Yield the replies that are there; what is none of ours is passed over."""
        for size, told, _ in incoming(self.socket, self._buffer):
            if size != struct.calcsize(REPLY):
                continue
            said = struct.unpack_from(REPLY, self._buffer)
            answer, talk, number, length, come, gone, held = said
            ours = answer == self._answer and talk == self._talk
            if ours and number < len(self._sent):
                spent = arrival(told) - self._sent[number] - held
                yield Echoed(number, length, come, gone, spent / 1e9)

    def close(self) -> None:
        """Hang up."""
        self.socket.close()
