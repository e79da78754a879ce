"""What a node's resolver makes of names and addresses, each look-up with a bound in time.

A dead name server costs whoever asks it tens of seconds; look-ups that hang are left behind, in a
process of their own. Sent to nodes: stdlib only, Python 3.8.
"""

from __future__ import annotations

import functools
import queue
import socket
import threading
import time
from typing import Any, Callable, List, Mapping, Sequence, TypedDict

from preflight.api import Address, Node, Unobservable
from preflight.node.launch import settings
from preflight.node.net import FAMILIES, interfaces, meeting_address
from preflight.node.toolbox import back, depart

LIMIT_S = 6.0
"""For one look-up. resolv.conf(5): a name server that is silent costs 5 s before the next one is
asked, so that one dead server of two is slow and not silent."""
SPARE_S = 2.0
"""Beyond it, for their process to start and to tell."""
AT_ONCE, PATIENCE_S, MOST = 8, 0.3, 128
"""Look-ups under way, not counting those that take longer than this; and with those."""
TRY_AGAIN = 2
"""From netdb.h: no answer, or one of a server that could not tell."""
UNKNOWN, SILENT = "no such name", "no answer"
HOSTS, RESOLV = "/etc/hosts", "/etc/resolv.conf"
GLOO, MASTER = "GLOO_SOCKET_IFNAME", "MASTER_ADDR"
OWN, FULL = "own", "full"


class Look(TypedDict):
    """What came of one look-up."""

    found: list[str]
    """Addresses of a name in the resolver's order, or the name of an address."""
    problem: str
    """Empty, `no such name` or `no answer`."""
    seconds: float
    """Without what it waited for a CPU: that is no fault of the resolver."""


class Self(TypedDict):
    """What a node calls itself, and by what it may be called."""

    host: str
    """As gethostname(2) has it: Gloo binds to what this name means here."""
    full: str
    """As Python's getfqdn() has it: torchrun tells it to the other nodes as MASTER_ADDR."""
    own: Look
    """Of the host name."""
    addresses: list[Address]
    """Of all interfaces."""
    address: Address
    """By which other nodes reach it."""
    interface: str
    """The first one of the data plane."""
    gloo: str
    """GLOO_SOCKET_IFNAME of the launch environment."""
    master: str
    """MASTER_ADDR of the launch environment."""
    nameservers: list[str]
    line: str
    """Of /etc/hosts, with the host name in it."""


class Looks(TypedDict):
    """What other nodes are to this one's resolver; what was not tried in time is not there."""

    names: dict[str, Look]
    addresses: dict[str, Look]
    lines: dict[str, str]
    """Of /etc/hosts, by name."""


Questions = Mapping[str, Callable[[], List[str]]]


def introduce(node: Node, launch: Mapping[str, Any]) -> Self:
    """Return what this node calls itself."""
    host = node.uname()["node"]
    looks = in_time(
        {OWN: lambda: node.resolve(host), FULL: lambda: [socket.getfqdn(host)]}, LIMIT_S
    )
    network, found = interfaces(node, launch), settings(node, launch)["found"]
    used = network["data_plane"]["names"]
    return Self(
        host=host,
        full=(looks[FULL]["found"] or [host])[0],
        own=looks[OWN],
        addresses=[
            one["address"].split("%")[0]
            for has in node.psutil("net_if_addrs").values()
            for one in has
            if one["family"] in FAMILIES
        ],
        address=meeting_address(network),
        interface=used[0] if used else "",
        gloo=found[GLOO]["value"] if GLOO in found else "",
        master=found[MASTER]["value"] if MASTER in found else "",
        nameservers=[
            words[1]
            for words in map(str.split, (node.read(RESOLV) or "").splitlines())
            if words[:1] == ["nameserver"] and len(words) > 1
        ],
        line=lines_of(node, [host]).get(host, ""),
    )


