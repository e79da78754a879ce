"""Round trips between our own nodes, and what is lost of them. Sent to nodes: Python 3.8."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import time
from statistics import median
from typing import Any, Mapping, Sequence

from preflight.api import Node
from preflight.node.path import passages
from preflight.node.ports import family_of
from preflight.node.udp import Sent, Talk

TRIPS = 20
"""To each node, one after the other."""
FEWEST = 8
PEER_S = 0.3
"""After so long with one node, the fewest will do: round trips between sites are long."""
FIRST_S, WAIT_S = 0.2, 0.05
"""For one reply, and twice as long as the first one took, before the next datagram is sent; the
reply still counts when it comes later."""
LAST_S = 0.5
"""For replies that are missing at the end: a busy node may take long."""
LIMIT_S = 8.0
"""For all that a node tries, besides finding out who answers."""
GAP_S = 0.005
"""Between two datagrams of a series to the same node: of 63 senders, each receive buffer then holds
what comes in 40 ms. Whoever sleeps so long is soon given a CPU when a datagram comes."""
CONNECTS = 5
"""Connections that are timed where datagrams do not pass."""
CONNECT_S = 1.5
"""For one: a SYN that is lost is sent again after 1 s."""
RTT = "68xI"
"""struct tcp_info of linux/tcp.h, up to tcpi_rtt, in us."""


class Trips(Sent):
    """Round trips to another node."""

    by: str
    """`udp`, or `tcp` (a connection takes one to be made)."""
    times_us: list[int]
    """Least, median and 99th percentile; empty where nothing came back."""
    sent: int
    """Datagrams, up to the last one that was answered, but for those that came there and were too
    many for a busy node."""
    arrived: int
    """How many of these came there."""
    heard: int
    """How many replies came back."""
    missing: int
    """How many did not, those after the last one included."""


def round_trips(
    node: Node, targets: Mapping[str, Sequence[Any]], ask: str, answer: str
) -> dict[str, Trips]:
    """Return round trips to the echoes of other nodes, by name; without those that never answer.

    One after the other, and each begins elsewhere: so a node has little more than one talk at once.

    Args:
        node: this node.
        targets: address and port by name.
        ask: the secret that is said.
        answer: the one that is to come back.
    """
    found = passages(node, {name: (*to, 0) for name, to in targets.items()}, ask, answer)
    end, trips = time.monotonic() + LIMIT_S, {}
    for name, (address, port) in targets.items():
        if found[name]["passes"] and time.monotonic() < end:
            own_port = found[name].get("own_port", 0)
            with contextlib.suppress(OSError):
                trips[name] = measured(Counting((ask, answer), 1, address, port, own_port))
    return trips


def series(
    node: Node,  # noqa: ARG001 - the first argument of all that is called on nodes
    targets: Mapping[str, Sequence[Any]],
    ask: str,
    answer: str,
    count: int,
    talk: int,
) -> dict[str, Trips]:
    """Return round trips of so many datagrams to each node, one every 5 ms; to all at once.

    Args:
        node: this node.
        targets: address and port by name, and the own port by which that node was heard before.
        ask: the secret that is said.
        answer: the one that is to come back.
        count: how many.
        talk: a number that no other series has, from 2 on.
    """
    talks = {}
    for name, to in targets.items():
        with contextlib.suppress(OSError):
            talks[name] = Counting((ask, answer), talk, *to)
    poller = select.poll()
    for one in talks.values():
        poller.register(one.fileno(), select.POLLIN)
    begun, end = time.monotonic(), time.monotonic() + LIMIT_S
    for number in range(count):
        for one in talks.values():
            one.say()
        listen(poller, talks.values(), min(end, begun + (number + 1) * GAP_S))
    last = time.monotonic() + LAST_S
    while time.monotonic() < last and any(one.missing for one in talks.values()):
        listen(poller, talks.values(), min(last, time.monotonic() + GAP_S))
    return {name: one.close() for name, one in talks.items()}


def listen(poller: Any, talks: Any, until: float) -> None:
    """Hear replies until a time has come."""
    while True:
        left = until - time.monotonic()
        ready = {fd for fd, _ in poller.poll(max(0.0, left) * 1000)}
        for one in talks:
            if one.fileno() in ready:
                one.hear()
        if left <= 0:
            return


class Counting:
    """A talk, and what has come of it."""

    def __init__(
        self, words: tuple[str, str], talk: int, address: str, port: int, own_port: int
    ) -> None:
        self._talk = Talk(address, port, words, talk, own_port)
        self._own_port = self._talk.own_port
        self._times: dict[int, float] = {}
        self._come = 0
        self._dropped: list[int] = []

    def fileno(self) -> int:
        """Return the descriptor of its socket."""
        return self._talk.fileno()

    @property
    def missing(self) -> bool:
        """Whether replies are missing."""
        return len(self._times) < self._talk.sent

    def say(self) -> int:
        """Send a datagram and return its number; what cannot be sent is lost."""
        with contextlib.suppress(OSError):
            self._talk.say()
        return self._talk.sent - 1

    def hear(self) -> None:
        """Take note of the replies that have come."""
        for reply in self._talk.hear():
            self._times[reply.number] = reply.seconds
            self._come = max(self._come, reply.come)
            self._dropped.append(reply.dropped)

    def answered(self, number: int) -> bool:
        """Whether the reply to a datagram has come."""
        return number in self._times

    def close(self) -> Trips:
        """Hang up, and return what has come of it."""
        self._talk.close()
        sent = max(self._times) + 1 if self._times else self._talk.sent
        heard = len(self._times)
        arrived = max(heard, min(self._come, sent))
        dropped = max(self._dropped) - min(self._dropped) if self._dropped else 0
        # The first one has found the way (ARP, routes), and a clock may have been set meanwhile.
        times = sorted(t for n, t in self._times.items() if n and t > 0)
        return Trips(
            by="udp",
            times_us=spread(times),
            sent=max(arrived, sent - dropped),
            arrived=arrived,
            heard=heard,
            missing=self._talk.sent - heard,
            own_port=self._own_port,
        )


def spread(times: Sequence[float]) -> list[int]:
    """Return least, median and 99th percentile in us of sorted times."""
    if not times:
        return []
    picked = times[0], median(times), times[min(len(times) - 1, len(times) * 99 // 100)]
    return [round(1e6 * one) for one in picked]


def measured(one: Counting) -> Trips:
    """Return round trips of one datagram at a time."""
    poller = select.poll()
    poller.register(one.fileno(), select.POLLIN)
    begun, wait = time.monotonic(), WAIT_S
    for number in range(TRIPS + 1):
        spent = time.monotonic() - begun
        if number > FEWEST and spent > PEER_S:
            break
        sent = time.monotonic()
        exchange(one, poller, sent + (wait if number else FIRST_S))
        if not number:
            wait = max(WAIT_S, 2 * (time.monotonic() - sent))
    last = time.monotonic() + LAST_S
    while one.missing and time.monotonic() < last:
        listen(poller, [one], min(last, time.monotonic() + GAP_S))
    return one.close()


def exchange(one: Counting, poller: Any, until: float) -> None:
    """Send a datagram and wait for its reply, until a time has come."""
    number = one.say()
    while not one.answered(number):
        left = until - time.monotonic()
        if left <= 0 or not poller.poll(left * 1000):
            return
        one.hear()


def connects(
    node: Node,  # noqa: ARG001 - the first argument of all that is called on nodes
    targets: Mapping[str, Sequence[Any]],
    ask: str,
    answer: str,
) -> dict[str, Trips]:
    """Return by TCP how long round trips to our own listeners on other nodes are.

    To make a connection takes one, which the kernel times. That it is ours is proved by the secret.
    Losses are not told.
    """
    end, found = time.monotonic() + LIMIT_S, {}
    for name, (address, port) in targets.items():
        times: list[float] = []
        with contextlib.suppress(OSError):
            while len(times) < CONNECTS and time.monotonic() < end:
                times.append(connected(address, port, (ask.encode(), answer.encode())))
        found[name] = Trips(
            by="tcp",
            times_us=spread(sorted(times)),
            sent=0,
            arrived=0,
            heard=0,
            missing=0,
        )
    return found


def connected(address: str, port: int, words: tuple[bytes, bytes]) -> float:
    """Return the seconds of the round trip by which our own listener was connected to.

    Raises:
        OSError: it is not reached, or not ours.
    """
    ask, answer = words
    with socket.socket(family_of(address), socket.SOCK_STREAM) as one:
        one.settimeout(CONNECT_S)
        begun = time.monotonic()
        one.connect((address, port))
        spent = time.monotonic() - begun
        told = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, struct.calcsize(RTT))
        one.sendall(ask)
        heard = b""
        while len(heard) < len(answer):
            data = one.recv(len(answer) - len(heard))
            if not data:
                raise ConnectionError("not ours")
            heard += data
    if heard != answer:
        raise ConnectionError("not ours")
    (trip_us,) = struct.unpack(RTT, told)
    return trip_us / 1e6 or spent  # none is told where the SYN was sent again
