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


def told(error: TransportError) -> tuple[str, str, str]:
    return error.kind, error.message, error.hint


def test_a_name_that_does_not_resolve(client: Client) -> None:
    error = failure(client, 22, address="gpu01.invalid")
    assert error.kind == "unresolved"
    assert error.message.startswith("'gpu01.invalid' does not resolve: ")
    assert error.hint == "see `getent hosts`, and HostName in ~/.ssh/config"


def test_refused(client: Client) -> None:
    port = free_port()
    assert told(failure(client, port)) == (
        "refused",
        f"127.0.0.1:{port}: connection refused",
        "see that sshd runs there and that the port is right",
    )


def test_filtered(client: Client) -> None:
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
    assert told(error) == (
        "filtered",
        f"127.0.0.1:{port}: no answer within 0.2 s",
        "the machine is off, the address is wrong, or a firewall drops the packets",
    )


def test_a_network_without_a_route(client: Client) -> None:
    # 240.0.0.0/4 is reserved: Linux refuses to route to it, and sends nothing
    error = failure(client, 22, address="255.255.255.255")
    assert told(error) == (
        "network unreachable",
        "255.255.255.255:22: network unreachable",
        "see `ip route` on this machine: no route leads to that network",
    )


def test_a_silent_server(client: Client, listen: Listen) -> None:
    port = listen(lambda sock: wait_for_end(sock))
    assert told(failure(client, port, login_timeout_s=0.3)) == (
        "silent",
        f"127.0.0.1:{port}: accepts connections but says nothing within 0.3 s",
        "sshd there hangs, or the port belongs to something else",
    )


def test_a_server_that_hangs_up_at_once(client: Client, listen: Listen) -> None:
    port = listen(lambda sock: sock.close())
    error = failure(client, port)
    assert error.kind in {"closed", "reset"}
    assert error.message == (
        f"127.0.0.1:{port}: the connection was closed before the server said anything"
    )


def test_a_server_of_another_protocol(client: Client, listen: Listen) -> None:
    def http(sock: socket.socket) -> None:
        sock.recv(100)
        sock.sendall(b"HTTP/1.1 400 Bad \x1b[31mRequest\r\n\r\n\xff" + b"x" * 500)

    port = listen(http)
    said = "HTTP/1.1 400 Bad \\x1b[31mRequest\\r\\n\\r\\n\\xff"
    error = failure(client, port, login_timeout_s=2)
    assert error.kind == "not ssh"
    assert error.message.startswith(f"127.0.0.1:{port}: not an SSH server, it says '{said}xxx")
    assert error.message.endswith("xxx...'")
    assert error.hint == "see that the port is sshd's"


def test_a_server_that_dribbles(client: Client, listen: Listen) -> None:
    def dribble(sock: socket.socket) -> None:
        sock.sendall(b"SSH-2.0-")
        pause = threading.Event()
        while not pause.wait(0.01):
            sock.sendall(b"x")

    port = listen(dribble)
    assert told(failure(client, port, login_timeout_s=2)) == (
        "login timeout",
        f"127.0.0.1:{port}: the login did not end within 2 s",
        "the server hangs: look there at its load, DNS, PAM and home directories",
    )


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


def test_no_common_algorithm(sshd: StartSshd, client: Client) -> None:
    server = sshd("KexAlgorithms sntrup761x25519-sha512@openssh.com")
    client.knows(server.known())
    error = failure(client, server.port)
    assert error.kind == "negotiation"
    assert error.message == (
        f"127.0.0.1:{server.port}: no common algorithm: "
        "Incompatible ssh peer (no acceptable kex algorithm)"
    )


def test_an_unknown_host_key(sshd: StartSshd, client: Client) -> None:
    server = sshd()
    port, key = server.port, fingerprint_of(server.host_keys["ed25519"])
    assert told(failure(client, port)) == (
        "host key unknown",
        f"127.0.0.1:{port}: host key ssh-ed25519 {key} is not known",
        f"compare it with the machine's own, then: ssh-keyscan -p {port} 127.0.0.1 >> "
        f"{client.known_hosts}; or set ssh.host_keys: accept-new",
    )


def test_the_command_of_the_hint_mends_it(sshd: StartSshd, client: Client) -> None:
    server = sshd()
    error = failure(client, server.port)
    command = error.hint.split("then: ")[1].split(";")[0]
    subprocess.run(command, shell=True, check=True, capture_output=True)
    client.connect(server.port).close()


def test_an_unknown_host_key_for_which_only_an_authority_is_known(
    sshd: StartSshd, client: Client
) -> None:
    server = sshd()
    authority = public(keygen(client.home / "authority"))
    client.knows(f"@cert-authority * {authority}")
    error = failure(client, server.port)
    assert error.kind == "host key unknown"
    assert error.message.endswith(
        f"is not known; {client.known_hosts}:1 trusts a certificate authority for it, "
        "but host certificates cannot be verified here"
    )


