"""What Gloo and TensorPipe choose, as `preflight.node.choice` follows them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from preflight.node.choice import Choice, choices, choices_by_name, dialled, subnet
from preflight.node.replay import Replay

ADDRESSES = {
    "lo": [("127.0.0.1", "255.0.0.0"), ("::1", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")],
    "eth0": [("10.0.0.1", "255.255.255.0"), ("fe80::1%eth0", "ffff:ffff:ffff:ffff::")],
    "eth1": [("10.1.0.1", "255.255.0.0")],
    "br-4f": [("172.18.0.1", "255.255.0.0")],
}


def node(found: list[str] | None = None, order: tuple[str, ...] = tuple(ADDRESSES)) -> Replay:
    """Return a node with a physical eth0 and eth1, whose host name means some addresses."""
    stats = {
        "isup": True,
        "duplex": "NIC_DUPLEX_FULL",
        "speed": 1000,
        "mtu": 1500,
        "flags": "up,running",
    }
    return Replay(
        {
            "environ": {"": {"HOME": "/home/alice"}},
            "read": {
                **dict.fromkeys(("/home/alice/.nccl.conf", "/etc/nccl.conf")),
                **{f"/sys/class/net/{name}/uevent": "" for name in order},
            },
            "listdir": {
                "/sys/class/infiniband": None,
                "/sys/class/net/lo": [],
                "/sys/class/net/eth0": ["device"],
                "/sys/class/net/eth1": ["device"],
                "/sys/class/net/br-4f": ["bridge"],
                "/sys/class/net/br-4f/brif": [],
            },
            "psutil": {
                "net_if_addrs": {
                    name: [
                        {
                            "family": "AF_INET6" if ":" in address else "AF_INET",
                            "address": address,
                            "netmask": mask,
                        }
                        for address, mask in ADDRESSES[name]
                    ]
                    for name in order
                },
                "net_if_stats": dict.fromkeys(order, stats),
            },
            "uname": {"": {"node": "tb1"}},
            "resolve": {"tb1": found or []},
        }
    )


def told(made: list[Choice]) -> list[tuple[str, str, str]]:
    return [(one["by"], one["interface"], one["address"]) for one in made]


def env(**values: str) -> Mapping[str, Any]:
    return {"env": values}


def test_variables_name_whole_interfaces() -> None:
    launch = env(GLOO_SOCKET_IFNAME="eth1,eth0", TP_SOCKET_IFNAME="eth", NCCL_SOCKET_IFNAME="=eth0")
    made = choices(node(), launch)["choices"]
    assert told(made) == [
        ("NCCL", "eth0", "10.0.0.1"),
        ("Gloo", "eth1", "10.1.0.1"),
        ("Gloo", "eth0", "10.0.0.1"),
        ("TensorPipe", "eth", ""),
    ]
    assert [one["problem"] for one in made if one["problem"]] == [
        "no interface 'eth' with an address: TP_SOCKET_IFNAME=eth (launch.env)"
    ]
    assert [one["subnet"] for one in made] == ["10.0.0.0/24", "10.1.0.0/16", "10.0.0.0/24", ""]


def test_ranks_of_nccl_meet_on_the_first_interface_though_it_leads_nowhere() -> None:
    made = choices(node(order=("lo", "br-4f", "eth0", "eth1")), env())
    assert told(made["choices"]) == [
        ("NCCL", "br-4f", "172.18.0.1"),
        ("NCCL", "eth0", "10.0.0.1"),
        ("NCCL", "eth1", "10.1.0.1"),
    ]
    assert made["network"]["data_plane"]["aside"] == ["br-4f"]


def test_further_addresses_are_those_that_nobody_chose() -> None:
    made = choices(node(), env(NCCL_SOCKET_IFNAME="eth0", GLOO_SOCKET_IFNAME="eth0"))
    assert made["others"] == {"eth1": "10.1.0.1", "br-4f": "172.18.0.1"}


@pytest.mark.parametrize(
    ("found", "interface", "address", "why"),
    [
        (["10.1.0.1"], "eth1", "10.1.0.1", "the host name tb1"),
        (["10.7.7.7", "10.0.0.1"], "eth0", "10.0.0.1", "the host name tb1"),
        (["127.0.1.1"], "lo", "127.0.1.1", "the host name tb1"),
        (
            ["10.7.7.7"],
            "lo",
            "127.0.0.1",
            "the host name tb1, which is 10.7.7.7, not an address of this node",
        ),
        ([], "lo", "127.0.0.1", "the host name tb1 has no address"),
    ],
)
def test_the_host_name_decides(found: list[str], interface: str, address: str, why: str) -> None:
    made = choices_by_name(node(found), env())
    assert told(made) == [("Gloo", interface, address), ("TensorPipe", interface, address)]
    assert {one["why"] for one in made} == {why}


def test_a_variable_leaves_nothing_to_the_host_name() -> None:
    assert told(choices_by_name(node(["10.0.0.1"]), env(TP_SOCKET_IFNAME="eth1"))) == [
        ("Gloo", "eth0", "10.0.0.1")
    ]
    both = env(TP_SOCKET_IFNAME="eth1", GLOO_SOCKET_IFNAME="eth1")
    assert choices_by_name(node(["10.0.0.1"]), both) == []


def test_a_container_has_a_host_name_of_its_own() -> None:
    launch = {"container": {"engine": "docker", "image": "train:1"}}
    assert choices_by_name(node(["10.0.0.1"]), launch) == []


def test_addresses_that_nobody_else_can_dial() -> None:
    made = choices_by_name(node(["127.0.1.1"]), env())
    made += choices(node(), env(NCCL_SOCKET_IFNAME="eth0"))["choices"]
    assert dialled(made) == ["10.0.0.1"]


@pytest.mark.parametrize(
    ("address", "mask", "expected"),
    [
        ("10.1.2.3", "255.255.0.0", "10.1.0.0/16"),
        ("10.1.2.3", "", ""),
        ("fd00::7", "ffff:ffff:ffff:ffff::", "fd00::/64"),
        ("fe80::1%eth0", "ffff:ffff:ffff:ffff::", "fe80::/64"),
    ],
)
def test_subnets(address: str, mask: str, expected: str) -> None:
    assert subnet(address, mask) == expected
