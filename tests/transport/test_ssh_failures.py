from __future__ import annotations

import socket
import struct
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from preflight.errors import ConfigError, TransportError
from tests.messages.aloud import Aloud
from tests.pulled import Pulled
from tests.transport.servers import (
    ME,
    AddKey,
    Client,
    Server,
    StartSshd,
    certify,
    fingerprint_of,
    free_port,
    keygen,
    public,
    run,
)

Listen = Callable[[Callable[[socket.socket], None]], int]


def failure(client: Client, port: int | None, **ssh: Any) -> TransportError:
    """Return why a login failed; it must."""
    with pytest.raises(TransportError) as caught:
        client.connect(port, **ssh)
    return caught.value


def test_a_name_that_does_not_resolve(client: Client, aloud: Aloud) -> None:
    aloud(failure(client, 22, address="gpu01.invalid"))
    assert failure(client, 22, address="gpu..01").kind == "unresolved"


def test_refused(client: Client, aloud: Aloud) -> None:
    aloud(failure(client, free_port()))


def test_filtered(client: Client, aloud: Aloud) -> None:
    # a listener whose queue is full drops what comes, as a firewall does
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        waiting = [socket.socket() for _ in range(4)]
        for sock in waiting:
            sock.setblocking(False)
            with suppress(BlockingIOError):
                sock.connect(("127.0.0.1", port))
        error = failure(client, port, connect_timeout_s=0.2)
        for sock in waiting:
            sock.close()
    aloud(error)


def test_a_network_without_a_route(client: Client, aloud: Aloud) -> None:
    # 240.0.0.0/4 is reserved: Linux refuses to route to it, and sends nothing
    aloud(failure(client, 22, address="255.255.255.255"))


def test_a_silent_server(client: Client, listen: Listen, aloud: Aloud) -> None:
    port = listen(lambda sock: wait_for_end(sock))
    aloud(failure(client, port, login_timeout_s=0.3))


def test_a_server_that_hangs_up_at_once(client: Client, listen: Listen) -> None:
    port = listen(lambda sock: sock.close())
    error = failure(client, port)
    assert error.kind == "closed"
    assert error.message == (
        f"127.0.0.1:{port}: the connection was closed before the server said anything"
    )


def test_a_server_of_another_protocol(client: Client, listen: Listen, aloud: Aloud) -> None:
    def http(sock: socket.socket) -> None:
        sock.recv(100)
        sock.sendall(b"HTTP/1.1 400 Bad \x1b[31mRequest\r\n\r\n\xff" + b"x" * 500)

    aloud(failure(client, listen(http), login_timeout_s=2))


def test_a_server_that_dribbles(client: Client, listen: Listen, aloud: Aloud) -> None:
    def dribble(sock: socket.socket) -> None:
        sock.sendall(b"SSH-2.0-")
        pause = threading.Event()
        while not pause.wait(0.01):
            sock.sendall(b"x")

    aloud(failure(client, listen(dribble), login_timeout_s=2))


def test_a_server_that_hangs_after_its_banner(client: Client, listen: Listen) -> None:
    def greet(sock: socket.socket) -> None:
        sock.sendall(b"SSH-2.0-OpenSSH_9.9\r\n")
        wait_for_end(sock)

    port = listen(greet)
    error = failure(client, port, login_timeout_s=2)
    assert error.kind == "login timeout"
    assert error.message == f"127.0.0.1:{port}: the login did not end within 2 s"


def test_a_server_that_resets_during_the_login(client: Client, listen: Listen) -> None:
    def reset(sock: socket.socket) -> None:
        sock.sendall(b"SSH-2.0-OpenSSH_9.9\r\n")
        sock.recv(10)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    port = listen(reset)
    error = failure(client, port)
    assert error.kind == "lost"
    assert error.message.startswith(f"127.0.0.1:{port}: connection lost during the login")


