from __future__ import annotations

import os
import signal
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from preflight.errors import TransportError
from tests.messages.aloud import Aloud
from tests.pulled import Pulled
from tests.transport.servers import (
    ME,
    AddKey,
    Client,
    StartSshd,
    certify,
    fingerprint_of,
    free_port,
    keygen,
    public,
    read_all,
    run,
)


def test_a_login_tells_where_it_went_and_how_it_was_accepted(
    sshd: StartSshd, client: Client
) -> None:
    server = sshd()
    client.knows(server.known())
    connection = client.connect(server.port)
    facts = dict(connection.facts)
    connection.close()
    connection.close()
    assert facts.pop("server").__str__().startswith("OpenSSH_")
    assert facts.pop("connect_s") < facts.pop("login_s")  # type: ignore[operator]
    assert facts == {
        "address": f"127.0.0.1:{server.port}",
        "user": ME,
        "host_key": f"ssh-ed25519 {fingerprint_of(server.host_keys['ed25519'])}",
        "auth": "publickey ~/key",
    }
    assert client.warnings == []


def test_each_address_of_a_name_is_tried(sshd: StartSshd, client: Client) -> None:
    server = sshd()  # on 127.0.0.1 alone, while localhost is often ::1 first
    client.knows(server.known(name="localhost"))
    connection = client.connect(server.port, address="localhost")
    assert connection.facts["address"] == f"127.0.0.1:{server.port}"
    connection.close()


def test_several_commands_run_on_one_connection_also_at_once(
    sshd: StartSshd, client: Client
) -> None:
    server = sshd()
    client.knows(server.known())
    connection = client.connect(server.port)
    cat = Pulled(connection, "cat")
    assert run(connection, "echo one") == b"one\n"
    assert run(connection, "echo two; echo no >&2") == b"two\n"
    cat.send(b"three", 20)
    cat.close_stdin()
    assert read_all(cat) == b"three"
    cat.close()
    cat.close()
    connection.close()


def test_a_megabyte_each_way(sshd: StartSshd, client: Client) -> None:
    server = sshd()
    client.knows(server.known())
    connection = client.connect(server.port)
    stream = Pulled(connection, "cat")
    data = os.urandom(1 << 20)

    def send() -> None:
        stream.send(data, 20)
        stream.close_stdin()

    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(send)
        assert read_all(stream) == data
        sending.result()
    connection.close()


def test_the_end_of_stdin_reaches_the_command_and_sending_after_it_fails(
    sshd: StartSshd, client: Client, aloud: Aloud
) -> None:
    server = sshd()
    client.knows(server.known())
    connection = client.connect(server.port)
    stream = Pulled(connection, "cat; echo ended")
    stream.close_stdin()
    stream.close_stdin()
    assert read_all(stream) == b"ended\n"
    with pytest.raises(TransportError) as caught:
        stream.send(b"more", 20)
    connection.close()
    aloud(caught.value)


def test_a_node_that_chatters_on_stderr_is_not_blocked_and_its_last_words_are_kept(
    sshd: StartSshd, client: Client
) -> None:
    server = sshd()
    client.knows(server.known())
    connection = client.connect(server.port)
    stream = Pulled(connection, "head -c 3000000 /dev/zero | tr '\\0' x >&2; printf 'e\\377d' >&2")
    assert read_all(stream) == b""
    assert stream.stderr_tail() == "x" * 2045 + "e\ufffdd"
    connection.close()


def test_closing_from_another_thread_ends_a_blocked_recv(sshd: StartSshd, client: Client) -> None:
    server = sshd()
    client.knows(server.known())
    connection = client.connect(server.port)
    streams = [Pulled(connection, "echo up; exec cat") for _ in range(2)]
    assert [stream.recv(3) for stream in streams] == [b"up\n", b"up\n"]
    with ThreadPoolExecutor(1) as pool:
        blocked = pool.submit(streams[0].recv, 1)
        streams[0].close()
        assert blocked.result() == b""
        blocked = pool.submit(streams[1].recv, 1)
        connection.close()
        assert blocked.result() == b""


