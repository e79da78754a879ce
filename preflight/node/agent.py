"""Answers calls on a node, one forked child each, until standard input ends.

A child costs a few milliseconds and buys this: a probe that hangs (for ever, in D state, on a
dead mount), crashes or eats memory costs its own answer only. So the agent never waits for a
child without a limit, and children hold none of the SSH pipes, else sshd would wait for them.
Sent to nodes: stdlib only, Python 3.8.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import platform
import resource
import select
import signal
import sys
import time
import traceback
from typing import Any, Mapping

from preflight.api import Unobservable
from preflight.node import psutil_loader, toolbox

REPLY_CAP = 1 << 20
"""Bytes of one answer: enough for any facts, and a bound for what a broken probe may send."""
GRACE_S = 1.0
"""How long a child whose pipe ended may take to be reaped before its answer goes without."""
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def prctl(option: int, value: int) -> None:
    """Ask the kernel by prctl(2); where there is none (not Linux) the rest still works."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


class Opened:
    """The node's end of an open call; `preflight.api.Opened` is its contract."""

    def __init__(self, call_id: int, out: int, stop: int) -> None:
        self._id, self._out, self._stop = call_id, out, stop

    def ready(self, facts: Mapping[str, Any]) -> None:
        """Tell the controller that the function is in place."""
        write_all(self._out, encode({"id": self._id, "ready": facts}))

    def fileno(self) -> int:
        """A descriptor that becomes readable when the controller says stop."""
        return self._stop


class Call:
    """A child at work, seen from the agent."""

    def __init__(self, call_id: int, pid: int, out: int, stop: int, timeout_s: float) -> None:
        self.id, self.pid, self.out, self.stop_fd, self.timeout_s = (
            call_id,
            pid,
            out,
            stop,
            timeout_s,
        )
        self.deadline: float | None = time.monotonic() + timeout_s
        self.tail = b""
        self.answered = self.ended = False

    def stop(self) -> None:
        """Tell an open call to end; it has its time limit again to answer."""
        if self.stop_fd >= 0:
            os.close(self.stop_fd)
            self.stop_fd = -1
            self.deadline = time.monotonic() + self.timeout_s

    def kill(self) -> None:
        """End the child and all that is in its process group, at once."""
        for kill in (os.killpg, os.kill):
            try:
                kill(self.pid, signal.SIGKILL)
            except OSError:  # gone, or not yet a group of its own
                pass

    def close(self) -> None:
        """Let go of the pipes."""
        os.close(self.out)
        if self.stop_fd >= 0:
            os.close(self.stop_fd)
            self.stop_fd = -1


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
        self.tail = b""
        self.out = 1

    def serve(self, life_s: int) -> None:
        """Answer until standard input ends, or `life_s` have passed (a lost controller)."""
        signal.alarm(life_s)  # the default action ends the process; children follow by PDEATHSIG
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        os.set_blocking(0, True)  # sudo with I/O logging leaves it non-blocking
        self.say({"hello": hello()})
        try:
            while self.turn():
                pass
        finally:
            self.end()

    def say(self, frame: Mapping[str, Any]) -> None:
        """Write one frame."""
        self.forward(encode(frame))

    def forward(self, line: bytes) -> None:
        """Write one encoded frame; it begins a line even after half a line of noise."""
        try:
            write_all(self.out, b"\n" + self.tag + line)
        except OSError:  # the controller is gone: end of stdin follows
            pass

    def turn(self) -> bool:
        """Wait for the next thing to happen and deal with it; False when stdin has ended."""
        waiting = [call for call in self.calls.values() if not call.ended]
        readable, _, _ = select.select([0] + [c.out for c in waiting], [], [], self.patience())
        for call in waiting:
            if call.out in readable:
                self.hear(call)
        self.expire()
        if 0 in readable:
            data = os.read(0, 1 << 16)
            if not data:
                return False
            lines = (self.tail + data).split(b"\n")
            self.tail = lines.pop()
            for line in lines:
                self.request(line)
        return True

    def patience(self) -> float | None:
        """Seconds until the next deadline; short while an ended child awaits reaping."""
        if any(call.ended for call in self.calls.values()):
            return 0.005
        deadlines = [c.deadline for c in self.calls.values() if c.deadline is not None]
        return max(0.0, min(deadlines) - time.monotonic()) if deadlines else None

    def request(self, line: bytes) -> None:
        """Take one request line. Noise is not possible here: only the controller writes it."""
        frame = json.loads(line)
        if frame.get("stop"):
            call = self.calls.get(frame["id"])
            if call:
                call.stop()
        elif frame["module"] == __name__:
            value = getattr(self, "do_" + frame["function"])(*frame["args"])
            self.say({"id": frame["id"], "value": value})
        else:
            self.start(frame)

    def do_ping(self) -> float:
        """Return this machine's clock, at once: the round trip bounds its offset."""
        return time.time()

    def do_load(self, sources: dict[str, str], library: str | None) -> dict[str, Any]:
        """Take more modules, and psutil's compiled part (base64); say how psutil was loaded."""
        self.sources.update(sources)
        return {"psutil": psutil_loader.load(library)}

    def do_usage(self) -> dict[str, float]:
        """Return the CPU seconds of the agent and of its children so far."""
        own, children = (
            resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        )
        return {
            "agent_s": own.ru_utime + own.ru_stime,
            "children_s": children.ru_utime + children.ru_stime,
        }

    def start(self, frame: Mapping[str, Any]) -> None:
        """Fork a child for one call."""
        out_read, out_write = os.pipe()
        stop_read, stop_write = os.pipe()
        try:
            pid = os.fork()
        except OSError as error:  # no more processes: that is an answer too
            for fd in (out_read, out_write, stop_read, stop_write):
                os.close(fd)
            self.say(problem(frame["id"], "unobservable", f"cannot start a process: {error}"))
            return
        if pid == 0:
            # Whatever happens in the child, it must not come back into the agent's loop.
            try:
                os.close(out_read)
                os.close(stop_write)
                for call in self.calls.values():
                    call.close()
                child(frame, out_write, stop_read)
            finally:
                os._exit(0)
        os.close(out_write)
        os.close(stop_read)
        call = Call(frame["id"], pid, out_read, stop_write, frame["timeout_s"])
        self.calls[call.id] = call

    def hear(self, call: Call) -> None:
        """Take what a child wrote: whole lines are forwarded as they are."""
        data = os.read(call.out, 1 << 16)
        if not data:
            call.ended = True
            call.deadline = time.monotonic() + GRACE_S
            return
        call.tail += data
        while b"\n" in call.tail:
            line, call.tail = call.tail.split(b"\n", 1)
            if line.startswith(b'{"ready"'):
                call.deadline = None
            else:
                call.answered = True
            self.forward(line + b"\n")

    def expire(self) -> None:
        """Answer for children that are past their time, and reap those that ended."""
        now = time.monotonic()
        for call in list(self.calls.values()):
            late = call.deadline is not None and now >= call.deadline
            status = reap(call.pid) if call.ended or late else None
            if status is None and not late:
                continue
            if not call.answered:
                self.say(self.silence(call, status))
            call.kill()
            reap(call.pid)
            call.close()
            del self.calls[call.id]

    def silence(self, call: Call, status: int | None) -> dict[str, Any]:
        """Say why a call has no answer of its own."""
        if status is None:
            return problem(call.id, "timeout", f"no answer in {call.timeout_s:g} s")
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            return problem(call.id, "died", f"the probe's process died of {signal_name(number)}")
        return problem(call.id, "died", "the probe's process ended without an answer")

    def end(self) -> None:
        """Leave nothing behind: children, and what they left to us as subreaper."""
        for call in self.calls.values():
            call.kill()
        for pid in orphans():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        os._exit(0)


