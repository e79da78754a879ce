"""Does collectives with torch. Runs in the training interpreter, not in the agent.

Its text is handed over by `collective.py`. One process imports torch, which takes seconds, and
forks one for each rank that is asked for: a rank that hangs is killed, and the next one begins at
once. Orders come as JSON lines on standard input; what comes of them goes out as lines behind a
mark. It ends all when its input ends, also in a container, where no signal of ours comes.
Sent to nodes: stdlib and the torch that is there, Python 3.7.
"""

from __future__ import annotations

import ctypes
import datetime
import fcntl
import json
import os
import select
import signal
import time
from typing import Any, Callable, Mapping

PR_SET_PDEATHSIG = 1
"""From linux/prctl.h."""
CONFIRM_S = 5.0
"""For all ranks to say that they are done, before the first one hangs up."""
LARGE = 1 << 20
"""From so many bytes on, time grows with size."""
LEAST, MOST = 1 << 18, 1 << 23
"""Bytes that one rank sends to another to see how fast that goes."""
LINE = 400
"""Characters of an error that are kept: C++ frames follow."""
IDLE_S = 3600.0
"""It looks at the clock again by then."""
PASSES = 5
"""Through all pairs at most, while one looks slow: what is slow for a moment is no fault."""
SLOWER = 2
"""As of collective.all_reduce."""
BEST_OF = 2
"""Transfers between two ranks each way: one may meet a moment's noise."""


def main(mark: str) -> None:
    """Import torch, then do as it is ordered until there are no more orders."""

    def say(**what: Any) -> None:
        # In one write, for the ranks say theirs through the same pipe.
        os.write(1, ("\n" + mark + json.dumps(what) + "\n").encode())

    begun = time.monotonic()
    end_with_input(True)  # an import may hang, and whoever started us may leave us behind
    if select.select([0], [], [], 0)[0]:
        say(stage="deaf")
        os._exit(1)
    try:
        import torch  # type: ignore[import-not-found,unused-ignore]

        version = str(torch.__version__)
        import torch.distributed as dist  # type: ignore[import-not-found,unused-ignore]

        if not dist.is_available():
            raise ImportError("this build of torch has no torch.distributed")
        dist.TCPStore, dist.ProcessGroupGloo  # noqa: B018 - it raises where there is none
    except BaseException as error:  # noqa: BLE001 - whatever an import raises is the answer
        say(stage="error", **of_error(error))
        os._exit(1)
    end_with_input(False)
    say(stage="imported", torch=version, seconds=round(time.monotonic() - begun, 2))
    Ranks(torch, dist, say).serve()


def end_with_input(on: bool) -> None:
    """Have the kernel end this process (SIGIO) once its input ends or brings something, or not."""
    flags = fcntl.fcntl(0, fcntl.F_GETFL)
    fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(0, fcntl.F_SETFL, flags | os.O_ASYNC if on else flags & ~os.O_ASYNC)


def of_error(error: BaseException) -> dict[str, str]:
    """Return type and first line of an error."""
    lines = str(error).strip().splitlines() or [""]
    return {"type": type(error).__name__, "error": lines[0][:LINE]}


