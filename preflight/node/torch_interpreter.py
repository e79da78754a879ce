"""Does collectives with torch. Runs in the training interpreter, not in the agent.

Its text is handed over by `collective.py`. One process imports torch, which takes seconds, and
forks one for each rank that is asked for (`torch_rank.py`): one that hangs is killed, and the next
one begins at once. Orders come as JSON lines on standard input; what comes of them goes out as
lines behind a mark. It ends all when its input ends, also in a container, where no signal of ours
comes. It never wakes CUDA itself: then none of those that it forks could use a GPU.
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
import tempfile
import time
from typing import Any, Callable, Mapping

from preflight.node.torch_rank import Rank

PR_SET_PDEATHSIG = 1
"""From linux/prctl.h."""
LINE = 400
"""Characters of an error that are kept: C++ frames follow."""
LAST_ERROR = "Last error:"
"""Goes before NCCL's own words, behind torch's."""
IDLE_S = 3600.0
"""It looks at the clock again by then."""
LOG_KEPT, LOG_PART = 1 << 18, 500
"""Bytes of what NCCL says that are kept of a rank, and characters that are told at a time: of six
bytes at most, and more than PIPE_BUF in one write would mix with what other ranks say."""
COUNT_S = 20.0
"""To count GPUs: a second where the driver keeps no state, more on a node with eight."""


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
        seconds = round(time.monotonic() - begun, 2)
        gpus, nccl = counted(torch) if dist.is_nccl_available() else (0, "")
    except BaseException as error:  # noqa: BLE001 - whatever an import raises is the answer
        say(stage="error", **of_error(error))
        os._exit(1)
    end_with_input(False)
    say(stage="imported", torch=version, seconds=seconds, gpus=gpus, nccl=nccl)
    Ranks(torch, dist, say).serve()


def end_with_input(on: bool) -> None:
    """Have the kernel end our group (SIGIO) once its input ends or brings something, or not.

    Whoever started us outside of a container has done so already, for what comes before.
    """
    flags = fcntl.fcntl(0, fcntl.F_GETFL)
    fcntl.fcntl(0, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(0, fcntl.F_SETFL, flags | os.O_ASYNC if on else flags & ~os.O_ASYNC)


def counted(torch: Any) -> tuple[int, str]:
    """Return how many GPUs torch may use, and the version of its NCCL; another process asks.

    Raises:
        RuntimeError: the driver gives no answer.
    """
    come, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            end_with_us()
            version = torch.cuda.nccl.version()
            words = ".".join(map(str, version)) if isinstance(version, tuple) else str(version)
            os.write(tell, json.dumps([torch.cuda.device_count(), words]).encode())
        finally:
            os._exit(0)
    os.close(tell)
    answer = os.read(come, 4096) if select.select([come], [], [], COUNT_S)[0] else None
    os.close(come)
    if answer is None:
        os.kill(pid, signal.SIGKILL)  # it is not awaited: it may be in D state
        raise RuntimeError(f"torch.cuda.device_count() gives no answer in {COUNT_S:g} s")
    os.waitpid(pid, 0)
    count, words = json.loads(answer or '[0, ""]')
    return count, words


def end_with_us() -> None:
    """Have the kernel end this child when its parent ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def of_error(error: BaseException) -> dict[str, str]:
    """Return type and first line of an error; of NCCL's, its own words."""
    words = str(error).strip()
    lines = words.split(LAST_ERROR)[-1].strip().splitlines() or words.splitlines() or [""]
    return {"type": type(error).__name__, "error": lines[0][:LINE]}


class Child:
    """One that was forked: its order's number, which rank it is, and when it is ended.

    Its log is the file that its NCCL writes to, or None.
    """

    def __init__(self, pid: int, order: Mapping[str, Any], rank: int, log: Any) -> None:
        self.pid, self.number, self.rank, self.log = pid, order["id"], rank, log
        self.due = time.monotonic() + order["join_s"]
        self.limit_s = order["limit_s"]
        """How long it has once it has joined."""


