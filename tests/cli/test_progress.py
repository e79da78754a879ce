"""The progress line, on a terminal and elsewhere."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import pty
import struct
import termios
from collections.abc import Callable, Iterator
from typing import TextIO

from preflight.cli.progress import Meter
from preflight.run import Event, Exercising, NodeDone

NODES = [f"gpu0{n}" for n in range(1, 6)]
EVENTS: list[Event] = [
    NodeDone("gpu01", True, ""),
    NodeDone("gpu04", False, "refused"),
    NodeDone("gpu02", True, ""),
    NodeDone("gpu03", True, ""),
    NodeDone("gpu05", True, ""),
    Exercising(("network.names", "network.port", "network.ephemeral", "network.foreign")),
    Exercising(("network.port",)),
]


@contextlib.contextmanager
def terminal(width: int) -> Iterator[tuple[TextIO, Callable[[], str]]]:
    """Give a terminal to write to, and a function that closes it and says what it got."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    with os.fdopen(ours, "rb", buffering=0) as screen, os.fdopen(theirs, "w") as out:

        def got() -> str:
            out.close()
            pieces = []
            # Linux says EIO, not end of file, when the other side is closed.
            with contextlib.suppress(OSError):
                while piece := screen.read(4096):
                    pieces.append(piece)
            return b"".join(pieces).decode()

        yield out, got


def test_the_line_tells_what_happens_and_is_wiped() -> None:
    with terminal(60) as (out, got):
        with Meter(NODES, out) as meter:
            for event in EVENTS:
                meter.show(event)
        texts = [text.rstrip() for text in got().split("\r") if text]
    assert texts == [
        "connecting to 5 nodes",
        "1 of 5 nodes probed",
        "2 of 5 nodes probed, 1 not reached, waiting for gpu02 gpu03",
        "3 of 5 nodes probed, 1 not reached, waiting for gpu03 gpu05",
        "4 of 5 nodes probed, 1 not reached, waiting for gpu05",
        "5 of 5 nodes probed, 1 not reached",
        "exercising network.names, network.port, network.ephemeral a",
        "exercising network.port",
        "",
    ]


def test_interrupted_it_leaves_nothing_behind() -> None:
    with terminal(20) as (out, got):
        with contextlib.suppress(KeyboardInterrupt), Meter(NODES, out) as meter:
            meter.show(EVENTS[1])
            raise KeyboardInterrupt
        text = got()
    assert {len(part) for part in text.split("\r") if part} == {19}
    assert text.endswith("\r" + " " * 19 + "\r")
    assert not set(text) & set("\x1b\n")


def test_a_terminal_without_a_size_is_80_wide() -> None:
    with terminal(0) as (out, got):
        with Meter(NODES[:1], out):
            pass
        assert got() == f"\r{'connecting to 1 node':79}\r\r{'':79}\r"


def test_elsewhere_nothing_is_written() -> None:
    out = io.StringIO()
    with Meter(NODES, out) as meter:
        for event in EVENTS:
            meter.show(event)
    assert out.getvalue() == ""
