"""Many listeners and many dials at once, with real sockets on 127.0.0.1."""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import pytest

from preflight.api import Reply
from preflight.node.child import Opened
from preflight.node.icmp import ERROR, ICMP, ICMP6, offender, turned_away
from preflight.node.mesh import (
    IN_FLIGHT,
    Held,
    briefly,
    dial_all,
    hold,
    in_words,
    of_asked,
)
from preflight.node.toolbox import Toolbox

ASK, ANSWER = "a" * 32, "b" * 32


@contextmanager
def holding(*ports: int) -> Iterator[tuple[list[int], list[Held]]]:
    """Run `hold` in a thread; gives its ports, and what it says once it has been stopped."""
    told, out = os.pipe()
    come, stop = os.pipe()
    said: list[Held] = []
    opened = Opened(1, out, come)
    thread = threading.Thread(
        target=lambda: said.append(hold(Toolbox(), opened, ports, ASK, ANSWER))
    )
    thread.start()
    try:
        yield json.loads(os.read(told, 4096))["ready"]["ports"], said
    finally:
        os.close(stop)
        thread.join(10)
        for fd in (told, out, come):
            os.close(fd)


def dialled(targets: dict[str, tuple[str, list[int]]]) -> dict[str, list[str]]:
    found = dial_all(Toolbox(), targets, ASK, ANSWER)
    return {name: [one["result"] for one in got] for name, got in found.items()}


def free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        return int(server.getsockname()[1])


def test_all_of_ours() -> None:
    with holding(0, 0) as (one, _), holding(0) as (other, said):
        assert len({*one, *other}) == 3
        assert dialled(
            {"a": ("127.0.0.1", one), "b": ("127.0.0.1", other), "c": ("::1", other), "d": ("", [])}
        ) == {"a": ["ok", "ok"], "b": ["ok"], "c": ["ok"], "d": []}
    (held,) = said
    assert held == {
        "listeners": [{"error": "", "holder": None}],
        "ports": other,
        "strangers": [],
    }


def test_each_has_its_own_answer() -> None:
    """A listener that is not ours, one that says nothing, one that is full, and none."""
    with ExitStack() as ending:
        mute = ending.enter_context(closing(socket.create_server(("127.0.0.1", 0))))
        rude = ending.enter_context(closing(socket.create_server(("127.0.0.1", 0))))
        full = ending.enter_context(closing(socket.create_server(("127.0.0.1", 0), backlog=0)))
        held = ending.enter_context(
            closing(socket.create_connection(full.getsockname()))
        )  # fills the queue
        assert held.fileno() > 0

        def shout() -> None:
            connection, _ = rude.accept()
            with connection:
                connection.sendall(b"220 mail.example ESMTP, not the secret you asked for")

        thread = threading.Thread(target=shout)
        thread.start()
        ports, _ = ending.enter_context(holding(0))
        found = dialled(
            {
                "ours": ("127.0.0.1", ports),
                "mute": ("127.0.0.1", [mute.getsockname()[1]]),
                "rude": ("127.0.0.1", [rude.getsockname()[1]]),
                "full": ("127.0.0.1", [full.getsockname()[1]]),
                "none": ("127.0.0.1", [free_port()]),
            }
        )
        thread.join(10)
    assert found == {
        "ours": ["ok"],
        "mute": ["silent"],
        "rude": ["foreign"],
        "full": ["filtered"],
        "none": ["refused"],
    }


def test_who_is_silent_at_first_is_dialled_once_more() -> None:
    """A full listener that takes others in meanwhile, and one that answers the second only."""
    with ExitStack() as ending:
        full = ending.enter_context(closing(socket.create_server(("127.0.0.1", 0), backlog=0)))
        busy = ending.enter_context(closing(socket.create_server(("127.0.0.1", 0))))
        held = socket.create_connection(full.getsockname())  # fills the queue

        def wake_up() -> None:
            first, _ = busy.accept()
            with first:
                second, _ = busy.accept()  # so the first dials are over
            with closing(held), full.accept()[0]:
                pass
            for connection in (second, full.accept()[0]):
                with connection:
                    assert connection.recv(100) == ASK.encode()
                    connection.sendall(ANSWER.encode())

        thread = threading.Thread(target=wake_up)
        thread.start()
        there = {"full": full, "busy": busy}
        targets = {name: ("127.0.0.1", [one.getsockname()[1]]) for name, one in there.items()}
        found = dial_all(Toolbox(), {**targets, "none": ("127.0.0.1", [free_port()])}, ASK, ANSWER)
        thread.join(10)
    told = {name: (one["result"], one.get("tries")) for name, (one,) in found.items()}
    assert told == {"full": ("ok", 2), "busy": ("ok", 2), "none": ("refused", None)}


