"""What an all_reduce should reach: figures of known machines, and what must always hold."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.node.expectation import (
    Expectation,
    expectation,
    in_use,
    is_bound,
    notes,
    of_gloo,
    verdict,
)
from preflight.node.wires import RDMA, TCP, Card, Port, Wires


@dataclass(frozen=True)
class Gpus:
    """Some GPUs of a kind, each linked to all others or to none."""

    count: int
    capability: int = 90
    links: int = 18
    generation: int = 5

    def cards(self) -> list[Card]:
        return [
            Card(
                capability=self.capability,
                links=self.links,
                peers=[i for i in range(self.count) if i != index] if self.links else [],
                is_switched=self.count > 4,
                generation=self.generation,
                width=16,
            )
            for index in range(self.count)
        ]


def rdma(count: int, gbps: float, gpus: Gpus, slot_gbs: float = 48.0) -> Wires:
    return Wires(
        by=RDMA,
        ports=[
            Port(name=f"mlx5_{n}:1", gbps=gbps, slot=f"0000:{n:02x}:00", slot_gbs=slot_gbs)
            for n in range(count)
        ],
        unsure="",
        cards=gpus.cards(),
    )


def tcp(gbps: float, gpus: Gpus) -> Wires:
    ports = [Port(name="eth0", gbps=gbps, slot="", slot_gbs=0.0)]
    return Wires(by=TCP, ports=ports, unsure="", cards=gpus.cards())


H100, A100 = Gpus(8), Gpus(8, 80, 12, 4)


def nodes(one: Wires, count: int = 8) -> dict[str, Wires]:
    return {f"gpu{n}": one for n in range(count)}


def known(found: Expectation | str) -> Expectation:
    assert isinstance(found, Expectation)
    return found


def figures(found: Expectation | str) -> tuple[float, float, float, str, bool]:
    one = known(found)
    return round(one.line, 1), round(one.usual, 1), round(one.least, 1), one.source, one.firm


def test_between_nodes() -> None:
    """By what others ask for: 250 to 300 of eight ports of 400G, where 356 to 366 are measured."""
    h100 = expectation(nodes(rdma(8, 400, H100)), 8)
    assert figures(h100) == (384.0, 345.6, 240.0, "8 x 400G", True)
    # oci-hpc asks for 185 of pairs; NVLink is not what limits.
    a100 = expectation(nodes(rdma(8, 200, A100, 24.0)), 8)
    assert figures(a100) == (192.0, 172.8, 120.0, "8 x 200G", True)
    plain = expectation(nodes(tcp(25, H100)), 8)
    assert figures(plain) == (3.1, 2.2, 1.6, "1 x 25G TCP", True)
    fast = expectation(nodes(tcp(100, H100)), 8)
    assert figures(fast) == (12.5, 8.8, 6.2, "1 x 100G TCP", False)


@pytest.mark.parametrize(
    ("gpus", "line", "usual", "source", "firm", "measured"),
    [
        # peers.md 3.1 has what each is asked for or has: none of them may be a failure.
        (H100, 370.8, 352.3, "18 x 20.6 GB/s NVLink", True, (366, 431, 460, 473)),
        (A100, 240.0, 228.0, "12 x 20 GB/s NVLink", True, (180, 228, 235)),
        (Gpus(2, 90, 12), 247.2, 234.8, "12 x 20.6 GB/s NVLink", True, (208,)),
        (Gpus(2, 80, 12, 4), 240.0, 228.0, "12 x 20 GB/s NVLink", True, (193,)),
        (Gpus(8, 100, 18), 721.8, 685.7, "18 x 40.1 GB/s NVLink", True, (682, 838)),
        (Gpus(2, 86, 4, 4), 48.0, 45.6, "4 x 12 GB/s NVLink", True, ()),
        (Gpus(4, 89, 0, 4), 24.0, 18.0, "PCIe 4.0 x16", False, (15, 18, 25)),
    ],
)
def test_inside_a_node(
    gpus: Gpus, line: float, usual: float, source: str, firm: bool, measured: tuple[float, ...]
) -> None:
    found = known(expectation({"gpu1": rdma(1, 400, gpus)}, gpus.count))
    assert figures(found)[:2] == (line, usual)
    assert (found.source, found.firm) == (source, firm)
    assert [verdict("it", gbs, found) for gbs in measured] == [None] * len(measured)


def test_the_slowest_stage_counts() -> None:
    pcie = expectation(nodes(rdma(8, 400, Gpus(8, 89, 0, 4))), 8)
    assert figures(pcie)[3:] == ("PCIe 4.0 x16", False)
    unlike = nodes(rdma(8, 400, H100)) | {"gpu9": rdma(4, 400, H100)}
    assert known(expectation(unlike, 8)).source == "4 x 400G"
    single = expectation(nodes(rdma(1, 400, Gpus(1, 80, 0, 4))), 1)
    assert figures(single) == (24.0, 21.6, 15.0, "1 x PCIe 4.0 x16 of GPUs", True)
    narrow = expectation(nodes(rdma(8, 200, H100, 12.0)), 8)
    assert known(narrow).source == "8 x 200G in slots for 768G"


def test_ports_of_storage_do_not_count() -> None:
    """Eight of the twelve that are alike in a DGX H100, eight of ten in a DGX A100."""
    assert [in_use(ports, 8) for ports in (1, 3, 4, 5, 8, 9, 10, 12, 16, 18)] == [
        *(1, 2, 4, 4, 8, 8, 8, 8, 16, 16),
    ]
    mixed = rdma(8, 400, H100)
    mixed["ports"].append(Port(name="mlx5_9:1", gbps=100, slot="0000:99:00", slot_gbs=24.0))
    assert known(expectation(nodes(mixed), 8)).source == "8 x 400G"


def test_some_of_the_gpus() -> None:
    """They have the ports that are theirs, and without a switch the links between them."""
    four = known(expectation(nodes(rdma(8, 400, H100)), 4))
    assert (four.source, known(expectation(nodes(rdma(16, 100, H100)), 1)).source) == (
        "4 x 400G",
        "2 x 100G",
    )
    assert known(expectation({"gpu1": rdma(8, 400, H100)}, 2)).line == pytest.approx(370.8)
    direct = rdma(4, 400, Gpus(4, 80, 12, 4))
    assert known(expectation({"gpu1": direct}, 4)).source == "12 x 20 GB/s NVLink"
    assert known(expectation({"gpu1": direct}, 2)).source == "4 x 20 GB/s NVLink"


def test_two_ports_of_one_card_share_its_slot() -> None:
    one = rdma(2, 200, Gpus(1), 24.0)
    for port in one["ports"]:
        port["slot"] = "0000:17:00"
    assert figures(expectation(nodes(one), 1))[:4] == (
        24.0,
        21.6,
        15.0,
        "2 x 200G in slots for 192G",
    )


@pytest.mark.parametrize(
    ("one", "ranks", "why"),
    [
        (tcp(0, H100), 8, "the rate of its ports is not told"),
        (tcp(25, H100) | {"unsure": "a virtual machine"}, 8, "a virtual machine"),
        (rdma(0, 400, H100), 8, "the rate of its ports is not told"),
        (rdma(8, 400, Gpus(0)), 8, "of its GPUs no links are told"),
        (rdma(8, 400, Gpus(8, 90, 0, 0)), 8, "the rate of its PCIe is not told"),
        (rdma(8, 400, Gpus(8, 50, 4)), 8, "the rate of its NVLinks is not told"),
    ],
)
def test_nothing_is_expected_where_rates_are_not_known(one: Wires, ranks: int, why: str) -> None:
    assert expectation(nodes(one), ranks) == why
    assert verdict("it", 0.001, why) is None
    assert notes(0.001, why, 8) == [f"not compared with a line rate: {why}"]


def test_pairs_of_gpus_with_bridges() -> None:
    one = rdma(1, 400, Gpus(4, 80, 12, 4))
    for index, card in enumerate(one["cards"]):
        card["peers"] = [index ^ 1]
    assert expectation({"gpu1": one}, 4) == "NVLinks lead to some of its GPUs only"


def test_one_rank_alone() -> None:
    assert expectation({"gpu1": rdma(8, 400, Gpus(1))}, 1) == "one rank alone sends nothing"


def test_too_slow() -> None:
    found = verdict("all_reduce of 1 GiB", 41, expectation(nodes(rdma(8, 400, H100)), 8))
    assert found is not None
    assert (found.status, found.observed, found.expected) == ("fail", 41, 345.6)
    assert found.summary == "all_reduce of 1 GiB: expected 346 GB/s from 8 x 400G, measured 41"
    assert found.details == (
        "line rate by 8 x 400G is 384 GB/s, 90 % of it are usual, 240 GB/s the least",
    )


def test_gloo() -> None:
    assert figures(of_gloo([10, 25])) == (1.2, 0.9, 0.6, "1 x 10G TCP", False)
    assert figures(of_gloo([100, 100]))[3] == "1 x 100G TCP by one stream"
    assert of_gloo([10, 0]) == of_gloo([]) == "the speed of the links is not told"
    slow = verdict("it", 0.3, of_gloo([10, 10]))
    assert slow is not None
    assert slow.status == "warn"


def test_siblings_that_do_better() -> None:
    found = known(expectation({"gpu1": rdma(8, 400, H100)}, 8))
    slow = verdict("all_reduce in the node", 366, found, [473, 471, 470])
    assert slow is not None
    assert (slow.status, slow.summary) == (
        "warn",
        "all_reduce in the node: measured 366 GB/s, as without NVLS, 471 are usual on the others",
    )
    slower = verdict("it", 300, found, [473, 471, 470])
    assert slower is not None
    assert slower.summary == "it: measured 300 GB/s, 471 are usual on the others"
    assert verdict("it", 366, found, [370, 360]) is None
    unknown = verdict("it", 1, "not told", [2, 2])
    assert unknown is not None
    assert unknown.status == "warn"


def test_above_line_rate_on_two_nodes() -> None:
    """NVIDIA/nccl-tests#196: normal; oci-hpc asks for 440 of pairs of H100."""
    found = known(expectation(nodes(rdma(8, 400, H100), 2), 8))
    assert verdict("it", 440, found) is None
    tree = "above line rate is normal on two nodes: Tree sends less between them"
    assert notes(440, found, 2)[1:] == [tree]
    assert notes(440, found, 8)[1:] == []


