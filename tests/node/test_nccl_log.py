"""What NCCL says of itself, in the shapes of its versions, mixed with other things and cut off."""

from __future__ import annotations

import random

import pytest

from preflight.node.nccl_log import KEPT, LONGEST, Line, by_host, in_words, lines, of_node

HEAD = "node1:77:78 [0] NCCL INFO "
WARN = "node1:77:78 [0] transport/net_ib.cc:7 NCCL WARN "
NODE = (
    HEAD + "NCCL version 2.27.5+cuda12.9\n"
    f"{HEAD}Bootstrap: Using eth0:10.0.0.1<0>\n"
    f"{HEAD}Initialized NET plugin IB\n"
    f"{HEAD}NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.1<0>\n"
    f"{HEAD}Using network IB\n"
    f"{HEAD}Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA\n"
    f"{HEAD}Channel 01/0 : 0[0] -> 8[0] [receive] via NET/IB/1(3)/GDRDMA/Shared\n"
    f"{HEAD}Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read\n"
    f"\n[2026-11-30 17:00:00] {WARN}NET/IB : Got async event : port error\n"
)
NOTHING = of_node("")


@pytest.mark.parametrize(
    ("words", "key", "value"),
    [
        ("NCCL version 2.4.8+cuda10.1", "version", "2.4.8"),
        ("NCCL version 2.30.7+cuda13.0", "version", "2.30.7"),
        ("Bootstrap : Using [0]eth0:10.0.0.1<0> [1]veth1:10.1.0.1<0>", "address", "10.0.0.1"),
        ("Bootstrap : Using eth0:10.0.0.1<0>", "interface", "eth0"),
        ("Bootstrap: Using ib0.8001@ib0:fe80::1%ib0<0>", "address", "fe80::1%ib0"),
        ("Bootstrap: Using mlx5_0:1", "interface", ""),
        ("NET/IB : No device found.", "hcas", []),
        ("NET/IB : Using [RO]; OOB eth0:10.0.0.1<0>", "hcas", []),
        ("NET/IB : Using [0]mlx5_0:1/IB/SHARP [1]mlx5_1:1/RoCE ; OOB eth0:1<0>", "hcas",
         ["mlx5_0:1", "mlx5_1:1"]),
        ("NET/Socket : Using [0]eth0:10.0.0.1<0> [1]eth1:10.1.0.1<0>", "sockets",
         {"eth0": "10.0.0.1", "eth1": "10.1.0.1"}),
        ("Using network AWS Libfabric", "network", "AWS Libfabric"),
        ("Using network Socket", "network", "Socket"),
        ("NET/Plugin: Loaded net plugin NCCL RDMA Plugin v8 (v8)", "plugin",
         "NCCL RDMA Plugin v8 (v8)"),
        ("NET/Plugin: Could not find: libnccl-net.so.", "plugin", ""),
    ],
)  # fmt: skip
def test_what_is_stated(words: str, key: str, value: object) -> None:
    assert of_node(f"{HEAD}{words}\n")[key] == value  # type: ignore[literal-required]


@pytest.mark.parametrize(
    ("words", "way"),
    [
        ("Ring 00 : 15 -> 0 [send] via NET/Socket/0", "NET/Socket"),
        ("Channel 00 : 0[1a000] -> 1[3e000] via direct shared memory", "SHM"),
        ("Channel 00 : 0[1a000] -> 1[3e000] via P2P/direct pointer", "P2P/direct pointer"),
        ("Channel 00/02 : 0[1a000] -> 1[3e000] via P2P/IPC/read", "P2P/IPC"),
        ("Channel 00/1 : 0[0] -> 1[1] via P2P/IPC comm 0x55 nRanks 02", "P2P/IPC"),
        ("Channel 00 : 0[0] -> 1[1] via SHM/direct/direct", "SHM"),
        ("Channel 00/0 : 0[0] -> 3[3] via P2P/indirect/1[1]", "P2P/indirect"),
        ("Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0", "NET/IB"),
        ("Channel 00/0 : 0[0] -> 8[0] [send] via NET/AWS Libfabric/0/GDRDMA",
         "NET/AWS Libfabric/GDRDMA"),
        ("Channel 00/0 : 0[0] -> 8[0] [receive] via NET/IBext_v8/4/GDRDMA/Shared",
         "NET/IBext_v8/GDRDMA"),
        ("Channel 00 : 8[0] -> 0[0] [receive] via COLLNET/SHARP/0/GDRDMA", "COLLNET/SHARP/GDRDMA"),
    ],
)  # fmt: skip
def test_ways_of_channels(words: str, way: str) -> None:
    assert of_node(f"{HEAD}{words}\n")["channels"] == {way: 1}


