"""The cost of synchronising gradients: examples worked by hand, and what must always hold."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.estimate import (
    BACKWARD,
    BYTES,
    MOST_NODES,
    MUCH,
    PCIE_GBS,
    WORTH,
    Gradients,
    Job,
    Network,
    days_on,
    least_step,
    money,
    remedies,
    sizes,
)

LINE_RATE = Network(1.0, latency_us=0.0)
SMALL = Gradients(50e6, "fp32", LINE_RATE)
"""200 MB over 1 Gb/s."""
HALF = Job(replace(SMALL, network=Network(0.8, latency_us=0.0)), step_s=0.5)
"""At 80 % of it, with half a second to compute."""

jobs = st.builds(
    Job,
    gradients=st.builds(
        Gradients,
        parameters=st.floats(1, 1e13),
        dtype=st.sampled_from([*BYTES]),
        network=st.builds(Network, st.floats(0.001, 1e5), latency_us=st.floats(0, 1e6)),
        gpus_per_node=st.integers(1, 72),
        nvlink_gbs=st.none() | st.floats(1, 2000),
        compression=st.floats(1, 1000),
    ),
    step_s=st.floats(1e-3, 1e4),
    accumulation=st.integers(1, 100),
    overlap=st.booleans(),
)


def test_200_mb_over_1_gbps() -> None:
    assert SMALL.size == 200e6
    assert SMALL.sync(2).seconds == pytest.approx(1.6)  # of two nodes each sends 2(2-1)/2 = 1 of it
    assert HALF.gradients.sync(2).seconds == pytest.approx(2.0)


def test_four_times_a_step_is_80_percent() -> None:
    two = HALF.at(2)
    assert two.sync_s == pytest.approx(4 * HALF.step_s)
    assert two.seconds == pytest.approx(2.5)
    assert two.share == pytest.approx(0.8)
    assert two.efficiency == pytest.approx(0.2)
    assert two.speed_up == pytest.approx(0.4)


def test_overlap_hides_no_more_than_the_backward_pass() -> None:
    assert replace(HALF, overlap=True).exposed(2) == pytest.approx(2.0 - BACKWARD * 0.5)
    assert replace(HALF, overlap=True, step_s=3.0).at(2).share == 0


@pytest.mark.parametrize(
    ("dtype", "size"), [("fp32", 28e9), ("fp16", 14e9), ("bf16", 14e9), ("fp8", 7e9)]
)
def test_7e9_parameters(dtype: str, size: float) -> None:
    assert Gradients(7e9, dtype, LINE_RATE).size == size


def test_a_job_of_five_days() -> None:
    assert days_on(5, 2, 0.8) == pytest.approx(3.1, abs=0.05)
    assert days_on(5, 4, 0.7) == pytest.approx(1.8, abs=0.05)
    assert money(3.125, 2, 30) == pytest.approx(4500)


def test_days_follow_from_the_efficiency() -> None:
    assert HALF.at(2).days(5) == pytest.approx(5 / 0.4)


@pytest.mark.parametrize(("nodes", "part"), [(2, 1.0), (4, 1.5), (8, 1.75), (1000, 1.998)])
def test_a_ring_sends_twice_all_but_one_part(nodes: int, part: float) -> None:
    assert SMALL.sync(nodes).network_s == pytest.approx(part * 1.6)


def test_a_ring_takes_two_rounds_of_steps() -> None:
    slow = replace(SMALL, network=Network(1.0, latency_us=1000.0))
    assert slow.sync(8).latency_s == pytest.approx(14 * 1e-3)


def test_with_nvlink_nodes_add_up_inside_first() -> None:
    gradients = Gradients(7e9, "bf16", Network(400.0, 0.0), 8, nvlink_gbs=350)
    sync = gradients.sync(4)
    assert sync.network_s == pytest.approx(1.5 * 14e9 / 50e9)
    assert sync.inside_s == pytest.approx(1.75 * 14e9 / 350e9)
    assert gradients.sync(1).seconds == pytest.approx(sync.inside_s)


def test_without_nvlink_the_ring_goes_through_all_gpus() -> None:
    slow, fast = (Gradients(7e9, "bf16", Network(gbps, 0.0), 8) for gbps in (80.0, 800.0))
    assert slow.sync(2).seconds == pytest.approx(2 * 15 / 16 * 14e9 / 10e9)
    assert fast.sync(2).seconds == pytest.approx(2 * 15 / 16 * 14e9 / (PCIE_GBS * 1e9))


def test_remedies_are_the_best_first_and_alone_enough_where_they_can_be() -> None:
    found = {(one.kind, one.factor): one for one in remedies(HALF, 2)}
    assert [*found] == [
        ("network", 16),
        ("accumulation", 16),
        ("compression", 4),
        ("compression", 2),
        ("overlap", 1),
    ]
    assert found["compression", 2].step.seconds == pytest.approx(1.5)
    assert found["compression", 4].step.seconds == pytest.approx(1.0)
    assert found["compression", 4].step.share == pytest.approx(0.5)
    assert found["compression", 4].faster == pytest.approx(2.5)
    assert found["overlap", 1].step.seconds == pytest.approx(2.5 - BACKWARD * 0.5)
    assert found["accumulation", 16].step.seconds == pytest.approx(0.5 + 2 / 16)
    assert found["network", 16].step.share == pytest.approx(0.2)


def test_no_more_is_asked_of_a_network_than_it_takes() -> None:
    job = replace(HALF, step_s=1.5)  # 57 % are communication
    assert {one.factor for one in remedies(job, 2) if one.kind == "network"} == {4}
    assert remedies(replace(HALF, step_s=5), 2) == []


def test_what_gains_nothing_is_no_remedy() -> None:
    eight = Gradients(7e9, "bf16", Network(60.0, latency_us=0.0), gpus_per_node=8)
    job = Job(eight, step_s=1.0)
    assert "network" not in {one.kind for one in remedies(job, 1)}
    # PCIe carries 160 Gb/s, so that a network 16 times as fast is no better than one 4 times
    assert [one.factor for one in remedies(job, 2) if one.kind == "network"] == [4]


def test_nodes_that_no_longer_pay() -> None:
    assert HALF.last_worth() == 1
    latent = Job(replace(SMALL, network=Network(1e5, latency_us=1000.0)), step_s=1.0)
    last = latent.last_worth()
    assert latent.added(last) >= WORTH > latent.added(last + 1)
    assert last == 207  # where (1 + 0.002 n) squared is 2
    fast = Job(replace(SMALL, network=Network(1e5, latency_us=0.0)), step_s=1.0)
    assert fast.last_worth() == MOST_NODES


@pytest.mark.parametrize(
    ("nodes", "shown"),
    [(1, [1]), (3, [1, 2, 3]), (8, [*range(1, 9)]), (16, [1, 2, 4, 8, 16]), (9, [1, 2, 4, 8, 9])],
)
def test_sizes_on_the_way(nodes: int, shown: list[int]) -> None:
    assert sizes(nodes) == shown


@given(jobs, st.integers(1, 1000))
def test_what_always_holds(job: Job, nodes: int) -> None:
    one = job.at(nodes)
    assert 0 < one.efficiency <= 1 + 1e-9
    assert 0 <= one.share < 1
    assert one.seconds >= job.step_s
    assert job.at(nodes + 1).sync_s >= one.sync_s * (1 - 1e-9)
    assert replace(job, overlap=True).at(nodes).seconds <= one.seconds
    for remedy in remedies(job, nodes):
        assert remedy.faster >= 1 - 1e-9


@given(jobs, st.integers(2, 1000))
def test_the_least_step_is_where_communication_is_just_not_much(job: Job, nodes: int) -> None:
    least = least_step(job.gradients.sync(nodes).seconds, job.accumulation, job.overlap)
    assert replace(job, step_s=least).at(nodes).share == pytest.approx(MUCH, abs=1e-6)
