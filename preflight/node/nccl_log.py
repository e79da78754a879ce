"""What NCCL says of itself with NCCL_DEBUG=INFO: its lines in any text, and what they tell.

Pure, and no text makes it raise.
Source: NCCL 2.4 to 2.30: src/debug.cc, init.cc, bootstrap.cc, net.cc, transport/{net,net_ib,
net_socket,p2p,shm}.cc.
Sent to nodes: stdlib only, Python 3.8.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Iterable, Iterator, NamedTuple, Sequence, TypedDict

LOUD = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,BOOTSTRAP,NET", "NCCL_DEBUG_FILE": ""}
"""Has NCCL say it, to standard output."""
HEAD = (
    r"(?:\[[^\]\n]{{0,40}}\] )?(?P<host>{}):\d+:\d+ [^\n]{{0,120}}?"
    r"NCCL (?P<level>INFO|WARN|TRACE|CALL) ?"
)
"""Begins a line. It may stand in the middle of another one, which then goes on after it."""
ANY_HOST = r"(?<![^\s\]>])[A-Za-z0-9][\w.-]*"
"""Where a word begins. A known name is found without that: `0node1:7:7 [0] NCCL INFO`."""
VERSION = r"NCCL version (?P<nccl_version>\d+\.\d+(?:\.\d+)?)"
BARE = re.compile(rf"^{VERSION}", re.MULTILINE)
"""Before 2.22 it says so once, in a line without a head."""
BOOTSTRAP = r"Bootstrap ?: Using (?:\[0\])?(?P<interface>[\w.@-]+):(?P<address>[\w.:%]+)<\d+>"
HCAS = r"NET/IB : Using (?P<hcas>\[0\][^;\r]{1,400})"
SOCKETS = r"NET/Socket : Using (?P<sockets>\[0\][^\r]{1,400})"
NETWORK = r"Using network (?P<network>\w[\w /.-]{0,40})"
LOADED = r"NET/Plugin: Loaded net plugin (?P<plugin>[\w.-][\w .()-]{0,60})"
INITIALIZED = r"Initialized NET plugin (?P<plugin>\w+)"
STATED = tuple(map(re.compile, (VERSION, BOOTSTRAP, HCAS, SOCKETS, NETWORK, LOADED, INITIALIZED)))
CHANNEL = re.compile(
    r"(?:Channel|Ring) \d+(?:/\d+)? : .{4,80}? via "
    r"(?P<way>(?:NET|COLLNET|P2P|SHM)/[\w /().-]{1,60}|direct shared memory)"
)
LISTED = re.compile(r"\[\d+\](?P<name>[\w.@-]+):(?P<more>[\w.:%]+)")
"""A port, `[0]mlx5_0:1/RoCE`, or an interface, `[0]eth0:10.0.0.1<0>`."""
KEPT, LONGEST, MOST = 5, 200, 32
"""Warnings, characters of one, and what else there may be of a kind."""


class Line(NamedTuple):
    """A line of NCCL's."""

    host: str
    level: str
    words: str


class Heard(TypedDict):
    """What the NCCL of a node said of itself; what it did not say is empty."""

    version: str
    interface: str
    """By which ranks first meet, its bootstrap, and the address there."""
    address: str
    network: str
    """`IB`, `Socket`, or what a plugin calls itself."""
    plugin: str
    hcas: list[str]
    """Its RDMA ports, as `mlx5_0:1`."""
    sockets: dict[str, str]
    """The interfaces that its data goes by, where that is by TCP, and their addresses."""
    channels: dict[str, int]
    """By the way that they go, how many connections: `NET/IB/GDRDMA`, `NET/Socket`, `P2P/CUMEM`,
    `SHM`. NET is between nodes; without GDRDMA, through the memory of the host."""
    warnings: list[str]
    """The first ones."""


def lines(text: str, hosts: Sequence[str] = ()) -> Iterator[Line]:
    """Yield the lines of NCCL that are in a text, whatever else is.

    Args:
        text: of any kind.
        hosts: that are known, those first of which others are a part; empty: none is.
    """
    begins = re.compile(HEAD.format("|".join(map(re.escape, hosts)) or ANY_HOST))
    for row in text.splitlines():
        heads = list(begins.finditer(row))
        ends = [head.start() for head in heads[1:]] + [len(row)]
        for head, end in zip(heads, ends):
            yield Line(head["host"], head["level"], row[head.end() : end].strip())


def of_node(text: str) -> Heard:
    """Return what is said in the text of one node's ranks."""
    heard = of_lines(lines(text))
    bare = BARE.search(text)
    heard["version"] = heard["version"] or (bare["nccl_version"] if bare else "")
    return heard


def by_host(text: str, hosts: Sequence[str]) -> dict[str, Heard]:
    """Return what is said by the ranks of each host in a text of all of them, as `lines` has it."""
    found: dict[str, list[Line]] = {}
    for line in lines(text, hosts):
        found.setdefault(line.host, []).append(line)
    return {host: of_lines(some) for host, some in found.items()}


def of_lines(some: Iterable[Line]) -> Heard:
    """Return what lines say."""
    told: dict[str, str] = {}
    channels: Counter[str] = Counter()
    warnings: dict[str, None] = {}
    for line in some:
        if line.level == "WARN" and line.words:
            warnings[line.words[:LONGEST]] = None
        if match := CHANNEL.search(line.words):
            channels[way(match["way"])] += 1
        else:
            told = {**stated(line.words), **told}
    return Heard(
        version=told.get("nccl_version", ""),
        interface=told.get("interface", ""),
        address=told.get("address", ""),
        network=told.get("network", "") or network(channels),
        plugin=told.get("plugin", ""),
        hcas=[":".join(one.groups()) for one in LISTED.finditer(told.get("hcas", ""))][:MOST],
        sockets={one["name"]: one["more"] for one in LISTED.finditer(told.get("sockets", ""))},
        channels=dict(channels.most_common(MOST)),
        warnings=list(warnings)[:KEPT],
    )


def stated(words: str) -> dict[str, str]:
    """Return what a line says, by the names of its pattern."""
    found = (match.groupdict() for match in (one.search(words) for one in STATED) if match)
    return {name: value.strip() for groups in found for name, value in groups.items()}


def way(words: str) -> str:
    """Return the way of a channel without numbers: `NET/IB/0(1)/GDRDMA/Shared` is NET/IB/GDRDMA."""
    if words == "direct shared memory":
        return "SHM"
    kind, *more = words.split(" comm ")[0].strip().split("/")
    if kind == "SHM":
        return kind
    kept = [part for part in more if not part[:1].isdigit() and part not in {"Shared", "read"}]
    return "/".join((kind, *kept[:2]))


def network(channels: Iterable[str]) -> str:
    """Return the network of channels, for before 2.6 nothing else tells it."""
    return next((one.split("/")[1] for one in channels if one.startswith("NET/")), "")


def in_words(heard: Heard) -> str:
    """Return what was heard in one line."""
    ways = ", ".join(f"{count} x {one}" for one, count in sorted(heard["channels"].items()))
    address = f" ({heard['address']})" if heard["address"] else ""
    parts = {
        "NCCL": heard["version"],
        "bootstrap": heard["interface"] + address,
        "network": heard["network"],
        "plugin": heard["plugin"],
        "RDMA": ", ".join(heard["hcas"]),
        "sockets": ", ".join(heard["sockets"]),
        "channels": ways,
    }
    return "; ".join(f"{name} {words}" for name, words in parts.items() if words)