def test_a_login_that_hangs_in_authentication(sshd: StartSshd, client: Client) -> None:
    server = sshd(f"AuthorizedKeysCommand /bin/sleep 60\nAuthorizedKeysCommandUser {ME}")
    client.knows(server.known())
    (client.home / "authorized_keys").write_text("")
    error = failure(client, server.port, login_timeout_s=1)
    assert error.kind == "login timeout"
    assert error.message == f"127.0.0.1:{server.port}: the login did not end within 1 s"


def test_no_common_algorithm(sshd: StartSshd, client: Client, aloud: Aloud) -> None:
    server = sshd("KexAlgorithms sntrup761x25519-sha512@openssh.com")
    client.knows(server.known())
    aloud(failure(client, server.port))


def test_an_unknown_host_key(sshd: StartSshd, client: Client, aloud: Aloud) -> None:
    server = sshd()
    error = failure(client, server.port)
    assert fingerprint_of(server.host_keys["ed25519"]) in error.message
    aloud(error)


def test_the_command_of_the_hint_mends_it(sshd: StartSshd, client: Client) -> None:
    server = sshd()
    error = failure(client, server.port)
    command = error.hint.split("then: ")[1].split(";")[0]
    subprocess.run(command, shell=True, check=True, capture_output=True)
    client.connect(server.port).close()


def test_an_unknown_host_key_for_which_only_an_authority_is_known(
    sshd: StartSshd, client: Client, aloud: Aloud
) -> None:
    server = sshd()
    authority = public(keygen(client.home / "authority"))
    client.knows(f"@cert-authority * {authority}")
    aloud(failure(client, server.port))


@pytest.mark.parametrize("policy", ["strict", "accept-new"])
def test_a_changed_host_key(sshd: StartSshd, client: Client, aloud: Aloud, policy: str) -> None:
    server = sshd()
    old = keygen(client.home / "old")
    client.knows("# mine\n", f"[127.0.0.1]:{server.port} {public(old)}")
    before = client.known_hosts.read_bytes()
    error = failure(client, server.port, host_keys=policy)
    assert fingerprint_of(old) in error.message
    assert fingerprint_of(server.host_keys["ed25519"]) in error.message
    aloud(error)
    assert client.known_hosts.read_bytes() == before


@pytest.mark.parametrize("policy", ["strict", "accept-new"])
def test_a_revoked_host_key(sshd: StartSshd, client: Client, aloud: Aloud, policy: str) -> None:
    server = sshd()
    client.knows(server.known(), f"@revoked * {public(server.host_keys['ed25519'])}")
    aloud(failure(client, server.port, host_keys=policy))


def test_refused_tells_what_was_tried_and_what_the_server_allows(
    sshd: StartSshd, client: Client, agent: AddKey, aloud: Aloud
) -> None:
    held = keygen(client.home / "held")
    agent(held)
    authority = keygen(client.home / "authority")
    certify(authority, client.home / "key", ME)
    client.config("IdentityFile ~/key\nIdentityFile ~/none\n")
    (client.home / "authorized_keys").write_text("")
    server = sshd()
    client.knows(server.known())
    aloud(failure(client, server.port, key=None))


def test_refused_without_any_key(sshd: StartSshd, client: Client, aloud: Aloud) -> None:
    server = sshd()
    client.knows(server.known())
    aloud(failure(client, server.port, key=None))


def test_refused_for_a_user_that_is_not_there(
    sshd: StartSshd, client: Client, aloud: Aloud
) -> None:
    server = sshd()
    client.knows(server.known())
    aloud(failure(client, server.port, user="no\u202ebody"))


def test_a_server_that_takes_passwords_only(sshd: StartSshd, client: Client, aloud: Aloud) -> None:
    server = sshd("PubkeyAuthentication no\nPasswordAuthentication yes")
    client.knows(server.known())
    aloud(failure(client, server.port))


def test_a_server_that_wants_two_keys_gets_them(sshd: StartSshd, client: Client) -> None:
    second = keygen(client.home / "second")
    with (client.home / "authorized_keys").open("a") as file:
        file.write(public(second))
    client.config("IdentityFile ~/key\nIdentityFile ~/second\n")
    server = sshd("AuthenticationMethods publickey,publickey")
    client.knows(server.known())
    connection = client.connect(server.port, key=None)
    assert connection.facts["auth"] == "publickey ~/second"
    connection.close()