class Ranks:
    """What was forked, by the descriptor that ends with it."""

    def __init__(self, torch: Any, dist: Any, say: Callable[..., None]) -> None:
        self.torch, self.dist, self.say = torch, dist, say
        self.children: dict[int, Child] = {}
        self.tail = b""
        self.poller = select.poll()
        self.poller.register(0, select.POLLIN | select.POLLHUP)

    def serve(self) -> None:
        """Do as it is ordered; ends this process."""
        while True:
            now = time.monotonic()
            first = min([now + IDLE_S, *(child.due for child in self.children.values())])
            for fd, _ in self.poller.poll(max(0.0, first - now) * 1000 + 1):
                if fd:
                    self.hear(fd)
                elif not self.listen():
                    self.kill(float("inf"))
                    os._exit(0)
            self.kill(time.monotonic())

    def listen(self) -> bool:
        """Take orders; False when there are no more."""
        data = os.read(0, 1 << 16)
        *lines, self.tail = (self.tail + data).split(b"\n")
        for line in lines:
            order = json.loads(line)
            for place, rank in enumerate(order["ranks"]):
                self.begin(order, place, rank)
            self.see_over(order["id"])
        return bool(data)

    def begin(self, order: Mapping[str, Any], place: int, rank: int) -> None:
        """Fork a process for one rank of an order."""
        parent = os.getpid()
        come, hold = os.pipe()
        log = None
        try:
            log = tempfile.TemporaryFile() if "loud" in order else None  # noqa: SIM115
            pid = os.fork()
        except OSError as error:
            os.close(come)
            os.close(hold)
            self.say(id=order["id"], rank=rank, stage="error", at="store", **of_error(error))
            return
        if pid == 0:
            try:
                end_with_us()
                null = os.open(os.devnull, os.O_RDONLY)
                os.dup2(null, 0)  # orders are the parent's
                if log:
                    file = f"/proc/self/fd/{log.fileno()}"
                    os.environ.update(order["loud"], NCCL_DEBUG_FILE=file)
                if os.getppid() == parent:
                    self.work(order, place, Said(self.say, order["id"], rank, hold))
            finally:
                os._exit(0)
        os.close(hold)
        self.children[come] = Child(pid, order, rank, log)
        self.poller.register(come, select.POLLIN | select.POLLHUP)

    def kill(self, now: float) -> None:
        """End those that are due; `hear` follows."""
        for child in (child for child in self.children.values() if child.due <= now):
            child.due = float("inf")
            self.say(id=child.number, rank=child.rank, stage="killed")
            os.kill(child.pid, signal.SIGKILL)

    def hear(self, fd: int) -> None:
        """Take note that a child has joined its group, or see how it has ended."""
        child = self.children[fd]
        if os.read(fd, 1):
            child.due = time.monotonic() + child.limit_s
            return
        self.poller.unregister(fd)
        os.close(fd)
        del self.children[fd]
        status = os.waitpid(child.pid, 0)[1]
        if child.log:
            self.pass_on(child)
        signalled = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        self.say(id=child.number, rank=child.rank, stage="ended", signal=signalled)
        self.see_over(child.number)

    def pass_on(self, child: Child) -> None:
        """Tell what the NCCL of a child has said."""
        with child.log:
            text = os.pread(child.log.fileno(), LOG_KEPT, 0).decode("utf-8", "replace")
        for at in range(0, len(text), LOG_PART):
            part = text[at : at + LOG_PART]
            self.say(id=child.number, rank=child.rank, stage="log", log=part)

    def see_over(self, number: int) -> None:
        """Say so if all ranks of an order have ended."""
        if all(child.number != number for child in self.children.values()):
            self.say(id=number, stage="over")

    def work(self, order: Mapping[str, Any], place: int, said: Said) -> None:
        """Do what is ordered, in a child."""
        try:
            if order["task"] == "store":
                store(self.dist, order, said)
            else:
                Rank(self.torch, self.dist, order, place, said).go()
        except BaseException as error:  # noqa: BLE001 - whatever torch raises is the answer
            said(stage="error", at=said.stage, seconds=said.seconds(), **of_error(error))


class Said:
    """Says what comes of a rank, and knows what stage it is at."""

    def __init__(self, say: Callable[..., None], number: int, rank: int, joined: int) -> None:
        self._say, self._number, self._rank, self._joined = say, number, rank, joined
        self._begun = time.monotonic()
        self.stage = "store"

    def __call__(self, **what: Any) -> None:
        """Say something of it."""
        self._say(id=self._number, rank=self._rank, **what)

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
