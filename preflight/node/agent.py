"""Answers calls on a node, in forked children, until standard input ends.

Children buy this: a probe that hangs (for ever, in D state, on a dead mount), crashes or eats
memory costs its own answer only. So the agent never waits for a child without a limit, and
children hold none of the SSH pipes, else sshd would wait for them. A child costs milliseconds, so
one that has answered soon is given the next call; while one is busy, others are started.
Sent to nodes: stdlib only, Python 3.8.
"""

from __future__ import annotations

import binascii
import contextlib
import importlib
import json
import math
import os
import select
import signal
import sys
import time
import zlib
from resource import RLIMIT_CORE, RUSAGE_CHILDREN, RUSAGE_SELF, getrlimit, setrlimit
from typing import Any, Collection, Mapping

from preflight.node import psutil_loader, scratch, toolbox
from preflight.node.child import cpu_s, encode, problem, work, write_all
from preflight.node.children import Child, Pipes, children, died

GATHER_S = 0.5
"""How long an answer waits for others: a packet costs all that handle it more than a frame."""
PATIENCE_S = 0.25
"""How long calls wait for a child to be free before another is started: a child costs what most
calls do together, and who waits for one that hangs waits longer than this.
"""
END_S = 1.0
"""How long a child may take to end that has no more to do; and how long the agent waits at its own
end for killed ones: one in D state never dies.
"""
PR_SET_CHILD_SUBREAPER = 36
"""From linux/prctl.h: what children leave behind becomes the agent's own, so it can end it."""
INTERPRETER = "interpreter"
"""The end of the names of modules that are for another Python, which gets them as text."""
DRIVER = "/proc/driver/nvidia"
ENDING = (signal.SIGALRM, signal.SIGHUP, signal.SIGINT, signal.SIGTERM)