def test_too_many_authentication_failures(sshd: StartSshd, client: Client, aloud: Aloud) -> None:
    names = [f"key{number}" for number in range(4)]
    for name in names:
        keygen(client.home / name)
    client.config("".join(f"IdentityFile ~/{name}\n" for name in (*names, "key")))
    server = sshd("MaxAuthTries 3")
    client.knows(server.known())
    aloud(failure(client, server.port, key=None))


@pytest.mark.parametrize("form", ["RFC4716", "PEM", "PKCS8"])
def test_a_key_with_a_passphrase_and_no_agent(
    sshd: StartSshd, client: Client, aloud: Aloud, form: str
) -> None:
    key = keygen(client.home / "locked", "-m", form, kind="rsa", passphrase="secret")
    server = sshd()
    client.knows(server.known())
    aloud(failure(client, server.port, key=key))


def test_a_key_with_a_passphrase_that_the_agent_lacks(
    sshd: StartSshd, client: Client, agent: AddKey, aloud: Aloud
) -> None:
    agent(client.home / "key")
    key = keygen(client.home / "locked", passphrase="secret")
    server = sshd()
    client.knows(server.known())
    aloud(failure(client, server.port, key=key))


def test_a_key_of_a_kind_that_only_an_agent_can_use(
    sshd: StartSshd, client: Client, aloud: Aloud
) -> None:
    key = keygen(client.home / "old", kind="dsa")
    server = sshd()
    client.knows(server.known())
    aloud(failure(client, server.port, key=key))


def test_an_agent_that_is_gone(
    sshd: StartSshd, client: Client, monkeypatch: pytest.MonkeyPatch, aloud: Aloud
) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", str(client.home / "gone"))
    server = sshd()
    client.knows(server.known())
    client.connect(server.port).close()
    aloud(failure(client, server.port, key=None))


def test_key_files_of_no_use(sshd: StartSshd, client: Client, aloud: Aloud) -> None:
    server = sshd()
    client.knows(server.known())
    text = client.home / "text"
    text.write_text("not a key")
    cut = client.home / "cut"
    cut.write_text((client.home / "key").read_text()[:200] + "\n-----END OPENSSH PRIVATE KEY-----")
    public_half = client.home / "key.pub"
    paths = (text, cut, client.home / "none", client.home, public_half)
    aloud(*(failure(client, server.port, key=path) for path in paths))


def test_validate_names_what_is_missing(client: Client, aloud: Aloud) -> None:
    text = client.home / "text"
    text.write_text("not a key")
    folder = client.home / "folder"
    folder.mkdir()
    told = []
    for settings in ({"key": "~/none"}, {"key": folder}, {"key": text}, {"known_hosts": folder}):
        with pytest.raises(ConfigError) as caught:
            client.transport().validate([client.spec(1, **settings)])
        told.append(caught.value)
    aloud(*told)


def test_an_unreadable_known_hosts_file_contacts_nobody(
    client: Client, listen: Listen, aloud: Aloud
) -> None:
    contacted = threading.Event()
    port = listen(lambda _: contacted.set())
    client.known_hosts.mkdir()
    aloud(failure(client, port))
    assert not contacted.is_set()


def jump(server: Server) -> str:
    return f"{ME}@127.0.0.1:{server.port}"


def test_a_target_that_the_jump_host_cannot_reach(
    sshd: StartSshd, client: Client, aloud: Aloud
) -> None:
    bastion = sshd()
    client.knows(bastion.known())
    through = jump(bastion)
    aloud(
        failure(client, free_port(), jump=through),
        failure(client, 22, address="gpu01.invalid", jump=through),
    )


def test_a_jump_host_that_does_not_forward(sshd: StartSshd, client: Client, aloud: Aloud) -> None:
    bastion = sshd("AllowTcpForwarding no")
    client.knows(bastion.known())
    aloud(failure(client, free_port(), jump=jump(bastion)))


