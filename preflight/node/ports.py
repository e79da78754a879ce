"""TCP ports: who holds one, and whether ours can be reached. Sent to nodes: stdlib, Python 3.8.

Its sockets are not seen through `Node`: what came of them is a fact. It connects to nothing but a
listener that preflight opened itself, since a stranger on a job's port can hang that job.
"""

from __future__ import annotations

import errno
import select
import socket
import struct
import time
from typing import Any, Mapping, Sequence, TypedDict

from preflight.api import Absent, Node, Opened, Unobservable

TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
LISTEN, TIME_WAIT = "0A", "06"
CONNECT_S = 4.0
"""Linux sends a lost SYN again after 1 s and 3 s. An address that does not answer ARP it gives up
after three tries of 1 s (arp(7)), and says so: that is to be heard."""
ECHO_S = 3.0
LAST_SYN_S = 3.0
"""When Linux sends a SYN for the last time in `CONNECT_S`, at the latest."""
DIAL_S = 2 * (CONNECT_S + ECHO_S) + 2
"""For dials that are under way at once, some of them twice, with some time for a busy node."""
MENDED_S = 8.5
"""When what was silent has been asked once more. By then ARP has given up an entry that leads to a
card that is gone: 5 s and three tries of 1 s (arp(7): delay_first_probe_time, ucast_solicit)."""
MAPPED = "::ffff:"
"""Begins the address of an IPv4 client on a listener for both families."""
STRANGERS = 64
"""Different ones that are kept."""
BEGIN = 16
"""Bytes that are kept of what a stranger says: enough to tell what it is, too few for a secret."""
CLIENTS = 1024
"""Connections that a listener holds at once; more are turned away."""
NO_PORT, NO_ROUTE, UNREACHABLE = "no free port", "no route", "unreachable"
MORE_PORTS = (
    "see what has so many: ss -tan; or widen the range:"
    " sysctl -w net.ipv4.ip_local_port_range='32768 60999'"
)
"""What to do then."""
RESULTS = {
    errno.ECONNREFUSED: "refused",
    errno.EHOSTUNREACH: UNREACHABLE,
    errno.ENETUNREACH: NO_ROUTE,
    errno.ECONNRESET: "reset",
    errno.EPIPE: "reset",
    errno.EACCES: "not permitted",
    errno.EPERM: "not permitted",
    errno.EADDRNOTAVAIL: NO_PORT,
    errno.EAGAIN: NO_PORT,  # of a datagram's socket
}
SILENT, FOREIGN, FILTERED, OK = "silent", "foreign", "filtered", "ok"


class Holder(TypedDict):
    """Who has a port; pid and program only where the login user may see them."""

    address: str
    listening: bool
    uid: int
    user: str
    """Empty where the uid has no name."""
    pid: int | None
    program: str
    seconds: float | None
    """Since when it runs."""


class Listener(TypedDict):
    """Why our own listener could not be put on a port: the name of an errno, empty if it was."""

    error: str
    holder: Holder | None


class Stranger(TypedDict):
    """Who came to a listener of ours without our secret."""

    address: str
    port: int
    """Of the listener."""
    count: int
    said: str
    """How the first that said anything began, as Python writes bytes."""


class Asked(TypedDict, total=False):
    """What was asked of another node."""

    tries: int
    """How often, the last of them being told; left out where once was enough."""


def listen(
    node: Node, opened: Opened[Mapping[str, Any]], port: int, ask: str, answer: str
) -> Listener:
    """Hold a port until told to stop; say `answer` to those who say `ask`, to others nothing."""
    try:
        listener = bound(port)
    except OSError as error:
        return unopened(node, port, error)
    with listener:
        opened.ready({})
        serve([listener], opened, ask.encode(), answer.encode())
    return Listener(error="", holder=None)


def unopened(node: Node, port: int, error: OSError) -> Listener:
    """Return why a port could not be opened, and who has it."""
    name = errno.errorcode.get(error.errno or 0, str(error))
    return Listener(
        error=name, holder=holder(node, port) if error.errno == errno.EADDRINUSE else None
    )


