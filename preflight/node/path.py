"""The largest packets that pass between our own nodes unfragmented. Sent to nodes: Python 3.8.

Sizes are those of IP packets, headers included, as an MTU counts them. Each try is accompanied by
a small datagram: only when that is answered, several times, and the large one never, it is its size
that is to blame.
"""

from __future__ import annotations

import contextlib
import errno
import select
import socket
import struct
import time
from typing import Any, Generator, Iterator, Mapping, NamedTuple, Sequence

from preflight.api import Node
from preflight.node.icmp import CODES, ERROR, ICMP, ICMP6, RECVERR, offender
from preflight.node.ports import FILTERED, OK, RESULTS, family_of, settle, unheard
from preflight.node.udp import SMALL, Sent, Talk

IN_FLIGHT = 32
"""Nodes that one tries at once: their full packets fit into the usual receive buffer."""
GREETINGS_S = (0.1, 0.2, 0.4, 0.8, 0.8, 0.8)
"""How long each small datagram waits for its reply, before the other is taken for silent: three
seconds in all, in which an address that answers no ARP is given up, and said to be (arp(7))."""
LAST_GREETING_S = sum(GREETINGS_S[:-1])
"""When the last one is sent."""
GRACE_S = 0.03
"""After the small one's reply: the large one was sent before it, so its reply should be there."""
STRIKES = 6
"""Times that the large one must be lost beside a small one that is not: at a loss of one datagram
in five, by chance once in 15,000; and the full size is tried twice."""
USUAL = (1500, 1501)
"""Tried first, since most paths that are smaller take just 1,500."""
LIMIT_S = 18.0
"""For all that a node tries. A black hole takes about two seconds, silence three, and is asked once
more."""
HEADERS = {int(socket.AF_INET): 28, int(socket.AF_INET6): 48}
"""Bytes of an IP header without options, and of UDP's."""
PROBE = {
    int(socket.AF_INET): (socket.IPPROTO_IP, 10, 3),
    int(socket.AF_INET6): (socket.IPPROTO_IPV6, 23, 3),
}
"""IP_MTU_DISCOVER and IPV6_MTU_DISCOVER, IP_PMTUDISC_PROBE of linux/in.h and in6.h: send whatever
the interface takes, unfragmented, and whatever is known of the path."""
LARGEST = 65535
HOLE, TOLD, UNFINISHED = "black hole", "fragmentation needed", "unfinished"


class Passage(Sent):
    """What came of trying how large packets reach another node."""

    result: str
    """`ok`; `black hole` (larger ones are lost without a word); `fragmentation needed` (a router
    says so); `filtered` (not even a small one is answered), one of `RESULTS` or an errno's name
    (it is turned away); `unfinished`."""
    full: int
    """What should pass: less than asked for where the interface that leads there takes less."""
    passes: int
    """The largest that does."""
    icmp: str
    by: str
    """Who sent the ICMP message."""


class Queued(NamedTuple):
    """An error of a socket's queue."""

    number: int
    icmp: str
    by: str
    info: int
    """The next hop's MTU, if it is about that."""


def passages(
    node: Node,  # noqa: ARG001 - the first argument of all that is called on nodes
    targets: Mapping[str, Sequence[Any]],
    ask: str,
    answer: str,
) -> dict[str, Passage]:
    """Return how large packets reach the echoes of other nodes, by name.

    Those that are silent are asked once more.

    Args:
        node: this node.
        targets: address, port, and full size by name; 0: only a small one.
        ask: the secret that is said.
        answer: the one that is to come back.
    """
    begun = time.monotonic()
    found = searched(targets, (ask, answer), begun + LIMIT_S)
    silent = {name: targets[name] for name, one in found.items() if unheard(one)}
    if silent:
        settle(begun, LAST_GREETING_S)
        for name, one in searched(silent, (ask, answer), begun + LIMIT_S).items():
            if one["passes"] or one["result"] != UNFINISHED:
                found[name] = one
                found[name]["tries"] = 2
    return found