def test_a_stream_that_is_lost_is_told_apart_from_one_that_ended(
    sshd: StartSshd, client: Client, aloud: Aloud
) -> None:
    server = sshd()
    client.knows(server.known())
    connection = client.connect(server.port)
    stream = Pulled(connection, "echo $PPID; exec cat")
    os.kill(int(stream.recv(100)), signal.SIGKILL)
    with pytest.raises(TransportError) as read:
        stream.recv(100)
    with pytest.raises(TransportError) as sent:
        stream.send(b"x", 20)
    with pytest.raises(TransportError) as started:
        Pulled(connection, "true")
    connection.close()
    aloud(*(caught.value for caught in (read, sent, started)))


def test_exec_refused(sshd: StartSshd, client: Client, aloud: Aloud) -> None:
    server = sshd("MaxSessions 0")
    client.knows(server.known())
    connection = client.connect(server.port)
    with pytest.raises(TransportError) as caught:
        Pulled(connection, "true")
    connection.close()
    aloud(caught.value)


def test_many_threads_share_one_transport(sshd: StartSshd, client: Client) -> None:
    server = sshd("MaxStartups 100")
    client.knows(server.known())
    transport, spec = client.transport(), client.spec(server.port)

    def one(number: int) -> bytes:
        connection = transport.connect(spec)
        try:
            return run(connection, f"echo {number}")
        finally:
            connection.close()

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(one, range(16))) == [f"{n}\n".encode() for n in range(16)]


@pytest.mark.parametrize("kind", ["ed25519", "rsa", "ecdsa"])
@pytest.mark.parametrize("form", ["RFC4716", "PEM", "PKCS8"])
def test_keys_of_every_kind_and_form(sshd: StartSshd, client: Client, kind: str, form: str) -> None:
    if (kind, form) in {("ed25519", "PEM"), ("ed25519", "PKCS8")}:
        form = "RFC4716"  # ssh-keygen writes this kind in its own form only
    key = keygen(client.home / "other", "-m", form, kind=kind)
    (client.home / "authorized_keys").write_text(public(key))
    server = sshd()
    client.knows(server.known())
    connection = client.connect(server.port, key=key)
    assert connection.facts["auth"] == "publickey ~/other"
    assert run(connection, "echo in") == b"in\n"
    connection.close()


@pytest.mark.parametrize("kind", ["ed25519", "rsa", "ecdsa"])
def test_a_certificate_beside_the_key(sshd: StartSshd, client: Client, kind: str) -> None:
    authority = keygen(client.home / "authority")
    key = keygen(client.home / "certified", kind=kind)
    certify(authority, key, ME)
    server = sshd(f"TrustedUserCAKeys {authority}.pub")
    client.knows(server.known())
    connection = client.connect(server.port, key=key)
    assert connection.facts["auth"] == "certificate ~/certified-cert.pub"
    connection.close()


def test_a_certificate_of_another_place_named_in_the_config(
    sshd: StartSshd, client: Client
) -> None:
    authority = keygen(client.home / "authority")
    key = keygen(client.home / "certified")
    certify(authority, key, ME)
    (client.home / "certified-cert.pub").rename(client.home / "certificate")
    client.config("IdentityFile ~/certified\nCertificateFile ~/certificate\n")
    server = sshd(f"TrustedUserCAKeys {authority}.pub")
    client.knows(server.known())
    connection = client.connect(server.port, key=None)
    assert connection.facts["auth"] == "certificate ~/certificate"
    connection.close()