def look_up(node: Node, names: Sequence[str], addresses: Sequence[str]) -> Looks:
    """Look up names, and addresses in reverse; the first ones first."""
    by_name = {f"name {name}": functools.partial(node.resolve, name) for name in names}
    by_address = {f"address {one}": functools.partial(name_of, one) for one in addresses}
    looks = in_time({**by_name, **by_address}, LIMIT_S)

    def those(kind: str, asked: Sequence[str]) -> dict[str, Look]:
        return {one: looks[f"{kind} {one}"] for one in asked if f"{kind} {one}" in looks}

    return Looks(
        names=those("name", names),
        addresses=those("address", addresses),
        lines=lines_of(node, names),
    )


def lines_of(node: Node, names: Sequence[str]) -> dict[str, str]:
    """Return the first line of /etc/hosts that has a name, by name; comments left out."""
    found: dict[str, str] = {}
    for line in (node.read(HOSTS) or "").splitlines():
        words = line.partition("#")[0].split()
        for name in words[1:]:
            found.setdefault(name, " ".join(words))
    return {name: found[name] for name in names if name in found}


def name_of(address: str) -> list[str]:
    """Return the name of an address, as torch's TCPStore asks for that of each client."""
    try:
        # Not getnameinfo, in which Python up to 3.11 keeps all other threads waiting.
        return [socket.gethostbyaddr(address)[0]]
    except socket.herror as error:
        if error.errno == TRY_AGAIN:
            raise Unobservable(f"{address}: the resolver does not answer") from error
        return []


def in_time(questions: Questions, limit_s: float) -> dict[str, Look]:
    """Return what came of some look-ups, done in a process that ends with those that hang.

    Raises:
        Unobservable: it cannot be started, or died.
    """
    trip = depart(functools.partial(at_once, questions, limit_s))
    found = back(*trip, time.monotonic() + limit_s + SPARE_S)
    if not isinstance(found, dict):
        raise Unobservable(f"the process that looks names up: {found[0]}")
    return found


def at_once(questions: Questions, limit_s: float) -> dict[str, Look]:
    """Return what came of some look-ups, each in a thread; those under way at the end are silent.

    One that hangs does not keep the next from being tried.
    """
    answers: Any = queue.SimpleQueue()
    deadline = time.monotonic() + limit_s
    waiting = list(questions)
    under_way: dict[str, float] = {}
    found: dict[str, Look] = {}
    while (waiting or under_way) and time.monotonic() < deadline:
        quick = sum(time.monotonic() - begun < PATIENCE_S for begun in under_way.values())
        while waiting and quick < AT_ONCE and len(under_way) < MOST:
            key, quick = waiting.pop(0), quick + 1
            under_way[key] = time.monotonic()
            thread = threading.Thread(
                target=lambda key=key: answers.put((key, looked(questions[key]))), daemon=True
            )
            thread.start()
        try:
            key, look = answers.get(timeout=min(PATIENCE_S, max(0.0, deadline - time.monotonic())))
        except queue.Empty:
            continue
        found[key] = look
        del under_way[key]
    now = time.monotonic()
    for key, begun in under_way.items():
        found[key] = Look(found=[], problem=SILENT, seconds=round(now - begun, 2))
    return found


def looked(ask: Callable[[], list[str]]) -> Look:
    """Return what came of one look-up."""
    begun = time.monotonic() - waited_s()
    try:
        found, problem = ask(), ""
    except (Unobservable, OSError):
        found, problem = [], SILENT
    problem = problem or ("" if found else UNKNOWN)
    spent = time.monotonic() - waited_s() - begun
    return Look(found=found, problem=problem, seconds=round(max(0.0, spent), 2))


def waited_s() -> float:
    """Return for how long this thread was ready to run and had no CPU; 0 where that is not told.

    Source: /proc/thread-self/schedstat (sched-stats.rst).
    """
    try:
        with open("/proc/thread-self/schedstat") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0
