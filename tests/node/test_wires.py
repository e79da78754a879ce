"""What a node's data goes through, by recordings of nodes that are not here (synthetic)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from preflight.node.replay import Replay
from preflight.node.wires import Card, Port, wires

TOP = "/sys/class/infiniband"
Recording = dict[str, dict[str, Any]]


def node(virtual: bool = False, speed: int = 25000) -> Recording:
    """Return a node with eth0, and neither RDMA nor GPUs."""
    address = {"family": "AF_INET", "address": "10.0.0.1", "netmask": "255.255.255.0"}
    stats = {"mtu": 9000, "speed": speed, "duplex": "NIC_DUPLEX_FULL", "flags": "up,running"}
    return {
        "environ": {"": {"HOME": "/root"}},
        "read": {
            "/root/.nccl.conf": None,
            "/etc/nccl.conf": None,
            "/proc/cpuinfo": "flags\t: sse hypervisor avx\n" if virtual else "flags\t: sse\n",
        },
        "listdir": {TOP: None, "/sys/class/net/eth0": ["device", "uevent"]},
        "psutil": {"net_if_addrs": {"eth0": [address]}, "net_if_stats": {"eth0": stats}},
        "nvml": {"nvmlDeviceGetCount": {"absent": "no NVML library"}},
        "realpath": {},
    }


def with_port(
    recording: Recording,
    name: str,
    slot: str,
    rate: str = "400 Gb/sec (4X NDR)\n",
    layer: str = "InfiniBand",
) -> None:
    """Give a node an RDMA device in sixteen lanes of PCIe 5.0."""
    place = f"{TOP}/{name}"
    recording["listdir"][TOP] = [*(recording["listdir"][TOP] or ()), name]
    recording["listdir"][f"{place}/ports"] = ["1"]
    recording["realpath"][f"{place}/device"] = f"/sys/devices/pci0000:15/0000:15:01.0/{slot}"
    recording["read"] |= {
        f"{place}/ports/1/state": "4: ACTIVE\n",
        f"{place}/ports/1/link_layer": layer + "\n",
        f"{place}/ports/1/rate": rate,
        f"{place}/device/current_link_speed": "32.0 GT/s PCIe\n",
        f"{place}/device/current_link_width": "16\n",
    }


def with_gpus(recording: Recording, ends: Mapping[int, list[int | None]]) -> None:
    """Give a node H100s, and NVLinks that lead to other GPUs, or to a switch (None)."""
    nvml: dict[str, Any] = {"nvmlDeviceGetCount": len(ends)}
    for index, others in ends.items():
        nvml[f"nvmlDeviceGetPciInfo {index}"] = {"busId": f"0000000{index}:1B:00.0"}
        nvml[f"nvmlDeviceGetCudaComputeCapability {index}"] = [9, 0]
        nvml[f"nvmlDeviceGetMaxPcieLinkGeneration {index}"] = 5
        nvml[f"nvmlDeviceGetMaxPcieLinkWidth {index}"] = 16
        for link in range(36):
            state = f"nvmlDeviceGetNvLinkState {index} {link}"
            nvml[state] = {"unobservable": "NVML: Invalid Argument"}
        for link, other in enumerate(others):
            nvml[f"nvmlDeviceGetNvLinkState {index} {link}"] = 1
            kind = f"nvmlDeviceGetNvLinkRemoteDeviceType {index} {link}"
            nvml[kind] = 2 if other is None else 0
            nvml[f"nvmlDeviceGetNvLinkRemotePciInfo {index} {link}"] = {
                "busId": f"0000000{other}:1B:00.0"
            }
    recording["nvml"] = nvml


def ndr(name: str, slot: str) -> Port:
    return Port(name=name, gbps=400.0, slot=slot, slot_gbs=48.0)


def test_tcp() -> None:
    assert wires(Replay(node()), {}) == {
        "by": "TCP",
        "ports": [{"name": "eth0", "gbps": 25.0, "slot": "", "slot_gbs": 0.0}],
        "unsure": "",
        "cards": [],
    }


def test_a_virtual_machine_is_not_told_its_share() -> None:
    found = wires(Replay(node(virtual=True)), {})
    assert found["unsure"] == "a virtual machine's share of a link is not told"
    shared = node(virtual=True)
    with_port(shared, "mlx5_0", "0000:17:00.0", layer="Ethernet")
    assert wires(Replay(shared), {})["unsure"] == found["unsure"]
    whole = node(virtual=True)
    with_port(whole, "mlx5_0", "0000:17:00.0")
    assert wires(Replay(whole), {})["unsure"] == ""


def two_rails() -> Recording:
    recording = node()
    with_port(recording, "mlx5_0", "0000:17:00.0")
    with_port(recording, "mlx5_1", "0000:17:00.1")
    with_port(recording, "mlx5_bond_0", "0000:29:00.0", "100 Gb/sec (4X EDR)\n", "Ethernet")
    return recording


@pytest.mark.parametrize(
    ("rule", "names"),
    [
        ("mlx5_0,mlx5_1", ["mlx5_0:1", "mlx5_1:1"]),
        ("=mlx5_1:1", ["mlx5_1:1"]),
        ("mlx5_0:2", ["eth0"]),
        ("^mlx5_bond", ["mlx5_0:1", "mlx5_1:1"]),
        ("", ["mlx5_0:1", "mlx5_1:1", "mlx5_bond_0:1"]),
    ],
)
def test_ports_of_nccl_ib_hca(rule: str, names: list[str]) -> None:
    found = wires(Replay(two_rails()), {"env": {"NCCL_IB_HCA": rule}})
    assert [port["name"] for port in found["ports"]] == names
    assert found["by"] == ("TCP" if names == ["eth0"] else "RDMA")


def test_rates_and_slots() -> None:
    found = wires(Replay(two_rails()), {})
    assert found["ports"] == [
        ndr("mlx5_0:1", "0000:17:00"),
        ndr("mlx5_1:1", "0000:17:00"),
        # What one connection gets of a bond is not told by the rate of the bond.
        {"name": "mlx5_bond_0:1", "gbps": 0.0, "slot": "0000:29:00", "slot_gbs": 48.0},
    ]


def test_not_by_rdma() -> None:
    found = wires(Replay(two_rails()), {"env": {"NCCL_IB_DISABLE": "1"}})
    assert (found["by"], found["unsure"]) == ("TCP", "")
    found = wires(Replay(two_rails()), {"env": {"NCCL_NET": "FasTrak"}})
    assert found["unsure"] == "what NCCL_NET=FasTrak goes through is not known"


def test_efa() -> None:
    recording = node()
    with_port(recording, "rdmap0s6", "0000:00:06.0", layer="Unspecified")
    found = wires(Replay(recording), {})
    assert found["by"] == "TCP"
    assert found["unsure"] == "the RDMA devices here are not for NCCL's own transport"


def card(links: int, *peers: int) -> Card:
    return Card(
        capability=90,
        links=links,
        peers=list(peers),
        is_switched=links == 18,
        generation=5,
        width=16,
    )


def test_nvlinks_by_a_switch_and_direct() -> None:
    recording = node()
    with_gpus(recording, {index: [None] * 18 for index in range(4)})
    found = wires(Replay(recording), {})["cards"]
    assert found == [card(18, 1, 2, 3), card(18, 0, 2, 3), card(18, 0, 1, 3), card(18, 0, 1, 2)]
    with_gpus(recording, {0: [1] * 12, 1: [0] * 12, 2: [], 3: []})
    assert wires(Replay(recording), {})["cards"] == [card(12, 1), card(12, 0), card(0), card(0)]


def test_gpus_that_do_not_answer() -> None:
    recording = node()
    with_gpus(recording, {0: [], 1: []})
    recording["nvml"]["nvmlDeviceGetPciInfo 1"] = {"unobservable": "NVML: GPU is lost"}
    assert wires(Replay(recording), {})["cards"] == []
