"""What the kernel says of ways, asked by netlink."""

from __future__ import annotations

import struct

import pytest

from preflight.node.replay import Replay
from preflight.node.route import Way, answered, by_socket, facing, question, strict, ways
from preflight.node.toolbox import Toolbox

OWN = {"interface": "lo", "kind": "loopback", "address": "127.0.0.1", "subnet": "127.0.0.0/8"}


def test_an_address_of_this_node() -> None:
    (route,) = ways(Toolbox(), [OWN], {"self": ["127.0.0.2"]})["self"]
    problem = "an address of this node itself"
    assert route["there"] == Way(device="lo", source="127.0.0.1", gateway="", problem=problem)
    assert (route["answer"]["device"], route["answer"]["problem"]) == ("lo", problem)


def test_a_socket_knows_the_source() -> None:
    node = Replay({"psutil": {"net_if_addrs": {"lo": [{"address": "127.0.0.1"}]}}})
    way = by_socket(node, "127.0.0.3")
    assert way == Way(device="lo", source="127.0.0.1", gateway="", problem="")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (101, "no route"),
        (113, "a route of type unreachable"),
        (13, "a route of type prohibit"),
        (22, "a route of type blackhole"),
        (99, "EADDRNOTAVAIL"),
    ],
)
def test_errors_of_the_kernel(code: int, words: str) -> None:
    reply = struct.pack("=IHHIIi", 36, 2, 0, 1, 0, -code) + question("10.0.0.1", "")[:16]
    assert answered(reply, "10.0.0.1") == Way(device="", source="", gateway="", problem=words)


def test_a_message_of_another_kind_is_no_answer() -> None:
    assert answered(struct.pack("=IHHII", 16, 3, 0, 1, 0), "10.0.0.1") is None


@pytest.mark.parametrize(
    ("addresses", "expected"),
    [
        (["10.0.0.9", "10.1.0.9"], [("eth0", "10.0.0.9"), ("eth1", "10.1.0.9")]),
        (["10.1.0.9"], [("eth1", "10.1.0.9")]),
        (["10.7.0.9"], [("eth0", "10.7.0.9")]),
        (["10.7.0.9", "10.8.0.9"], [("eth0", "10.7.0.9"), ("eth1", "10.8.0.9")]),
        (["10.0.0.9", "10.8.0.9", "10.9.0.9"], [("eth0", "10.0.0.9")]),
        (["fd00::9"], [("eth2", "fd00::9")]),
    ],
)
def test_rails_face_each_other(addresses: list[str], expected: list[tuple[str, str]]) -> None:
    own = [
        {"interface": "eth0", "address": "10.0.0.1", "subnet": "10.0.0.0/24"},
        {"interface": "eth1", "address": "10.1.0.1", "subnet": "10.1.0.0/24"},
        {"interface": "eth2", "address": "fd00::1", "subnet": ""},
    ]
    assert [(one["interface"], to) for one, to in facing(own, addresses)] == expected


@pytest.mark.parametrize(
    ("common", "own", "expected"),
    [("0", "1", ["eth0"]), ("1", "0", ["eth0"]), ("2", "1", []), ("0", "2", []), (None, None, [])],
)
def test_the_greater_rp_filter_counts(
    common: str | None, own: str | None, expected: list[str]
) -> None:
    folder = "/proc/sys/net/ipv4/conf"
    node = Replay({"read": {f"{folder}/all/rp_filter": common, f"{folder}/eth0/rp_filter": own}})
    assert strict(node, ["eth0"]) == expected
