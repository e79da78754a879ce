"""Nodes as people type them."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from preflight.errors import ConfigError
from preflight.sources import hosts
from tests.messages.aloud import Aloud


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


BAD = [
    "",
    "a,,b",
    "gpu[01-",
    "gpu[2-1]",
    "gpu[1-1000000]",
    "a[1-9999],b[1-9]",
    "a,b,a",
    "a,a:22",
    "a:99999",
    "a:0",
    "a@b@c",
    "[::zz]:22",
    "-oProxyCommand=x",
    "gpu1 gpu2",
    "gpu[1, 2]",
]


@pytest.mark.parametrize("expression", BAD)
def test_what_is_wrong_is_said_in_a_line(expression: str, aloud: Aloud) -> None:
    with pytest.raises(ConfigError) as caught:
        hosts.read(expression)
    aloud(caught.value, about=repr(expression))


@given(st.text(alphabet="ab1[]-,:@.% /\t", max_size=20) | st.text(max_size=20))
def test_any_text_gives_nodes_or_one_line(text: str) -> None:
    try:
        assert hosts.read(text).cluster.nodes
    except ConfigError as error:
        assert str(error).isprintable()  # noqa: PT017 - no error at all is fine too
