"""One rank of a collective with torch. Runs in the training interpreter, not in the agent.

Its text is handed over by `collective.py`, beside that of `torch_interpreter.py`, which forks it.
Only `Device` knows of GPUs; all else is the same for NCCL and for Gloo.
Sent to nodes: stdlib and the torch that is there, Python 3.7.
"""

from __future__ import annotations

import datetime
import os
import time
from typing import Any, Mapping

CONFIRM_S = 5.0
"""For all ranks to say that they are done, before the first one hangs up."""
LARGE = 1 << 20
"""From so many bytes on, time grows with size."""
LEAST, MOST = 1 << 18, 1 << 23
"""Bytes that one rank sends to another to see how fast that goes."""
PASSES = 5
"""Through all pairs at most, while one looks slow: what is slow for a moment is no fault."""
SLOWER = 2
"""As of collective.all_reduce."""
BEST_OF = 2
"""Transfers between two ranks each way: one may meet a moment's noise."""
NO_WATCHDOG = ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_ASYNC_ERROR_HANDLING")
"""Variables of torch, today's and that before 2.2, by which its watchdog ends a rank (SIGABRT) when
another one fails; then nobody could tell who was first."""
NEVER = datetime.timedelta(days=1)


class Device:
    """Where a rank's tensors are, and what carries them: a GPU and NCCL, or the CPU and Gloo.

    What it does with a GPU is by torch's documentation: the tests have none, and go by Gloo.

    Args:
        torch: the module.
        name: as torch calls it: `cuda:3` (of those that CUDA_VISIBLE_DEVICES leaves), or `cpu`.
    """

    def __init__(self, torch: Any, name: str) -> None:
        self.torch, self.name = torch, name
        self.has_gpu = name != "cpu"
        if self.has_gpu:
            os.environ.update(dict.fromkeys(NO_WATCHDOG, "0"))
            torch.cuda.set_device(name)
        else:
            torch.set_num_threads(1)

    def join(self, dist: Any, store: Any, rank: int, world: int, limit: datetime.timedelta) -> None:
        """Make the group of all ranks; NCCL's limit is for what hangs, which is killed before."""
        backend, limit = ("nccl", NEVER) if self.has_gpu else ("gloo", limit)
        dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=limit)

    def wait(self) -> None:
        """Wait until what was begun is done: what a GPU does, a call only begins."""
        if self.has_gpu:
            self.torch.cuda.synchronize()


