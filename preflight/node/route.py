"""Which way the kernel would send packets: what `ip route get` says, without a process for each.

Nothing is sent. Sent to nodes: stdlib only, Python 3.8.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import socket
import struct
from typing import Any, Iterator, Mapping, Sequence, TypedDict

from preflight.api import Address, Node
from preflight.node.choice import addresses_of, subnet
from preflight.node.net import Interface, Network, interfaces, main_interfaces, reachable
from preflight.node.ports import family_of, interface_of, source_address

CONF = "/proc/sys/net/ipv4/conf"
REQUEST, NEW_ROUTE, GET_ROUTE, ERROR = 1, 24, 26, 2
DESTINATION, SOURCE, DEVICE, GATEWAY, PREFERRED = 1, 2, 4, 5, 7
"""Messages of rtnetlink(7), and the attributes of a route."""
HEADER, ROUTE, ATTRIBUTE = "=IHHII", "=BBBBBBBBI", "=HH"
"""struct nlmsghdr, rtmsg and rtattr of linux/netlink.h and rtnetlink.h."""
LOCAL = 2
"""RTN_LOCAL: the address is this node's own."""
ANY_PORT = 9
"""Of a UDP socket that is connected, which sends nothing; discard, by RFC 863."""
WORDS = {
    errno.ENETUNREACH: "no route",
    errno.EHOSTUNREACH: "a route of type unreachable",
    errno.EACCES: "a route of type prohibit",
    errno.EINVAL: "a route of type blackhole",
}
"""What the kernel answers where there is no way: see fib_props of net/ipv4/fib_semantics.c."""


class Way(TypedDict):
    """How a packet would leave; all empty but `problem` where it would not."""

    device: str
    source: str
    gateway: str
    """Empty where the address is on the device's own link."""
    problem: str


class Route(TypedDict):
    """The way to one address of a peer, and that of answers to it from the address it goes to."""

    address: str
    interface: str
    """The one of this node's data plane that is to carry it."""
    there: Way
    answer: Way
    """From that interface's address; rules that go by the source may send it another way."""


class Place(TypedDict):
    """An address of the data plane."""

    interface: str
    kind: str
    address: Address
    subnet: Address


class Table(TypedDict):
    """What a node knows of the ways to others."""

    places: list[Place]
    subnets: dict[str, list[Address]]
    """By interface, of all that it has addresses in."""
    strict: list[str]
    """Interfaces whose rp_filter drops what would not be answered by them."""


def table(node: Node, launch: Mapping[str, Any]) -> Table:
    """Return a node's own addresses, as far as they decide on ways.

    Source: getifaddrs(3) by psutil; net.ipv4.conf.*.rp_filter, of which the greater counts: that of
    the interface or of `all` (kernel's ip-sysctl.rst).
    """
    network = interfaces(node, launch)
    has = addresses_of(node)
    places = [
        Place(
            interface=one["name"],
            kind=one["kind"],
            address=reachable(one),
            subnet=subnet(reachable(one), has.get(one["name"], {}).get(reachable(one), "")),
        )
        for one in carrying(network)
    ]
    subnets = {
        name: list(dict.fromkeys(subnet(address, mask) for address, mask in found.items()))
        for name, found in has.items()
        if found
    }
    return Table(places=places, subnets=subnets, strict=strict(node, list(has)))


def carrying(network: Network) -> list[Interface]:
    """Return the interfaces of the data plane that have an address for others."""
    return [one for one in main_interfaces(network) if reachable(one)]


def strict(node: Node, names: Sequence[str]) -> list[str]:
    """Return the interfaces whose rp_filter is strict."""
    common = number(node.read(f"{CONF}/all/rp_filter"))
    each = {name: number(node.read(f"{CONF}/{name}/rp_filter")) for name in names}
    return [name for name, own in each.items() if max(common, own) == 1]


def number(text: str | None) -> int:
    """Return a number of /proc/sys, 0 where there is none."""
    return int(text) if text and text.strip().isdigit() else 0