def searched(
    targets: Mapping[str, Sequence[Any]], words: tuple[str, str], end: float
) -> dict[str, Passage]:
    """Return how large packets reach others, as far as it is found by then (monotonic)."""
    tries = {name: Try(words, *to) for name, to in targets.items()}
    waiting = list(tries.values())[::-1]
    under_way: dict[int, Try] = {}
    poller = select.poll()
    while (waiting or under_way) and time.monotonic() < end:
        while waiting and len(under_way) < IN_FLIGHT:
            one = waiting.pop()
            if one.begin():
                under_way[one.fileno()] = one
                poller.register(one.fileno(), select.POLLIN)
        turn(poller, under_way)
    for one in under_way.values():
        one.close()
    return {name: one.passage for name, one in tries.items()}


def turn(poller: Any, under_way: dict[int, Try]) -> None:
    """Wait for the next thing to happen to what is under way, and deal with it."""
    first = min((one.deadline for one in under_way.values()), default=0.0)
    ready = {fd for fd, _ in poller.poll(max(0.0, first - time.monotonic()) * 1000 + 1)}
    for fd, one in list(under_way.items()):
        if not one.goes_on(fd in ready):
            poller.unregister(fd)
            one.close()
            del under_way[fd]


class Try:
    """The search for what passes to one node."""

    def __init__(self, words: tuple[str, str], address: str, port: int, full: int) -> None:
        self.passage = Passage(result=UNFINISHED, full=full, passes=0, icmp="", by="")
        self.deadline = 0.0
        self._to = (address, port, words)
        self._headers = HEADERS[family_of(address)]
        self._small = SMALL + self._headers
        self._talk: Talk | None = None
        self._steps: Generator[int, bool, None] = self._search()
        self._hints = list(USUAL)
        self._limit = full or self._small  # what an interface or a router says that it takes
        self._size = 0
        self._strikes = self._silences = self._control = 0
        self._heard = False

    def fileno(self) -> int:
        """Return the descriptor of its socket, which is open."""
        assert self._talk
        return self._talk.fileno()

    def begin(self) -> bool:
        """Send the first datagram; false if it is over already."""
        address, port, words = self._to
        family = family_of(address)
        try:
            self._talk = Talk(address, port, words, 0)
            self.passage["own_port"] = self._talk.own_port
            self._talk.socket.setsockopt(*PROBE[family])
            self._talk.socket.setsockopt(*RECVERR[family], 1)
        except OSError as error:
            self._fail(error.errno or 0)
            self.close()
            return False
        return self._step(None) or self.close()

    def close(self) -> bool:
        """Hang up; it is over."""
        if self._talk:
            self._talk.close()
        return False

    def goes_on(self, ready: bool) -> bool:
        """See what has happened; false once it is over."""
        passed = ready and self._hear()
        if passed:
            return self._step(True)
        if ready and not self._read_errors():
            return False
        if self._size > self._limit:
            return self._step(False)
        return time.monotonic() < self.deadline or self._late()

    # How sizes are looked for.

    def _search(self) -> Generator[int, bool, None]:
        """Yield sizes to try, be sent whether each passes, and keep what came of it all."""
        if not (yield self._small):
            return
        found = self.passage
        found["passes"], found["result"] = self._small, OK
        tried = 0
        while tried != found["full"] and found["full"] > self._small:
            tried = found["full"]
            if (yield tried):
                found["passes"] = tried
                return
        yield from self._between()
        # what is lost now and then is not lost for its size
        if found["passes"] < tried and (yield tried):
            found["passes"] = tried
        elif found["passes"] < tried:
            found["result"] = TOLD if found["icmp"] and found["passes"] >= self._limit else HOLE

    def _between(self) -> Generator[int, bool, None]:
        low, high = self._small, self.passage["full"]
        while high - low > 1:
            size = next((hint for hint in self._hints if low < hint < high), (low + high) // 2)
            if (yield size):
                low = size
            else:
                high = size
        self.passage["passes"] = low

    def _step(self, passed: bool | None) -> bool:
        """Go on to the next size; false if there is none."""
        try:
            self._size = self._steps.send(passed) if passed is not None else next(self._steps)
        except StopIteration:
            return False
        self._strikes = self._silences = 0
        return self._shoot()

    # One size.

    def _shoot(self) -> bool:
        """Send a datagram of the size that is tried, and a small one."""
        self._heard = False
        waits = GREETINGS_S[min(self._silences, len(GREETINGS_S) - 1)]
        self.deadline = time.monotonic() + waits
        for size in dict.fromkeys((self._size, self._small)):
            self._say(size)
        return True

    def _say(self, size: int) -> None:
        """Send one; what is turned away is read from the queue of errors.

        A call that gives an error of an earlier datagram sends none, so it is made once more.
        """
        assert self._talk
        for _ in range(2):
            try:
                self._control = self._talk.say(size - self._headers)
            except OSError:
                continue
            return

    def _hear(self) -> bool:
        """Hear all replies; return whether one is to the size that is tried."""
        assert self._talk
        for reply in self._talk.hear():
            if reply.size + self._headers == self._size:
                return True
            if reply.number == self._control and not self._heard:
                self._heard = True
                self.deadline = time.monotonic() + GRACE_S + max(0.0, reply.seconds)
        return False

    def _late(self) -> bool:
        """Count what was lost, and send it again; false once it is over."""
        if self._heard:
            self._strikes, self._silences = self._strikes + 1, 0
            return self._step(False) if self._strikes == STRIKES else self._shoot()
        self._silences += 1
        if self._silences < len(GREETINGS_S):
            return self._shoot()
        self.passage["result"] = UNFINISHED if self.passage["passes"] else FILTERED
        return False

    def _read_errors(self) -> bool:
        """Read which datagrams were turned away; false if it is over with that."""
        assert self._talk
        for one in queued(self._talk.socket):
            if one.number == errno.EMSGSIZE and one.icmp:
                self._be_told(one)
            elif one.number == errno.EMSGSIZE:
                self._shrink(one.info)
            elif self._size == self._small and not self.passage["passes"]:
                self._fail(one.number, one.icmp, one.by)
                return False
        return True

    def _be_told(self, one: Queued) -> None:
        """Take note of a router that says what it can take."""
        self.passage["icmp"], self.passage["by"] = one.icmp, one.by
        if self._small < one.info < self._limit:
            self._limit = one.info
            self._hints = [one.info, one.info + 1]

    def _shrink(self, mtu: int) -> None:
        """Take note that this node's own interface takes less than was asked for."""
        if self._small < mtu < self.passage["full"]:
            self.passage["full"] = self._limit = mtu

    def _fail(self, number: int, icmp: str = "", by: str = "") -> None:
        self.passage["result"] = RESULTS.get(number, errno.errorcode.get(number, str(number)))
        self.passage["icmp"], self.passage["by"] = icmp, by


def queued(one: socket.socket) -> Iterator[Queued]:
    """Yield the errors of a socket, with the ICMP messages that brought them."""
    with contextlib.suppress(OSError):
        while True:
            _, told, _, _ = one.recvmsg(1, 512, socket.MSG_ERRQUEUE)
            yield from (error(data) for *kind, data in told if tuple(kind) in RECVERR.values())


def error(data: bytes) -> Queued:
    """Return an error from its structure."""
    number, origin, kind, code, _, info, _ = struct.unpack_from(ERROR, data)
    icmp, by = "", ""
    if origin in (ICMP, ICMP6):
        too_big = (origin, kind) in ((ICMP, 3), (ICMP6, 2)) and number == errno.EMSGSIZE
        icmp = TOLD if too_big else CODES.get((origin, kind, code), f"type {kind} code {code}")
        by = offender(data[struct.calcsize(ERROR) :])
    return Queued(number, icmp, by, info)
