"""The agent's children, as it sees them: what they do, and how they have ended.

Sent to nodes: stdlib only, Python 3.8.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
from typing import Any, Mapping


class Child:
    """A child, seen from the agent: does one call at a time."""

    def __init__(self, pid: int, pipes: Pipes) -> None:
        self.pid, self.pipes = pid, pipes
        self.tail = b""
        self.frame: Mapping[str, Any] | None = None
        """The call that it has yet to answer."""
        self.calls = 0
        self.deadline: float = math.inf

    def begin(self, frame: Mapping[str, Any]) -> None:
        """Take note of the call that it does now."""
        self.frame, self.calls = frame, self.calls + 1
        self.deadline = time.monotonic() + frame["timeout_s"]

    def release(self, limit_s: float) -> None:
        """Have an open call answer, or a child without a call end, within a limit."""
        self.pipes.close("orders_write")
        self.deadline = time.monotonic() + limit_s

    def kill(self) -> None:
        """End the child and all that is in its process group, at once."""
        # The pid too: the child may not have come to make a group of its own yet. Neither can be
        # another's by now, since only `Agent.reap` gives the number back.
        for kill in (os.killpg, os.kill):
            with contextlib.suppress(OSError):
                kill(self.pid, signal.SIGKILL)


class Pipes:
    """The two pipes between the agent and one child, by the names of their four ends."""

    def __init__(self) -> None:
        self.fds: dict[str, int] = {}

    def open(self) -> None:
        """Make them.

        Raises:
            OSError: too many open files.
        """
        self.fds["out_read"], self.fds["out_write"] = os.pipe()
        self.fds["orders_read"], self.fds["orders_write"] = os.pipe()

    def close(self, *names: str) -> None:
        """Close some ends, or all; those that are closed already are left alone."""
        for fd in [self.fds.pop(name) for name in names or tuple(self.fds) if name in self.fds]:
            os.close(fd)


def died(ended: Any) -> str:
    """Say how a child without an answer has ended."""
    if ended.si_code == os.CLD_EXITED:
        return "the probe's process ended without an answer"
    number = ended.si_status
    known = number in {one.value for one in signal.Signals}
    name = signal.Signals(number).name if known else f"signal {number}"
    return f"the probe's process died of {name}"


def children() -> list[int]:
    """Return the pids of all children of this process, adopted ones included."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as listed:
            return [int(pid) for pid in listed.read().split()]
    except OSError:
        return []
