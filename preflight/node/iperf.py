"""TCP streams of iperf3 between nodes, where it is asked for. Sent to nodes: stdlib, Python 3.8.

iperf3 has no secret, as our own streams have (`streams.py`): its server takes whoever comes first.
So it takes one client, on a free port of the data plane's address alone, and is ended, with all
that it has started, when that should be done.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import socket
import time
from typing import Any, Iterator, Mapping, Sequence, TypedDict

from preflight.api import Absent, Fleet, Node, Opened, PortNumber, Reply, Unobservable
from preflight.node.mesh import message
from preflight.node.pairs import Pair
from preflight.node.ports import ECHO_S, family_of
from preflight.node.streams import CONNECT_S, STREAMS, WARM_S, Drawn, nothing, strain, usage
from preflight.node.toolbox import drain, started

PROGRAM = "iperf3"
MISSING = "no iperf3, which expect.iperf3 asks for"
INSTALL = "install iperf3 3.2 or newer: apt-get install iperf3, or dnf install iperf3"
"""3.2 is the first with a time limit for connecting."""
SECONDS = 1
"""It takes whole ones. TCP comes to speed in them too: 10 % of one, where a round trip takes 10 ms;
the same for all pairs of a network."""
INTERVAL_S = 0.1
"""Of a server's reports, the least there is: what it says comes out with them."""
WATCH_S = 0.5
"""Of a measurement, how long is looked at how busy an end is, after `WARM_S` of it."""
START_S = 3.0
"""For it to start, and to listen: it needs milliseconds."""
LIMIT_S = CONNECT_S + SECONDS + ECHO_S
"""For all of a measurement. Both ends exchange what they have counted, after all that was sent."""
CALL_S = LIMIT_S + START_S
KEPT = 1 << 16
"""Characters of what a server says, which needs 9,000: more is no server."""
SHOWN = 60


class Through(Drawn):
    """What went through, as iperf3 tells it: `gbps` is the receiver's."""

    retransmits: int | None
    """Segments that the sender sent again; None where its kernel does not tell."""


class Door(TypedDict):
    """Where a server listens."""

    port: PortNumber


class Served(TypedDict):
    """What a server saw."""

    came: bool
    """Whether it took a client."""
    busy: float
    """See `preflight.node.streams.Drawn`."""


class Sent(TypedDict):
    """What became of sending."""

    found: Through | None
    """None: it was not done in time."""
    busy: float


def through(
    fleet: Fleet, addresses: Mapping[str, str], pairs: Sequence[Pair]
) -> tuple[dict[Pair, Drawn], dict[str, str]]:
    """Send from the first of each pair to the second, all at once.

    Returns:
        What went through, and by node why its iperf3 is of no use.
    """
    with fleet.start_all(serve, {b: (addresses[b],) for _, b in pairs}) as running:
        doors = {b: one.ready["port"] for b, one in running.items() if not isinstance(one, Reply)}
        calls = {a: (addresses[b], doors[b]) for a, b in pairs if b in doors}
        sent = fleet.map(send, calls, CALL_S)
        told = {b: one if isinstance(one, Reply) else one.stop() for b, one in running.items()}
    problems = {n: message(r) for n, r in (*sent.items(), *told.items()) if r.problem}
    found: dict[Pair, Drawn] = {}
    for a, b in pairs:
        if a in problems or b in problems:
            continue
        one, other = sent[a].value, told[b].value
        if one["found"] or other["came"]:
            # One that is not done though it was let in waits for what does not come through.
            measured = one["found"] or nothing("")
            found[a, b] = {**measured, "busy": [one["busy"], other["busy"]]}
        else:
            problems[a] = f"iperf3 -c: no answer in {LIMIT_S:g} s"
    return found, problems


# ---- on the node ---------------------------------------------------------------------------


def version(node: Node) -> str:
    """Return which iperf3 there is, such as `iperf3 3.12`.

    Raises:
        Absent: there is none.
        Unobservable: it does not say.
    """
    with begun(node, "--version") as process:
        out, err = (said.decode("utf-8", "replace") for said in drain(process, START_S, PROGRAM))
    found = re.match(r"iperf (3\.\S+)", out)
    if not found:
        raise Unobservable(f"iperf3 --version: {shown(out + err)}")
    return f"{PROGRAM} {found[1]}"


