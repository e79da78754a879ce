"""What is wrong by what NCCL says, and at which nodes."""

from __future__ import annotations

from typing import Any

import pytest

from preflight.node.nccl_cause import found
from preflight.node.nccl_log import of_node
from preflight.node.wires import Port, Wires

NAMES = ("a", "b", "c", "d")
IB = {"network": "IB", "hcas": ["mlx5_0:1", "mlx5_1:1"], "channels": {"NET/IB/GDRDMA": 8}}
TCP: dict[str, Any] = {"network": "Socket", "channels": {"NET/Socket": 8}}
ON_ETH0 = {**TCP, "sockets": {"eth0": "10.0.0.1"}}


def facts(usual: dict[str, Any], rdma: bool = True, **odd: dict[str, Any]) -> Any:
    """Return facts of four nodes whose NCCL says what is usual, but for odd ones."""
    ports = [Port(name=f"mlx5_{n}:1", gbps=400.0, slot="", slot_gbs=0.0) for n in range(2)]
    made = {}
    for number, name in enumerate(NAMES, 1):
        address = f"10.0.0.{number}"
        said = {"interface": "eth0", "address": address, **usual, **odd.get(name, {})}
        by = "RDMA" if rdma else "TCP"
        made[name] = {
            "address": address,
            "interface": "eth0",
            "subnet": "10.0.0.0/24",
            "nccl": "2.27.5",
            "wires": Wires(by=by, ports=ports if rdma else [], unsure="", cards=[]),
            "heard": {**of_node(""), **said},
        }
    return made


def told(made: Any, ended: bool = True) -> Any:
    """Return what is said of all nodes, or by node."""
    cause = found(made, ended)
    return None if cause is None else dict(cause.at) or cause.words


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (facts(IB), None),
        (facts(IB, c=TCP),
         {"c": "uses sockets (TCP), though mlx5_0, mlx5_1 are active"}),
        (facts(TCP), "on all nodes, uses sockets (TCP), though mlx5_0, mlx5_1 are active"),
        (facts(TCP, rdma=False), None),
        (facts(IB, rdma=False, c=TCP), {"c": "uses sockets, network IB on the others"}),
        (facts(IB, a={"network": "IBext_v8"}, b={"network": "IBext_v8"}),
         "network IB on c, d; network IBext_v8 on a, b"),
        (facts(ON_ETH0, rdma=False, b={"sockets": {"docker0": "172.17.0.1"}}),
         {"b": "sends by docker0 (172.17.0.1), the others reach it at 10.0.0.2"}),
        (facts({**TCP, "sockets": {"ens5": "10.1.0.1"}}, rdma=False), None),
        (facts(IB, b={"channels": {"NET/IB": 8}}), {"b": "GPUDirect RDMA is missing"}),
        (facts({**IB, "channels": {"NET/IB": 8}}), "on all nodes, GPUDirect RDMA is missing"),
        (facts(IB, d={"hcas": ["mlx5_0:1"]}), {"d": "uses 1 RDMA port, the others 2"}),
        (facts(IB, a={"hcas": ["m:1"]}, b={"hcas": ["m:1"]}), None),
        (facts(IB, b={"version": "2.21.5"}), {"b": "NCCL 2.21.5, NCCL 2.27.5 on the others"}),
        (facts(IB, b={"address": "172.17.0.1"}), None),
    ],
)  # fmt: skip
def test_slow(made: Any, words: object) -> None:
    assert told(made) == words


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (facts(IB), None),
        (facts(IB, b={"channels": {"NET/IB": 8}}), None),
        (facts(IB, b={"version": "2.21.5"}), {"b": "NCCL 2.21.5, NCCL 2.27.5 on the others"}),
        (facts(IB, b={"interface": "docker0", "address": "172.17.0.1"}),
         {"b": "bootstraps by docker0 (172.17.0.1), the others reach it at 10.0.0.2"}),
        (facts(IB, b={"address": "fe80::1%eth0"}),
         {"b": "bootstraps by eth0 (fe80::1%eth0), the others reach it at 10.0.0.2"}),
        (facts(IB, b={"interface": "eth1", "address": "10.0.0.77"}), None),
        (facts(IB, b={"address": "10.1.0.1"}, c={"address": "10.1.0.2"}), None),
        (facts(IB, b={"address": ""}), None),
        (facts(IB, c=TCP), {"c": "uses sockets (TCP), though mlx5_0, mlx5_1 are active"}),
    ],
)  # fmt: skip
def test_it_does_not_end(made: Any, words: object) -> None:
    assert told(made, ended=False) == words


def test_who_was_not_heard_is_not_odd() -> None:
    made = facts(IB)
    made["b"]["heard"] = None
    assert told(made) is None
    assert told({name: {**made["b"]} for name in NAMES}) is None
