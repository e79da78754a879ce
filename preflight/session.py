"""One live agent on one node: start it, call functions in it, close it.

The only place that knows both the frames and the transport. Its stream hands over what the node
writes, and each answer goes to whoever waits for it, so calls may come from many threads.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from preflight import wire
from preflight.api import Reply
from preflight.errors import TransportError, printable
from preflight.no_agent import AgentError, no_python, no_start, no_sudo, old_python
from preflight.payload import Payload, command
from preflight.pending import QUIET_S, SLACK_S, Pending, now
from preflight.transport import Connection

ALIVE_S = 15.0
"""For a node that is asked so to answer. Agents do at once, whatever their probes do; four packets
in a row may be lost on the way (RFC 6298: sent again after 1, 2, 4 and 8 s at most).
"""
END_S = 0.5
"""For an agent to end after its stdin has; it needs some 0.01 s."""
LIFE_S = 3600
"""Agents whose controller vanished without closing the connection end themselves after this."""
LIFE_MARGIN_S = 60
"""After the run's deadline, where there is one."""
PINGS, ENOUGH_S = 3, 0.01
"""Round trips for the clock: the shortest bounds the offset best, and one that bounds it to a
hundredth of what host.clock looks for is enough.
"""
LOST = "lost"
"""The kind of problem of a call whose node went away before it answered."""
AGENT = "preflight.node.agent"
ENDED_HINT = "see the node's kernel log, whether it was out of memory: dmesg"


