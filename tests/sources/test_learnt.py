"""What one look tells."""

from __future__ import annotations

from typing import Any

import pytest

from preflight.sources.learnt import Learnt, Seen, learnt


def gpus(count: int, **more: Any) -> Any:
    bus = [f"0000:{place:02x}:00.0" for place in range(count)]
    whole = {"error": "", "gpus": [{"error": ""}] * count, "bus": bus, "driverless": []}
    return {**whole, "device_files": count, **more}


def network(*names: str, mtu: int = 1500, why: str = "NCCL's choice", besides: Any = ()) -> Any:
    one = {"mtu": mtu, "running": True, "kind": "physical", "addresses": ["10.0.0.1"]}
    interfaces = [{**one, "name": name} for name in names]
    interfaces += [{**one, "mtu": 9000, **more} for more in besides]
    return {"interfaces": interfaces, "data_plane": {"names": list(names), "why": why}}


def mount(path: str, source: str = "nas:/x", kind: str = "nfs4") -> dict[str, str]:
    return {"path": path, "type": kind, "source": source}


def mounts(*table: dict[str, str], error: str = "", readable: bool = True) -> Any:
    visit = {"error": error, "readable": readable}
    return {"network": list(table), "visits": {one["path"]: visit for one in table}}


def seen(count: int = 2, **facts: dict[str, Any]) -> Learnt:
    return learnt(count, facts.get("gpus", {}), facts.get("net", {}), facts.get("mounts", {}))


def test_what_all_have() -> None:
    table = [mount("/data"), mount("/home", "nas:/home[sub]")]
    found = seen(
        gpus={"a": gpus(8), "b": gpus(8)},
        net={"a": network("eth1", mtu=9000), "b": network("eth1", mtu=9000)},
        mounts={"a": mounts(*table), "b": mounts(*table)},
    )
    assert found == Learnt(
        gpus=Seen(8, "seen on all nodes"),
        interface=Seen("eth1", "seen on all nodes"),
        mtu=Seen(9000, "seen on all nodes"),
        mounts=Seen(
            [
                {"path": "/data", "type": "nfs4", "source": "nas:/x"},
                {"path": "/home", "type": "nfs4", "source": "nas:/home[[]sub]"},
            ],
            "seen on all nodes",
        ),
    )


def test_nobody_answered() -> None:
    none = Seen(None, "no node answered")
    assert seen() == Learnt(none, none, none, Seen([], "seen on 0 of 2 nodes"))


def test_some_answered() -> None:
    found = seen(3, gpus={"a": gpus(8), "b": gpus(8)}, net={"a": network("eth1")})
    assert found.gpus == Seen(8, "seen on 2 of 3 nodes")
    assert found.interface == Seen("eth1", "seen on 1 of 3 nodes")


def test_what_differs_is_not_learnt() -> None:
    found = seen(
        gpus={"gpu01": gpus(8), "gpu02": gpus(7), "gpu03": gpus(8)},
        net={"a": network("eth0"), "b": network("eth1", mtu=9000)},
        mounts={"a": mounts(mount("/data")), "b": mounts()},
    )
    assert found.gpus == Seen(None, "8 on gpu[01,03], 7 on gpu02")
    assert found.interface == Seen(None, "eth0 on a, eth1 on b")
    assert found.mtu == Seen(None, "1500 on a, 9000 on b")
    assert found.mounts.value == []
    many = seen(4, net={name: network(name) for name in "abcd"})
    assert many.interface == Seen(None, "4 different values")


def test_a_cluster_without_gpus_promises_none() -> None:
    found = seen(gpus={"a": gpus(0), "b": gpus(0)})
    assert found.gpus == Seen(None, "no node that answered shows a GPU")


@pytest.mark.parametrize(
    "broken",
    [
        {"error": "Driver Not Loaded"},
        {"driverless": ["0000:07:00.0"]},
        {"bus": [f"0000:{place:02x}:00.0" for place in range(8)], "device_files": 8},
        {"gpus": [{"error": "GPU is lost"}] * 7},
    ],
)
def test_gpus_that_are_missing_now_do_not_become_the_promise(broken: dict[str, Any]) -> None:
    found = seen(gpus={"a": gpus(7), "b": gpus(7, **broken)})
    assert found.gpus == Seen(None, "not all GPUs answer on b")


def test_a_container_that_is_given_a_part_of_the_machine_is_whole() -> None:
    bus = [f"0000:{place:02x}:00.0" for place in range(8)]
    found = seen(gpus={"a": gpus(4, bus=bus), "b": gpus(4, bus=bus)})
    assert found.gpus == Seen(4, "seen on all nodes")


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (["lo"], "nothing but the loopback is up"),
        (["eth0", "eth1"], "NCCL would take eth0 and eth1"),
        ([], "NCCL would take none"),
    ],
)
def test_a_data_plane_that_is_not_one_interface(names: list[str], why: str) -> None:
    net = {node: network(*names, why="NCCL_SOCKET_IFNAME=eth (the shell)") for node in "ab"}
    assert seen(net=net).interface == Seen(None, why)


def test_an_interface_that_is_one_of_several_is_only_suggested() -> None:
    net = {node: network("eth0", besides=[{"name": "eth1"}]) for node in "ab"}
    assert seen(net=net)[1:3] == (
        Seen("eth0", "NCCL would pick eth0; eth1 is there too", is_sure=False),
        Seen(1500, "of eth0; eth1 is there too"),
    )
    both = {node: network("eth0", "eth1") for node in "ab"}
    assert seen(net=both).interface == seen(net=net).interface
    several = [{"name": f"eth{place}"} for place in range(1, 6)]
    for count, words in (
        (2, "eth1 and eth2"),
        (3, "eth1, eth2 and eth3"),
        (5, "eth1, eth2 and 3 more"),
    ):
        found = seen(1, net={"a": network("eth0", besides=several[:count])})
        assert found.interface.why == f"NCCL would pick eth0; {words} are there too"


@pytest.mark.parametrize(
    "no_other",
    [
        {"name": "docker0", "kind": "bridge"},
        {"name": "eth1", "running": False},
        {"name": "eth1", "addresses": []},
        {"name": "eth1", "addresses": ["169.254.1.1", "fe80::1"]},
    ],
)
def test_what_cannot_be_the_data_plane_is_no_choice(no_other: dict[str, Any]) -> None:
    found = seen(1, net={"a": network("eth0", besides=[no_other])})
    assert found.interface == Seen("eth0", "seen on all nodes")


def test_who_names_the_interface_has_chosen() -> None:
    why = "NCCL_SOCKET_IFNAME=eth1 (the shell)"
    found = seen(1, net={"a": network("eth1", why=why, besides=[{"name": "eth0"}])})
    assert found.interface == Seen("eth1", "seen on all nodes")


def test_a_mount_that_comes_from_elsewhere_has_no_source() -> None:
    found = seen(
        mounts={
            "a": mounts(mount("/data", "nas1:/x", "nfs")),
            "b": mounts(mount("/data", "nas2:/x", "nfs")),
        }
    )
    assert found.mounts.value == [{"path": "/data", "type": "nfs"}]


@pytest.mark.parametrize("bad", [{"error": "ESTALE"}, {"readable": False}])
def test_a_mount_that_cannot_be_used_is_not_asked_for(bad: dict[str, Any]) -> None:
    data = mount("/data")
    assert seen(mounts={"a": mounts(data), "b": mounts(data, **bad)}).mounts.value == []
