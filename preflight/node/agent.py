"""Answers calls on a node, one forked child each, until standard input ends.

A child costs a few milliseconds and buys this: a probe that hangs (for ever, in D state, on a
dead mount), crashes or eats memory costs its own answer only. So the agent never waits for a
child without a limit, and children hold none of the SSH pipes, else sshd would wait for them.
Sent to nodes: stdlib only, Python 3.8.
"""

from __future__ import annotations

import binascii
import contextlib
import importlib
import json
import math
import os
import resource
import select
import signal
import sys
import time
import zlib
from typing import Any, Mapping

from preflight.node import child, psutil_loader, toolbox
from preflight.node.child import encode, problem, write_all

GATHER_S = 0.01
"""How long an answer waits for others: a packet costs all that handle it more than a frame."""
END_S = 1.0
"""How long the agent waits at its end for killed children; one in D state never dies."""
PR_SET_CHILD_SUBREAPER = 36
"""From linux/prctl.h: what children leave behind becomes the agent's own, so it can end it."""
INTERPRETER = ".interpreter"
"""Is for another Python, which gets it as text. Its whole name here would have it sent always."""
DRIVER = "/proc/driver/nvidia"
ENDING = (signal.SIGALRM, signal.SIGHUP, signal.SIGINT, signal.SIGTERM)


class Call:
    """A child at work, seen from the agent."""

    def __init__(self, frame: Mapping[str, Any], pid: int, pipes: Pipes) -> None:
        self.id, self.pid, self.pipes, self.timeout_s = frame["id"], pid, pipes, frame["timeout_s"]
        self.function = "{module}:{function}".format(**frame)
        self.deadline = time.monotonic() + self.timeout_s
        self.tail = b""
        self.answered = False

    def stop(self) -> None:
        """Tell an open call to end; it has its time limit again to answer."""
        self.pipes.close("stop_write")
        self.deadline = time.monotonic() + self.timeout_s

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
        self.fds["stop_read"], self.fds["stop_write"] = os.pipe()

    def close(self, *names: str) -> None:
        """Close some ends, or all; those that are closed already are left alone."""
        for fd in [self.fds.pop(name) for name in names or tuple(self.fds) if name in self.fds]:
            os.close(fd)


