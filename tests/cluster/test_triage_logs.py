"""What a training job really wrote when it died, with torch on two nodes: the cause is told first.

Ranks wait for each other before they meet, since on a busy machine one may take long to start.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.machine import wait_until
from tests.cluster.test_collective import TORCH
from tests.cluster.testbed import Testbed

TORCHRUN = TORCH.with_name("torchrun")
NODES = ("tb1", "tb2")
JOB = "/tmp/job"
LIMIT_S = 100
SHORT_S, LONG_S = 12, 60
"""After which ranks give each other up: where that is the fault, and where another one is."""
HIGH = "30000-65535"
TRAIN = """
import datetime
import logging
import os
import pathlib
import signal
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

FAULT, WHO = os.environ["FAULT"], int(os.environ["WHO"])
STEPS, AT = 20, 5


def fault(rank):
    if FAULT == "raise":
        raise ValueError("label 1003 is not within 0 to 999")
    elif FAULT in ("SIGKILL", "SIGSEGV"):
        os.kill(os.getpid(), signal.Signals[FAULT])
    elif FAULT == "broadcast":
        dist.broadcast(torch.ones(1), src=rank)
    elif FAULT == "size":
        dist.all_reduce(torch.ones(4096))
    elif FAULT == "sleep":
        time.sleep(3600)


def wait_for_others():
    pathlib.Path("JOB/imported." + os.environ["RANK"]).touch()
    while not os.path.exists("JOB/go"):
        time.sleep(0.02)


def average(model):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)


