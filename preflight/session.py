"""One live agent on one node: start it, call functions in it, close it.

The only place that knows both the frames and the transport. A reader thread a session gives
each answer to whoever waits for it, so calls may come from many threads.
"""

from __future__ import annotations

import contextlib
import itertools
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from preflight import wire
from preflight.api import Reply
from preflight.errors import PreflightError, TransportError, printable
from preflight.payload import MINIMUM, Payload, command
from preflight.transport import Connection

SLACK_S = 5.0
"""Above a call's own limit: the agent answers for a late child; this is for a late agent."""
LIFE_S = 3600
"""An agent whose controller vanished without closing the connection ends itself after this."""
PINGS = 3
"""Round trips for the clock: the shortest bounds the offset best."""


class AgentError(PreflightError):
    """The agent did not start: what was seen, and what to do.

    Args:
        kind: tells the causes apart, such as `no python`.
        message: what happened.
        hint: what to do next; may be empty.
    """

    def __init__(self, kind: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.hint = hint


class Pending:
    """A call on its way: its frames so far."""

    def __init__(self) -> None:
        self._arrived = threading.Condition()
        self._frames: list[Mapping[str, Any]] = []
        self.sent_at = time.time()
        self.heard_at = 0.0

    def put(self, frame: Mapping[str, Any]) -> None:
        """Take a frame; called by the reader."""
        with self._arrived:
            self.heard_at = time.time()
            self._frames.append(frame)
            self._arrived.notify_all()

    def get(self, timeout_s: float) -> Mapping[str, Any] | None:
        """Return the next frame, None when none came in time."""
        with self._arrived:
            self._arrived.wait_for(lambda: bool(self._frames), timeout_s)
            return self._frames.pop(0) if self._frames else None


class Session:
    """A started agent.

    Args:
        connection: a login on the node.
        payload: what to send it.
        start_timeout_s: how long the agent may take to say that it is there.
        python: the interpreter that the inventory names, None to look for one.
        become: `sudo`, or None.

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
    ) -> None:
        tag = f"preflight-{secrets.token_hex(8)}:"
        self._python = python
        self._decoder = wire.Decoder(tag)
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._pending: dict[int, Pending] = {0: Pending()}
        self._lost: str | None = None
        self._broken: TransportError | None = None
        self._reader = threading.Thread(target=self._read, daemon=True)
        line = command(python, len(payload.blob), tag, LIFE_S, become)
        self._stream = connection.execute(line)
        try:
            self._reader.start()
            # A node that refuses may have ended before it read all: what it said tells more.
            with contextlib.suppress(TransportError):
                self._stream.send(payload.blob)
            self.hello = self._hello(start_timeout_s)
            self.psutil = self._load(payload, start_timeout_s)
        except (AgentError, TransportError):
            self.close()
            raise

    @property
    def noise(self) -> str:
        """What the node wrote to standard output that is not the agent's, on one line."""
        return one_line(self._decoder.noise.decode("utf-8", "replace"))

    def call(
        self, module: str, function: str, args: Sequence[Any] = (), timeout_s: float = 10
    ) -> Reply:
        """Run a function on the node and wait for its answer; never raises."""
        pending = self.ask(module, function, args, timeout_s)
        return self.answer(pending, timeout_s)

    def ask(
        self,
        module: str,
        function: str,
        args: Sequence[Any] = (),
        timeout_s: float = 10,
        opened: bool = False,
    ) -> tuple[int, Pending]:
        """Send a request and do not wait; `answer` does."""
        pending = Pending()
        with self._lock:
            number = next(self._ids)
            self._pending[number] = pending
            lost = self._lost
        frame = {"id": number, "module": module, "function": function, "args": list(args)}
        frame["timeout_s"] = timeout_s
        if opened:
            frame["open"] = True
        if lost is None:
            self._send(frame, pending)
        else:
            pending.put(lost_problem(lost))
        return number, pending

    def answer(self, call: tuple[int, Pending], timeout_s: float) -> Reply:
        """Wait for the answer of an asked call; never raises."""
        return self._settle(call, call[1].get(timeout_s + SLACK_S), timeout_s)

    def _settle(
        self, call: tuple[int, Pending], frame: Mapping[str, Any] | None, timeout_s: float
    ) -> Reply:
        """Have done with a call and return what its last frame says, if there is one."""
        with self._lock:
            self._pending.pop(call[0], None)
        if frame is None:
            return Reply(None, {"kind": "timeout", "message": f"no answer in {timeout_s:g} s"})
        return reply(frame)

    def start(
        self, module: str, function: str, args: Sequence[Any], timeout_s: float
    ) -> Running | Reply:
        """Start an open call; a `Reply` with the problem if it could not be put in place."""
        call = self.ask(module, function, args, timeout_s, opened=True)
        frame = call[1].get(timeout_s + SLACK_S)
        if frame is not None and isinstance(frame.get("ready"), dict):
            return Running(self, call, frame["ready"], timeout_s)
        return self._settle(call, frame, timeout_s)

    def stop(self, call: tuple[int, Pending], timeout_s: float) -> Reply:
        """End an open call and return its answer."""
        self._send({"id": call[0], "stop": True}, call[1])
        return self.answer(call, timeout_s)

    def clock(self) -> dict[str, float]:
        """Return how far the node's clock is ahead of ours, and the error around it, in seconds.

        Half of the shortest round trip is subtracted, and bounds the error.
        """
        trips = []
        for _ in range(PINGS):
            call = self.ask("preflight.node.agent", "ping")
            value = self.answer(call, SLACK_S).value
            if isinstance(value, float):
                half = (call[1].heard_at - call[1].sent_at) / 2
                trips.append((half, value - (call[1].sent_at + half)))
        if not trips:
            return {}
        error, offset = min(trips)
        return {"offset_s": round(offset, 6), "error_s": round(error, 6)}

    def close(self) -> None:
        """End the agent by the end of its stdin, which ends all its children; never raises."""
        self._stream.close_stdin()
        self._reader.join(2)
        self._stream.close()

    def _send(self, frame: Mapping[str, Any], pending: Pending) -> None:
        pending.sent_at = time.time()
        try:
            with self._sending:  # a frame that is larger than a window goes in parts
                self._stream.send(wire.encode(frame))
        except TransportError as error:
            self._reader.join(SLACK_S)  # it meets the end too, and knows more of it
            pending.put(lost_problem(self._lost or error.message))

    def _load(self, payload: Payload, timeout_s: float) -> str:
        extras = payload.extras(self.hello)
        if extras is None:
            return "not needed"
        loaded = self.call("preflight.node.agent", "load", extras, timeout_s)
        if isinstance(loaded.value, dict):
            return str(loaded.value.get("psutil"))
        why = (loaded.problem or {}).get("message", "no words")
        raise AgentError("no agent", f"the agent did not take its modules: {why}")

    def _hello(self, timeout_s: float) -> dict[str, Any]:
        frame = self._pending[0].get(timeout_s)
        del self._pending[0]
        if frame is not None and isinstance(frame.get("hello"), dict):
            return dict(frame["hello"])
        if frame is not None and "old" in frame:
            raise self._old(printable(str(frame.get("executable"))), printable(str(frame["old"])))
        if frame is not None and "problem" not in frame:
            raise self._no_python()
        raise self._broken or self._no_start(frame, timeout_s)

    def _old(self, executable: str, version: str) -> AgentError:
        """Return the error of a node whose Python is too old."""
        if self._python:
            return AgentError(
                "old python",
                f"ssh.python is {self._python!r}: {executable} is Python {version}, "
                f"and the agent needs {MINIMUM} or newer",
                f"name a Python {MINIMUM} or newer in the inventory: ssh.python; "
                "or leave it out, then PATH is searched for one",
            )
        return AgentError(
            "old python",
            f"{executable} is Python {version}, and there is no Python >= {MINIMUM} on PATH",
            f"install Python {MINIMUM} or newer, or name one in the inventory: ssh.python",
        )

    def _no_python(self) -> AgentError:
        """Return the error of a node where the shell found nothing to start."""
        if self._python:
            return AgentError(
                "no python",
                f"ssh.python is {self._python!r}: there is no such program that may be run",
                "correct ssh.python in the inventory; or leave it out, "
                "then PATH is searched for one",
            )
        return AgentError(
            "no python",
            "there is no python3 on the PATH of the non-login shell",
            "install python3, or name the interpreter in the inventory: ssh.python",
        )

    def _no_start(self, frame: Mapping[str, Any] | None, timeout_s: float) -> AgentError:
        """Return the error of an agent that said nothing, with all that was heard instead."""
        said = one_line(self._stream.stderr_tail())
        heard = "; ".join(part for part in (said, self.noise) if part)
        if "sudo:" in said:
            return AgentError(
                "sudo",
                f"sudo -n was refused: {said}",
                "allow it without a password (NOPASSWD), or leave ssh.become out: "
                "checks that need root are then skipped",
            )
        what = f"no answer {timeout_s:g} s after the command was sent" if frame is None else "ended"
        return AgentError(
            "no agent",
            f"the login worked, but the agent did not start: {what}"
            + (f"; the node said: {heard}" if heard else ""),
            "see what the login shell's start files do: ssh NODE true must print nothing",
        )

    def _read(self) -> None:
        """Hand out frames until the stream ends; the only reader of the stream."""
        why = "the agent has ended"
        try:
            while data := self._stream.recv(1 << 16):
                for frame in self._decoder.feed(data):
                    self._deliver(frame)
        except wire.Flood:
            why = f"the node sent a line of more than {wire.LINE_CAP >> 20} MiB"
            self._stream.close()
        except TransportError as error:
            why, self._broken = f"the connection was lost: {error.message}", error
        self._decoder.rest()
        said = self._stream.stderr_tail().strip().rpartition("\n")[2]
        if said:
            why += f": {one_line(said)}"
        with self._lock:
            self._lost = why
            waiting = list(self._pending.values())
        for pending in waiting:
            pending.put(lost_problem(why))

    def _deliver(self, frame: Mapping[str, Any]) -> None:
        number = frame.get("id", 0)
        with self._lock:
            pending = self._pending.get(number) if isinstance(number, int) else None
        if pending is not None:
            pending.put(frame)


class Running:
    """An open call; `preflight.api.Running` is its contract."""

    def __init__(
        self,
        session: Session,
        call: tuple[int, Pending],
        ready: Mapping[str, Any],
        timeout_s: float,
    ) -> None:
        self.ready = ready
        self._stop: Callable[[], Reply] = lambda: session.stop(call, timeout_s)
        self._answer: Reply | None = None

    def stop(self) -> Reply:
        """Tell it to stop, and wait for its answer; the second time gives the same."""
        if self._answer is None:
            self._answer = self._stop()
        return self._answer


def one_line(text: str) -> str:
    """Return lines of a node as one, fit for a terminal."""
    return "; ".join(printable(line.strip()) for line in text.splitlines() if line.strip())


def lost_problem(why: str) -> dict[str, Any]:
    """Return the frame of a call whose connection went away."""
    return {"problem": {"kind": "lost", "message": why}}


def reply(frame: Mapping[str, Any]) -> Reply:
    """Return an answer frame as a reply; a frame of another shape is a problem too."""
    taken = frame.get("seconds")
    seconds = taken if isinstance(taken, float) else 0.0
    if "value" in frame:
        return Reply(frame["value"], None, seconds)
    problem = frame.get("problem")
    if isinstance(problem, dict) and {"kind", "message"} <= set(problem):
        return Reply(None, {k: str(v) for k, v in problem.items()}, seconds)
    return Reply(None, {"kind": "bug", "message": "the agent's answer has no value"})