class Rank:
    """One rank of a group.

    Args:
        torch: the module.
        dist: torch.distributed.
        order: host and port of the store, ranks and devices of this node, world, interface, wait_s,
            sizes, most, spend_s, go_on_s, exchange_s, carry_s, meets (by rank of this node whom
            it exchanges with, round by round; None: nobody).
        place: which rank of this node it is.
        said: tells what comes of it.
    """

    def __init__(
        self, torch: Any, dist: Any, order: Mapping[str, Any], place: int, said: Any
    ) -> None:
        self.torch, self.dist, self.order, self.said = torch, dist, order, said
        self.rank, self.world = order["ranks"][place], order["world"]
        self.meets = order["meets"][place]
        self.device = Device(torch, order["devices"][place])
        self.begun = 0.0
        self.busbw = 0.0

    def go(self) -> None:
        """Meet the others, and do it with them."""
        if self.order["interface"]:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", self.order["interface"])
        limit = datetime.timedelta(seconds=self.order["wait_s"])
        host, port = self.order["host"], self.order["port"]
        met = self.dist.TCPStore(host, port, None, False, limit, wait_for_workers=False)
        self.meet(met, "here", limit)
        self.said(stage="met")
        self.said.stage = "group"
        self.device.join(self.dist, met, self.rank, self.world, limit)
        self.greatest(0.0)  # NCCL connects no earlier
        self.said.stage = "all_reduce"
        self.said.joined()
        self.begun = time.monotonic()
        self.reduce()
        self.said.stage = "exchange"
        self.exchange()
        self.said.stage = "end"
        self.meet(met, "done", datetime.timedelta(seconds=CONFIRM_S))
        self.said(stage="done", seconds=self.said.seconds())
        os._exit(0)

    def meet(self, met: Any, word: str, limit: datetime.timedelta) -> None:
        """Wait in the store until all ranks are there; say who is not."""
        keys = [f"{word}/{rank}" for rank in range(self.world)]
        met.set(keys[self.rank], "1")
        try:
            met.wait(keys, limit)
        except (RuntimeError, LookupError):  # of what kind, that depends on the version
            missing = [rank for rank, key in enumerate(keys) if not met.check([key])]
            self.said(stage="missing", ranks=missing)
            raise

    def tensor(self, *values: float) -> Any:
        """Return some values where all ranks can share them."""
        return self.torch.tensor(values, dtype=self.torch.float64, device=self.device.name)

    def greatest(self, *values: float) -> list[float]:
        """Return the greatest of all ranks, of each value: so that all decide the same."""
        tensor = self.tensor(*values)
        self.dist.all_reduce(tensor, op=self.dist.ReduceOp.MAX)
        return [float(value) for value in tensor.cpu()]

    def reduce(self) -> None:
        """Do all_reduce of growing sizes, as often as there is time for, and see each result."""
        sizes = self.order["sizes"]
        for place, size in enumerate(sizes):
            once = Once(self, size)
            once.go()
            slowest, spent = self.greatest(once.times[0], time.monotonic() - self.begun)
            share = (self.order["spend_s"] - spent) / (2 * (len(sizes) - place))
            for _ in range(min(self.order["most"], int(share / slowest))):
                once.go()
            (best,) = self.greatest(once.median())
            self.busbw = size / best * 2 * (self.world - 1) / self.world
            self.said(
                stage="size",
                bytes=size,
                count=len(once.times),
                ms=round(once.median() * 1000, 3),
                busy=round(once.busy(), 2),
                wrong=once.wrong,
            )
            (spent,) = self.greatest(time.monotonic() - self.begun)
            ahead = sizes[place + 1] / size * best if place + 1 < len(sizes) else 0
            if spent + (ahead if size >= LARGE else 0) > self.order["go_on_s"]:
                return

    def exchange(self) -> None:
        """Send to one other after the other, and receive; each round is of disjoint pairs."""
        if not self.meets:
            return
        size = int(min(max(self.busbw * self.order["carry_s"], LEAST), MOST)) & ~4095
        tensor = self.torch.zeros(size // 4, dtype=self.torch.float32, device=self.device.name)
        found: dict[int, list[float]] = {}
        until = time.monotonic() - self.begun + self.order["exchange_s"]
        for _ in range(PASSES):
            for other in self.meets:
                (spent,) = self.greatest(time.monotonic() - self.begun)
                if spent > until:
                    break
                if other is not None:
                    more = self.carried(tensor, other)
                    found[other] = max(found.get(other, more), more)
            if not self.is_slow([rate for rate, _, _ in found.values()]):
                break
        for other, (gbps, receiving, sending) in found.items():
            self.said(stage="peer", other=other, gbps=gbps, receiving=receiving, sending=sending)

    def is_slow(self, rates: list[float]) -> bool:
        """Whether something looks slow on any rank: then all try once more, and the best counts."""
        best = [self.tensor(0.0) for _ in range(self.world)]
        self.dist.all_gather(best, self.tensor(max(rates, default=0.0)))
        usual = sorted(float(one) for one in best)[self.world // 2]
        (slow,) = self.greatest(float(any(rate * SLOWER < usual for rate in rates)))
        return bool(slow)

    def carried(self, tensor: Any, other: int) -> list[float]:
        """Return the rate at which it came from another rank, and how busy both ways kept us."""
        gbps, receiving, sending = 0.0, 0.0, 0.0
        for _ in range(BEST_OF):
            for sends in (self.rank < other, self.rank > other):
                clock = Clock(self.device)
                if sends:
                    self.carry(self.dist.isend, tensor, other)
                    # It has all: what is sent may lie in buffers.
                    self.carry(self.dist.irecv, tensor[:1], other)
                    sending = max(sending, clock.share())
                    continue
                self.carry(self.dist.irecv, tensor, other)
                gbps = max(gbps, tensor.numel() * 4 * 8 / clock.seconds() / 1e9)
                receiving = max(receiving, clock.share())
                self.carry(self.dist.isend, tensor[:1], other)
        return [round(gbps, 4), round(receiving, 2), round(sending, 2)]

    def carry(self, way: Any, tensor: Any, other: int) -> None:
        """Send to another rank, or receive; in a batch, for else NCCL makes a group of each two."""
        for work in self.dist.batch_isend_irecv([self.dist.P2POp(way, tensor, other)]):
            work.wait()


class Once:
    """An all_reduce of one size, done again and again."""

    def __init__(self, rank: Rank, size: int) -> None:
        self.rank, count, world = rank, size // 4, rank.world
        torch, device = rank.torch, rank.device.name
        # Whole numbers this small are exact in float32: any other sum is wrong.
        seven = torch.arange(7, dtype=torch.float32, device=device)
        place = seven.repeat(count // 7 + 1)[:count]
        self.mine = place + (rank.rank + 1)
        self.right = place * world + world * (world + 1) // 2
        self.values = torch.empty_like(self.mine)
        self.times: list[float] = []
        self.shares: list[float] = []
        self.wrong = 0

    def go(self) -> None:
        """Do it."""
        self.values.copy_(self.mine)
        self.rank.greatest(0.0)  # all of them begin together
        clock = Clock(self.rank.device)
        self.rank.dist.all_reduce(self.values)
        self.times.append(clock.seconds())
        self.shares.append(clock.share())
        # A number that is none equals nothing.
        self.wrong += int((self.values != self.right).sum())

    def median(self) -> float:
        """Return the time that it takes."""
        return sorted(self.times)[len(self.times) // 2]

    def busy(self) -> float:
        """Return how much of the CPU that it could use it wanted, as a median."""
        return sorted(self.shares)[len(self.shares) // 2]


class Clock:
    """How long something takes on a device, and how much CPU time our threads want meanwhile."""

    def __init__(self, device: Device) -> None:
        device.wait()
        self._device = device
        self._begun, self._before = time.monotonic(), wanted_s()

    def seconds(self) -> float:
        """Return the time that it has taken."""
        self._device.wait()
        return max(1e-6, time.monotonic() - self._begun)

    def share(self) -> float:
        """Return the CPU time that our threads had, or had to wait for, over the time it took.

        Whoever waits for a GPU turns round and round, which says nothing: 0.
        """
        return 0.0 if self._device.has_gpu else (wanted_s() - self._before) / self.seconds()


def wanted_s() -> float:
    """Return CPU time of our threads, and time that they were ready to run and had to wait."""
    total = 0
    try:
        for thread in os.listdir("/proc/self/task"):
            with open("/proc/self/task/" + thread + "/schedstat") as file:
                ran, waited = file.read().split()[:2]
            total += int(ran) + int(waited)
    except (OSError, ValueError):
        return time.process_time()
    return total / 1e9