@pytest.mark.parametrize("policy", ["strict", "accept-new"])
def test_a_changed_host_key(sshd: StartSshd, client: Client, policy: str) -> None:
    server = sshd()
    old = keygen(client.home / "old")
    client.knows("# mine\n", f"[127.0.0.1]:{server.port} {public(old)}")
    before = client.known_hosts.read_bytes()
    assert told(failure(client, server.port, host_keys=policy)) == (
        "host key changed",
        f"127.0.0.1:{server.port}: host key changed: known ssh-ed25519 {fingerprint_of(old)} "
        f"({client.known_hosts}:2), but the server shows "
        f"ssh-ed25519 {fingerprint_of(server.host_keys['ed25519'])}",
        f"if the machine was reinstalled: ssh-keygen -f {client.known_hosts} "
        f"-R '[127.0.0.1]:{server.port}'; if not, do not log in",
    )
    assert client.known_hosts.read_bytes() == before


@pytest.mark.parametrize("policy", ["strict", "accept-new"])
def test_a_revoked_host_key(sshd: StartSshd, client: Client, policy: str) -> None:
    server = sshd()
    client.knows(server.known(), f"@revoked * {public(server.host_keys['ed25519'])}")
    assert told(failure(client, server.port, host_keys=policy)) == (
        "host key revoked",
        f"127.0.0.1:{server.port}: host key ssh-ed25519 "
        f"{fingerprint_of(server.host_keys['ed25519'])} is revoked by {client.known_hosts}:2",
        "do not log in: give the machine a new host key, and find out why this one was revoked",
    )


def test_refused_tells_what_was_tried_and_what_the_server_allows(
    sshd: StartSshd, client: Client, agent: AddKey
) -> None:
    held = keygen(client.home / "held")
    agent(held)
    authority = keygen(client.home / "authority")
    certify(authority, client.home / "key", ME)
    client.config("IdentityFile ~/key\nIdentityFile ~/none\n")
    (client.home / "authorized_keys").write_text("")
    server = sshd()
    client.knows(server.known())
    assert told(failure(client, server.port, key=None)) == (
        "authentication refused",
        f"127.0.0.1:{server.port}: {ME!r} is refused: tried certificate ~/key-cert.pub, "
        f"publickey ~/key, agent ssh-ed25519 {fingerprint_of(held)} held; "
        "key '~/none' does not exist; the server allows publickey",
        "see ssh.user and ssh.key, and authorized_keys there",
    )


def test_refused_without_any_key(sshd: StartSshd, client: Client) -> None:
    server = sshd()
    client.knows(server.known())
    error = failure(client, server.port, key=None)
    assert error.kind == "authentication refused"
    assert error.message == (
        f"127.0.0.1:{server.port}: {ME!r} is refused: there is no key to try; "
        "the server allows publickey"
    )


def test_refused_for_a_user_that_is_not_there(sshd: StartSshd, client: Client) -> None:
    server = sshd()
    client.knows(server.known())
    error = failure(client, server.port, user="no\u202ebody")
    assert error.kind == "authentication refused"
    assert error.message == (
        f"127.0.0.1:{server.port}: 'no\\u202ebody' is refused: tried publickey ~/key; "
        "the server allows publickey"
    )


def test_a_server_that_takes_passwords_only(sshd: StartSshd, client: Client) -> None:
    server = sshd("PubkeyAuthentication no\nPasswordAuthentication yes")
    client.knows(server.known())
    error = failure(client, server.port)
    assert told(error) == (
        "authentication refused",
        f"127.0.0.1:{server.port}: {ME!r} is refused: tried publickey ~/key; "
        "the server allows password",
        "the server takes no keys, and preflight never asks for a password",
    )


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


def test_too_many_authentication_failures(sshd: StartSshd, client: Client) -> None:
    names = [f"key{number}" for number in range(4)]
    for name in names:
        keygen(client.home / name)
    client.config("".join(f"IdentityFile ~/{name}\n" for name in (*names, "key")))
    server = sshd("MaxAuthTries 3")
    client.knows(server.known())
    assert told(failure(client, server.port, key=None)) == (
        "too many authentication failures",
        f"127.0.0.1:{server.port}: the server gave up after 3 keys: "
        "publickey ~/key0, publickey ~/key1, publickey ~/key2",
        "name the right key: ssh.key, or IdentityFile with IdentitiesOnly in ~/.ssh/config",
    )