def bound(port: int) -> socket.socket:
    """Return a listener on all addresses, as torch's TCPStore has it.

    SO_REUSEADDR, because torch sets it too: connections of an earlier job that are in TIME_WAIT do
    not keep it from starting. Without IPv6 it is an IPv4 listener.
    """
    try:
        return opened_on(socket.AF_INET6, "::", port)
    except OSError as error:
        if error.errno not in {errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL}:
            raise
        return opened_on(socket.AF_INET, "0.0.0.0", port)


def opened_on(family: int, address: str, port: int) -> socket.socket:
    """Return a listening socket."""
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind((address, port))
        listener.listen(CLIENTS)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def serve(
    listeners: Sequence[socket.socket], opened: Opened[Any], ask: bytes, answer: bytes
) -> list[Stranger]:
    """Answer until told to stop; return who did not say what our own nodes say."""
    reception = Reception(listeners, ask, answer)
    poller = reception.poller
    poller.register(opened.fileno(), select.POLLIN)
    try:
        while True:
            ready = [fd for fd, _ in poller.poll()]
            for fd in ready:
                reception.attend(fd)
            if opened.fileno() in ready:
                return reception.strangers()
    finally:
        reception.close()


class Reception:
    """Listeners, and who has come to them.

    Connections are reset, so that no TIME_WAIT of ours stays on a port.
    """

    def __init__(self, listeners: Sequence[socket.socket], ask: bytes, answer: bytes) -> None:
        self.poller = select.poll()
        self._ask, self._answer = ask, answer
        self._doors = {one.fileno(): one for one in listeners}
        self._clients: dict[int, Client] = {}
        self._strange: dict[tuple[str, int], Stranger] = {}
        for fd in self._doors:
            self.poller.register(fd, select.POLLIN)

    def attend(self, fd: int) -> None:
        """Let a client in, or hear what one says."""
        if fd in self._doors:
            self._welcome(self._doors[fd])
        elif fd in self._clients and not self._hear(self._clients[fd]):
            self.poller.unregister(fd)
            self._part(self._clients.pop(fd))

    def strangers(self) -> list[Stranger]:
        """Return who did not say the secret, those included that are still there."""
        while self._clients:
            self._part(self._clients.popitem()[1])
        return list(self._strange.values())

    def close(self) -> None:
        """Let go of all clients."""
        for client in self._clients.values():
            close(client.socket)

    def _welcome(self, door: socket.socket) -> None:
        try:
            one, there = door.accept()
        except OSError:  # it is gone already
            return
        if len(self._clients) == CLIENTS:
            close(one)
            return
        one.setblocking(False)
        address = str(there[0])
        address = address[len(MAPPED) :] if address.startswith(MAPPED) else address
        self._clients[one.fileno()] = Client(one, (address, door.getsockname()[1]))
        self.poller.register(one.fileno(), select.POLLIN)

    def _hear(self, client: Client) -> bool:
        """Hear what one says, and answer; False when it is done or says anything else."""
        try:
            data = client.socket.recv(1024)
            client.heard += data
            if data and client.heard == self._ask:
                client.socket.send(self._answer)
        except OSError:
            return False
        return bool(data) and self._ask.startswith(client.heard)

    def _part(self, client: Client) -> None:
        close(client.socket)
        address, port = client.whence
        if client.heard == self._ask:
            return
        if client.whence not in self._strange and len(self._strange) == STRANGERS:
            return
        new = Stranger(address=address, port=port, count=0, said="")
        one = self._strange.setdefault(client.whence, new)
        one["count"] += 1
        one["said"] = one["said"] or repr(client.heard[:BEGIN])[2:-1]


class Client:
    """One that has come to a listener of ours."""

    def __init__(self, one: socket.socket, whence: tuple[str, int]) -> None:
        self.socket = one
        self.whence = whence
        """Its address, and our port."""
        self.heard = b""