class Agent:
    """The loop: requests in, answers out.

    Args:
        tag: goes before every line written, so that banners and stray prints are told apart.
        sources: the modules sent so far by name; `load` adds to it.
    """

    def __init__(self, tag: str, sources: dict[str, str]) -> None:
        self.tag = tag.encode()
        self.sources = sources
        self.calls: dict[int, Call] = {}
        self.heard: dict[int, Call] = {}
        self.used: dict[str, float] = {}
        self.tail = self.out = b""
        self.due: float = math.inf
        self.poller = select.poll()
        self.woken, self.waker = os.pipe()

    def serve(self, life_s: int) -> None:
        """Answer until standard input ends, or `life_s` have passed (a lost controller)."""
        toolbox.prctl(PR_SET_CHILD_SUBREAPER, 1)
        os.chdir("/")  # what probes start must not find a stray json.py in the home directory
        for fd in (0, 1):
            os.set_blocking(fd, True)  # sudo with I/O logging leaves them non-blocking
        os.set_blocking(self.waker, False)
        signal.set_wakeup_fd(self.waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # only the byte in the pipe counts
        for number in ENDING:
            signal.signal(number, leave)
        signal.alarm(life_s)
        for fd in (0, self.woken):
            self.poller.register(fd, select.POLLIN)
        try:
            self.say({"hello": hello()})
            self.flush()
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
        for name in sorted(self.sources):
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
        awaited = (call.deadline < math.inf and not call.answered for call in self.calls.values())
        if self.out and (time.monotonic() >= self.due or not any(awaited)):
            self.flush()

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
        return True

    def patience_ms(self) -> int | None:
        """Return the time until the next deadline."""
        first: float = min([self.due, *(call.deadline for call in self.calls.values())])
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
            if frame["id"] in self.calls:
                self.calls[frame["id"]].stop()
        elif frame["module"] == __name__:
            value = getattr(self, "do_" + frame["function"])(*frame["args"])
            self.say({"id": frame["id"], "value": value})
            self.flush()  # the round trip of a ping is measured
        else:
            self.start(frame)

    def do_ping(self) -> float:
        """Return this machine's clock, at once: the round trip bounds its offset."""
        return time.time()

    def do_load(self, sources: str, library: str | None) -> dict[str, Any]:
        """Take more modules and psutil's compiled part; say how psutil was loaded.

        psutil is imported here once rather than in every child; pynvml too, where it will be of
        use. Importing it does not touch the driver; only its `nvmlInit` does.
        """
        modules: dict[str, str] = json.loads(unpack(sources))
        self.sources.update(modules)
        if "pynvml" in modules and os.path.exists(DRIVER):
            importlib.import_module("pynvml")
        if "psutil" not in modules:
            return {"psutil": "not needed"}
        return {"psutil": psutil_loader.load(unpack(library) if library else None)}

    def do_usage(self) -> dict[str, Any]:
        """Return the CPU seconds of the agent, of its children that have ended, and by function."""
        own, children = cpu_s(resource.RUSAGE_SELF), cpu_s(resource.RUSAGE_CHILDREN)
        return {"agent_s": own, "children_s": children, "calls_s": self.used}

    def start(self, frame: Mapping[str, Any]) -> None:
        """Fork a child for one call."""
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
                pipes.close("out_read", "stop_write")
                child.serve(frame, agent, pipes.fds["out_write"], pipes.fds["stop_read"])
            finally:
                os._exit(0)
        pipes.close("out_write", "stop_read")
        out = pipes.fds["out_read"]
        os.set_blocking(out, False)
        self.poller.register(out, select.POLLIN)
        call = Call(frame, pid, pipes)
        self.calls[call.id] = self.heard[out] = call

    def forget(self) -> None:
        """Let go, in a child, of all that is the agent's."""
        signal.set_wakeup_fd(-1)
        for number in (*ENDING, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        for fd in (self.woken, self.waker):
            os.close(fd)
        for call in self.calls.values():
            call.pipes.close()

    def hear(self, call: Call) -> bool:
        """Take what a child wrote: whole lines are forwarded as they are. False: nothing."""
        try:
            data = os.read(call.pipes.fds["out_read"], 1 << 16)
        except BlockingIOError:
            return False
        if not data:
            self.deafen(call)
            return False
        *lines, call.tail = (call.tail + data).split(b"\n")
        for line in lines:
            if line.startswith(b'{"ready"'):
                call.deadline = math.inf
            else:
                call.answered = True
            self.forward(line + b"\n")
        return True

    def deafen(self, call: Call) -> None:
        """Listen to a child no more: its pipe has ended, or it has."""
        if self.heard.pop(call.pipes.fds["out_read"], None):
            self.poller.unregister(call.pipes.fds["out_read"])

    def reap(self) -> None:
        """See to the children that have ended, adopted ones included; never blocks."""
        flags = os.WEXITED | os.WNOHANG
        with contextlib.suppress(ChildProcessError):  # there are none
            while True:
                # Left a zombie until all is done: its number stays its own so long.
                ended = os.waitid(os.P_ALL, 0, flags | os.WNOWAIT)
                if ended is None:
                    return
                function = "what calls left behind"
                for call in [c for c in self.calls.values() if c.pid == ended.si_pid]:
                    while self.hear(call):
                        pass
                    self.finish(call, "died", died(ended))
                    function = call.function
                before = cpu_s(resource.RUSAGE_CHILDREN)
                os.waitid(os.P_PID, ended.si_pid, flags)
                spent = cpu_s(resource.RUSAGE_CHILDREN) - before
                self.used[function] = self.used.get(function, 0.0) + spent

    def expire(self) -> None:
        """Answer for children that are past their time."""
        now = time.monotonic()
        for call in [call for call in self.calls.values() if call.deadline <= now]:
            self.finish(call, "timeout", f"no answer in {call.timeout_s:g} s")

    def finish(self, call: Call, kind: str, why: str) -> None:
        """Have done with a call; one that has not answered has this problem."""
        if not call.answered:
            self.say({"id": call.id, **problem(kind, why)})
        call.kill()
        self.deafen(call)
        call.pipes.close()
        del self.calls[call.id]

    def end(self) -> None:
        """Leave nothing behind: children, and what they left to us as subreaper."""
        for number in ENDING:
            signal.signal(number, signal.SIG_IGN)
        self.flush()
        for call in self.calls.values():
            call.kill()
        self.calls.clear()
        deadline = time.monotonic() + END_S
        # In rounds: what a child has started becomes ours only when the child is dead.
        while children() and time.monotonic() < deadline:
            for pid in children():
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            self.reap()
            time.sleep(0.001)


def leave(*_: Any) -> None:
    """Be the answer to a signal that ends the agent."""
    sys.exit(1)


def unpack(packed: str) -> bytes:
    """Return the bytes that `payload.pack` was given."""
    return zlib.decompress(binascii.a2b_base64(packed))


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


def cpu_s(who: int) -> float:
    """Return the CPU seconds of this process or of its children, the kernel's part included."""
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


def libc() -> str:
    """Return name and version of the GNU C library, nothing for another one."""
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (OSError, ValueError):
        return ""


def hello() -> dict[str, Any]:
    """Return what the controller must know before it calls anything."""
    return {
        "python": ".".join(str(number) for number in sys.version_info[:3]),
        "executable": sys.executable,
        "machine": os.uname().machine,
        "system": sys.platform,
        "libc": libc(),
        "uid": os.getuid(),
        "pid": os.getpid(),
    }