@pytest.mark.parametrize("form", ["RFC4716", "PEM", "PKCS8"])
def test_a_key_with_a_passphrase_and_no_agent(sshd: StartSshd, client: Client, form: str) -> None:
    key = keygen(client.home / "locked", "-m", form, kind="rsa", passphrase="secret")
    server = sshd()
    client.knows(server.known())
    assert told(failure(client, server.port, key=key)) == (
        "key with a passphrase",
        f"127.0.0.1:{server.port}: key '~/locked' has a passphrase, and there is no ssh-agent",
        'eval "$(ssh-agent)" && ssh-add ~/locked',
    )


def test_a_key_with_a_passphrase_that_the_agent_lacks(
    sshd: StartSshd, client: Client, agent: AddKey
) -> None:
    agent(client.home / "key")
    key = keygen(client.home / "locked", passphrase="secret")
    server = sshd()
    client.knows(server.known())
    error = failure(client, server.port, key=key)
    assert told(error) == (
        "key with a passphrase",
        f"127.0.0.1:{server.port}: key '~/locked' has a passphrase, "
        "and the ssh-agent does not hold it",
        "ssh-add ~/locked",
    )


def test_a_key_of_a_kind_that_only_an_agent_can_use(sshd: StartSshd, client: Client) -> None:
    key = keygen(client.home / "old", kind="dsa")
    server = sshd()
    client.knows(server.known())
    assert told(failure(client, server.port, key=key)) == (
        "key needs an agent",
        f"127.0.0.1:{server.port}: key '~/old' is of a kind that only an ssh-agent can use, "
        "and there is no ssh-agent",
        'eval "$(ssh-agent)" && ssh-add ~/old',
    )