def close(client: socket.socket) -> None:
    """Reset a connection: nothing of it stays in the socket table."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def unheard(found: Mapping[str, Any]) -> bool:
    """Whether nobody said a word to what was asked.

    It need not be a wall: a lost packet, an address that ARP did not find, or a node without a CPU
    look the same. Who is refused, or turned away by an ICMP message, has been heard.
    """
    lost = found["result"] == UNREACHABLE and not found["icmp"]
    return lost or found["result"] in (FILTERED, SILENT)


def settle(begun: float, last_s: float) -> None:
    """Wait until what was silent can be asked once more.

    Args:
        begun: when it was asked (monotonic).
        last_s: after how long it is sent for the last time, each time that it is asked.
    """
    time.sleep(max(0.0, begun + MENDED_S - last_s - time.monotonic()))


def source_address(address: str, port: int) -> str:
    """Return the address from which this node would go there; nothing is sent."""
    with socket.socket(family_of(address), socket.SOCK_DGRAM) as connection:
        try:
            connection.connect((address, port))
        except OSError:
            return ""
        return str(connection.getsockname()[0])


def family_of(address: str) -> int:
    """Return the family of an address in digits."""
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def interface_of(node: Node, address: str) -> str:
    """Return the interface that has an address, empty where it can't be told."""
    try:
        found = node.psutil("net_if_addrs")
    except Unobservable:
        return ""
    return next((n for n, has in found.items() if any(a["address"] == address for a in has)), "")


# ---- who holds a port ----------------------------------------------------------------------


def holder(node: Node, port: int) -> Holder | None:
    """Return who has a port, None where the socket table does not show it.

    A socket that is bound and does not listen is in no table.
    Source: /proc/net/tcp{,6} (proc_net(5)), getent(1); pid and program by psutil.
    """
    lines = [line.split() for path in TABLES for line in (node.read(path) or "").splitlines()[1:]]
    here = [f for f in lines if len(f) > 9 and int(f[1].rsplit(":", 1)[1], 16) == port]
    here = sorted((f for f in here if f[3] != TIME_WAIT), key=lambda f: f[3] != LISTEN)
    if not here:
        return None
    fields = here[0]
    pid, process = process_on(node, port)
    uid = int(fields[7])
    since = process.get("create_time")
    return Holder(
        address=written(fields[1].rsplit(":", 1)[0]),
        listening=fields[3] == LISTEN,
        uid=uid,
        user=user_name(node, uid),
        pid=pid,
        program=process.get("name") or "",
        seconds=None if since is None else round(node.now() - since, 1),
    )


def written(digits: str) -> str:
    """Return an address of the socket table: hexadecimal words in the machine's byte order."""
    words = [digits[i : i + 8] for i in range(0, len(digits), 8)]
    raw = b"".join(struct.pack("=I", int(word, 16)) for word in words)
    return socket.inet_ntop(socket.AF_INET if len(raw) == 4 else socket.AF_INET6, raw)


def process_on(node: Node, port: int) -> tuple[int | None, dict[str, Any]]:
    """Return pid and description of the process with a socket on a port, as far as permitted."""
    try:
        found = node.psutil("net_connections", "tcp")
        pids = [c["pid"] for c in found if c["laddr"] and c["laddr"]["port"] == port and c["pid"]]
        return (pids[0], dict(node.process(pids[0]) or {})) if pids else (None, {})
    except Unobservable:
        return None, {}


def user_name(node: Node, uid: int) -> str:
    """Return the name of a user, empty if it has none."""
    try:
        return node.run(["getent", "passwd", str(uid)]).out.split(":")[0]
    except Absent:
        return ""


def who(holder: Holder) -> str:
    """Return a process in words, as far as the login user may see it."""
    user = holder["user"] or "uid {}".format(holder["uid"])
    if not holder["pid"]:
        return f"a process of {user}, whose pid only {user} and root can see"
    since = "" if holder["seconds"] is None else " for " + age(holder["seconds"])
    return "pid {} ({}) of {}{}".format(holder["pid"], holder["program"], user, since)


def age(seconds: float) -> str:
    """Return a span of time for people."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"