class Ranks:
    """What was forked: by pid, its order's number and when it is ended."""

    def __init__(self, torch: Any, dist: Any, say: Callable[..., None]) -> None:
        self.torch, self.dist, self.say = torch, dist, say
        self.due: dict[int, tuple[int, float]] = {}
        self.limits: dict[int, float] = {}
        """By pid, how long it has once it has joined."""
        self.ends: dict[int, int] = {}
        """By descriptor that ends with a child, its pid."""
        self.tail = b""
        self.poller = select.poll()
        self.poller.register(0, select.POLLIN | select.POLLHUP)

    def serve(self) -> None:
        """Do as it is ordered; ends this process."""
        while True:
            now = time.monotonic()
            first = min([now + IDLE_S, *(due for _, due in self.due.values())])
            for fd, _ in self.poller.poll(max(0.0, first - now) * 1000 + 1):
                if fd:
                    self.hear(fd)
                elif not self.listen():
                    self.kill(list(self.due))
                    os._exit(0)
            now = time.monotonic()
            self.kill([pid for pid, (_, due) in self.due.items() if due <= now])

    def listen(self) -> bool:
        """Take orders; False when there are no more."""
        data = os.read(0, 1 << 16)
        *lines, self.tail = (self.tail + data).split(b"\n")
        for line in lines:
            order = json.loads(line)
            if order["task"] == "end":
                self.kill([pid for pid, (number, _) in self.due.items() if number == order["id"]])
            else:
                self.begin(order)
        return bool(data)

    def begin(self, order: Mapping[str, Any]) -> None:
        """Fork a process for an order."""
        parent = os.getpid()
        come, hold = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
                null = os.open(os.devnull, os.O_RDONLY)
                os.dup2(null, 0)  # orders are the parent's
                if os.getppid() == parent:
                    self.work(order, hold)
            finally:
                os._exit(0)
        os.close(hold)
        self.ends[come] = pid
        self.due[pid] = order["id"], time.monotonic() + order["join_s"]
        self.limits[pid] = order["limit_s"]
        self.poller.register(come, select.POLLIN | select.POLLHUP)

    def kill(self, pids: list[int]) -> None:
        """End some; `hear` follows."""
        for pid in pids:
            number, _ = self.due[pid]
            self.due[pid] = number, float("inf")
            self.say(id=number, stage="killed")
            os.kill(pid, signal.SIGKILL)

    def hear(self, fd: int) -> None:
        """Take note that a child has joined its group, or see how it has ended."""
        pid = self.ends[fd]
        if os.read(fd, 1):
            self.due[pid] = self.due[pid][0], time.monotonic() + self.limits[pid]
            return
        self.poller.unregister(fd)
        os.close(fd)
        del self.ends[fd], self.limits[pid]
        status = os.waitpid(pid, 0)[1]
        number, _ = self.due.pop(pid)
        signalled = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        self.say(id=number, stage="ended", signal=signalled)

    def work(self, order: Mapping[str, Any], joined: int) -> None:
        """Do what is ordered, in a child."""
        said = Said(self.say, order["id"], joined)
        try:
            if order["task"] == "store":
                store(self.dist, order, said)
            else:
                Rank(self.torch, self.dist, order, said).go()
        except BaseException as error:  # noqa: BLE001 - whatever torch raises is the answer
            said(stage="error", at=said.stage, seconds=said.seconds(), **of_error(error))


class Said:
    """Says what comes of an order, and knows what stage it is at."""

    def __init__(self, say: Callable[..., None], number: int, joined: int) -> None:
        self._say, self._number, self._joined = say, number, joined
        self._begun = time.monotonic()
        self.stage = "store"

    def __call__(self, **what: Any) -> None:
        """Say something of it."""
        self._say(id=self._number, **what)

    def joined(self) -> None:
        """Say that the group is there: from now on there is another limit."""
        os.write(self._joined, b"1")
        self(stage="joined", seconds=self.seconds())

    def seconds(self) -> float:
        """Return the time since the order."""
        return round(time.monotonic() - self._begun, 2)


def store(dist: Any, order: Mapping[str, Any], said: Said) -> None:
    """Be where the ranks meet, on a port that is free, until ended."""
    found = opened(dist, order["port"], order["limit_s"])
    if found.port == order["besides"]:
        found = opened(dist, 0, order["limit_s"])
    said.joined()
    said(stage="listening", port=found.port)
    while True:
        signal.pause()


def opened(dist: Any, port: int, limit_s: float) -> Any:
    """Return a store that listens; on any free port if that is 0."""
    limit = datetime.timedelta(seconds=limit_s)
    return dist.TCPStore("127.0.0.1", port, None, True, limit, wait_for_workers=False)