def child(frame: Mapping[str, Any], out: int, stop: int) -> None:
    """Be the child of one call: run the function, write one answer, end."""
    os.setsid()
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    begun = time.monotonic()
    try:
        function = getattr(importlib.import_module(frame["module"]), frame["function"])
        node = toolbox.Toolbox()
        opened = [Opened(frame["id"], out, stop)] if frame.get("open") else []
        value = function(node, *opened, *frame["args"])
        answer = {"id": frame["id"], "value": value}
        size = len(encode(answer))
        if size > REPLY_CAP:
            answer = problem(frame["id"], "too_large", f"the facts take {size} bytes")
    except Unobservable as statement:
        answer = problem(frame["id"], "unobservable", str(statement))
    except Exception as error:  # noqa: BLE001 - a probe's bug is a row, not the end of the run
        trace = traceback.format_exc()[-8192:]
        answer = problem(frame["id"], "bug", f"{type(error).__name__}: {error}", trace)
    answer["seconds"] = round(time.monotonic() - begun, 4)
    write_all(out, encode(answer))


def problem(call_id: int, kind: str, message: str, trace: str = "") -> dict[str, Any]:
    """Return the frame of a call that has no value."""
    what = {"kind": kind, "message": message[:2048]}
    if trace:
        what["traceback"] = trace
    return {"id": call_id, "problem": what}


def encode(frame: Mapping[str, Any]) -> bytes:
    """Return one frame as an ASCII JSON line; `ready` goes first, the agent looks for it there."""
    ordered = {k: frame[k] for k in sorted(frame, key=lambda k: k != "ready")}
    return json.dumps(ordered, allow_nan=False).encode("ascii") + b"\n"


def write_all(fd: int, data: bytes) -> None:
    """Write all of it."""
    while data:
        data = data[os.write(fd, data) :]


def reap(pid: int) -> int | None:
    """Return the wait status of a child that has ended, None while it has not."""
    try:
        done, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return 0
    return status if done else None


def orphans() -> list[int]:
    """Return the pids of all children of this process, adopted ones included."""
    try:
        with open("/proc/self/task/%d/children" % os.getpid()) as children:
            return [int(pid) for pid in children.read().split()]
    except OSError:
        return []


def signal_name(number: int) -> str:
    """Return a name such as SIGSEGV."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return "signal %d" % number


def hello() -> dict[str, Any]:
    """Return what the controller must know before it calls anything."""
    return {
        "python": "%d.%d.%d" % sys.version_info[:3],
        "executable": sys.executable,
        "machine": platform.machine(),
        "system": sys.platform,
        "libc": " ".join(platform.libc_ver()).strip(),
        "uid": os.getuid(),
        "pid": os.getpid(),
        "nvml": toolbox.has_nvml(),
    }
