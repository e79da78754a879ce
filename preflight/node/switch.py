"""To which switches a node is wired, as they say themselves by LLDP; only who listens knows.

systemd-networkd does, without being asked, and up to 255 leaves what it heard in files
(src/network/networkd-lldp-rx.c). lldpd tells root: `lldpctl -f keyvalue`.
Sent to nodes: stdlib only, Python 3.8.
"""

from __future__ import annotations

import contextlib
import re
import struct
from pathlib import Path
from typing import Iterator

from preflight.api import Absent, Node, Unobservable

HEARD = "/run/systemd/netif/lldp"
"""A file for each interface, by its number: eight bytes of length before each frame."""
MOST = 1 << 16
"""Bytes of such a file that are read: a frame has 1500 at most."""
HEADER, KIND = 14, b"\x88\xcc"
"""Bytes before the first field, those of Ethernet; the last two tell that it is LLDP."""
END, NAME = 0, 5
"""Kinds of fields: the last one, and the name of the system."""
LLDPCTL, LLDPCTL_S = ("lldpctl", "-f", "keyvalue"), 2.0


def switches(node: Node, interface: str) -> str:
    """Return the names of the switches that an interface is wired to; empty: not known.

    Args:
        node: this one.
        interface: with those below it, as in a bond, which may be wired to several.
    """
    wired = {interface, *below(Path("/sys/class/net", interface))}
    found: set[str] = set()
    for name in wired:
        with contextlib.suppress(OSError):
            number = Path("/sys/class/net", name, "ifindex").read_text().strip()
            found.update(named(Path(HEARD, number).read_bytes()[:MOST]))
    if not found:
        with contextlib.suppress(Absent, Unobservable):
            lines = node.run(LLDPCTL, timeout_s=LLDPCTL_S).out
            told = re.findall(r"^lldp\.(.+)\.chassis\.name=(.+)$", lines, re.MULTILINE)
            found.update(switch for name, switch in told if name in wired)
    return ", ".join(sorted(found))


def below(interface: Path) -> Iterator[str]:
    """Yield the names of all interfaces that one is made of."""
    for path in interface.glob("lower_*"):
        yield path.name[len("lower_") :]
        yield from below(path)


def named(data: bytes) -> Iterator[str]:
    """Yield what frames call their senders, as far as they make sense."""
    while len(data) > 8:
        (length,) = struct.unpack_from("<Q", data)
        frame, data = data[8 : 8 + length], data[8 + length :]
        if frame[HEADER - 2 : HEADER] == KIND:
            yield from (str(name, "utf-8", "replace") for name in names(frame[HEADER:]) if name)


def names(fields: bytes) -> Iterator[bytes]:
    """Yield the names in the fields of a frame: seven bits of kind and nine of length before each.

    Source: IEEE 802.1AB-2016, 8.4.
    """
    while len(fields) >= 2:
        (head,) = struct.unpack_from(">H", fields)
        kind, length = head >> 9, head & 0x1FF
        if kind == END:
            return
        if kind == NAME:
            yield fields[2 : 2 + length]
        fields = fields[2 + length :]