def ways(
    node: Node, own: Sequence[Mapping[str, str]], peers: Mapping[str, Sequence[str]]
) -> dict[str, list[Route]]:
    """Return the ways to the addresses of peers, by name.

    Args:
        node: this node.
        own: its places (`Place`), in the order of the peers' addresses.
        peers: addresses by name.
    """
    found: dict[str, list[Route]] = {}
    with asking() as ask:
        for peer, addresses in peers.items():
            found[peer] = []
            for place, address in facing(own, addresses):
                there, answer = ask(address, ""), ask(address, place["address"])
                if there is None or answer is None:
                    there = answer = by_socket(node, address)
                found[peer].append(
                    Route(address=address, interface=place["interface"], there=there, answer=answer)
                )
    return found


def facing(
    own: Sequence[Mapping[str, str]], addresses: Sequence[str]
) -> Iterator[tuple[Mapping[str, str], str]]:
    """Yield the addresses of a peer, each with the place of this node that belongs to it.

    One in whose subnet it is; else, where there are as many here as there, the one at the same
    place of the list; else the first for the first. To others nothing here belongs.
    """
    for index, address in enumerate(addresses):
        alike = [one for one in own if (":" in one["address"]) == (":" in address)] or list(own)
        near = [one for one in alike if is_within(address, one["subnet"])]
        if near or len(alike) == len(addresses) or index == 0:
            yield near[0] if near else alike[index], address


def is_within(address: str, network: str) -> bool:
    """Whether an address is one of a subnet, which may not be known."""
    return bool(network) and ipaddress.ip_address(address) in ipaddress.ip_network(network)


def by_socket(node: Node, address: str) -> Way:
    """Return the way to an address as a UDP socket knows it, where there is no netlink."""
    source = source_address(address, ANY_PORT)
    return Way(
        device=interface_of(node, source) if source else "",
        source=source,
        gateway="",
        problem="" if source else "no route",
    )


@contextlib.contextmanager
def asking() -> Iterator[Any]:
    """Give a function that asks the kernel for the way to an address, from another one if given.

    It returns None where the kernel does not answer.
    """
    with contextlib.ExitStack() as ending:
        try:
            one = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
            ending.enter_context(one)
            one.settimeout(1)
        except OSError:
            one = None

        def ask(address: str, source: str) -> Way | None:
            if one is None:
                return None
            try:
                one.send(question(address, source))
                return answered(one.recv(16384), address)
            except OSError:
                return None

        yield ask


def question(address: str, source: str) -> bytes:
    """Return the message that asks for the way to an address."""
    family = family_of(address)
    raw, origin = (socket.inet_pton(family, one) if one else b"" for one in (address, source))
    parts = struct.pack(ROUTE, family, 8 * len(raw), 8 * len(origin), 0, 0, 0, 0, 0, 0)
    for kind, value in ((DESTINATION, raw), (SOURCE, origin)):
        if value:
            parts += struct.pack(ATTRIBUTE, 4 + len(value), kind) + value
    return struct.pack(HEADER, 16 + len(parts), GET_ROUTE, REQUEST, 1, 0) + parts


def answered(reply: bytes, address: str) -> Way | None:
    """Return the way that a message tells."""
    length, kind, _, _, _ = struct.unpack_from(HEADER, reply)
    if kind == ERROR:
        code = -struct.unpack_from("=i", reply, 16)[0]
        problem = WORDS.get(code, errno.errorcode.get(code, str(code)))
        return Way(device="", source="", gateway="", problem=problem)
    if kind != NEW_ROUTE:
        return None
    family = family_of(address)
    values = dict(attributes(reply[28:length]))
    device = struct.unpack("=I", values[DEVICE])[0] if DEVICE in values else 0
    with contextlib.suppress(OSError):
        device = socket.if_indextoname(device)
    return Way(
        device=str(device),
        source=shown(family, values.get(PREFERRED, b"")),
        gateway=shown(family, values.get(GATEWAY, b"")),
        problem="an address of this node itself" if reply[16 + 7] == LOCAL else "",
    )


def attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the attributes of a message, by number."""
    while len(data) >= 4:
        length, kind = struct.unpack_from(ATTRIBUTE, data)
        if length < 4:
            return
        yield kind, data[4:length]
        data = data[(length + 3) & ~3 :]


def shown(family: int, raw: bytes) -> str:
    """Return an address in digits, empty where there is none."""
    return socket.inet_ntop(family, raw) if len(raw) in (4, 16) else ""