def serve(node: Node, opened: Opened[Door], address: str) -> Served:
    """Let one client in, until told to stop, or it should be done.

    Raises:
        Unobservable: iperf3 does not listen.
    """
    port = free_port(address)
    listens = f"Server listening on {port}"
    where = ["--bind", address, "-p", str(port)]
    words = ["-i", str(INTERVAL_S), "--forceflush"]
    with begun(node, "-s", "-1", *where, *words) as process:
        said = heard(process, listens, START_S, opened)
        if listens not in said:
            raise Unobservable(f"iperf3 -s does not listen: {shown(said)}")
        opened.ready(Door(port=port))
        until = time.monotonic() + CALL_S
        came = "Accepted connection" in heard(process, "Accepted connection", CALL_S, opened)
        busy = watched(process.pid) if came else 0.0
        select.select([opened], [], [], max(0.0, until - time.monotonic()))
    return Served(came=came, busy=busy)


def send(node: Node, address: str, port: int) -> Sent:
    """Send to a server that `serve` has started on another node.

    Raises:
        Unobservable: what iperf3 says is no measurement.
    """
    how = ["-P", str(STREAMS), "-t", str(SECONDS), "-J"]
    limit = ["--connect-timeout", str(int(CONNECT_S * 1000))]
    with begun(node, "-c", address, "-p", str(port), *how, *limit) as process:
        until = time.monotonic() + LIMIT_S
        busy = watched(process.pid)
        try:
            out, err = drain(process, until - time.monotonic(), PROGRAM)
        except Unobservable:
            return Sent(found=None, busy=busy)
    return Sent(found=measurement(out, err), busy=busy)


@contextlib.contextmanager
def begun(node: Node, *args: str) -> Iterator[Any]:
    """Start iperf3, and end it and all that it has started.

    Raises:
        Absent: there is none.
        Unobservable: it may not be started.
    """
    program = node.which(PROGRAM)
    if program is None:
        raise Absent(MISSING)
    with started([program, *args], {}, leads=True) as process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def free_port(address: str) -> PortNumber:
    """Return a port of an address that nobody has now.

    Raises:
        Unobservable: there is none, or the address is gone.
    """
    try:
        with socket.socket(family_of(address), socket.SOCK_STREAM) as one:
            one.bind((address, 0))
            port = PortNumber(one.getsockname()[1])
    except OSError as error:
        raise Unobservable(f"no port could be opened: {error.strerror}") from error
    return port


def heard(process: Any, words: str, limit_s: float, opened: Opened[Door]) -> str:
    """Return what a process says, until it has said some words, or will not any more."""
    said, poller = "", select.poll()
    left = {process.stdout.fileno(), process.stderr.fileno()}
    for fd in (*left, opened.fileno()):
        poller.register(fd, select.POLLIN | select.POLLHUP)
    until = time.monotonic() + limit_s
    while left and words not in said and len(said) < KEPT and time.monotonic() < until:
        for fd, _ in poller.poll(max(0.0, until - time.monotonic()) * 1000 + 1):
            data = os.read(fd, 1 << 12) if fd in left else b""
            said += data.decode("utf-8", "replace")
            if fd == opened.fileno():
                return said
            if not data:
                poller.unregister(fd)
                left.remove(fd)
    return said


def watched(pid: int) -> float:
    """Return how busy a process that sends or receives is: see `preflight.node.streams.Drawn`."""
    time.sleep(WARM_S)
    before, threads = usage(pid), len(os.listdir(f"/proc/{pid}/task"))
    time.sleep(WATCH_S)
    # From 3.16 on each stream has a thread, beside the first; before, there is only that.
    return strain(before, usage(pid), max(1, threads - 1))


def measurement(out: bytes, err: bytes) -> Through:
    """Return what iperf3 has measured, or why it could not.

    Raises:
        Unobservable: it is not what iperf3 says.
    """
    try:
        told = json.loads(out)
        if "error" in told:
            return Through(**nothing(str(told["error"])), retransmits=None)
        sums = told["end"]
        rate = sums["sum_received"]["bits_per_second"] / 1e9
        again = sums["sum_sent"].get("retransmits")
        again = None if again is None else int(again)
        if not 0 <= rate < float("inf"):
            raise ValueError
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        words = shown((out + err).decode("utf-8", "replace"))
        raise Unobservable(f"iperf3 -J gives no measurement: {words}") from error
    return Through(gbps=round(rate, 3), busy=[], error="", retransmits=again)


def shown(said: str) -> str:
    """Return how something begins that was said."""
    words = " ".join(said.split())[:SHOWN]
    return f"it says {words!r}" if words else "it says nothing"
