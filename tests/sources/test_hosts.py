"""Nodes as people type them."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from preflight.errors import ConfigError
from preflight.sources import hosts


def nodes(expression: str) -> list[tuple[str, dict[str, Any]]]:
    cluster = hosts.read(expression).cluster
    return [(node.name, node.ssh.model_dump(exclude_unset=True)) for node in cluster.nodes]


def test_names_ranges_and_addresses() -> None:
    assert nodes("gpu[01-02],10.0.0.5,fd00::5, login") == [
        ("gpu01", {}),
        ("gpu02", {}),
        ("10.0.0.5", {}),
        ("fd00::5", {}),
        ("login", {}),
    ]


def test_users_and_ports() -> None:
    there = {"user": "ubuntu", "port": 2222}
    assert nodes("ubuntu@gpu[1-2]:2222,[fd00::5]:22,bob@[fd00::6],fe80::1%eth0,n:8") == [
        ("gpu1", there),
        ("gpu2", there),
        ("fd00::5", {"port": 22}),
        ("fd00::6", {"user": "bob"}),
        ("fe80::1%eth0", {}),
        ("n", {"port": 8}),
    ]


def test_the_cluster_is_called_as_it_is_typed() -> None:
    found = hosts.read("gpu[01-02]")
    assert (found.cluster.name, found.cluster.source, found.notes) == ("gpu[01-02]", None, ())
    assert found.origin == "--hosts gpu[01-02]"
    assert len(hosts.read(",".join(f"node{n}" for n in range(99))).cluster.name) == 60


BAD = {
    "": "--hosts: '': a name is empty",
    "a,,b": "--hosts: 'a,,b': a name is empty",
    "gpu[01-": "--hosts: 'gpu[01-': a bracket is not closed, or not opened",
    "gpu[2-1]": "--hosts: 'gpu[2-1]': 2-1 ends before it begins",
    "gpu[1-1000000]": "--hosts: 'gpu[1-1000000]': stands for more than 10,000 nodes",
    "a[1-9999],b[1-9]": "--hosts: 'a[1-9999],b[1-9]': stands for more than 10,000 nodes",
    "a,b,a": "--hosts: 'a,b,a': names 'a' twice",
    "a,a:22": "--hosts: 'a,a:22': names 'a' twice",
    "a:99999": "--hosts: 'a:99999': 99999 is not a port (1 to 65535)",
    "a:0": "--hosts: 'a:0': 0 is not a port (1 to 65535)",
    "a@b@c": "--hosts: 'a@b@c': 'a@b@c' is not [user@]host[:port]",
    "[::zz]:22": "--hosts: '[::zz]:22': '::zz' is not an IPv6 address",
    "-oProxyCommand=x": "--hosts: '-oProxyCommand=x': '-oProxyCommand=x' is not a name "
    "(letters, digits, dots, dashes, underscores)",
}


@pytest.mark.parametrize("expression", BAD)
def test_what_is_wrong_is_said_in_a_line(expression: str) -> None:
    with pytest.raises(ConfigError) as caught:
        hosts.read(expression)
    assert str(caught.value) == BAD[expression]


@settings(deadline=None)
@given(st.text(alphabet="ab1[]-,:@.% /\t", max_size=20) | st.text(max_size=20))
def test_any_text_gives_nodes_or_one_line(text: str) -> None:
    try:
        assert hosts.read(text).cluster.nodes
    except ConfigError as error:
        assert str(error).isprintable()  # noqa: PT017 - no error at all is fine too