def test_an_agent_that_is_gone(
    sshd: StartSshd, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", str(client.home / "gone"))
    server = sshd()
    client.knows(server.known())
    client.connect(server.port).close()
    error = failure(client, server.port, key=None)
    assert told(error) == (
        "agent",
        f"127.0.0.1:{server.port}: the ssh-agent does not answer: no such file or directory",
        "see `ssh-add -l`",
    )


def test_key_files_of_no_use(sshd: StartSshd, client: Client) -> None:
    server = sshd()
    client.knows(server.known())
    text = client.home / "text"
    text.write_text("not a key")
    cut = client.home / "cut"
    cut.write_text((client.home / "key").read_text()[:200] + "\n-----END OPENSSH PRIVATE KEY-----")
    where, no_key = f"127.0.0.1:{server.port}", "is not a private key that ssh can use"
    found = {
        path.name: failure(client, server.port, key=path)
        for path in (text, cut, client.home / "none", client.home)
    }
    assert {name: (error.kind, error.message) for name, error in found.items()} == {
        "text": (
            "not a private key",
            f"{where}: key '~/text' {no_key}",
        ),
        "cut": ("not a private key", f"{where}: key '~/cut' {no_key}"),
        "none": ("key missing", f"{where}: key '~/none' does not exist"),
        "home": ("key unreadable", f"{where}: key '~/.' cannot be read: is a directory"),
    }


def test_validate_names_what_is_missing(client: Client) -> None:
    text = client.home / "text"
    text.write_text("not a key")
    folder = client.home / "folder"
    folder.mkdir()
    for settings, message in (
        ({"key": "~/none"}, "ssh.key: '~/none' does not exist"),
        ({"key": folder}, "ssh.key: '~/folder' cannot be read: is a directory"),
        ({"key": text}, "ssh.key: '~/text' is not a private key that ssh can use"),
        (
            {"known_hosts": folder},
            f"known_hosts: '{folder}' cannot be read: is a directory",
        ),
    ):
        with pytest.raises(ConfigError) as caught:
            client.transport().validate([client.spec(1, **settings)])
        assert str(caught.value) == f"node gpu01: {message}"


def test_an_unreadable_known_hosts_file_contacts_nobody(client: Client, listen: Listen) -> None:
    contacted = threading.Event()
    port = listen(lambda _: contacted.set())
    client.known_hosts.mkdir()
    error = failure(client, port)
    assert error.kind == "configuration"
    assert error.message == f"known_hosts: '{client.known_hosts}' cannot be read: is a directory"
    assert not contacted.is_set()


def jump(server: Server) -> str:
    return f"{ME}@127.0.0.1:{server.port}"


def test_a_target_that_the_jump_host_cannot_reach(sshd: StartSshd, client: Client) -> None:
    bastion = sshd()
    client.knows(bastion.known())
    port = free_port()
    assert told(failure(client, port, jump=jump(bastion))) == (
        "refused",
        f"127.0.0.1:{port} from jump host 127.0.0.1: connection refused",
        "see that sshd runs there and that the port is right",
    )
    error = failure(client, 22, address="gpu01.invalid", jump=jump(bastion))
    assert error.kind == "unresolved"
    assert error.message.startswith("gpu01.invalid:22 from jump host 127.0.0.1: does not resolve")


def test_a_jump_host_that_does_not_forward(sshd: StartSshd, client: Client) -> None:
    bastion = sshd("AllowTcpForwarding no")
    client.knows(bastion.known())
    port = free_port()
    error = failure(client, port, jump=jump(bastion))
    assert told(error) == (
        "jump",
        f"127.0.0.1:{port} from jump host 127.0.0.1: the jump host does not forward: "
        "administratively prohibited: open failed",
        "see AllowTcpForwarding and PermitOpen in its sshd_config",
    )


def test_a_jump_host_that_is_down_or_unknown_is_named(sshd: StartSshd, client: Client) -> None:
    port = free_port()
    error = failure(client, 22, jump=f"{ME}@127.0.0.1:{port}")
    assert error.kind == "refused"
    assert error.message == f"jump host 127.0.0.1: 127.0.0.1:{port}: connection refused"
    bastion, node = sshd(), sshd()
    client.knows(node.known())
    error = failure(client, node.port, jump=jump(bastion))
    assert error.kind == "host key unknown"
    assert error.message.startswith(f"jump host 127.0.0.1: 127.0.0.1:{bastion.port}: host key ")


def test_a_jump_host_is_not_tried_again_after_it_failed(client: Client, listen: Listen) -> None:
    contacts: list[int] = []

    def count(sock: socket.socket) -> None:
        contacts.append(1)
        sock.close()

    port = listen(count)
    transport, spec = client.transport(), client.spec(22, jump=f"{ME}@127.0.0.1:{port}")
    for _ in range(3):
        with pytest.raises(TransportError) as caught:
            transport.connect(spec)
        assert caught.value.kind == "closed"
    assert contacts == [1]


def test_the_host_key_behind_a_jump_is_verified(sshd: StartSshd, client: Client) -> None:
    bastion, node = sshd(), sshd()
    client.knows(bastion.known())
    error = failure(client, node.port, jump=jump(bastion))
    assert error.kind == "host key unknown"
    assert f"then: ssh -p {node.port} 127.0.0.1;" in error.hint


def test_a_jump_host_that_dies_takes_its_nodes_with_it(sshd: StartSshd, client: Client) -> None:
    bastion, node = sshd(), sshd()
    client.knows(bastion.known(), node.known())
    transport = client.transport()
    spec = client.spec(node.port, jump=jump(bastion))
    connection = transport.connect(spec)
    stream = connection.execute("exec cat")
    for process in bastion.logins():
        with suppress(psutil.NoSuchProcess):
            process.kill()
    with pytest.raises(TransportError) as caught:
        stream.recv(1)
    assert caught.value.kind == "lost"
    again = transport.connect(spec)
    assert run(again, "echo back") == b"back\n"
    again.close()
    connection.close()


def test_a_loop_of_jump_hosts(client: Client) -> None:
    client.config("Host *\n  ProxyJump bastion\n")
    error = failure(client, 22)
    assert told(error) == (
        "configuration",
        "more than 8 jump hosts in a row, the last is 'bastion'",
        "",
    )


def test_a_proxy_command_that_fails(client: Client) -> None:
    client.config("ProxyCommand sh -c 'printf \"no \\\\033way\" >&2; exit 1' %%h\n")
    error = failure(client, 22)
    assert error.kind == "proxy"
    assert error.message.endswith("ended without reaching a server: no \\x1bway")
    assert error.hint == "run the command by hand"


def test_a_proxy_command_that_hangs_is_ended(client: Client) -> None:
    client.config(f"ProxyCommand sh -c 'echo $$ > {client.home}/pid; exec sleep 60'\n")
    error = failure(client, 22, login_timeout_s=3)
    assert error.kind == "proxy"
    assert error.message.endswith("brought no answer within 3 s")
    pid = (client.home / "pid").read_text().strip()
    assert not Path(f"/proc/{pid}").exists()


def test_a_port_or_token_that_cannot_be_used(client: Client) -> None:
    for line, message in (
        ("ProxyJump a:b:z", "jump host 'a:b:z' is not [user@]host[:port]"),
        ("Port ssh", "ssh config: Port 'ssh' is not a port"),
        ("IdentityFile ~/%Z", "ssh config: '~/%Z': '%Z' has no value"),
        (
            "IdentityFile ${NONE_SUCH}/a",
            "ssh config: '${NONE_SUCH}/a': '${NONE_SUCH}' has no value",
        ),
    ):
        client.config(f"{line}\n")
        error = failure(client, None)
        assert (error.kind, error.message) == ("configuration", message)


def wait_for_end(sock: socket.socket) -> None:
    while sock.recv(4096):
        pass
