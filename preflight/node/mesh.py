"""Own listeners on all nodes, dialled by all others at once. Sent to nodes: stdlib, Python 3.8.

As `ports.py` does, it proves by a secret that it is our own listener that answers, and connects to
no other. A dial also tells which ICMP message turned it away, and whose.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import time
from dataclasses import replace
from typing import Any, Callable, Container, Mapping, Sequence, TypedDict

from preflight.api import (
    Address,
    Fleet,
    Node,
    Opened,
    PortNumber,
    Reply,
    Verdict,
    Want,
    some,
)
from preflight.node.choice import subnet_of
from preflight.node.icmp import RECVERR, turned_away
from preflight.node.launch import wanted
from preflight.node.net import interfaces, meeting_address
from preflight.node.ports import (
    CONNECT_S,
    ECHO_S,
    FILTERED,
    FOREIGN,
    LAST_SYN_S,
    NO_PORT,
    NO_ROUTE,
    OK,
    RESULTS,
    SILENT,
    UNREACHABLE,
    Asked,
    Listener,
    Reception,
    Stranger,
    bound,
    family_of,
    interface_of,
    serve,
    settle,
    source_address,
    unheard,
    unopened,
)

IN_FLIGHT = 128
"""Connections that a node has under way at once: far below the usual limit of 1,024 descriptors."""
SHOWN = 60
"""Characters of a name that makes no sense."""
DIALS_S = 2 * (3 * CONNECT_S + ECHO_S) + 5
"""For all dials of a node: three times as many as are under way at once, all silent, twice."""


class Answer(Asked):
    """What came of dialling one of our listeners."""

    result: str
    """`ok`, `filtered` (no answer), `silent` or `foreign` (accepted, but not by our listener),
    one of `RESULTS`, or the errno's name."""
    icmp: str
    """The ICMP message that turned it away, in words; empty if none did, or none is told."""
    by: str
    """Who sent that message."""
    ms: float


class Dial(Answer):
    """The same, and which way it took."""

    source: str
    """The address it went out from, empty without a route."""
    interface: str


class Held(TypedDict):
    """Our listeners on a node, in the order that was asked for, and who else came to them."""

    listeners: list[Listener]
    ports: list[PortNumber]
    """0 where there is none."""
    strangers: list[Stranger]


def hold(
    node: Node, opened: Opened[Held], ports: Sequence[int], ask: str, answer: str, besides: int = 0
) -> Held:
    """Hold ports until told to stop, 0 for any but one; say `answer` to those who say `ask`."""
    held = Held(listeners=[], ports=[], strangers=[])
    with contextlib.ExitStack() as ending:
        sockets = [one for one in (door(node, port, held, besides) for port in ports) if one]
        for one in sockets:
            ending.enter_context(one)
        opened.ready(held)
        held["strangers"] = serve(sockets, opened, ask.encode(), answer.encode())
    return held


def watch(node: Node, ports: Sequence[int], seconds: float) -> Held:
    """Hold ports for a while, 0 for any, and tell nobody what would be the right thing to say."""
    held = Held(listeners=[], ports=[], strangers=[])
    until = time.monotonic() + seconds
    with contextlib.ExitStack() as ending:
        sockets = [one for one in (door(node, port, held) for port in ports) if one]
        for one in sockets:
            ending.enter_context(one)
        reception = Reception(sockets, os.urandom(16), b"")
        ending.callback(reception.close)
        while (left := until - time.monotonic()) > 0:
            for fd, _ in reception.poller.poll(left * 1000 + 1):
                reception.attend(fd)
        held["strangers"] = reception.strangers()
    return held


def door(node: Node, port: int, held: Held, besides: int = 0) -> socket.socket | None:
    """Open a port, 0 for any but one; take note of it, or of why it could not be opened."""
    try:
        one = bound(port)
        if not port and one.getsockname()[1] == besides:
            with one:  # kept until there is another
                one = bound(port)
    except OSError as error:
        held["listeners"].append(unopened(node, port, error))
        held["ports"].append(PortNumber(0))
        return None
    held["listeners"].append(Listener(error="", holder=None))
    held["ports"].append(one.getsockname()[1])
    return one


def place(node: Node, launch: Mapping[str, Any]) -> tuple[Address, Address]:
    """Return the address by which other nodes reach this one, and its subnet."""
    address = meeting_address(interfaces(node, launch))
    return address, subnet_of(node, address)


