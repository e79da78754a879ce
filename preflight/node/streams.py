"""TCP streams that load the path between two nodes. Sent to nodes: stdlib only, Python 3.8.

The node that receives drives, and measures: it connects to our own listener on the node that sends.
Both tell how much CPU they wanted, so that a slow program is not taken for a slow network. As in
`ports.py`, a secret proves that the listener is our own.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import struct
import threading
import time
from typing import Any, Iterator, Mapping, Sequence, TypedDict

from preflight.api import Fleet, Node, Opened, PortNumber
from preflight.node.mesh import message
from preflight.node.pairs import Pair
from preflight.node.ports import ECHO_S, FILTERED, FOREIGN, RESULTS, SILENT, bound, close, family_of

STREAMS = 8
"""At once: links of a bond and paths of a fabric are chosen by port numbers, and one stream takes
one core."""
WARM_S, MEASURE_S = 0.15, 0.35
"""What is left out until TCP is at speed (ten round trips of 10 ms), and what is measured then."""
CONNECT_S = 2.0
"""A second SYN goes out after 1 s."""
POUR_S = 10.0
"""A stream ends by then, whoever has gone away."""
DRAW_S = CONNECT_S + 3 * ECHO_S + WARM_S + MEASURE_S + 1
BUSY = 0.7
"""Share of the CPU from which an end may be what limits: our own choice. Loopback, which has no
other limit, shows 0.87 and more."""
STALL_S = 0.1
"""A reader looks at the clock again by then."""
CONNECTIONS = 64
"""Served at once; more are turned away."""
BLOCK = 1 << 20
ASK, POUR = b"?", b"!"
"""What is wanted of a connection, after the secret: to tell how busy it is, or to send."""
WISHES = [ASK] + [POUR] * STREAMS


class Usage(TypedDict):
    """How busy a node and a process on it are, to be compared with a later one."""

    at: float
    wanted_s: float
    """CPU time of its threads, and time that they were ready to run and had to wait."""
    softirq: list[int]
    """Ticks by CPU; the kernel receives packets in them."""
    ticks: list[int]


class Drawn(TypedDict):
    """What came from another node."""

    gbps: float
    busy: list[float]
    """Of the sender and the receiver: how much of the CPU that it could use it wanted, up to 1."""
    error: str
    """Why nothing could be measured: see `preflight.node.mesh.Answer`."""


class Door(TypedDict):
    """Where a node sends from, to those who come."""

    port: PortNumber


class Poured(TypedDict):
    """What is left to be said of sending."""

    error: str
    """Why it could not begin; empty if it could."""


def through(
    fleet: Fleet, doors: Mapping[str, Sequence[Any]], pairs: Sequence[Pair]
) -> tuple[dict[Pair, Drawn], dict[str, str]]:
    """Send from the first of each pair to the second, all at once.

    Args:
        fleet: the nodes.
        doors: the arguments of `draw`, by the node that pours.
        pairs: no node is in two of them.

    Returns:
        What came, and by node why it could not measure.
    """
    sources = {b: a for a, b in pairs}
    replies = fleet.map(draw, {b: doors[a] for b, a in sources.items()}, DRAW_S)
    found = {(sources[b], b): reply.value for b, reply in replies.items() if not reply.problem}
    return found, {b: message(reply) for b, reply in replies.items() if reply.problem}


def pour(node: Node, opened: Opened[Door], ask: str, answer: str) -> Poured:  # noqa: ARG001
    """Send to those who say `ask`, until told to stop."""
    try:
        listener = bound(0)
    except OSError as error:
        return Poured(error=f"no port could be opened: {error.strerror}")
    source = Source(ask.encode(), answer.encode())
    with listener:
        opened.ready(Door(port=listener.getsockname()[1]))
        poller = select.poll()
        poller.register(listener, select.POLLIN)
        poller.register(opened.fileno(), select.POLLIN)
        while opened.fileno() not in (ready := [fd for fd, _ in poller.poll()]):
            if ready:
                source.welcome(listener)
    source.close()
    return Poured(error="")


class Source:
    """What sends: a thread for each connection."""

    def __init__(self, ask: bytes, answer: bytes) -> None:
        self._ask, self._answer = ask, answer
        self._block = os.urandom(BLOCK)  # what lies between may compress
        self._open: dict[socket.socket, threading.Thread] = {}

    def welcome(self, listener: socket.socket) -> None:
        """Let one in."""
        with contextlib.suppress(OSError):  # it is gone already
            one, _ = listener.accept()
            if len(self._open) == CONNECTIONS:
                close(one)
                return
            self._open[one] = threading.Thread(target=self._serve, args=(one,), daemon=True)
            self._open[one].start()

    def close(self) -> None:
        """Send no more."""
        for one, thread in list(self._open.items()):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            thread.join(1)

    def _serve(self, one: socket.socket) -> None:
        with contextlib.suppress(OSError):
            one.settimeout(ECHO_S)
            wish = heard(one, len(self._ask) + 1)
            if wish[:-1] == self._ask:
                one.sendall(self._answer)
                (self._pour if wish.endswith(POUR) else tell)(one)
        del self._open[one]
        close(one)

    def _pour(self, one: socket.socket) -> None:
        if not heard(one, 1):
            return
        until = time.monotonic() + POUR_S
        one.setblocking(True)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval(ECHO_S))
        while time.monotonic() < until:
            one.send(self._block)


def tell(one: socket.socket) -> None:
    """Tell how busy this node is, as often as it is asked."""
    while heard(one, 1):
        one.sendall(json.dumps(usage()).encode() + b"\n")


def heard(one: socket.socket, count: int) -> bytes:
    """Return so many bytes, fewer if no more come."""
    data = b""
    while len(data) < count:
        more = one.recv(count - len(data))
        if not more:
            break
        data += more
    return data


def timeval(seconds: float) -> bytes:
    """Return a struct timeval."""
    return struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))


# ---- the end that receives -----------------------------------------------------------------


def draw(node: Node, address: str, port: int, ask: str, answer: str) -> Drawn:  # noqa: ARG001
    """Receive from our own listener on another node, and measure."""
    late = FILTERED
    try:
        with contextlib.ExitStack() as ending:
            found = [ending.enter_context(connection((address, port))) for _ in range(STREAMS + 1)]
            late = SILENT
            words, echo = ask.encode(), answer.encode()
            if not all(greeted(one, words + wish, echo) for one, wish in zip(found, WISHES)):
                return nothing(FOREIGN)
            return drawn(found[0], found[1:])
    except socket.timeout:
        return nothing(late)
    except OSError as error:
        return nothing(RESULTS.get(error.errno or 0, str(error)))
    except ValueError:
        return nothing(FOREIGN)


def nothing(error: str) -> Drawn:
    """Return that nothing was measured."""
    return Drawn(gbps=0.0, busy=[], error=error)


@contextlib.contextmanager
def connection(place: tuple[str, int]) -> Iterator[socket.socket]:
    """Connect, and reset it at the end: whoever sends is to stop at once."""
    one = socket.socket(family_of(place[0]), socket.SOCK_STREAM)
    try:
        one.settimeout(CONNECT_S)
        one.connect(place)
        one.settimeout(ECHO_S)
        yield one
    finally:
        close(one)


def greeted(one: socket.socket, words: bytes, answer: bytes) -> bool:
    """Say the secret and what is wanted; return whether our own listener answers."""
    one.sendall(words)
    return heard(one, len(answer)) == answer


def drawn(control: socket.socket, streams: Sequence[socket.socket]) -> Drawn:
    """Measure what comes from several streams."""
    counts, over = [0] * len(streams), threading.Event()
    readers = [
        threading.Thread(target=read, args=(one, counts, place, over), daemon=True)
        for place, one in enumerate(streams)
    ]
    for one, reader in zip(streams, readers):
        one.sendall(POUR)
        reader.start()
    try:
        time.sleep(WARM_S)
        there, here = asked(control), usage()
        begun, had = time.monotonic(), sum(counts)
        time.sleep(MEASURE_S)
        took, got = time.monotonic() - begun, sum(counts) - had
        busy = [strain(there, asked(control)), strain(here, usage())]
    finally:
        over.set()
        for reader in readers:
            reader.join()
    return Drawn(gbps=round(got * 8 / took / 1e9, 3), busy=busy, error="")


def read(one: socket.socket, counts: list[int], place: int, over: threading.Event) -> None:
    """Count what comes, and throw it away: MSG_TRUNC copies nothing (tcp(7))."""
    buffer = bytearray(BLOCK)
    one.setblocking(True)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval(STALL_S))
    while not over.is_set():
        try:
            got = one.recv_into(buffer, 0, socket.MSG_TRUNC)
        except BlockingIOError:
            continue
        except OSError:
            return
        if not got:
            return
        counts[place] += got


def asked(control: socket.socket) -> Usage:
    """Return how busy the node is that sends."""
    control.sendall(ASK)
    line = b""
    while not line.endswith(b"\n"):
        more = control.recv(65536)
        if not more:
            raise ConnectionResetError
        line += more
    found: Usage = json.loads(line)
    return found


# ---- what limits ---------------------------------------------------------------------------


def usage(pid: int | str = "self") -> Usage:
    """Return how busy this node is, and a process, our own if none is given.

    Source: /proc/PID/task/*/schedstat (sched-stats.rst), without it our own process's CPU time;
    /proc/stat (proc(5)).
    """
    softirq, ticks = [], []
    with open("/proc/stat", encoding="ascii") as file:
        for line in file:
            if not line.startswith("cpu"):
                break
            if not line.startswith("cpu "):
                numbers = [int(word) for word in line.split()[1:9]]
                softirq.append(numbers[6])
                ticks.append(sum(numbers))
    return Usage(at=time.monotonic(), wanted_s=wanted_s(pid), softirq=softirq, ticks=ticks)


def wanted_s(pid: int | str) -> float:
    """Return the CPU time that the threads of a process had, and that they waited for."""
    tasks = f"/proc/{pid}/task"
    found = sum(scheduled_ns(f"{tasks}/{task}/schedstat") for task in os.listdir(tasks)) / 1e9
    return found or (time.process_time() if pid == "self" else 0.0)


def scheduled_ns(path: str) -> int:
    """Return the same of one thread; nothing if it has ended, or this kernel does not tell."""
    try:
        with open(path, encoding="ascii") as file:
            return sum(int(word) for word in file.read().split()[:2])
    except OSError:
        return 0


def strain(before: Mapping[str, Any], after: Mapping[str, Any], threads: int = STREAMS) -> float:
    """Return how near to its limit an end was: its threads, or its busiest CPU with packets."""
    wanted: float = (
        (after["wanted_s"] - before["wanted_s"]) / (after["at"] - before["at"]) / threads
    )
    packets = max(
        (
            (after["softirq"][cpu] - soft) / max(1, after["ticks"][cpu] - before["ticks"][cpu])
            for cpu, soft in enumerate(before["softirq"])
        ),
        default=0.0,
    )
    return round(float(min(1.0, max(wanted, packets))), 2)