def test_all_that_a_node_says() -> None:
    heard = of_node(NODE)
    assert in_words(heard) == (
        "NCCL 2.27.5; bootstrap eth0 (10.0.0.1); network IB; plugin IB; RDMA mlx5_0:1, mlx5_1:1; "
        "channels 2 x NET/IB/GDRDMA, 1 x P2P/CUMEM"
    )
    assert heard["warnings"] == ["NET/IB : Got async event : port error"]


def test_a_version_without_a_head() -> None:
    assert of_node("NCCL version 2.18.5+cuda12.2\n" + HEAD)["version"] == "2.18.5"


def test_before_2_6_channels_tell_the_network() -> None:
    text = f"{HEAD}Ring 00 : 15 -> 0 [send] via NET/Socket/0\n"
    assert of_node(text)["network"] == "Socket"


def test_by_host_behind_labels_and_in_one_line() -> None:
    text = (
        "[1,0]<stdout>:node1:7:7 [0] NCCL INFO Using network IB\n"
        " 1: node10:8:8 [0] NCCL INFO Using network Socket\n"
        "   32768  8192 float0node1:7:7 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via "
        "NET/IB/0/GDRDMAnode10:8:8 [0] NCCL INFO Bootstrap: Using eth1:10.1.0.2<0>\n"
    )
    found = by_host(text, ["node10", "node1"])
    assert {host: one["network"] for host, one in found.items()} == {
        "node1": "IB",
        "node10": "Socket",
    }
    assert found["node1"]["channels"] == {"NET/IB/GDRDMA": 1}
    assert found["node10"]["interface"] == "eth1"
    assert by_host(text, [])["node10"]["network"] == "Socket"


def test_what_is_kept_is_little() -> None:
    text = "".join(f"{WARN}{number} {'x' * 999}\n" for number in range(99))
    text += f"{HEAD}NET/IB : Using " + " ".join(f"[{n}]mlx5_{n}:1/IB" for n in range(999)) + "\n"
    text += "".join(f"{HEAD}Channel 0 : 0[0] -> 1[1] [send] via NET/N{n}/0\n" for n in range(99))
    heard = of_node(text)
    assert len(heard["warnings"]) == KEPT
    assert max(map(len, heard["warnings"])) == LONGEST
    assert len(str(heard)) < 4000


def test_lines_that_are_none() -> None:
    assert list(lines("NCCL INFO x\nhost:1 NCCL WARN y\nhost:1:2 [0] NCCL\n")) == []
    assert list(lines("h:1:2 NCCL CALL z")) == [Line("h", "CALL", "z")]
    assert of_node(f"{WARN}\n") == NOTHING


@pytest.mark.parametrize("seed", range(20))
def test_nothing_makes_it_raise(seed: int) -> None:
    chance = random.Random(seed)
    text = list(NODE * 3)
    for _ in range(200):
        place = chance.randrange(len(text))
        text[place] = chance.choice(
            ["", "\n", "\0", "\ufffd", "[", "<", ":", "9" * 40, NODE[:place]]
        )
    mixed = "".join(text)
    heard = of_node(mixed[: chance.randrange(len(mixed))])
    assert set(heard) == set(NOTHING)
    assert all(set(one) == set(NOTHING) for one in by_host(mixed, []).values())


def test_wherever_it_is_cut_off_no_more_is_told() -> None:
    whole = of_node(NODE)
    for end in range(len(NODE)):
        heard = of_node(NODE[:end])
        assert set(heard["hcas"]) <= {*whole["hcas"], "mlx5_0", "mlx5_1"} | {"mlx5_0:", "mlx5_1:"}
        assert sum(heard["channels"].values()) <= sum(whole["channels"].values())