def dial(node: Node, address: str, port: int, ask: str, answer: str) -> Dial:
    """Dial our own listener on another node as `dial_all` does; return which way it took, too."""
    found = dial_all(node, {"": (address, [port])}, ask, answer)[""][0]
    source = source_address(address, port)
    return Dial(**found, source=source, interface=interface_of(node, source))


def dial_all(
    node: Node,  # noqa: ARG001 - the first argument of all that is called on nodes
    targets: Mapping[str, Sequence[Any]],
    ask: str,
    answer: str,
) -> dict[str, list[Answer]]:
    """Dial our own listeners on other nodes, all at once; return what came of each, by name.

    Those that are silent are dialled once more.

    Args:
        node: this node.
        targets: address and ports by name.
        ask: the secret that is said.
        answer: the one that is to come back.
    """
    places = [(name, to[0], port) for name, to in targets.items() for port in to[1]]
    words = ask.encode(), answer.encode()
    dials = [Dialled(address, port, words) for _, address, port in places]
    begun = time.monotonic()
    connect(dials)
    silent = [one for one in dials if unheard(one.answer)]
    if silent:
        settle(begun, LAST_SYN_S)
        connect(silent)
    found: dict[str, list[Answer]] = {name: [] for name in targets}
    for (name, _, _), one in zip(places, dials):
        found[name].append(one.answer)
    return found


def connect(dials: Sequence[Dialled]) -> None:
    """Try all connections at once."""
    poller = select.poll()
    waiting = [*reversed(dials)]
    under_way: dict[int, Dialled] = {}
    while waiting or under_way:
        while waiting and len(under_way) < IN_FLIGHT:
            one = waiting.pop()
            if one.begin():
                under_way[one.fileno()] = one
                poller.register(one.fileno(), select.POLLOUT)
        turn(poller, under_way)


def turn(poller: Any, under_way: dict[int, Dialled]) -> None:
    """Wait for the next thing to happen on the connections under way, and deal with it."""
    first = min((one.deadline for one in under_way.values()), default=0.0)
    ready = {fd for fd, _ in poller.poll(max(0.0, first - time.monotonic()) * 1000 + 1)}
    for fd, one in list(under_way.items()):
        if one.goes_on(fd in ready):
            poller.modify(fd, select.POLLIN if one.connected else select.POLLOUT)
        else:
            poller.unregister(fd)
            one.close()
            del under_way[fd]


class Dialled:
    """One connection that is tried, once or twice."""

    def __init__(self, address: str, port: int, words: tuple[bytes, bytes]) -> None:
        self.answer = Answer(result=FILTERED, icmp="", by="", ms=0.0)
        self.deadline, self.connected = 0.0, False
        self._to = (address, port)
        self._ask, self._expected = words
        self._heard = b""
        self._begun, self._tries = 0.0, 0
        self._socket: Any = None

    def fileno(self) -> int:
        """Return the descriptor of its socket, which is open."""
        return int(self._socket.fileno())

    def begin(self) -> bool:
        """Start to connect; false if that is over already."""
        self._begun, self._tries = time.monotonic(), self._tries + 1
        self.deadline, self.connected, self._heard = self._begun + CONNECT_S, False, b""
        family = family_of(self._to[0])
        try:
            self._socket = socket.socket(family, socket.SOCK_STREAM)
            self._socket.setblocking(False)
            # The kernel may go out from the very port that is to be listened on meanwhile.
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                self._socket.setsockopt(*RECVERR[family], 1)
            self._socket.connect(self._to)
        except BlockingIOError:
            return True
        except OSError as error:
            self._fail(error)
            self.close()
            return False
        return True

    def goes_on(self, ready: bool) -> bool:
        """See what has happened; false once it is over."""
        try:
            if ready and not self.connected:
                self._connect()
            elif ready and self._hear():
                return self._end(OK if self._heard == self._expected else FOREIGN)
        except OSError as error:
            return self._fail(error)
        if time.monotonic() >= self.deadline:
            return self._end(SILENT if self.connected else FILTERED)
        return True

    def close(self) -> None:
        """Hang up."""
        if self._socket:
            self._socket.close()

    def _connect(self) -> None:
        code = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
        self.connected, self.deadline = True, time.monotonic() + ECHO_S
        self._socket.send(self._ask)

    def _hear(self) -> bool:
        """Return whether all is said."""
        data = self._socket.recv(len(self._expected) - len(self._heard))
        self._heard += data
        return not data or len(self._heard) == len(self._expected)

    def _fail(self, error: OSError) -> bool:
        number = error.errno or 0
        result = RESULTS.get(number, errno.errorcode.get(number, str(error)))
        return self._end(result, *(turned_away(self._socket) if self._socket else ("", "")))

    def _end(self, result: str, icmp: str = "", by: str = "") -> bool:
        spent = round((time.monotonic() - self._begun) * 1000, 1)
        self.answer = Answer(result=result, icmp=icmp, by=by, ms=spent)
        if self._tries > 1:
            self.answer["tries"] = self._tries
        return False


