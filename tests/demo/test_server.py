"""The demo's SSH server lets one key in, runs commands, and leaves nothing when it is closed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from preflight.demo.server import HOST, Server, new_key
from preflight.errors import TransportError
from preflight.inventory import NodeSpec, SshSettings
from preflight.transport import Connection
from preflight.transport.known_hosts import host_name
from preflight.transport.ssh import SshTransport
from tests.pulled import Pulled


@contextlib.contextmanager
def server(folder: Path) -> Iterator[NodeSpec]:
    """Have a server up; gives how to log in."""
    (host, _), (client, text) = new_key(), new_key()
    (folder / "key").write_text(text)
    one = Server(host, client, {"PATH": os.defpath, "SEEN": "yes"})
    line = f"{host_name(HOST, one.port)} {host.get_name()} {host.get_base64()}\n"
    (folder / "known_hosts").write_text(line)
    try:
        yield NodeSpec(
            name="gpu01",
            address=HOST,
            ssh=SshSettings(
                user="alice",
                port=one.port,
                key=folder / "key",
                known_hosts=folder / "known_hosts",
                jump="none",
            ),
        )
    finally:
        one.close()


def said(connection: Connection, command: str, stdin: bytes = b"") -> tuple[bytes, str]:
    stream = Pulled(connection, command)
    stream.send(stdin, 10)
    stream.close_stdin()
    out = b""
    while data := stream.recv(1 << 16):
        out += data
    return out, stream.stderr_tail()


def test_commands(tmp_path: Path) -> None:
    with server(tmp_path) as spec, contextlib.closing(SshTransport().connect(spec)) as connection:
        assert said(connection, "echo $SEEN; pwd; echo oh >&2") == (b"yes\n/\n", "oh\n")
        large = os.urandom(1 << 20)
        assert said(connection, "cat", large)[0] == large


def test_another_key(tmp_path: Path) -> None:
    with server(tmp_path) as spec:
        (tmp_path / "key").write_text(new_key()[1])
        with pytest.raises(TransportError) as caught:
            SshTransport().connect(spec)
    assert caught.value.kind == "authentication refused"


def test_closed_in_the_middle(tmp_path: Path) -> None:
    """A command that does not end with its input is ended all the same."""
    pid = tmp_path / "pid"
    with server(tmp_path) as spec, contextlib.closing(SshTransport().connect(spec)) as connection:
        stream = Pulled(connection, f"echo $$ > {pid}; echo; exec tail -f /dev/null")
        assert stream.recv(1) == b"\n"
    assert not Path("/proc", pid.read_text().strip()).exists()
    with pytest.raises(TransportError) as caught:
        SshTransport().connect(spec)
    assert caught.value.kind == "refused"
