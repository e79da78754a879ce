"""Several launches in one log are told apart, and the ranks of one never are."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preflight.report.triage import render
from preflight.triage import family
from preflight.triage.files import Log
from preflight.triage.model import Triage
from preflight.triage.prefix import Who
from preflight.triage.reading import Reader
from preflight.triage.story import Story
from tests.triage.test_cases import answer

WORLD, GPUS = 4, 2
BUS = ("1a000", "3e000")
RING = "NCCL WARN Cuda failure 2 'out of memory'"
GID = "NCCL WARN Call to ibv_modify_qp failed with error Connection timed out errno 110"
FAMILIES = family.load()


def start_up(rank: int, pid: int, network: str = "IB") -> list[str]:
    """Return what a rank says until its communicator is there; in one of two as well, if asked."""
    node, local = divmod(rank, GPUS)
    begin = f"node{node}:{pid + local}:{pid + 900 + local} [{local}] NCCL INFO "
    device = f"cudaDev {local} nvmlDev {local} busId {BUS[local]} commId 0x{pid:x}"
    comm = f"ncclCommInitRank comm 0x55{pid + rank:x} rank {rank} nranks {WORLD} {device}"
    within = f"ncclCommInitRank comm 0x66{pid + rank:x} rank {node} nranks 2 {device}"
    return [
        f"{begin}Bootstrap : Using eth0:10.0.0.{node + 1}<0>",
        f"{begin}Using network {network}",
        f"{begin}{comm} - Init START",
        f"{begin}{comm} - Init COMPLETE",
        f"{begin}{within} - Init START",
    ]


def warned(rank: int, pid: int, words: str) -> str:
    node, local = divmod(rank, GPUS)
    return f"node{node}:{pid + local}:{pid + 900 + local} [{local}] init.cc:7 {words}"


def run(pid: int, fault: str = "", network: str = "IB") -> list[str]:
    """Return a launch, one rank after the other, with a fault of rank 3."""
    lines = [line for rank in range(WORLD) for line in start_up(rank, pid, network)]
    return [*lines, *([warned(3, pid, fault)] if fault else [])]


def told(tmp_path: Path, *launches: Sequence[str]) -> Triage:
    log = tmp_path / "job.log"
    log.write_text("\n".join(line for lines in launches for line in lines) + "\n")
    return answer([str(log)])


def test_a_fault_is_told_of_the_launch_that_had_it(tmp_path: Path) -> None:
    found = told(tmp_path, run(4000, RING), run(5000))
    assert found.launches == 2
    shown = render(found, 200, "ascii", False).plain
    assert ", 2 launches, told of is the last that failed, 4 ranks, 2 nodes" in shown
    assert [(one.cause, one.nodes, one.ranks) for one in found.hypotheses] == [
        ("job.out_of_memory", ["node1"], [3])
    ]


def test_of_two_that_failed_the_last_is_told(tmp_path: Path) -> None:
    found = told(tmp_path, run(4000, RING), run(5000, GID))
    assert found.launches == 2
    assert "job.out_of_memory" not in [one.cause for one in found.hypotheses]
    assert found.first_error
    assert found.first_error.text.endswith(GID.removeprefix("NCCL WARN "))


def test_what_differs_between_launches_differs_between_no_ranks(tmp_path: Path) -> None:
    found = told(tmp_path, run(4000, network="IB"), run(5000, network="Socket"))
    assert found.launches == 2
    assert found.hypotheses == []
    assert ", 2 launches, 4 ranks, 2 nodes" in render(found, 200, "ascii", False).plain


def test_a_restart_on_the_same_gpus_is_another_launch(tmp_path: Path) -> None:
    again = [run(pid, RING) for pid in (4000, 5000, 6000)]
    assert told(tmp_path, *again).launches == 3


@pytest.mark.parametrize(
    "line",
    [
        "#   Rank  {rank} Pid  {pid} on      node1 device  {rank} [0x0{rank}] A40",
        "#  Rank  {rank} Group  0 Pid  {pid} on    node1 device  {rank} [0000:0{rank}:00] H800",
    ],
)
def test_nccl_tests(line: str, tmp_path: Path) -> None:
    tables = [
        [line.format(rank=rank, pid=pid) for rank in range(2)]
        + [f"node1:{pid}:{pid + 1} [0] NCCL INFO Using network {network}"]
        for pid, network in ((4000, "IB"), (5000, "Socket"))
    ]
    found = told(tmp_path, *tables)
    assert found.launches == 2
    assert found.hypotheses == []


def test_a_log_that_tells_of_no_launch_is_of_the_last(tmp_path: Path) -> None:
    kernel = tmp_path / "dmesg.log"
    kernel.write_text(
        "NVRM: Xid (PCI:0000:3e:00): 79, pid=4001, name=python, GPU has fallen off the bus.\n"
    )
    told(tmp_path, run(4000), run(5000, RING))
    found = answer([str(kernel), str(tmp_path / "job.log")])
    assert {one.cause for one in found.hypotheses} == {"gpu.health", "job.out_of_memory"}


def read(log: Path) -> list[Story]:
    reader = Reader(FAMILIES)
    reader.read(Log(str(log), log))
    return reader.stories


@settings(max_examples=60)
@given(
    pick=st.randoms(use_true_random=False),
    failing=st.integers(0, WORLD - 1),
    at=st.integers(0, 5),
    blocks=st.booleans(),
)
def test_ranks_of_a_launch_stay_together(
    pick: random.Random,
    failing: int,
    at: int,
    blocks: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """However their lines are mixed, or come one rank after the other, wherever one fails."""
    rest = [start_up(rank, 4000) for rank in range(WORLD)]
    rest[failing].insert(at, warned(failing, 4000, RING))
    order = [rank for rank, lines in enumerate(rest) for _ in lines]
    if blocks:
        ranks = pick.sample(range(WORLD), WORLD)
        order.sort(key=ranks.index)
    else:
        pick.shuffle(order)
    log = tmp_path_factory.mktemp("job") / "job.log"
    log.write_text("\n".join(rest[rank].pop(0) for rank in order) + "\n")
    stories = read(log)
    assert len(stories) == 1
    assert [*stories[0].ranks()] == [*range(WORLD)]


def test_two_at_once_on_one_gpu_are_one_launch(tmp_path: Path) -> None:
    """As a job is that was started twice on a node: nothing of it ended before the other."""
    twice = [start_up(2, 5000), start_up(2, 6000)]
    mixed = [line for lines in zip(*twice, strict=True) for line in lines]
    assert told(tmp_path, start_up(0, 4000), mixed).launches == 1


@pytest.mark.parametrize(("told", "rank"), [((8, 10), 13), ((0, 0), None), ((0, 10), None)])
def test_a_rank_by_its_neighbours_where_they_agree(told: tuple[int, int], rank: int | None) -> None:
    story, run = Story(), "b/7_x/attempt_0"
    for local, one in zip((0, 2), told, strict=True):  # some tell their rank within a group
        story.learn_folder(Who(one, folder=f"{run}/{local}"))
    assert story.whose(Who(folder=f"{run}/5")).rank == rank
    assert story.whose(Who(folder="b/7_x/attempt_1/5")).rank is None