# ---- in words ------------------------------------------------------------------------------

WORDS = {
    FILTERED: f"no answer in {CONNECT_S:g} s, as where a firewall drops it",
    "refused": "refused although our listener was there, as where a firewall resets it",
    UNREACHABLE: "no route to host, as where a firewall rejects it or the address is gone",
    NO_ROUTE: "no route to that network",
    "reset": "connected, then reset",
    "not permitted": "this node's own firewall forbids it",
    NO_PORT: "this node has no port free to connect from, of net.ipv4.ip_local_port_range",
    SILENT: "accepted, but our listener never answered, as behind a proxy or service mesh",
    FOREIGN: "accepted by something that is not our listener, as by a proxy or service mesh",
}
"""What came of a dial, by result."""
SHORT = {FILTERED: "no answer", SILENT: "accepted, no echo", FOREIGN: "accepted by another"}
"""The same for a matrix, where it is not the result itself."""


def in_words(answer: Mapping[str, Any]) -> str:
    """Return what came of a dial."""
    if answer["icmp"]:
        return "rejected by {by}, as by a firewall (ICMP {icmp})".format(**answer)
    return WORDS.get(answer["result"], str(answer["result"]))


def briefly(answer: Mapping[str, Any]) -> str:
    """Return what came of a dial, nothing where it is well, for a matrix."""
    if answer["result"] == OK:
        return ""
    return "rejected" if answer["icmp"] else SHORT.get(answer["result"], str(answer["result"]))


def noting(verdict: Verdict, answers: Mapping[str, Sequence[Mapping[str, Any]]]) -> Verdict:
    """Return a verdict, and in its details who answered only when asked once more.

    Args:
        verdict: on a node.
        answers: what came of asking others, by name.
    """
    late = [
        name
        for name, got in answers.items()
        if any(one.get("tries", 1) > 1 and not unheard(one) for one in got)
    ]
    if not late:
        return verdict
    words = f"{some(late)} answered only when asked once more, as where a packet is lost"
    return replace(verdict, details=(*verdict.details, f"{words}, or a node is busy"))


# ---- on the controller ---------------------------------------------------------------------


def addresses(fleet: Fleet, want: Want) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """Return by node the address by which others reach it, its subnet, and why a node has none."""
    asked = fleet.map(place, dict.fromkeys(fleet.nodes, wanted(want)))
    known: dict[str, str] = {}
    subnets: dict[str, str] = {}
    problems: dict[str, str] = {}
    for node, reply in asked.items():
        address, subnet = reply.value or ("", "")
        if address:
            known[node], subnets[node] = address, subnet
        else:
            problems[node] = message(reply) or "it has no address that other nodes could use"
    return known, subnets, problems


def of_others(
    fleet: Fleet, function: Callable[..., Any], asked: Mapping[str, Sequence[Any]], limit_s: float
) -> dict[str, Reply]:
    """Run on several nodes a function that tells of other nodes, by name; never raises.

    Args:
        fleet: the nodes.
        function: what is run.
        asked: its arguments by node; the first has the others by name.
        limit_s: how long it may take.
    """
    replies = fleet.map(function, asked, limit_s)
    return {node: of_asked(reply, asked[node][0]) for node, reply in replies.items()}


def of_asked(reply: Reply, others: Container[str]) -> Reply:
    """Return a reply, as a problem where it tells of what was not asked about."""
    strange = next((name for name in reply.value or () if name not in others), None)
    if strange is None:
        return reply
    words = f"it tells of {strange[:SHOWN]!r}, which was not asked about"
    problem = {"kind": "garbled", "message": f"its answer cannot be understood: {words}"}
    return Reply(None, problem, reply.seconds)


def message(reply: Reply) -> str:
    """Return why a call has no value, or nothing."""
    return str(reply.problem["message"]) if reply.problem else ""
