"""RDMA devices as sysfs shows them."""

from __future__ import annotations

from preflight.node.rdma import active, devices
from preflight.node.replay import Replay

TOP = "/sys/class/infiniband"


def test_devices_and_ports() -> None:
    node = Replay(
        {
            "listdir": {
                TOP: ["mlx5_0", "mlx5_1"],
                **{f"{TOP}/mlx5_{n}/ports": ["1"] for n in "01"},
            },
            "read": {
                f"{TOP}/mlx5_0/ports/1/state": "4: ACTIVE\n",
                f"{TOP}/mlx5_1/ports/1/state": "1: DOWN\n",
                **{f"{TOP}/mlx5_{n}/ports/1/link_layer": "InfiniBand\n" for n in "01"},
            },
        }
    )
    found = devices(node)
    port = {"number": 1, "active": True, "link_layer": "InfiniBand"}
    assert found == [
        {"name": "mlx5_0", "ports": [port]},
        {"name": "mlx5_1", "ports": [{**port, "active": False}]},
    ]
    assert active(found) == ["mlx5_0:1"]


def test_no_such_class() -> None:
    assert devices(Replay({"listdir": {TOP: None}})) == []
