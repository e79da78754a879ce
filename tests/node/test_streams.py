"""Streams that load, with real sockets on 127.0.0.1."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from preflight.node import streams
from preflight.node.child import Opened
from preflight.node.streams import CONNECTIONS, STREAMS, Poured, Usage, draw, pour, strain, usage
from preflight.node.toolbox import Toolbox

ASK, ANSWER = "a" * 32, "b" * 32
HERE = "127.0.0.1"


@contextmanager
def pouring(ask: str = ASK) -> Iterator[tuple[int, list[Poured]]]:
    """Run `pour` in a thread; gives its port, and what it says once it has been stopped."""
    told, out = os.pipe()
    come, stop = os.pipe()
    said: list[Poured] = []
    opened = Opened(1, out, come)
    thread = threading.Thread(target=lambda: said.append(pour(Toolbox(), opened, ask, ANSWER)))
    thread.start()
    try:
        yield json.loads(os.read(told, 4096))["ready"]["port"], said
    finally:
        os.close(stop)
        thread.join(10)
        for fd in (told, out, come):
            os.close(fd)


def test_what_comes_is_measured() -> None:
    with pouring() as (port, said):
        found = draw(Toolbox(), HERE, port, ASK, ANSWER)
        again = draw(Toolbox(), HERE, port, ASK, ANSWER)
    assert (found["error"], again["error"]) == ("", "")
    assert min(found["gbps"], again["gbps"]) > 0
    assert [0 <= busy <= 1 for busy in (*found["busy"], *again["busy"])] == [True] * 4
    assert said == [{"error": ""}]


def test_who_does_not_know_the_secret_gets_nothing() -> None:
    with pouring() as (port, _):
        assert draw(Toolbox(), HERE, port, "c" * 32, ANSWER) == {
            "gbps": 0.0,
            "busy": [],
            "error": "reset",
        }
        with socket.create_connection((HERE, port), 5) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert ended(stranger)


def ended(one: socket.socket) -> bool:
    """Whether the other end hangs up without a word."""
    try:
        return one.recv(1) == b""
    except ConnectionResetError:
        return True


def test_an_answer_that_is_not_ours() -> None:
    with pouring() as (port, _):
        assert draw(Toolbox(), HERE, port, ASK, "c" * 32)["error"] == "foreign"


def test_nobody_listens() -> None:
    with socket.create_server((HERE, 0)) as server:
        port = server.getsockname()[1]
    assert draw(Toolbox(), HERE, port, ASK, ANSWER)["error"] == "refused"


def test_rubbish_instead_of_how_busy_it_is() -> None:
    def serve() -> None:
        ones = [server.accept()[0] for _ in range(STREAMS + 1)]
        for one in ones:
            streams.heard(one, len(ASK) + 1)
            one.sendall(ANSWER.encode())
        ones[0].recv(1)
        ones[0].sendall(b"rubbish\n")
        assert ended(ones[0])
        for one in ones:
            one.close()

    with socket.create_server((HERE, 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        found = draw(Toolbox(), HERE, server.getsockname()[1], ASK, ANSWER)
        thread.join(10)
    assert found["error"] == "foreign"


def test_connections_are_bounded() -> None:
    with pouring() as (port, _):
        crowd = [socket.create_connection((HERE, port), 5) for _ in range(CONNECTIONS)]
        with socket.create_connection((HERE, port), 5) as late:
            assert ended(late)
        for one in crowd:
            one.close()


@pytest.mark.parametrize(
    ("wanted", "softirq", "expected"),
    [(0.4, 5, 0.1), (3.6, 5, 0.9), (8.0, 5, 1.0), (0.4, 45, 0.9)],
)
def test_what_limits(wanted: float, softirq: int, expected: float) -> None:
    """Eight threads for half a second, of which one CPU has 50 ticks."""
    before = Usage(at=10.0, wanted_s=1.0, softirq=[0, 7], ticks=[0, 100])
    after = Usage(at=10.5, wanted_s=1.0 + wanted, softirq=[0, 7 + softirq], ticks=[50, 150])
    assert strain(before, after) == expected


def test_usage_of_this_machine() -> None:
    before = usage()
    sum(range(2_000_000))
    after = usage()
    assert after["wanted_s"] > before["wanted_s"]
    assert len(after["softirq"]) == len(after["ticks"]) == os.cpu_count()