class Agent:
    """The loop: requests in, answers out.

    Args:
        tag: goes before every line written, so that banners and stray prints are told apart.
        modules: the names of those that were sent.
    """

    def __init__(self, tag: str, modules: Collection[str]) -> None:
        self.tag = tag.encode()
        self.modules = modules
        self.waiting: list[Mapping[str, Any]] = []
        self.children: dict[int, Child] = {}
        self.heard: dict[int, Child] = {}
        self.patient_until = 0.0
        self.tail = self.out = b""
        self.due: float = math.inf
        self.poller = select.poll()
        self.woken, self.waker = os.pipe()

    def serve(self, life_s: int) -> None:
        """Answer until standard input ends, or `life_s` have passed (a lost controller)."""
        toolbox.prctl(PR_SET_CHILD_SUBREAPER, 1)
        os.chdir("/")  # what probes start must not find a stray json.py in the home directory
        setrlimit(RLIMIT_CORE, (0, getrlimit(RLIMIT_CORE)[1]))  # nothing is left on disk
        os.set_blocking(self.waker, False)
        signal.set_wakeup_fd(self.waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # only the byte in the pipe counts
        for number in ENDING:
            signal.signal(number, leave)
        signal.alarm(life_s)
        scratch.root = f"{scratch.MEMORY}/{self.tag.decode().rstrip(':')}"
        for fd in (0, self.woken):
            self.poller.register(fd, select.POLLIN)
        try:
            self.prepare()
            while self.turn():
                pass
        finally:
            self.end()
        os._exit(0)  # tidying up an interpreter costs milliseconds

    def prepare(self) -> None:
        """Import the shared modules once rather than in every child, while the controller thinks.

        One that does not import is left to the children: there it is an answer.
        """
        for name in sorted(self.modules):
            if name.startswith("preflight.node.") and not name.endswith(INTERPRETER):
                with contextlib.suppress(ImportError):
                    importlib.import_module(name)

    def say(self, frame: Mapping[str, Any]) -> None:
        """Write one frame, soon."""
        self.forward(encode(frame))

    def forward(self, line: bytes) -> None:
        """Add an encoded frame to what is written next; it begins a line even after noise."""
        if not self.out:
            self.due = time.monotonic() + GATHER_S
        self.out += b"\n" + self.tag + line

    def settle(self) -> None:
        """Write what was said when no answer is awaited that could go with it, or it is due."""
        if self.out and (time.monotonic() >= self.due or not (self.waiting or self.is_busy())):
            self.flush()

    def is_busy(self) -> bool:
        """Whether a child is at a call that ends by itself; then it could be given another."""
        return any(child.frame and child.deadline < math.inf for child in self.children.values())

    def flush(self) -> None:
        """Write what was said."""
        out, self.out, self.due = self.out, b"", math.inf
        with contextlib.suppress(OSError):  # the controller is gone: end of stdin follows
            write_all(1, out)

    def turn(self) -> bool:
        """Wait for the next thing to happen and deal with it; False when stdin has ended."""
        self.settle()
        for fd, _ in self.poller.poll(self.patience_ms()):
            if fd in self.heard:
                self.hear(self.heard[fd])
            elif fd == self.woken:
                os.read(self.woken, 4096)
                self.reap()
            elif fd == 0 and not self.listen():
                return False
        self.expire()
        if self.waiting and (time.monotonic() >= self.patient_until or not self.is_busy()):
            self.start(self.waiting.pop(0))
        return True

    def patience_ms(self) -> int | None:
        """Return the time until the next deadline."""
        limits = [self.due, *(child.deadline for child in self.children.values())]
        first: float = min([*limits, self.patient_until] if self.waiting else limits)
        if first == math.inf:
            return None
        return max(0, math.ceil((first - time.monotonic()) * 1000))

    def listen(self) -> bool:
        """Take what the controller sent; False when it has ended."""
        data = os.read(0, 1 << 16)
        *lines, self.tail = (self.tail + data).split(b"\n")
        for line in lines:
            self.request(line)
        return bool(data)

    def request(self, line: bytes) -> None:
        """Take one request line. Noise is not possible here: only the controller writes it."""
        frame = json.loads(line)
        if frame.get("stop"):
            for child in self.children.values():
                if child.frame and child.frame["id"] == frame["id"]:
                    child.release(child.frame["timeout_s"])
        elif frame["module"] == __name__:
            value = getattr(self, "do_" + frame["function"])(*frame["args"])
            self.say({"id": frame["id"], "value": value})
            if frame["function"] == "ping":
                self.flush()  # its round trip is measured
        elif frame.get("open"):
            self.start(frame)
        else:
            self.waiting.append(frame)

    def do_ping(self) -> float:
        """Return this machine's clock, at once: the round trip bounds its offset."""
        return time.time()

    def do_load(self, library: str | None) -> dict[str, Any]:
        """Take psutil's compiled part; say how psutil was loaded.

        psutil is imported here once rather than in every child; pynvml too, where it will be of
        use. Importing it does not touch the driver; only its `nvmlInit` does.
        """
        if "pynvml" in self.modules and os.path.exists(DRIVER):
            importlib.import_module("pynvml")
        if "psutil" not in self.modules:
            return {"psutil": "not needed"}
        return {"psutil": psutil_loader.load(unpack(library) if library else None)}

    def do_usage(self) -> dict[str, Any]:
        """Return the CPU seconds of the agent and of its children that ended, and who has not."""
        own, children = cpu_s(RUSAGE_SELF), cpu_s(RUSAGE_CHILDREN)
        return {"agent_s": own, "children_s": children, "pids": sorted(self.children)}

    def start(self, frame: Mapping[str, Any]) -> None:
        """Fork a child for a call."""
        agent, pipes = os.getpid(), Pipes()
        try:
            pipes.open()
            pid = os.fork()
        except OSError as error:  # no more files or processes: that is an answer too
            pipes.close()
            said = f"cannot start a process: {error.strerror}"
            self.say({"id": frame["id"], **problem("unobservable", said)})
            return
        if pid == 0:
            # Whatever happens in the child, it must not come back into the agent's loop.
            try:
                self.forget()
                pipes.close("out_read", "orders_write")
                work(frame, agent, pipes.fds["out_write"], pipes.fds["orders_read"])
            finally:
                os._exit(0)
        pipes.close("out_write", "orders_read")
        out = pipes.fds["out_read"]
        os.set_blocking(out, False)
        self.poller.register(out, select.POLLIN)
        self.children[pid] = self.heard[out] = child = Child(pid, pipes)
        child.begin(frame)
        self.patient_until = time.monotonic() + PATIENCE_S

    def forget(self) -> None:
        """Let go, in a child, of all that is the agent's."""
        signal.set_wakeup_fd(-1)
        for number in (*ENDING, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        for fd in (self.woken, self.waker):
            os.close(fd)
        for child in self.children.values():
            child.pipes.close()

    def hear(self, child: Child) -> bool:
        """Take what a child wrote: whole lines are forwarded as they are. False: nothing."""
        try:
            data = os.read(child.pipes.fds["out_read"], 1 << 16)
        except BlockingIOError:
            return False
        if not data:
            self.deafen(child)
            return False
        *lines, child.tail = (child.tail + data).split(b"\n")
        for line in lines:
            self.forward(line + b"\n")
            if line.startswith(b'{"ready"'):
                child.deadline = math.inf
            else:
                self.employ(child)
        return True

    def employ(self, child: Child) -> None:
        """Give a child that has answered the next call, or let it end."""
        child.frame = None
        first = self.waiting[0] if self.waiting else {"alone": True}
        order = b"" if first.get("alone") else encode(first)
        # It has read all before, so that so much goes into the pipe at once: never wait for it.
        if 0 < len(order) <= select.PIPE_BUF and "orders_write" in child.pipes.fds:
            with contextlib.suppress(OSError):  # it has closed its end
                os.write(child.pipes.fds["orders_write"], order)
                child.begin(self.waiting.pop(0))
                self.patient_until = time.monotonic() + PATIENCE_S
                return
        child.release(END_S)

    def deafen(self, child: Child) -> None:
        """Listen to a child no more: its pipe has ended, or it has."""
        if self.heard.pop(child.pipes.fds["out_read"], None):
            self.poller.unregister(child.pipes.fds["out_read"])

    def reap(self) -> None:
        """See to the children that have ended, adopted ones included; never blocks."""
        flags = os.WEXITED | os.WNOHANG
        with contextlib.suppress(ChildProcessError):  # there are none
            while True:
                # Left a zombie until all is done: its number stays its own so long.
                ended = os.waitid(os.P_ALL, 0, flags | os.WNOWAIT)
                if ended is None:
                    return
                child = self.children.get(ended.si_pid)
                if child:
                    while self.hear(child):
                        pass
                    self.finish(child, "died", died(ended))
                os.waitid(os.P_PID, ended.si_pid, flags)

    def expire(self) -> None:
        """Answer for children that are past their time."""
        now = time.monotonic()
        for child in [child for child in self.children.values() if child.deadline <= now]:
            limit_s = child.frame["timeout_s"] if child.frame else END_S
            self.finish(child, "timeout", f"no answer in {limit_s:g} s")

    def finish(self, child: Child, kind: str, why: str) -> None:
        """Have done with a child; a call that it has not answered has this problem."""
        if child.frame and kind == "died" and child.calls > 1:
            # It may have died of an earlier one: only a child that does no other tells.
            self.waiting.insert(0, {**child.frame, "alone": True})
        elif child.frame:
            self.say({"id": child.frame["id"], **problem(kind, why)})
        child.kill()
        self.deafen(child)
        child.pipes.close()
        del self.children[child.pid]

    def end(self) -> None:
        """Leave nothing behind: children, and what they left to us as subreaper."""
        hush()
        self.flush()
        for child in self.children.values():
            child.kill()
        self.children.clear()
        deadline = time.monotonic() + END_S
        # In rounds: what a child has started becomes ours only when the child is dead.
        while children() and time.monotonic() < deadline:
            for pid in children():
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            self.reap()
            time.sleep(0.001)
        scratch.clear()


def leave(*_: Any) -> None:
    """Be the answer to a signal that ends the agent."""
    hush()  # systemd sends SIGHUP right behind SIGTERM
    sys.exit(1)


def hush() -> None:
    """Let no signal disturb the agent's end."""
    for number in ENDING:
        # Not SIG_IGN: Python calls the handler of a signal that has come before as well.
        signal.signal(number, lambda *_: None)


def unpack(packed: str) -> bytes:
    """Return the bytes that `payload.pack` was given."""
    return zlib.decompress(binascii.a2b_base64(packed))