def test_a_jump_host_that_is_down_or_unknown_is_named(
    sshd: StartSshd, client: Client, aloud: Aloud
) -> None:
    down = failure(client, 22, jump=f"{ME}@127.0.0.1:{free_port()}")
    bastion, node = sshd(), sshd()
    client.knows(node.known())
    aloud(down, failure(client, node.port, jump=jump(bastion)))


def test_a_jump_host_is_not_tried_again_after_it_failed(
    client: Client, listen: Listen, aloud: Aloud
) -> None:
    contacts: list[int] = []

    def count(sock: socket.socket) -> None:
        contacts.append(1)
        sock.close()

    port = listen(count)
    transport, spec = client.transport(), client.spec(22, jump=f"{ME}@127.0.0.1:{port}")
    for _ in range(3):
        with pytest.raises(TransportError) as caught:
            transport.connect(spec)
        aloud(caught.value)
    assert contacts == [1]


def test_the_host_key_behind_a_jump_is_verified(
    sshd: StartSshd, client: Client, aloud: Aloud
) -> None:
    bastion, node = sshd(), sshd()
    client.knows(bastion.known())
    aloud(failure(client, node.port, jump=jump(bastion)))


def test_a_jump_host_that_dies_takes_its_nodes_with_it(
    sshd: StartSshd, client: Client, aloud: Aloud
) -> None:
    bastion, node = sshd(), sshd()
    client.knows(bastion.known(), node.known())
    transport = client.transport()
    spec = client.spec(node.port, jump=jump(bastion))
    connection = transport.connect(spec)
    stream = Pulled(connection, "exec cat")
    for process in bastion.logins():
        with suppress(psutil.NoSuchProcess):
            process.kill()
    with pytest.raises(TransportError) as caught:
        stream.recv(1)
    with pytest.raises(TransportError) as started:
        Pulled(connection, "true")
    aloud(caught.value, started.value)
    again = transport.connect(spec)
    assert run(again, "echo back") == b"back\n"
    again.close()
    connection.close()


def test_the_first_of_two_jump_hosts_that_dies_is_named(
    sshd: StartSshd, client: Client, aloud: Aloud
) -> None:
    first, second, node = sshd(), sshd(), sshd()
    client.knows(first.known(), second.known(), node.known())
    spec = client.spec(node.port, jump=f"{jump(first)},{jump(second)}")
    connection = client.transport().connect(spec)
    stream = Pulled(connection, "exec cat")
    for process in first.logins():
        with suppress(psutil.NoSuchProcess):
            process.kill()
    with pytest.raises(TransportError) as caught:
        stream.recv(1)
    connection.close()
    assert f"127.0.0.1:{first.port}" in caught.value.hint
    aloud(caught.value)


def test_a_loop_of_jump_hosts(client: Client, aloud: Aloud) -> None:
    client.config("Host *\n  ProxyJump bastion\n")
    aloud(failure(client, 22))


def test_a_proxy_command_that_fails(client: Client, aloud: Aloud) -> None:
    client.config("ProxyCommand sh -c 'printf \"no \\\\033way\" >&2; exit 1' %%h\n")
    aloud(failure(client, 22))


def test_a_proxy_command_that_hangs_is_ended(client: Client, aloud: Aloud) -> None:
    client.config(f"ProxyCommand sh -c 'echo $$ > {client.home}/pid; exec sleep 60'\n")
    error = failure(client, 22, login_timeout_s=3)
    aloud(error)
    pid = (client.home / "pid").read_text().strip()
    assert not Path(f"/proc/{pid}").exists()


def test_a_port_or_token_that_cannot_be_used(client: Client, aloud: Aloud) -> None:
    told = []
    for line in (
        "ProxyJump a:b:z", "Port ssh", "IdentityFile ~/%Z", "IdentityFile ${NONE_SUCH}/a"
    ):  # fmt: skip
        client.config(f"{line}\n")
        told.append(failure(client, None))
    aloud(*told)


def wait_for_end(sock: socket.socket) -> None:
    while sock.recv(4096):
        pass
