"""Relays frames between two devices, and delays some of them: for kernels without sch_netem.

Its arguments: both devices, milliseconds, `in`, `out` or `both` (`out` is from the first device to
the second), and an IPv4 address that delayed packets must bear, or nothing.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import select
import socket
import sys
import time

ETH_P_ALL = 3
PACKET_VNET_HDR, SOL_PACKET, PACKET_IGNORE_OUTGOING = 15, 263, 23
OFFSET = 10
"""Bytes of struct virtio_net_hdr, which carries what is not yet done of checksums and segments."""


def main(first: str, second: str, ms: str, direction: str, address: str) -> None:
    """Relay until killed, before all else that the machine does, so that a delay is what it is."""
    with contextlib.suppress(PermissionError):  # of a container
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    ends = [opened(first), opened(second)]
    delays = [float(ms) / 1000 if direction in (way, "both") else 0.0 for way in ("out", "in")]
    bearing = socket.inet_aton(address) if address else b""
    late: list[tuple[float, int, int, bytes]] = []
    poller, count = select.poll(), 0
    for end in ends:
        poller.register(end, select.POLLIN)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while True:
        wait = max(0.0, late[0][0] - time.monotonic()) * 1000 if late else None
        ready = {fd for fd, _ in poller.poll(wait)}
        for number, end in enumerate(ends):
            while end.fileno() in ready:
                try:
                    frame = end.recv(1 << 17)
                except BlockingIOError:
                    break
                count += 1
                addresses = frame[OFFSET + 26 : OFFSET + 34]
                delayed = not bearing or bearing in (addresses[:4], addresses[4:])
                due = time.monotonic() + (delays[number] if delayed else 0.0)
                heapq.heappush(late, (due, count, 1 - number, frame))
        while late and late[0][0] <= time.monotonic():
            _, _, to, frame = heapq.heappop(late)
            with contextlib.suppress(OSError):
                ends[to].send(frame)


def opened(device: str) -> socket.socket:
    """Return a socket that takes and gives a device's frames."""
    one = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    one.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    one.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 24)
    one.setblocking(False)
    one.bind((device, ETH_P_ALL))
    return one


main(*sys.argv[1:6])