class Session:
    """A started agent.

    Args:
        connection: a login on the node.
        payload: what to send it.
        start_timeout_s: how long the agent may take to say that it is there.
        python: the interpreter that the inventory names, None to look for one.
        become: `sudo`, or None.
        deadline: when the run must be over (monotonic); shortens every limit.

    Raises:
        AgentError: it did not start.
        TransportError: the connection was lost.
    """

    def __init__(
        self,
        connection: Connection,
        payload: Payload,
        start_timeout_s: float,
        python: str | None = None,
        become: str | None = None,
        deadline: float = math.inf,
    ) -> None:
        tag = f"preflight-{secrets.token_hex(8)}:"
        self._python, self._become, self._deadline = python, become, deadline
        self._decoder = wire.Decoder(tag)
        self._ids = itertools.count(1)
        self._sending = threading.Lock()
        self._news = threading.Condition()
        """Of all that follows."""
        hello = Pending(0, start_timeout_s)
        self._pending: dict[int, Pending] = {0: hello}
        self._heard_at = self._asked_at = -math.inf
        self._lost: TransportError | None = None
        self._ended = threading.Event()
        line = command(python, len(payload.blob), tag, life_s(deadline), become)
        hello.due = time.monotonic() + start_timeout_s
        self._stream = connection.execute(line, self)
        try:
            # A node that refuses may have ended before it read all: what it said tells more.
            with contextlib.suppress(TransportError):
                self._stream.send(payload.blob, start_timeout_s)
            self.hello = self._hello(hello)
            self._loading = self._load(payload, start_timeout_s)
        except (AgentError, TransportError):
            self.close()
            raise

    @functools.cached_property
    def psutil(self) -> str:
        """How the node came by psutil, as its agent says once it has it; asked calls go on.

        Raises:
            AgentError: the agent did not take the modules that follow its own.
            TransportError: it was lost before it could say.
        """
        loaded = self.answer(self._loading)
        if isinstance(loaded.value, dict):
            return str(loaded.value.get("psutil"))
        problem = loaded.problem or {}
        if self._lost and problem.get("kind") == LOST:  # else it said why before it ended
            raise self._lost
        why = problem.get("message", "no words")
        message = f"the agent did not take its modules: {why}"
        raise AgentError(
            "no agent", message, "see the memory limits of the account there: ulimit -a"
        )

    @property
    def noise(self) -> str:
        """What the node wrote to standard output that is not the agent's, on one line."""
        return one_line(self._decoder.noise.decode("utf-8", "replace"))

    @property
    def lost(self) -> TransportError | None:
        """Why the agent can be asked no more, None while it can."""
        return self._lost

    def call(
        self, module: str, function: str, args: Sequence[Any] = (), timeout_s: float = 10
    ) -> Reply:
        """Run a function on the node and wait for its answer; never raises."""
        return self.answer(self.ask(module, function, args, timeout_s))

    def ask(
        self,
        module: str,
        function: str,
        args: Sequence[Any] = (),
        timeout_s: float = 10,
        opened: bool = False,
    ) -> Pending:
        """Send a request and do not wait; `answer` does."""
        return self.ask_all([(module, function, args)], [timeout_s], opened)[0]

    def ask_all(
        self,
        calls: Sequence[tuple[str, str, Sequence[Any]]],
        limits_s: Sequence[float],
        opened: bool = False,
        before: bytes = b"",
    ) -> list[Pending]:
        """Send several requests at once: each packet costs more than a request.

        Args:
            calls: module, function and arguments of each.
            limits_s: how long each may take.
            opened: whether they are open calls.
            before: what goes first, modules.
        """
        left = self._deadline - time.monotonic()
        asked, frames = [], []
        for (module, function, args), limit_s in zip(calls, limits_s, strict=True):
            limits = (min(limit_s, left), left < limit_s)
            pending = Pending(next(self._ids), *limits, lambda: self._heard_at)
            frame = {"id": pending.number, "module": module, "function": function}
            frame |= {"args": list(args), "timeout_s": pending.timeout_s}
            asked.append(pending)
            frames.append(frame | {"open": True} if opened else frame)
        with self._news:
            if self._lost:
                for pending in asked:
                    pending.put(lost_problem(self._lost))
            else:
                self._pending |= {pending.number: pending for pending in asked}
        if left > 0 and not self._lost:
            self._send(before + b"".join(map(wire.encode, frames)), asked)
        for pending in asked:
            pending.sent(self._deadline)
        return asked

    def answer(self, pending: Pending) -> Reply:
        """Wait for the answer of an asked call; never raises."""
        self._wait(pending, lambda: pending.frame is not None)
        with self._news:
            self._pending.pop(pending.number, None)
            return pending.reply

    def start(
        self, module: str, function: str, args: Sequence[Any], timeout_s: float
    ) -> Running | Reply:
        """Start an open call; a `Reply` with the problem if it could not be put in place."""
        pending = self.ask(module, function, args, timeout_s, opened=True)
        self._wait(pending, lambda: pending.ready is not None or pending.frame is not None)
        if pending.ready is not None:
            return Running(self, pending, pending.ready)
        return self.answer(pending)

    def stop(self, pending: Pending) -> Reply:
        """End an open call and return its answer."""
        if pending.frame is None:
            self._send(wire.encode({"id": pending.number, "stop": True}), [pending])
        # It may be the last that is asked of a node: long enough to find out that it is gone.
        pending.timeout_s = max(pending.timeout_s, QUIET_S + ALIVE_S)
        pending.sent(self._deadline)
        return self.answer(pending)

    def clock(self) -> dict[str, float]:
        """Return how far the node's clock is ahead of ours, and the error around it, in seconds.

        Half of the shortest round trip is subtracted, and bounds the error.
        """
        trips = []
        for _ in range(PINGS):
            call = self.ask(AGENT, "ping")
            value = self.answer(call).value
            if isinstance(value, float) and math.isfinite(value):
                half = (call.heard_at - call.sent_at) / 2
                trips.append((half, value - (call.sent_at + half)))
                if half <= ENOUGH_S:
                    break
        if not trips:
            return {}
        error, offset = min(trips)
        return {"offset_s": round(offset, 6), "error_s": round(error, 6)}

    def close(self) -> None:
        """End the agent by the end of its stdin, which ends all its children; never raises."""
        self._stream.close_stdin()
        if not (self._lost and self._lost.kind == "silent"):
            self._ended.wait(END_S)
        self._stream.close()

    def _wait(self, pending: Pending, done: Callable[[], bool]) -> None:
        """Wait until a call has what is awaited, or is late, or its node is lost."""
        since = pending.since
        while not self._waited(pending, since, done):
            since = time.monotonic()
            # Who holds it has a limit of its own, and may only be slow: look again in a while.
            if self._sending.acquire(blocking=False):
                ping = {"id": next(self._ids), "module": AGENT, "function": "ping", "args": []}
                with self._news:
                    self._asked_at = since
                with contextlib.suppress(TransportError):
                    self._stream.send(wire.encode(ping), ALIVE_S)
                self._sending.release()

    def _waited(self, pending: Pending, since: float, done: Callable[[], bool]) -> bool:
        """Wait; false if the node is to be asked first whether it is still there."""
        with self._news:
            pending.awaited = True
            while not done():
                now = time.monotonic()
                quiet_from = max(self._heard_at, since) + QUIET_S
                asked = self._asked_at > self._heard_at
                limit = self._asked_at + ALIVE_S if asked else quiet_from
                # Of who may be gone it is not said that it is late, unless there is no more time.
                due = max(pending.due, min(limit, self._deadline)) if asked else pending.due
                if now >= limit and asked:
                    self._lose(silence(now - max(self._heard_at, self._asked_at - QUIET_S)))
                elif now >= due:
                    return True
                elif now >= limit:
                    return False
                else:
                    self._news.wait(min(due, limit) - now)
        return True

    def _lose(self, error: TransportError) -> None:
        """Let go of all calls: no answer will come any more."""
        with self._news:
            self._lost = self._lost or error
            for pending in self._pending.values():
                pending.put(lost_problem(self._lost))
            self._pending.clear()
            self._news.notify_all()

    def _send(self, data: bytes, asked: Sequence[Pending]) -> None:
        for pending in asked:
            pending.sent_at = now()
        try:
            with self._sending:  # a frame that is larger than a window goes in parts
                limit_s = max((pending.timeout_s for pending in asked), default=0) + SLACK_S
                self._stream.send(data, limit_s)
        except TransportError as error:
            if error.kind != "silent":
                self._ended.wait(SLACK_S)  # its listener meets the end too, and knows more of it
            self._lose(error)

    def _load(self, payload: Payload, timeout_s: float) -> Pending:
        """Send all modules that this node needs; calls may follow at once."""
        modules, library = payload.modules(self.hello)
        return self.ask_all([(AGENT, "load", [library])], [timeout_s], before=modules)[0]

    def _hello(self, pending: Pending) -> dict[str, Any]:
        self._wait(pending, lambda: pending.frame is not None)
        with self._news:
            self._pending.pop(0, None)
            frame = pending.frame
        if frame is not None and isinstance(frame.get("hello"), dict):
            return dict(frame["hello"])
        if frame is not None and "old" in frame:
            executable, old = (printable(str(frame.get(key))) for key in ("executable", "old"))
            raise old_python(self._python, executable, old)
        if frame is not None and "problem" not in frame:
            raise no_python(self._python)
        if self._lost and self._lost.kind != "ended":
            raise self._lost
        late_s = pending.timeout_s if frame is None else None
        said = one_line(self._stream.stderr_tail())
        if self._become:
            raise no_sudo(said, self.noise, late_s)
        raise no_start(said, self.noise, late_s, self._python)

    def hear(self, data: bytes) -> bool:
        """Take what the node wrote, as `preflight.transport.Listener` has it."""
        try:
            self._deliver([*self._decoder.feed(data)])
        except wire.Flood as flood:
            why = f"the node sent a line of more than {wire.LINE_CAP >> 20} MiB, "
            why += f"it begins with '{printable(str(flood))}'"
            hint = "see what the login shell's start files print: ssh NODE true"
            self._lose(TransportError("flood", why, hint))
            return False
        return True

    def end(self, error: TransportError | None, last_words: str) -> None:
        """Let go of all calls: the node writes no more."""
        self._decoder.rest()
        why, hint = (error.message, error.hint) if error else ("the agent has ended", ENDED_HINT)
        said = last_words.strip().rpartition("\n")[2]
        if said:
            why += f": {one_line(said)}"
        self._lose(TransportError("lost" if error else "ended", why, hint))
        self._ended.set()

    def _deliver(self, frames: Sequence[Mapping[str, Any]]) -> None:
        """Hand out frames that came together: each waking of who waits costs more than they do."""
        if not frames:
            return
        with self._news:
            news = self._asked_at > self._heard_at  # who asked for a sign of life has it
            self._heard_at = time.monotonic()
            for frame in frames:
                number = frame.get("id", 0)
                pending = self._pending.get(number) if isinstance(number, int) else None
                if pending is not None:
                    pending.put(frame)
                    news = news or pending.awaited
            if news:
                self._news.notify_all()


