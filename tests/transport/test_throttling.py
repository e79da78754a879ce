"""Servers that turn logins away for the moment."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest

from preflight.errors import TransportError
from tests.messages.aloud import Aloud
from tests.transport.servers import ME, WAIT_S, Client, Server, StartSshd, run

Listen = Callable[[Callable[[socket.socket], None]], int]
HINT = (
    "raise MaxStartups in its sshd_config, see PerSourceMaxStartups and PerSourcePenalties there; "
    "or lower ssh.fanout"
)


@contextmanager
def crowded(server: Server) -> Iterator[socket.socket]:
    """Take the only place for a login that an sshd with MaxStartups 1 has."""
    wait_for_room(server)
    with closing(socket.create_connection(("127.0.0.1", server.port))) as sock:
        assert sock.recv(4) == b"SSH-"
        yield sock


def wait_for_log(server: Server, word: str) -> None:
    late = threading.Event()
    timer = threading.Timer(WAIT_S, late.set)
    timer.start()
    while word not in server.log.read_text() and not late.wait(0.01):
        pass
    timer.cancel()
    assert word in server.log.read_text()


def turned_away(server: Server) -> str:
    return f"127.0.0.1:{server.port}: the server turns logins away, it says 'Exceeded MaxStartups'"


def test_a_server_that_is_crowded_for_a_moment(sshd: StartSshd, client: Client) -> None:
    server = sshd("MaxStartups 1")
    client.knows(server.known())
    with crowded(server) as sock:

        def leave() -> None:
            wait_for_log(server, "MaxStartups")
            sock.shutdown(socket.SHUT_RDWR)

        leaving = threading.Thread(target=leave)
        leaving.start()
        connection = client.connect(server.port)
        leaving.join()
    assert run(connection, "echo in") == b"in\n"
    connection.close()


def test_a_server_that_stays_crowded(sshd: StartSshd, client: Client) -> None:
    server = sshd("MaxStartups 1")
    client.knows(server.known())
    with crowded(server), pytest.raises(TransportError) as caught:
        client.connect(server.port)
    error = caught.value
    assert (error.kind, error.message, error.hint) == ("throttled", turned_away(server), HINT)


def test_a_server_that_punishes(client: Client, listen: Listen, aloud: Aloud) -> None:
    contacts: list[int] = []

    def refuse(sock: socket.socket) -> None:
        contacts.append(1)
        sock.sendall(b"Not allowed at this time\r\n")
        sock.recv(1)  # closing with something unread would be a reset

    port = listen(refuse)
    with pytest.raises(TransportError) as caught:
        client.connect(port)
    assert len(contacts) == 2
    aloud(caught.value)


def test_a_jump_host_that_was_crowded_once_is_tried_for_the_next_node(
    sshd: StartSshd, client: Client
) -> None:
    bastion, node = sshd("MaxStartups 1"), sshd()
    client.knows(bastion.known(), node.known())
    transport = client.transport()
    spec = client.spec(node.port, jump=f"{ME}@127.0.0.1:{bastion.port}")
    with crowded(bastion), pytest.raises(TransportError) as caught:
        transport.connect(spec)
    assert caught.value.kind == "throttled"
    assert caught.value.message == f"jump host 127.0.0.1: {turned_away(bastion)}"
    wait_for_room(bastion)
    connection = transport.connect(spec)
    assert run(connection, "echo in") == b"in\n"
    connection.close()


def wait_for_room(server: Server) -> None:
    """Wait until the connection that took the place is gone."""
    late = threading.Event()
    timer = threading.Timer(WAIT_S, late.set)
    timer.start()
    while server.logins() and not late.wait(0.01):
        pass
    timer.cancel()
    assert server.logins() == []


def test_a_jump_host_that_stays_crowded_is_given_up(client: Client, listen: Listen) -> None:
    contacts: list[int] = []

    def refuse(sock: socket.socket) -> None:
        contacts.append(1)
        sock.sendall(b"Exceeded MaxStartups\r\n")
        sock.recv(1)

    port = listen(refuse)
    transport, spec = client.transport(), client.spec(22, jump=f"{ME}@127.0.0.1:{port}")
    for _ in range(5):
        with pytest.raises(TransportError) as caught:
            transport.connect(spec)
        assert caught.value.kind == "throttled"
    assert len(contacts) == 6  # three nodes, each asked twice