class Rank:
    """One rank of a group.

    Args:
        torch: the module.
        dist: torch.distributed.
        order: host and port of the store, rank, world, interface, wait_s, sizes, most,
            spend_s, go_on_s, exchange_s, carry_s, meets (whom it exchanges with,
            round by round; None: nobody).
        said: tells what comes of it.
    """

    def __init__(self, torch: Any, dist: Any, order: Mapping[str, Any], said: Said) -> None:
        self.torch, self.dist, self.order, self.said = torch, dist, order, said
        self.rank, self.world = order["rank"], order["world"]
        self.begun = 0.0
        self.busbw = 0.0

    def go(self) -> None:
        """Meet the others, and do it with them."""
        self.torch.set_num_threads(1)
        if self.order["interface"]:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", self.order["interface"])
        limit = datetime.timedelta(seconds=self.order["wait_s"])
        host, port = self.order["host"], self.order["port"]
        met = self.dist.TCPStore(host, port, None, False, limit, wait_for_workers=False)
        self.meet(met, "here", limit)
        self.said(stage="met")
        self.said.stage = "group"
        self.dist.init_process_group(
            "gloo",
            store=met,
            rank=self.rank,
            world_size=self.world,
            timeout=limit,
        )
        self.said.stage = "all_reduce"
        self.dist.barrier()
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

    def greatest(self, *values: float) -> list[float]:
        """Return the greatest of all ranks, of each value: so that all decide the same."""
        tensor = self.torch.tensor(values, dtype=self.torch.float64)
        self.dist.all_reduce(tensor, op=self.dist.ReduceOp.MAX)
        return [float(value) for value in tensor]

    def reduce(self) -> None:
        """Do all_reduce of growing sizes, as often as there is time for, and see each result."""
        sizes = self.order["sizes"]
        for place, size in enumerate(sizes):
            once = Once(self.torch, self.dist, self.rank, self.world, size)
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
        if not self.order["meets"]:
            return
        size = int(min(max(self.busbw * self.order["carry_s"], LEAST), MOST)) & ~4095
        tensor = self.torch.zeros(size // 4, dtype=self.torch.float32)
        found: dict[int, list[float]] = {}
        until = time.monotonic() - self.begun + self.order["exchange_s"]
        for _ in range(PASSES):
            for other in self.order["meets"]:
                (spent,) = self.greatest(time.monotonic() - self.begun)
                if spent > until:
                    break
                if other is not None:
                    more = self.carried(tensor, other)
                    found[other] = max(found.get(other, more), more)
            if not self.is_slow([rate for rate, _, _ in found.values()]):
                break
        for other, (gbps, receiving, sending) in found.items():
            self.said(stage="peer", rank=other, gbps=gbps, receiving=receiving, sending=sending)

    def is_slow(self, rates: list[float]) -> bool:
        """Whether something looks slow on any rank: then all try once more, and the best counts."""
        best = [self.torch.zeros(1, dtype=self.torch.float64) for _ in range(self.world)]
        mine = self.torch.tensor([max(rates, default=0.0)], dtype=self.torch.float64)
        self.dist.all_gather(best, mine)
        usual = sorted(float(one) for one in best)[self.world // 2]
        (slow,) = self.greatest(float(any(rate * SLOWER < usual for rate in rates)))
        return bool(slow)

    def carried(self, tensor: Any, other: int) -> list[float]:
        """Return the rate at which it came from another rank, and how busy both ways kept us."""
        gbps, receiving, sending = 0.0, 0.0, 0.0
        for _ in range(BEST_OF):
            for sends in (self.rank < other, self.rank > other):
                clock = Busy()
                if sends:
                    self.dist.send(tensor, other)
                    self.dist.recv(tensor[:1], other)  # it has all: what is sent may lie in buffers
                    sending = max(sending, clock.share())
                    continue
                self.dist.recv(tensor, other)
                gbps = max(gbps, tensor.numel() * 4 * 8 / clock.seconds() / 1e9)
                receiving = max(receiving, clock.share())
                self.dist.send(tensor[:1], other)
        return [round(gbps, 4), round(receiving, 2), round(sending, 2)]


class Once:
    """An all_reduce of one size, done again and again."""

    def __init__(self, torch: Any, dist: Any, rank: int, world: int, size: int) -> None:
        self.torch, self.dist = torch, dist
        place = torch.arange(size // 4, dtype=torch.float32).remainder_(7)
        # Whole numbers this small are exact in float32: any other sum is wrong.
        self.mine = place + (rank + 1)
        self.right = place * world + world * (world + 1) // 2
        self.values = torch.empty_like(self.mine)
        self.times: list[float] = []
        self.shares: list[float] = []
        self.wrong = 0

    def go(self) -> None:
        """Do it."""
        self.values.copy_(self.mine)
        self.dist.barrier()
        clock = Busy()
        self.dist.all_reduce(self.values)
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


class Busy:
    """How long something takes, and how much CPU time our threads want meanwhile."""

    def __init__(self) -> None:
        self._begun, self._before = time.monotonic(), wanted_s()

    def seconds(self) -> float:
        """Return the time that it has taken."""
        return max(1e-6, time.monotonic() - self._begun)

    def share(self) -> float:
        """Return the CPU time that our threads had, or had to wait for, over the time it took."""
        return (wanted_s() - self._before) / self.seconds()


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
