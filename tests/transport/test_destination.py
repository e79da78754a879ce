"""Where a login goes, told from files as users and distributions write them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from preflight.errors import ConfigError, TransportError
from preflight.transport.destination import destination
from preflight.transport.identities import Offers
from preflight.transport.ssh_config import SshConfig
from preflight.transport.trust import Trust
from tests.messages.aloud import Aloud
from tests.pulled import Pulled
from tests.transport.servers import Client, StartSshd


def test_tokens_of_a_jump_host(client: Client) -> None:
    client.config(
        "Host gpu01\n  HostName 10.0.0.1\n  User bob\n  Port 2222\n"
        "  ProxyJump %r@%n-via-%h:%p,last\n"
        "Host last\n  ProxyCommand nc %n %h\n"
    )
    spec = client.spec(None, address="gpu01", user=None)
    there = destination(spec, SshConfig(client.warnings.append))
    assert there.via is not None
    assert (there.via.host, there.via.via is not None) == ("last", True)
    assert there.via.via is not None
    first = there.via.via
    assert (first.user, first.host, first.port) == ("bob", "gpu01-via-10.0.0.1", 2222)
    assert client.warnings == []


def test_the_name_that_was_asked_for_is_a_token_of_a_proxy_command(client: Client) -> None:
    client.config("Host gpu01\n  HostName 10.0.0.1\n  ProxyCommand nc %n %h %p\n")
    spec = client.spec(None, address="gpu01")
    there = destination(spec, SshConfig(client.warnings.append))
    assert there.proxy_command == "nc gpu01 10.0.0.1 22"


def test_an_ip_address_of_the_inventory_is_where_the_node_is(client: Client) -> None:
    client.config("Host *\n  HostName %h.pod\n  User bob\n")
    config = SshConfig(client.warnings.append)
    found = [
        destination(client.spec(None, address=address, user=None), config).address
        for address in ("10.0.0.1", "fe80::1%eth0", "gpu01", None)
    ]
    assert found == ["10.0.0.1:22", "[fe80::1%eth0]:22", "gpu01.pod:22", "gpu01.pod:22"]


WRONG = (
    "IdentityFile ~nosuchuser/key",
    "Include ~nosuchuser/config",
    "UserKnownHostsFile /tmp/a\0b",
    "HostName gpu\udcff01",
    "HostKeyAlias gpu\a",
    "User b\udcffb",
    "Port \u00b2",
    "Port 99999",
    f"Port {'1' * 5000}",
    "ProxyJump 127.0.0.2:99999",
    "ProxyJump 127.0.0.2:0",
    "ProxyJump [[]:22",
    "ProxyJump b\udcffb@gpu00",
)


def test_values_that_cannot_be_used(client: Client, aloud: Aloud) -> None:
    told = []
    for text in WRONG:
        (client.home / ".ssh" / "config").write_bytes(text.encode("utf-8", "surrogateescape"))
        with pytest.raises(ConfigError) as caught:
            client.transport().validate([client.spec(None, address="gpu01", user=None)])
        told.append(str(caught.value).replace("1" * 5000, "11..."))
    aloud(*told)


KEYWORDS = (
    *("HostName", "User", "Port", "IdentityFile", "CertificateFile", "IdentityAgent", "ProxyJump"),
    *("UserKnownHostsFile", "GlobalKnownHostsFile", "HostKeyAlias", "Include", "Match host"),
    *("IdentitiesOnly", "ProxyCommand", "Host"),
)
PIECES = st.sampled_from(
    [*"~/%:@[],.$!*?\"'# =\0\udcff\u00b2\u0661", *"9hnpru", "${HOME}", "none", "a" * 300, "root"]
)
LINES = st.tuples(st.sampled_from(KEYWORDS), st.lists(PIECES, max_size=6).map("".join))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
@given(lines=st.lists(LINES, max_size=4))
def test_no_file_makes_it_stumble(client: Client, lines: list[tuple[str, str]]) -> None:
    text = "\n".join(map(" ".join, lines))
    (client.home / ".ssh" / "config").write_bytes(text.encode("utf-8", "surrogateescape"))
    spec, said = client.spec(None, address="gpu01", user=None), ""
    try:
        there = destination(spec, SshConfig(client.warnings.append))
        Trust(client.warnings.append).types(there)
        Offers().to(there)
        said = there.address
    except ConfigError as error:
        said = str(error)
    assert said.isprintable()


def test_a_section_that_says_nothing_to_us_is_ignored_in_silence(
    client: Client, tmp_path: Path
) -> None:
    """As /etc/ssh/ssh_config.d/50-redhat.conf of RHEL has one."""
    policy = tmp_path / "policy"
    policy.write_text("Ciphers aes256-gcm@openssh.com\nMACs hmac-sha2-256\n")
    final = f"Match final all\n  Include {policy}\n  GSSAPIAuthentication yes\n"
    client.config(f"{final}Host gpu*\n  Port 7\nMatch canonical\n  SendEnv LANG\n")
    config = SshConfig(client.warnings.append)
    assert config.lookup("gpu01") == {"port": ["7"]}
    assert client.warnings == []
    policy.write_text("User bob\n")
    assert SshConfig(client.warnings.append).lookup("gpu01") == {"port": ["7"]}
    path = client.home / ".ssh" / "config"
    assert client.warnings == [f"{path}:1: Match final: not evaluated here, its section is ignored"]


def test_a_new_host_key_that_no_file_can_keep(sshd: StartSshd, client: Client) -> None:
    server = sshd()
    client.config("UserKnownHostsFile none\n")
    with pytest.raises(TransportError) as caught:
        client.connect(server.port, host_keys="accept-new")
    assert caught.value.kind == "no known_hosts"
    assert caught.value.hint == (
        "compare it with the machine's own, then: set ssh.known_hosts, "
        "for there is no file to add it to: UserKnownHostsFile is none"
    )


def test_a_server_that_takes_no_input(sshd: StartSshd, client: Client, aloud: Aloud) -> None:
    server = sshd()
    client.knows(server.known())
    connection = client.connect(server.port)
    stream = Pulled(connection, "exec sleep 20")  # nobody ends it
    with pytest.raises(TransportError) as caught:
        stream.send(bytes(16 << 20), 0.5)  # a window of OpenSSH holds 2 MiB
    aloud(caught.value)
    connection.close()
