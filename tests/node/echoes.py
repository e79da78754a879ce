"""Echoes as they run on nodes, and one that loses what is large."""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from preflight.node.child import Opened
from preflight.node.toolbox import Toolbox
from preflight.node.udp import ASK, REPLY, echo

SAID, BACK = "ab" * 16, "cd" * 16
"""The secrets."""


@contextmanager
def echoing(address: str = "127.0.0.1") -> Iterator[int]:
    """Run an echo in a thread; gives its port."""
    told, out = os.pipe()
    come, stop = os.pipe()
    opened = Opened(1, out, come)
    thread = threading.Thread(target=lambda: echo(Toolbox(), opened, address, SAID, BACK))
    thread.start()
    try:
        yield json.loads(os.read(told, 4096))["ready"]["port"]
    finally:
        os.close(stop)
        thread.join(10)
        for fd in (told, out, come):
            os.close(fd)


@contextmanager
def answering(answer: Callable[[bytes, int], bytes | None]) -> Iterator[int]:
    """Answer datagrams, given each and how many came before; with None not at all. Gives a port."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.bind(("127.0.0.1", 0))
        thread = threading.Thread(target=answer_all, args=(one, answer))
        thread.start()
        try:
            yield int(one.getsockname()[1])
        finally:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
                last.sendto(b"end", one.getsockname())
            thread.join(10)


def answer_all(one: socket.socket, answer: Callable[[bytes, int], bytes | None]) -> None:
    """Answer until told to end."""
    count = 0
    while True:
        data, whence = one.recvfrom(65536)
        if data == b"end":
            return
        said = answer(data, count)
        count += 1
        if said is not None:
            one.sendto(said, whence)


def reply(data: bytes, come: int, secret: str = BACK, dropped: int = 0) -> bytes:
    """Return what our echo says to a datagram."""
    _, talk, number = struct.unpack_from(ASK, data)
    said = (talk, number, len(data), come + 1, dropped, 0)
    return struct.pack(REPLY, bytes.fromhex(secret), *said)