def main():
    logging.basicConfig(level="INFO", format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    torch.set_num_threads(1)
    wait_for_others()
    timeout = datetime.timedelta(seconds=float(os.environ["TIMEOUT"]))
    dist.init_process_group("gloo", timeout=timeout)
    rank, log = dist.get_rank(), logging.getLogger("train")
    model = torch.nn.Linear(64, 8)
    if "TORCH_DISTRIBUTED_DEBUG" not in os.environ:  # with DETAIL it crashes in 2.13
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(STEPS):
        if step == AT and rank == WHO:
            fault(rank)
        loss = model(torch.randn(16, 64)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        if "TORCH_DISTRIBUTED_DEBUG" in os.environ:
            average(model)
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        log.info("step %d loss %.4f", step, mean.item() / dist.get_world_size())
    dist.destroy_process_group()
    log.info("done")


main()
""".replace("JOB", JOB)


def train(
    bed: Testbed,
    launcher: Sequence[str],
    ranks: int = 2,
    fault: str = "",
    who: int = -1,
    timeout_s: int = LONG_S,
    env: Mapping[str, str] | None = None,
    interfaces: Sequence[str] = ("eth0", "eth0"),
    meet: bool = True,
) -> Path:
    """Train on two nodes until a node's job has ended; return the folder of all that was written.

    Args:
        bed: the nodes.
        launcher: options of torchrun; without them its ranks are started by hand, one a node.
        ranks: how many there are.
        fault: what goes wrong in one of them.
        who: in which.
        timeout_s: after which ranks give each other up.
        env: of all.
        interfaces: of each node.
        meet: whether ranks get so far that they wait for each other.
    """
    processes = []
    for number, node in enumerate(NODES):
        bed.machines[node].remove(JOB)
        bed.machines[node].write(f"{JOB}/train.py", TRAIN)
        name = f"{node}.log" if launcher else f"rank{number}.log"
        told = {
            **{"FAULT": fault, "WHO": str(who), "TIMEOUT": str(timeout_s)},
            **{"PYTHONUNBUFFERED": "1", "PYTHONWARNINGS": "ignore"},
            **{"GLOO_SOCKET_IFNAME": interfaces[number], "OMP_NUM_THREADS": "1"},
            **(env or {}),
        }
        if launcher:
            command = [str(TORCHRUN), f"--nproc-per-node={ranks // 2}", "--nnodes=2", *launcher]
            command += [f"--node-rank={number}", f"--log-dir={JOB}/logs"]
        else:
            command = [str(TORCH)]
            told |= {"MASTER_ADDR": "tb1", "MASTER_PORT": "29500"}
            told |= {"RANK": str(number), "WORLD_SIZE": "2"}
        words = [f"{key}={value}" for key, value in told.items()]
        script = f'exec "$@" > {JOB}/{name} 2>&1 < /dev/null'
        argv = ["sh", "-c", script, "sh", "env", *words, *command, f"{JOB}/train.py"]
        processes.append(bed.popen(node, *argv))
    if meet:
        wait_until(lambda: imported(bed) == ranks, "all ranks have imported torch", LIMIT_S)
        for node in NODES:
            bed.machines[node].write(f"{JOB}/go", "")
    ended(bed, processes)
    return collected(bed)


def imported(bed: Testbed) -> int:
    """Return how many ranks are there."""
    return sum(len([*bed.machines[node].path(JOB).glob("imported.*")]) for node in NODES)


def ended(bed: Testbed, processes: Sequence[subprocess.Popen[str]]) -> None:
    """Wait until all have ended, or one has and the others do not: nobody ends them by hand."""
    try:
        wait_until(lambda: any(one.poll() is not None for one in processes), "an end", LIMIT_S)
        wait_until(lambda: all(one.poll() is not None for one in processes), "the end", 2 * SHORT_S)
    except TimeoutError:
        for node in NODES:
            bed.machines[node].kill([*bed.machines[node].processes()])
    for one in processes:
        one.communicate(timeout=LIMIT_S)


def collected(bed: Testbed) -> Path:
    """Return the folder into which all logs of the nodes were copied."""
    folder = bed.tmp_path / f"logs{len([*bed.tmp_path.glob('logs*')])}"
    for node in NODES:
        job = bed.machines[node].path(JOB)
        if (job / "logs").exists():
            shutil.copytree(job / "logs", folder / node)
        for log in job.glob("*.log"):
            folder.mkdir(exist_ok=True)
            shutil.copy(log, folder)
    return folder


def triage(folder: Path) -> dict[str, Any]:
    """Return the answer."""
    argv = [sys.executable, "-m", "preflight", "triage", "--json", "-", str(folder)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=LIMIT_S)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def first(folder: Path) -> tuple[str, list[int], str]:
    """Return the cause that comes first, of which ranks, and what is said."""
    answer = triage(folder)
    assert answer["hypotheses"], answer
    one = answer["hypotheses"][0]
    return one["cause"], one["ranks"], one["summary"]


BY_HAND: tuple[str, ...] = ()
STATIC = ("--rdzv-backend=static", "--master-addr=tb1", "--master-port=29500")
C10D = ("--rdzv-backend=c10d", "--rdzv-endpoint=tb1:29500", "--rdzv-id=7")
FILES, TEE = "--redirects=3", "--tee=3"


@pytest.mark.parametrize("launcher", [(*C10D, FILES), BY_HAND])
def test_all_is_well(bed: Testbed, launcher: tuple[str, ...]) -> None:
    answer = triage(train(bed, launcher))
    assert answer["hypotheses"] == []
    assert answer["first_error"] is None
    assert answer["headline"] == "no fault is told in these logs"


@pytest.mark.parametrize("launcher", [(*STATIC, TEE), BY_HAND])
def test_an_exception(bed: Testbed, launcher: tuple[str, ...]) -> None:
    cause, ranks, says = first(train(bed, launcher, fault="raise", who=1))
    assert (cause, ranks) == ("job.python_error", [1])
    where = "" if launcher is BY_HAND else " on tb2"  # as torchrun's table of failures tells
    assert says.startswith(f"rank 1{where} raised ValueError: label 1003 is not within 0 to 999")


def test_a_rank_that_is_killed(bed: Testbed) -> None:
    folder = train(bed, (*C10D, FILES), ranks=4, fault="SIGKILL", who=3)
    cause, ranks, says = first(folder)
    assert (cause, ranks) == ("job.out_of_memory", [3])
    assert says.startswith("rank 3 was killed (SIGKILL), nearly always by the kernel")


def test_a_rank_that_is_killed_and_nobody_tells(bed: Testbed) -> None:
    cause, ranks, says = first(train(bed, BY_HAND, fault="SIGKILL", who=1))
    assert (cause, ranks) == ("job.rank_crashed", [1])
    assert says == "rank 1 ended before all others, and said nothing"


def test_a_crash(bed: Testbed) -> None:
    cause, ranks, says = first(train(bed, (*STATIC, FILES), fault="SIGSEGV", who=1))
    assert (cause, ranks, says) == ("job.rank_crashed", [1], "rank 1 crashed: SIGSEGV")


def test_another_collective(bed: Testbed) -> None:
    folder = train(bed, (*C10D, FILES), ranks=4, fault="broadcast", who=1, timeout_s=SHORT_S)
    cause, ranks, says = first(folder)
    assert (cause, ranks) == ("job.mismatched_collective", [1])
    assert says.startswith("ranks waited for each other at different places of the program: rank 1")


def test_another_collective_with_detail(bed: Testbed) -> None:
    detail = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
    folder = train(bed, (*C10D, FILES), ranks=4, fault="broadcast", who=1, env=detail)
    cause, ranks, says = first(folder)
    assert (cause, ranks) == ("job.mismatched_collective", [1])
    assert says.startswith("rank 1 on tb1 issued BROADCAST")


def test_another_size(bed: Testbed) -> None:
    cause, _, says = first(train(bed, (*C10D, FILES), fault="size", who=1))
    assert cause == "job.mismatched_collective"
    assert says.endswith("the ranks issue collectives of different size")


def test_a_rank_that_does_not_come(bed: Testbed) -> None:
    folder = train(bed, (*C10D, FILES), ranks=4, fault="sleep", who=3, timeout_s=SHORT_S)
    cause, ranks, says = first(folder)
    assert (cause, ranks) == ("job.mismatched_collective", [3])
    # Where tb1's torchrun ends first, with the store, tb2's ends without a table that tells nodes.
    words = "did not come to a collective in which 3 ranks waited"
    assert says in (f"rank 3 on tb2 {words}", f"rank 3 {words}")


@pytest.mark.parametrize("launcher", [(*C10D, FILES), BY_HAND])
def test_closed_high_ports(bed: Testbed, launcher: tuple[str, ...]) -> None:
    for node, other in (NODES, NODES[::-1]):
        bed.drop(node, HIGH, source=other)
    cause, _, _ = first(train(bed, launcher, timeout_s=SHORT_S))
    assert cause == "network.ephemeral"


@pytest.mark.parametrize("launcher", [(*STATIC, FILES, f"--rdzv-conf=timeout={SHORT_S}"), BY_HAND])
def test_a_closed_port(bed: Testbed, launcher: tuple[str, ...]) -> None:
    bed.drop("tb1", 29500, source="tb2")
    folder = train(bed, launcher, timeout_s=SHORT_S, meet=launcher is BY_HAND)
    cause, _, says = first(folder)
    assert cause == "network.port"
    assert "tb1 port 29500" in says or "rank 0's store was there" in says


def test_a_port_in_use(bed: Testbed) -> None:
    bed.hold_port("tb1")
    launcher = (*STATIC, FILES, f"--rdzv-conf=timeout={SHORT_S}")
    cause, _, says = first(train(bed, launcher, meet=False))
    assert cause == "network.port"
    assert says.endswith("could not listen for the others on port 29500: another program has it")


def test_a_dead_end(bed: Testbed) -> None:
    # The one with the smaller address waits for the other to connect to it.
    bed.add_interface("tb2", "away0", "10.1.1")
    folder = train(bed, BY_HAND, timeout_s=SHORT_S, interfaces=("eth0", "away0"))
    cause, ranks, says = first(folder)
    assert (cause, ranks) == ("network.interface", [0])
    assert says.startswith("rank 0 has no route to the address of another rank")


def test_no_such_interface(bed: Testbed) -> None:
    folder = train(bed, (*C10D, FILES), timeout_s=SHORT_S, interfaces=("eth0", "eth9"))
    cause, _, says = first(folder)
    assert cause == "network.interface"
    assert "eth9" in says
