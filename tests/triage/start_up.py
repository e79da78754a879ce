"""What every rank prints when all is well, as NCCL and torch of several versions print it.

Shapes: NCCL's `src/init.cc`, `src/bootstrap.cc`, `src/transport/*.cc` of these tags; no line of it
tells of a fault.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice

LINES = 200
"""For every rank."""
OLD, MIDDLE, NEW = "2.14.3", "2.21.5", "2.27.5"
MET = "[c10d] The client socket has connected to [node0]:29500 on"
OLD_PLUGIN = "NET/Plugin : No plugin found (libnccl-net.so), using internal implementation"
PLUGIN = "NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin."
HCAS = "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB"
STEP = "lr 3.0e-04 grad_norm 1.02 tokens/s 51234 max error 0.01"


def number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def lines(rank: int, world: int, version: str = MIDDLE, gpus: int = 8) -> list[str]:
    """Return what a rank prints before anything happens."""
    node, local = divmod(rank, gpus)
    begin = f"node{node}:{4000 + local}:{5000 + local} [{local}] NCCL INFO "
    head = [f"[W socket.cpp:663] {MET} [node{node}]:{40000 + rank}."]
    if rank == 0 and number(version) < (2, 22):
        head.append(f"NCCL version {version}+cuda12.4")
    inner = (begin + text for text in nccl(rank, world, version, gpus))
    return [*head, *islice(chain_with_steps(rank, inner), LINES - len(head))]


def chain_with_steps(rank: int, before: Iterator[str]) -> Iterator[str]:
    yield from before
    for step in count(1):
        moment = f"2026-01-02 03:{step // 60:02}:{step % 60:02},000"
        loss = f"{3.5 - step / 100:.3f}"
        yield f"[rank{rank}]: {moment} INFO train.py:88 step {step} loss {loss} {STEP}"


def nccl(rank: int, world: int, version: str, gpus: int) -> Iterator[str]:
    node, local = divmod(rank, gpus)
    new = number(version) >= (2, 24)
    address = f"eth0:10.0.0.{node + 1}<0>"
    yield "cudaDriverVersion 12040"
    yield "NCCL_SOCKET_IFNAME set by environment to eth0"
    yield f"Bootstrap{':' if new else ' :'} Using {address}"
    yield OLD_PLUGIN if number(version) < (2, 20) else PLUGIN
    if number(version) >= (2, 22):
        yield f"NCCL version {version}+cuda12.9"
    yield f"{HCAS} {address}"
    yield "Using network IB"
    device = f"cudaDev {local} nvmlDev {local} busId {local:x}d000 commId 0xabc"
    comm = f"ncclCommInitRank comm 0x55d0{rank:04x} rank {rank} nranks {world} {device}"
    yield f"{comm} - Init START"
    yield f"Setting affinity for GPU {local} to ff,ffffffff"
    yield f"NVLS multicast support is available on dev {local}"
    nodes = f"nNodes {max(1, world // gpus)} localRanks {gpus} localRank {local} MNNVL 0"
    yield f"comm 0x55d0{rank:04x} rank {rank} nRanks {world} {nodes}"
    for channel in range(16):
        near, far = (rank + 1) % world, (rank + gpus) % world
        here = f"Channel {channel:02}/0 : {rank}[{local}] ->"
        yield f"Channel {channel:02}/16 :    0   1   2   3"
        yield f"{here} {near}[{near % gpus}] via P2P/CUMEM"
        yield f"{here} {far}[{local}] [send] via NET/IB/{local}/GDRDMA"
    yield "Connected all rings"
    for channel in range(16):  # up the trees; down, they are connected as in the rings
        upper = (rank - 1) % world
        yield f"Channel {channel:02}/0 : {rank}[{local}] -> {upper}[{upper % gpus}] via P2P/CUMEM"
    yield "Connected all trees"
    yield f"{comm} - Init COMPLETE"