def test_small_sizes_tell_of_latency() -> None:
    """On 64 H100 of 8 nodes; 60 us are a usual latency."""
    sizes = {8: 60e-6, 64 << 20: 0.6e-3, 1 << 30: 5.8e-3}
    assert is_bound(sizes, 64 << 20, 64, 384)
    assert not is_bound(sizes, 1 << 30, 64, 384)


clusters = st.builds(
    lambda count, gpus, ports: nodes(rdma(ports, 100, gpus), count),
    st.integers(1, 4),
    st.builds(Gpus, st.integers(1, 16), st.sampled_from([70, 80, 86, 90, 100]), st.integers(0, 18)),
    st.integers(1, 16),
)


@given(clusters, st.floats(0.1, 1000), st.floats(1, 10))
def test_more_is_expected_of_faster_ports(
    cluster: dict[str, Wires], gbps: float, times: float
) -> None:
    ranks = len(cluster["gpu0"]["cards"])

    def at(rate: float) -> Expectation | str:
        faster = {
            node: Wires(
                by=one["by"],
                ports=[Port(**{**port, "gbps": rate}) for port in one["ports"]],
                unsure="",
                cards=one["cards"],
            )
            for node, one in cluster.items()
        }
        return expectation(faster, ranks)

    slow, fast = at(gbps), at(times * gbps)
    if isinstance(slow, str):
        assert slow == fast == "one rank alone sends nothing"
        return
    assert 0 < slow.least <= slow.usual <= slow.line
    assert slow.usual <= known(fast).usual * (1 + 1e-9)
    assert slow.least <= known(fast).least * (1 + 1e-9)


@given(clusters)
def test_what_is_usual_is_no_fault(cluster: dict[str, Wires]) -> None:
    found = expectation(cluster, len(cluster["gpu0"]["cards"]))
    if isinstance(found, Expectation):
        assert verdict("it", found.usual, found) is None
        assert verdict("it", found.least * 0.99, found) is not None


@given(st.integers(1, 64), st.integers(1, 64))
def test_each_gpu_has_as_many_ports_as_others(ports: int, gpus: int) -> None:
    used = in_use(ports, gpus)
    assert 1 <= used <= ports
    assert used % gpus == 0 or gpus % used == 0
