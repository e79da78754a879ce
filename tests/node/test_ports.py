"""Listeners, dials and holders of ports, with real sockets on 127.0.0.1."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from preflight.node.child import Opened
from preflight.node.mesh import dial
from preflight.node.ports import Listener, bound, holder, listen, written
from preflight.node.replay import Replay
from preflight.node.toolbox import Toolbox

ASK, ANSWER = "a" * 32, "b" * 32
NEVER = Opened(1, -1, -1)
"""Of a call that ends before it is in place."""


def free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        return int(server.getsockname()[1])


def dialled(port: int) -> tuple[str, str, str]:
    found = dial(Toolbox(), "127.0.0.1", port, ASK, ANSWER)
    return found["result"], found["icmp"], found["by"]


@contextmanager
def listening(port: int) -> Iterator[None]:
    """Run `listen` in a thread, with pipes as the agent has them."""
    told, out = os.pipe()
    come, stop = os.pipe()
    said: list[Listener] = []
    opened = Opened(1, out, come)
    thread = threading.Thread(
        target=lambda: said.append(listen(Toolbox(), opened, port, ASK, ANSWER))
    )
    thread.start()
    try:
        assert os.read(told, 100) == b'{"ready": {}, "id": 1}\n'
        yield
    finally:
        os.close(stop)
        thread.join(10)
        for fd in (told, out, come):
            os.close(fd)
    assert said == [{"error": "", "holder": None}]


@contextmanager
def server(act: Callable[[socket.socket], object]) -> Iterator[int]:
    """Run a listener that is not ours, and does something with the first connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                act(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        yield int(listener.getsockname()[1])
        thread.join(10)


def states(port: int) -> set[str]:
    """Return the states of all sockets on this local port."""
    lines = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    return {fields[3] for fields in lines if int(fields[1].rsplit(":", 1)[1], 16) == port}


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_our_own_listener_answers(address: str) -> None:
    port = free_port()
    with listening(port):
        found = dial(Toolbox(), address, port, ASK, ANSWER)
        again = dial(Toolbox(), address, port, ASK, ANSWER)
    assert (found["result"], found["source"]) == ("ok", address)
    assert again["result"] == "ok"
    assert states(port) == set()  # nothing stays behind, not even in TIME_WAIT


def test_who_does_not_know_the_secret_gets_nothing() -> None:
    port = free_port()
    with listening(port):
        with socket.create_connection(("127.0.0.1", port), 10) as stranger:
            stranger.sendall(b"GET / HTTP/1.0\r\n\r\n")
            with pytest.raises(ConnectionResetError):
                stranger.recv(100)
        with socket.create_connection(("127.0.0.1", port), 10) as idle:
            assert dialled(port) == ("ok", "", "")
            idle.sendall(ASK[:5].encode())
    assert states(port) == set()


def test_refused() -> None:
    assert dialled(free_port()) == ("refused", "", "")


def closes(connection: socket.socket) -> None:
    connection.recv(100)


def echoes(connection: socket.socket) -> None:
    connection.sendall(connection.recv(100))


def resets(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


@pytest.mark.parametrize(
    ("act", "expected"), [(closes, "foreign"), (echoes, "foreign"), (resets, "reset")]
)
def test_a_listener_that_is_not_ours(act: Callable[[socket.socket], object], expected: str) -> None:
    with server(act) as port:
        assert dialled(port) == (expected, "", "")


def test_a_port_that_is_held() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port = server.getsockname()[1]
        said = listen(Toolbox(), NEVER, port, ASK, ANSWER)
    assert said["error"] == "EADDRINUSE"
    assert said["holder"] is not None
    assert (said["holder"]["address"], said["holder"]["uid"]) == ("127.0.0.1", os.getuid())


def test_a_port_that_is_bound_only() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        assert listen(Toolbox(), NEVER, port, ASK, ANSWER) == {
            "error": "EADDRINUSE",
            "holder": None,
        }


def test_a_listener_takes_both_families() -> None:
    with bound(free_port()) as listener:
        port = listener.getsockname()[1]
        for address in ("127.0.0.1", "::1"):
            socket.create_connection((address, port), 10).close()


HEAD = "sl local_address rem_address st tx_queue rx_queue tr tm->when retrnsmt uid timeout inode\n"
LINE = " 0: {}:733C {}:0000 {} 00000000:00000000 00:00000000 00000000 {} 0 17 1 0 100 0 0 10 0\n"


def table(*lines: str) -> str:
    return HEAD + "".join(lines)


def recorded(tcp: str, connections: Any, process: Any = None) -> Replay:
    return Replay(
        {
            "read": {"/proc/net/tcp": tcp, "/proc/net/tcp6": None},
            "psutil": {"net_connections tcp": connections},
            "process": {"4711": process},
            "run": {"getent passwd 1001": {"out": "bob:x:1001:1001::/home/bob:/bin/sh\n"}},
            "now": {"": 1000.0},
        }
    )


LISTENS = LINE.format("0100007F", "00000000", "0A", 1001)
CONNECTED = LINE.format("0200000A", "0300000A", "01", 1001)
WAITS = LINE.format("0200000A", "0300000A", "06", 0)
SEEN = [{"laddr": {"ip": "127.0.0.1", "port": 29500}, "pid": 4711}, {"laddr": [], "pid": 9}]


def test_holder_of_another_user() -> None:
    node = recorded(table(WAITS, CONNECTED, LISTENS), [{**SEEN[0], "pid": None}])
    assert holder(node, 29500) == {
        "address": "127.0.0.1",
        "listening": True,
        "uid": 1001,
        "user": "bob",
        "pid": None,
        "program": "",
        "seconds": None,
    }


def test_holder_that_may_be_seen() -> None:
    process = {"pid": 4711, "name": "python3", "create_time": 900.0}
    found = holder(recorded(table(LISTENS), SEEN, process), 29500)
    assert found is not None
    assert (found["pid"], found["program"], found["seconds"]) == (4711, "python3", 100.0)


def test_holder_that_only_connects() -> None:
    found = holder(recorded(table(CONNECTED), []), 29500)
    assert found is not None
    assert (found["address"], found["listening"]) == ("10.0.0.2", False)


def test_holder_without_psutil() -> None:
    found = holder(recorded(table(LISTENS), {"unobservable": "psutil: none"}), 29500)
    assert found is not None
    assert (found["pid"], found["user"]) == (None, "bob")


def test_no_holder() -> None:
    assert holder(recorded(table(WAITS), []), 29500) is None


@pytest.mark.parametrize(
    ("digits", "expected"),
    [
        ("0100007F", "127.0.0.1"),
        ("00000000000000000000000001000000", "::1"),
        ("0000000000000000FFFF00000100007F", "::ffff:127.0.0.1"),
    ],
)
def test_addresses_of_the_socket_table(digits: str, expected: str) -> None:
    assert written(digits) == expected