@pytest.mark.parametrize("kind", ["ed25519", "rsa", "ecdsa"])
def test_a_key_of_the_agent(sshd: StartSshd, client: Client, agent: AddKey, kind: str) -> None:
    key = keygen(client.home / "held", kind=kind)
    agent(key)
    (client.home / "authorized_keys").write_text(public(key))
    server = sshd()
    client.knows(server.known())
    connection = client.connect(server.port, key=None)
    name = public(key).split()[0]
    assert connection.facts["auth"] == f"agent {name} {fingerprint_of(key)} held"
    connection.close()


@pytest.mark.parametrize("kind", ["ed25519", "rsa", "ecdsa"])
def test_a_certificate_of_the_agent(
    sshd: StartSshd, client: Client, agent: AddKey, kind: str
) -> None:
    authority, key = keygen(client.home / "authority"), keygen(client.home / "held", kind=kind)
    certify(authority, key, ME)
    agent(key)
    for path in client.home.glob("held*"):
        if path.name != "held.pub":
            path.unlink()
    server = sshd(f"TrustedUserCAKeys {authority}.pub")
    client.knows(server.known())
    connection = client.connect(server.port, key=None)
    kind_of_certificate = f"{public(key).split()[0]}-cert-v01@openssh.com"
    assert connection.facts["auth"] == f"agent {kind_of_certificate} {fingerprint_of(key)} held"
    connection.close()


@pytest.mark.parametrize("form", ["RFC4716", "PEM"])
def test_a_key_with_a_passphrase_that_the_agent_holds(
    sshd: StartSshd, client: Client, agent: AddKey, form: str
) -> None:
    key = keygen(client.home / "locked", "-m", form, kind="rsa", passphrase="secret")
    agent(key, "secret")
    (client.home / "authorized_keys").write_text(public(key))
    server = sshd()
    client.knows(server.known())
    connection = client.connect(server.port, key=key)
    assert connection.facts["auth"] == "publickey ~/locked"
    connection.close()


def test_a_public_key_names_one_of_the_agent(
    sshd: StartSshd, client: Client, agent: AddKey
) -> None:
    agent(client.home / "key")
    (client.home / "key").unlink()
    server = sshd()
    client.knows(server.known())
    connection = client.connect(server.port, key=client.home / "key.pub")
    assert connection.facts["auth"] == "publickey ~/key.pub"
    connection.close()