def test_more_than_are_under_way_at_once() -> None:
    count = IN_FLIGHT + 40
    with holding(0) as (ports, said):
        found = dialled({f"n{number}": ("127.0.0.1", ports) for number in range(count)})
    assert found == {f"n{number}": ["ok"] for number in range(count)}
    assert said[0]["strangers"] == []


def test_what_is_no_address_costs_itself_only() -> None:
    with holding(0) as (ports, _):
        found = dialled({"a": ("not an address", [1]), "b": ("127.0.0.1", ports)})
    assert found["b"] == ["ok"]
    assert found["a"] not in (["ok"], ["filtered"])


def test_strangers_are_counted() -> None:
    with holding(0) as (ports, said):
        for words in (b"GET / HTTP/1.0\r\n\r\n", b"", ASK[:7].encode(), b"\x16\x03\x01"):
            with socket.create_connection(("127.0.0.1", ports[0]), 10) as stranger:
                stranger.sendall(words)
        with socket.create_connection(("::1", ports[0]), 10) as idle:
            assert dialled({"a": ("127.0.0.1", ports)}) == {"a": ["ok"]}
            assert idle.fileno() > 0
    several, silent = sorted(said[0]["strangers"], key=lambda one: one["address"])
    assert several["said"] in ("GET / HTTP/1.0\\r\\n", ASK[:7], "\\x16\\x03\\x01")
    assert (several["address"], several["port"], several["count"]) == ("127.0.0.1", ports[0], 4)
    assert silent == {"address": "::1", "port": ports[0], "count": 1, "said": ""}


def test_a_port_that_is_taken_costs_itself_only() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        taken = int(server.getsockname()[1])
        with holding(taken, 0) as (ports, said):
            assert ports[0] == 0
            assert dialled({"a": ("127.0.0.1", ports[1:])}) == {"a": ["ok"]}
    first, second = said[0]["listeners"]
    assert (first["error"], second["error"]) == ("EADDRINUSE", "")
    assert first["holder"] is not None
    assert first["holder"]["uid"] == os.getuid()


class Queue:
    """A socket with a message in its error queue."""

    def __init__(self, *data: bytes) -> None:
        self._data = data

    def recvmsg(self, *_: int) -> tuple[bytes, list[tuple[int, int, bytes]], int, None]:
        if not self._data:
            raise BlockingIOError
        return b"", [(0, 11, one) for one in self._data], 0, None


V4 = struct.pack("=HH4s8x", socket.AF_INET, 0, socket.inet_aton("10.0.0.254"))
V6 = struct.pack("=HHI16sI", socket.AF_INET6, 0, 0, socket.inet_pton(socket.AF_INET6, "fd00::1"), 0)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ([], ("", "")),
        ([b"cut"], ("", "")),
        ([struct.pack(ERROR, 113, 1, 0, 0, 0, 0, 0)], ("", "")),  # this machine's own word
        (
            [struct.pack(ERROR, 113, ICMP, 3, 13, 0, 0, 0) + V4],
            ("administratively prohibited", "10.0.0.254"),
        ),
        ([struct.pack(ERROR, 111, ICMP6, 1, 4, 0, 0, 0) + V6], ("port unreachable", "fd00::1")),
        ([struct.pack(ERROR, 111, ICMP, 3, 77, 0, 0, 0)], ("type 3 code 77", "")),
    ],
)
def test_icmp(data: list[bytes], expected: tuple[str, str]) -> None:
    one: Any = Queue(*data)
    assert turned_away(one) == expected


def test_an_offender_of_no_kind() -> None:
    assert offender(b"") == offender(b"\x01") == offender(struct.pack("=H", 99) + b"x" * 30) == ""


def test_who_tells_of_what_was_not_asked_makes_no_sense() -> None:
    sound = Reply({"a": [], "b": []})
    assert of_asked(sound, {"a": 1, "b": 2, "c": 3}) is sound
    silent = Reply(None, {"kind": "timeout", "message": "no answer within 10 s"})
    assert of_asked(silent, {}) is silent
    assert of_asked(sound, ["a"]).value is None
    assert of_asked(Reply({"b" * 100: []}), ["a"]).problem == {
        "kind": "garbled",
        "message": "its answer cannot be understood:"
        f" it tells of '{'b' * 60}', which was not asked about",
    }


def test_words() -> None:
    rejected = {"result": "unreachable", "icmp": "host prohibited", "by": "10.0.0.3", "ms": 1.0}
    assert in_words(rejected) == "rejected by 10.0.0.3, as by a firewall (ICMP host prohibited)"
    assert briefly(rejected) == "rejected"
    assert briefly({**rejected, "icmp": ""}) == "unreachable"
    assert briefly({"result": "ok", "icmp": ""}) == ""
    assert briefly({"result": "filtered", "icmp": ""}) == "no answer"
    assert in_words({"result": "ENOBUFS", "icmp": ""}) == "ENOBUFS"