class Running:
    """An open call; `preflight.api.Running` is its contract."""

    def __init__(self, session: Session, pending: Pending, ready: Mapping[str, Any]) -> None:
        self.ready = ready
        self._stop: Callable[[], Reply] = lambda: session.stop(pending)
        self._answer: Reply | None = None

    def stop(self) -> Reply:
        """Tell it to stop, and wait for its answer; the second time gives the same."""
        if self._answer is None:
            self._answer = self._stop()
        return self._answer


def silence(quiet_s: float) -> TransportError:
    """Return the error of a node that does not answer a sign of life."""
    return TransportError(
        "silent",
        f"stopped answering: silent for {quiet_s:.0f} s, though asked whether it is there",
        "the machine hangs, or its network is gone: see its console, and ping it",
    )


def life_s(deadline: float) -> int:
    """Return how long an agent lives whose controller has vanished."""
    if deadline == math.inf:
        return LIFE_S
    return math.ceil(max(0.0, deadline - time.monotonic())) + LIFE_MARGIN_S


def one_line(text: str) -> str:
    """Return lines of a node as one, fit for a terminal."""
    return "; ".join(printable(line.strip()) for line in text.splitlines() if line.strip())


def lost_problem(error: TransportError) -> dict[str, Any]:
    """Return the frame of a call whose connection went away."""
    return {"problem": {"kind": LOST, "message": error.message}}
