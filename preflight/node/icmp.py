"""The ICMP message behind a socket's error. Sent to nodes: stdlib, Python 3.8."""

from __future__ import annotations

import socket
import struct

RECVERR = {
    int(socket.AF_INET): (socket.IPPROTO_IP, 11),
    int(socket.AF_INET6): (socket.IPPROTO_IPV6, 25),
}
"""IP_RECVERR and IPV6_RECVERR of linux/in.h and in6.h: errors come with the ICMP message that says
so; of a TCP connection that is being made since Linux 5.9 (tcp_v4_err)."""
ERROR = "=IBBBBII"
"""struct sock_extended_err of linux/errqueue.h: errno, origin, type, code, pad, info, data."""
ICMP, ICMP6 = 2, 3
"""SO_EE_ORIGIN_ICMP and SO_EE_ORIGIN_ICMP6."""
CODES = {
    (ICMP, 3, 0): "network unreachable",
    (ICMP, 3, 1): "host unreachable",
    (ICMP, 3, 2): "protocol unreachable",
    (ICMP, 3, 3): "port unreachable",
    (ICMP, 3, 9): "network prohibited",
    (ICMP, 3, 10): "host prohibited",
    (ICMP, 3, 13): "administratively prohibited",
    (ICMP6, 1, 0): "no route",
    (ICMP6, 1, 1): "administratively prohibited",
    (ICMP6, 1, 3): "address unreachable",
    (ICMP6, 1, 4): "port unreachable",
    (ICMP6, 1, 5): "source address refused",
    (ICMP6, 1, 6): "route rejected",
}
"""RFC 792, 1812 and 4443, by origin, type and code."""
NEIGHBOUR = ("host unreachable", "address unreachable")
"""Messages about a neighbour that is not there."""


def turned_away(one: socket.socket) -> tuple[str, str]:
    """Return the ICMP message behind a socket's error, and who sent it; empty: none is told."""
    try:
        _, told, _, _ = one.recvmsg(1, 512, socket.MSG_ERRQUEUE)
    except (OSError, AttributeError):
        return "", ""
    for _, _, data in told:
        if len(data) >= struct.calcsize(ERROR):
            _, origin, kind, code, *_ = struct.unpack_from(ERROR, data)
            if origin in (ICMP, ICMP6):
                words = CODES.get((origin, kind, code), f"type {kind} code {code}")
                by = offender(data[struct.calcsize(ERROR) :])
                # its own kernel says so where nobody answers ARP (ipv4_link_failure)
                own = words in NEIGHBOUR and by == one.getsockname()[0]
                return ("", "") if own else (words, by)
    return "", ""


def offender(raw: bytes) -> str:
    """Return the address in a sockaddr: who sent an ICMP message."""
    family = struct.unpack_from("=H", raw)[0] if len(raw) >= 2 else 0
    if family == socket.AF_INET and len(raw) >= 8:
        return socket.inet_ntop(socket.AF_INET, raw[4:8])
    if family == socket.AF_INET6 and len(raw) >= 24:
        return socket.inet_ntop(socket.AF_INET6, raw[8:24])
    return ""
