"""What a child of the agent does: one call after the other, an answer for each.

Sent to nodes: stdlib only, Python 3.8.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import resource
import select
import signal
import sys
import time
from typing import Any, Mapping

from preflight.api import Unobservable
from preflight.node import toolbox

REPLY_CAP = 1 << 20
"""Bytes of one answer: enough for any facts, and a bound for what a broken probe may send."""
TRACE_CAP = 8192
"""Bytes of a traceback that are kept: its end names the line."""
SIGNALS = (
    signal.SIGALRM,
    signal.SIGCHLD,
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGPIPE,
    signal.SIGTERM,
)
"""Those that programs are wont to handle; to ask of all would take as long as the rest."""


class Opened:
    """The node's end of an open call; `preflight.api.Opened` is its contract."""

    def __init__(self, call_id: int, out: int, stop: int) -> None:
        self._id, self._out, self._stop = call_id, out, stop

    def ready(self, facts: Mapping[str, Any]) -> None:
        """Tell the controller that the function is in place.

        Raises:
            Unobservable: the facts are too large to send.
        """
        line = encode({"ready": facts, "id": self._id})
        if len(line) > REPLY_CAP:
            raise Unobservable(f"the facts take {len(line)} bytes")
        write_all(self._out, line)

    def fileno(self) -> int:
        """A descriptor that becomes readable when the controller says stop."""
        return self._stop


def work(frame: Mapping[str, Any], agent: int, out: int, orders: int) -> None:
    """Do a call, and those that come as orders, until these end."""
    gc.freeze()
    gc.enable()
    os.setsid()
    toolbox.die_with(agent)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    untouched = state()
    line = answer(frame, out, orders)
    while line and state() == untouched:
        write_all(out, line)
        order = os.read(orders, select.PIPE_BUF)
        line = answer(json.loads(order), out, orders) if order else b""
    if os.getpid() == untouched[0]:  # else this is a probe's own fork that has come back
        with contextlib.suppress(OSError):
            os.close(orders)  # before the answer: none is given to a child that takes no more
        write_all(out, line)


def state() -> list[Any]:
    """Return what of this process a call must leave as it was, else the child does no other.

    Held: which process it is, its effective user and group, directory, environment (as `os.environ`
    has it), umask, the limits that probes report, which descriptors are open, threads, children,
    a pending alarm, handlers of `SIGNALS`, the default timeout of sockets. Not held: what modules
    keep, for caches are wanted; what an open descriptor refers to; what is seldom changed, such as
    the locale, the priority or namespaces.
    """
    mask = os.umask(0)
    os.umask(mask)
    socket = sys.modules.get("socket")  # not all that runs on a node needs it
    try:
        return [
            os.getpid(),
            (os.geteuid(), os.getegid()),
            os.getcwd(),
            dict(os.environ),
            mask,
            [resource.getrlimit(number) for number in toolbox.LIMITS.values()],
            os.listdir("/proc/self/fd"),
            os.listdir("/proc/self/task"),
            has_children(),
            signal.getitimer(signal.ITIMER_REAL) != (0.0, 0.0),
            [signal.getsignal(number) for number in SIGNALS],
            socket and socket.getdefaulttimeout(),
        ]
    except OSError:  # no /proc, or its directory is gone
        return [os.getpid(), object()]  # which equals nothing


def has_children() -> bool:
    """Whether this process has children, dead ones included."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def answer(frame: Mapping[str, Any], out: int, orders: int) -> bytes:
    """Run the function of one call; return its answer, with what it has cost."""
    begun, used_s = time.monotonic(), spent_s()

    def said(body: Mapping[str, Any]) -> bytes:
        cost = {"seconds": time.monotonic() - begun, "cpu_s": spent_s() - used_s}
        return encode({"id": frame["id"], **{k: round(v, 4) for k, v in cost.items()}, **body})

    try:
        function = getattr(importlib.import_module(frame["module"]), frame["function"])
        opened = [Opened(frame["id"], out, orders)] if frame.get("open") else []
        line = said({"value": function(toolbox.Toolbox(), *opened, *frame["args"])})
        if len(line) > REPLY_CAP:
            line = said(problem("too_large", f"the facts take {len(line)} bytes"))
    except Unobservable as statement:
        line = said(problem("unobservable", str(statement)))
    except Exception as error:  # noqa: BLE001 - a probe's bug is a row, not the end of the run
        import traceback  # it takes 2 ms that are seldom needed

        trace = traceback.format_exc()[-TRACE_CAP:]
        line = said(problem("bug", f"{type(error).__name__}: {error}", trace))
    return line


def spent_s() -> float:
    """Return the CPU seconds of this process and of its children that have ended."""
    return cpu_s(resource.RUSAGE_SELF) + cpu_s(resource.RUSAGE_CHILDREN)


def cpu_s(who: int) -> float:
    """Return the CPU seconds of this process or of its children, the kernel's part included."""
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


def problem(kind: str, message: str, trace: str = "") -> dict[str, Any]:
    """Return what stands in a frame in place of a value."""
    what = {"kind": kind, "message": message[:2048]}
    if trace:
        what["traceback"] = trace
    return {"problem": what}


def encode(frame: Mapping[str, Any]) -> bytes:
    """Return one frame as an ASCII JSON line."""
    return json.dumps(frame, allow_nan=False).encode("ascii") + b"\n"


def write_all(fd: int, data: bytes) -> None:
    """Write all of it."""
    while data:
        data = data[os.write(fd, data) :]