def test_the_agent_that_the_config_names(
    sshd: StartSshd, client: Client, agent: AddKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent(client.home / "key")
    client.config(f"IdentityAgent {os.environ['SSH_AUTH_SOCK']}\n")
    monkeypatch.delenv("SSH_AUTH_SOCK")
    server = sshd()
    client.knows(server.known())
    connection = client.connect(server.port, key=None)
    expected = f"agent ssh-ed25519 {fingerprint_of(client.home / 'key')} key"
    assert connection.facts["auth"] == expected
    connection.close()


def test_the_default_key_files(sshd: StartSshd, client: Client) -> None:
    key = keygen(client.home / ".ssh" / "id_ed25519")
    keygen(client.home / ".ssh" / "id_rsa", kind="rsa")
    (client.home / "authorized_keys").write_text(public(key))
    server = sshd()
    client.knows(server.known())
    connection = client.connect(server.port, key=None)
    assert connection.facts["auth"] == "publickey ~/.ssh/id_ed25519"
    connection.close()


def test_the_config_names_host_port_user_and_key_in_an_included_file(
    sshd: StartSshd, client: Client
) -> None:
    server = sshd()
    client.knows(server.known())
    (client.home / ".ssh" / "conf.d").mkdir()
    (client.home / ".ssh" / "conf.d" / "10.conf").write_text(
        f"Host pod*\n  HostName 127.0.0.1\n  Port {server.port}\n  User {ME}\n"
        "  IdentityFile ~/key\n"
    )
    client.config("Include conf.d/*.conf\nMatch exec true\n  User nobody\nHost *\n  User wrong\n")
    connection = client.connect(None, address="pod7", user=None, key=None)
    assert connection.facts["auth"] == "publickey ~/key"
    assert connection.facts["address"] == f"127.0.0.1:{server.port}"
    connection.close()
    assert client.warnings == [
        f"{client.home}/.ssh/config:2: Match exec: not evaluated here, its section is ignored"
    ]


def test_the_inventory_wins_over_the_config(sshd: StartSshd, client: Client) -> None:
    server = sshd()
    client.knows(server.known())
    client.config("Port 1\nUser nobody\nIdentityFile ~/none\nProxyJump nowhere\n")
    connection = client.connect(server.port, jump="none")
    assert connection.facts["user"] == ME
    connection.close()


def test_a_login_through_two_jump_hosts_verifies_each(sshd: StartSshd, client: Client) -> None:
    first, second, node = sshd(), sshd(), sshd()
    client.knows(first.known(), second.known(), node.known())
    jump = f"{ME}@127.0.0.1:{first.port},{ME}@127.0.0.1:{second.port}"
    connection = client.connect(node.port, jump=jump)
    assert run(connection, "echo far") == b"far\n"
    assert connection.facts["address"] == f"127.0.0.1:{node.port}"
    connection.close()
    assert "Accepted publickey" in first.log.read_text()
    assert "Accepted publickey" in second.log.read_text()


def test_a_jump_host_with_a_config_of_its_own(sshd: StartSshd, client: Client) -> None:
    bastion, node = sshd(), sshd()
    client.knows(bastion.known(), node.known())
    client.config(
        f"Host bastion\n  HostName 127.0.0.1\n  Port {bastion.port}\n  User {ME}\n"
        "  IdentityFile ~/key\nHost 127.0.0.1\n  ProxyJump bastion\n  IdentityFile ~/key\n"
    )
    connection = client.connect(node.port, key=None)
    assert run(connection, "echo far") == b"far\n"
    connection.close()
    assert "Accepted publickey" in bastion.log.read_text()


def test_nodes_behind_one_jump_host_share_its_login(sshd: StartSshd, client: Client) -> None:
    bastion, node = sshd(), sshd("MaxStartups 100")
    client.knows(bastion.known(), node.known())
    transport = client.transport()
    spec = client.spec(node.port, jump=f"{ME}@127.0.0.1:{bastion.port}")
    with ThreadPoolExecutor(4) as pool:
        connections = list(pool.map(transport.connect, [spec] * 4))
    assert [run(each, "echo far") for each in connections] == [b"far\n"] * 4
    for each in connections:
        each.close()
    again = transport.connect(spec)
    assert run(again, "echo far") == b"far\n"
    again.close()
    assert bastion.log.read_text().count("Accepted publickey") == 2


def test_a_proxy_command_is_ended_with_the_connection(sshd: StartSshd, client: Client) -> None:
    server = sshd()
    client.knows(server.known())
    relay = client.home / "relay.sh"
    relay.write_text(
        f'#!/bin/bash\necho $$ "$@" > {client.home}/proxy\n'
        "exec 3<>/dev/tcp/127.0.0.1/$2\ncat <&3 & exec cat >&3\n"
    )
    relay.chmod(0o700)
    client.config(f"ProxyCommand {relay} %h %p %r %%\n")
    connection = client.connect(server.port)
    assert run(connection, "echo through") == b"through\n"
    pid, *words = (client.home / "proxy").read_text().split()
    assert words == ["127.0.0.1", str(server.port), ME, "%"]
    connection.close()
    assert not Path(f"/proc/{pid}").exists()


def test_nothing_of_the_library_reaches_standard_error(
    sshd: StartSshd, client: Client, capfd: pytest.CaptureFixture[str]
) -> None:
    server = sshd()
    with pytest.raises(TransportError):
        client.connect(server.port)
    client.knows(server.known())
    connection = client.connect(server.port)
    stream = Pulled(connection, "echo $PPID; exec cat")
    os.kill(int(stream.recv(100)), signal.SIGKILL)
    with pytest.raises(TransportError):
        stream.recv(1)
    connection.close()
    assert capfd.readouterr() == ("", "")


def test_no_thread_stays_after_the_connections_are_closed(sshd: StartSshd, client: Client) -> None:
    server = sshd()
    client.knows(server.known())
    before = set(threading.enumerate())
    connection = client.connect(server.port)
    stream = Pulled(connection, "cat")
    stream.close()
    connection.close()
    for thread in set(threading.enumerate()) - before:
        thread.join(20)
    assert set(threading.enumerate()) <= before


def test_hashed_names_in_known_hosts(sshd: StartSshd, client: Client) -> None:
    server = sshd()
    client.knows(server.known())
    command = ["ssh-keygen", "-q", "-H", "-f", str(client.known_hosts)]
    subprocess.run(command, check=True, capture_output=True)
    assert "127.0.0.1" not in client.known_hosts.read_text()
    client.connect(server.port).close()


def test_the_kind_of_host_key_that_is_known_is_asked_for(sshd: StartSshd, client: Client) -> None:
    server = sshd(kinds=("ed25519", "ecdsa", "rsa"))
    client.knows(server.known("rsa"))
    connection = client.connect(server.port)
    assert connection.facts["host_key"] == f"ssh-rsa {fingerprint_of(server.host_keys['rsa'])}"
    connection.close()


def test_a_name_without_port_confirms_a_key_and_an_alias_replaces_the_name(
    sshd: StartSshd, client: Client
) -> None:
    server = sshd()
    _, kind, encoded = server.known().split()
    client.knows(f"127.0.0.1 {kind} {encoded}\n")
    client.connect(server.port).close()
    client.known_hosts.write_text(f"pod {kind} {encoded}\n")
    client.config("HostKeyAlias Pod\n")
    client.connect(server.port).close()
    assert client.warnings == []


def test_marked_and_broken_lines_do_not_spoil_the_rest(sshd: StartSshd, client: Client) -> None:
    server = sshd()
    other = public(keygen(client.home / "other"))
    client.known_hosts.write_bytes(
        b"# a comment\n@cert-authority *.example.org " + other.encode() + b"@revoked * "
        b"" + other.encode() + b"what is this\n\xff\xfe \x00 \xff\n|1|bad|hash ssh-rsa AAAA\n"
    )
    client.knows(server.known())
    client.connect(server.port).close()
    assert client.warnings == [
        f"{client.known_hosts}:4, {client.known_hosts}:5, {client.known_hosts}:6: "
        "not a known_hosts line, ignored"
    ]


def test_accept_new_appends_and_changes_nothing_else(
    sshd: StartSshd, client: Client, aloud: Aloud
) -> None:
    server = sshd()
    (client.home / ".ssh").rmdir()
    client.connect(server.port, host_keys="accept-new").close()
    assert client.known_hosts.read_text() == server.known()
    assert client.known_hosts.stat().st_mode & 0o777 == 0o600
    assert client.known_hosts.parent.stat().st_mode & 0o777 == 0o700
    client.connect(server.port).close()
    assert fingerprint_of(server.host_keys["ed25519"]) in client.warnings[0]
    aloud(*client.warnings)
    kept = b"@revoked broken \xff\n# no newline at the end"
    client.known_hosts.write_bytes(kept)
    client.connect(server.port, host_keys="accept-new").close()
    assert client.known_hosts.read_bytes() == kept + b"\n" + server.known().encode()


def test_accept_new_goes_on_where_the_file_cannot_be_written(
    sshd: StartSshd, client: Client, aloud: Aloud
) -> None:
    server = sshd()
    path = Path("/proc/none/known_hosts")
    client.connect(server.port, known_hosts=path, host_keys="accept-new").close()
    aloud(*client.warnings)


def test_validate_contacts_nothing_and_accepts_what_is_in_order(client: Client) -> None:
    client.transport().validate([client.spec(free_port(), jump="a,b")])
    assert client.warnings == []
