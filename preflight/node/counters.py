"""What a node's links count: packets, damaged and dropped ones, and how often a link went down.

Sent to nodes: stdlib only, Python 3.8.
"""

from __future__ import annotations

from typing import Mapping, Sequence, TypedDict

from preflight.api import Node
from preflight.node.net import CLASS, LOWER, OUTER, Network, kind

FILES = (
    *("rx_packets", "tx_packets", "rx_errors", "rx_crc_errors", "tx_errors"),
    *("rx_dropped", "rx_missed_errors"),
)
DOWNS = "carrier_down_count"
FEW = 100
"""Damaged packets that are no habit, however few there were in all."""
RATIO = 1e-6
"""Damaged ones of all: Ethernet damages at most one bit of 10^12 (IEEE 802.3), one packet of 9,000
bytes in 14 million."""
Counts = Mapping[str, int]
"""By the kernel's name; what a driver does not count is not there."""


class Counted(TypedDict):
    """What the links of the data plane had counted, at a time."""

    up_s: float
    """Since the node's start."""
    links: dict[str, Counts]


def counted(node: Node, network: Network) -> Counted:
    """Return what the links of the data plane have counted.

    Source: statistics/* and carrier_down_count (sysfs-class-net), meant as if_link.h says:
    rx_errors are bad packets, those of a bad checksum included; rx_dropped also those that nobody
    here wants; rx_missed_errors those for which the node had no room. /proc/uptime.
    """
    names = dict.fromkeys(
        below for name in network["data_plane"]["names"] for below in links(node, name)
    )
    return Counted(
        up_s=float((node.read("/proc/uptime") or "0").split()[0]),
        links={name: counts(node, name) for name in names},
    )


def links(node: Node, name: str) -> list[str]:
    """Return an interface and what leads out of the node below it, as a bond's members."""
    files = node.listdir(f"{CLASS}/{name}") or ()
    lower = [file[len(LOWER) :] for file in files if file.startswith(LOWER)]
    outer = [one for one in lower if kind(node, one) in OUTER]
    return [name, *(below for one in outer for below in links(node, one))]


def counts(node: Node, name: str) -> Counts:
    """Return what one link has counted."""
    paths = {file: f"{CLASS}/{name}/statistics/{file}" for file in FILES}
    paths[DOWNS] = f"{CLASS}/{name}/{DOWNS}"
    read = {file: (node.read(path) or "").strip() for file, path in paths.items()}
    return {file: int(text) for file, text in read.items() if text.isdigit()}


def grown(before: Counts, after: Counts) -> dict[str, int]:
    """Return what has been counted since; nothing of what began anew."""
    return {file: after[file] - before[file] for file in after if before.get(file, 0) < after[file]}


def total(found: Counts, files: Sequence[str]) -> int:
    """Return the sum of some counters."""
    return sum(found.get(file, 0) for file in files)


def damaged(found: Counts) -> int:
    """Return how many packets were bad."""
    return total(found, ("rx_errors", "tx_errors"))


def packets(found: Counts) -> int:
    """Return how many packets there were, the bad ones included."""
    return total(found, ("rx_packets", "tx_packets")) + damaged(found)


def checksums(counts: Counts) -> str:
    """Say that it is checksums, as of a bad cable."""
    crc = counts.get("rx_crc_errors", 0)
    return ", of wrong checksum, as by a bad cable" if 2 * crc > damaged(counts) else ""
