"""NCCL's rules of choosing interfaces, as `preflight.node.net` follows them."""

from __future__ import annotations

import pytest

from preflight.api import Address
from preflight.node.launch import Setting
from preflight.node.net import Interface, data_plane, put_aside, selects


def interface(name: str, *addresses: str, running: bool = True) -> Interface:
    return Interface(
        name=name,
        kind="",
        addresses=[Address(one) for one in addresses],
        mtu=1500,
        speed_mbps=0,
        duplex="unknown",
        up=True,
        running=running,
        members=[],
    )


NODE = [
    interface("lo", "127.0.0.1", "::1"),
    interface("virbr0", "192.168.122.1"),
    interface("docker0", "172.17.0.1"),
    interface("eth0", "10.0.0.1", "fe80::1"),
    interface("eth1", "10.1.0.1"),
    interface("eth10", "fd00::10"),
    interface("down0", "10.2.0.1", running=False),
    interface("bare0"),
]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("eth", ["eth0", "eth1", "eth10"]),
        ("eth1", ["eth1", "eth10"]),
        ("=eth1", ["eth1"]),
        ("=eth1,eth0", ["eth0", "eth1"]),
        ("^docker,lo,virbr", ["eth0", "eth1", "eth10"]),
        ("^=eth1,lo,docker0,virbr0", ["eth0", "eth10"]),
        ("eth0:1", ["eth0"]),
        ("ib0,eth0", ["eth0"]),
        (",", ["lo", "virbr0", "docker0", "eth0", "eth1", "eth10"]),
    ],
)
def test_rules_of_names(rule: str, expected: list[str]) -> None:
    usable = [one["name"] for one in NODE if one["running"] and one["addresses"]]
    assert [name for name in usable if selects(rule, name)] == expected
    setting = Setting(value=rule, source="launch.env")
    names = data_plane(NODE, None, {"NCCL_SOCKET_IFNAME": setting})["names"]
    assert names == (expected if len(rule) > 1 else ["eth0", "eth1", "eth10"])


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (NODE, ["eth0", "eth1", "eth10"]),
        ([*NODE, interface("ib0", "10.9.0.1"), interface("ib1", "10.9.1.1")], ["ib0", "ib1"]),
        ([*NODE, interface("ib0", "fe80::9")], ["ib0"]),
        ([*NODE[:4], interface("ib0", "10.9.0.1", running=False)], ["eth0"]),
        ([interface("usb0", "169.254.1.2"), *NODE[:4]], ["eth0"]),
        (NODE[:3], ["docker0"]),
        (NODE[:2], ["lo"]),
        (NODE[1:2], ["virbr0"]),
        (NODE[6:], []),
    ],
)
def test_without_a_variable(found: list[Interface], expected: list[str]) -> None:
    assert data_plane(found, None, {})["names"] == expected


def test_family() -> None:
    family = {"NCCL_SOCKET_FAMILY": Setting(value="AF_INET6", source="launch.env")}
    both = {**family, "NCCL_SOCKET_IFNAME": Setting(value="eth", source="launch.env")}
    assert data_plane(NODE, None, both)["names"] == ["eth0", "eth10"]


def test_the_inventory_names_it() -> None:
    assert data_plane(NODE, "down0", {}) == {
        "names": ["down0"],
        "idle": [],
        "aside": [],
        "address": "10.2.0.1",
        "why": "launch.interface",
        "problem": "",
    }
    problem = data_plane(NODE, "eth7", {})["problem"]
    assert problem == "there is no interface 'eth7' (launch.interface)"


def test_no_match() -> None:
    setting = Setting(value="ib0", source="/etc/nccl.conf")
    assert data_plane(NODE, None, {"NCCL_SOCKET_IFNAME": setting}) == {
        "names": [],
        "idle": [],
        "aside": [],
        "address": "",
        "why": "NCCL_SOCKET_IFNAME=ib0 (/etc/nccl.conf)",
        "problem": "no interface that is up and has an address matches "
        "NCCL_SOCKET_IFNAME=ib0 (/etc/nccl.conf)",
    }


@pytest.mark.parametrize(
    ("addresses", "expected"),
    [
        (("fe80::1",), ""),
        (("169.254.20.10", "fd00::1"), "fd00::1"),
        (("10.0.0.1", "fd00::1"), "10.0.0.1"),
    ],
)
def test_address_for_other_nodes(addresses: tuple[str, ...], expected: str) -> None:
    assert data_plane([interface("eth0", *addresses)], None, {})["address"] == expected


@pytest.mark.parametrize(
    ("rule", "idle"),
    [
        ("eth0,down0", ["down0"]),
        ("=eth0,down0:1", ["down0"]),
        ("eth0,bare0", ["bare0"]),
        ("eth0,down", []),  # a beginning means those that are in use
        ("^lo,down0", []),
    ],
)
def test_what_is_named_in_whole_and_not_used_is_told(rule: str, idle: list[str]) -> None:
    setting = Setting(value=rule, source="launch.env")
    assert data_plane(NODE, None, {"NCCL_SOCKET_IFNAME": setting})["idle"] == idle


@pytest.mark.parametrize(
    ("rule", "names", "aside"),
    [
        ("^lo,docker,virbr", ["eth0"], ["veth1"]),
        ("eth0,veth", ["eth0", "veth1"], []),  # named, so meant
        ("^lo,docker,virbr,eth", ["veth1"], []),  # there is nothing else
    ],
)
def test_what_no_other_node_reaches_is_put_aside(
    rule: str, names: list[str], aside: list[str]
) -> None:
    node = [*NODE[:4], interface("veth1", "fe80::2")]
    chosen = data_plane(
        node, None, {"NCCL_SOCKET_IFNAME": Setting(value=rule, source="launch.env")}
    )
    assert (chosen["names"], chosen["aside"]) == (names, aside)


def test_bridges_of_containers_are_put_aside() -> None:
    found = [interface("eth0", "10.0.0.1"), interface("br-4f2a", "172.18.0.1")]
    rule = {"NCCL_SOCKET_IFNAME": Setting(value="^lo,docker", source="launch.env")}
    found[1]["kind"] = "bridge"
    chosen = data_plane(found, None, rule)
    put_aside(chosen, found)
    assert (chosen["names"], chosen["aside"]) == (["eth0"], ["br-4f2a"])
    alone = data_plane(found[1:], None, rule)
    put_aside(alone, found[1:])
    assert (alone["names"], alone["aside"]) == (["br-4f2a"], [])
