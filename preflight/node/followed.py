"""A command that is followed while it runs.

Sent to nodes: stdlib only, Python 3.8.
"""

from __future__ import annotations

import os
import re
import select
import time
from typing import Any, Iterator

GRACE_S = 3.0
"""After SIGTERM: mpirun and srun need up to 2 s to end what they started elsewhere."""
IDLE_S = 0.1
KEPT = 4 << 20
"""Bytes of its output that are kept."""
TELLING = re.compile(
    r"denied|verification failed|not found|refused|timed out|no route|resolve|error|cannot|unable|"
    r"invalid",
    re.IGNORECASE,
)
"""In the line that says why; others are banners."""
RULE = re.compile(r"^-{20,}$", re.MULTILINE)
"""Open MPI puts one before and one after what it advises: what others say goes first."""
OWN = re.compile(r"\[\S+:\d+\] ")
"""Begins what its processes say of themselves."""
LONGEST = 200
"""Characters of it."""


class Followed:
    """A process, until it has ended or is past its time.

    Args:
        process: its output as pipes.
        limit_s: that it has.
        most: bytes of each of its streams that are kept, the last ones.
    """

    def __init__(self, process: Any, limit_s: float, most: int = KEPT) -> None:
        self._process, self._most = process, most
        self._out, self._err = process.stdout.fileno(), process.stderr.fileno()
        self._kept = {self._out: b"", self._err: b""}
        self._poller = select.poll()
        self._open = set(self._kept)
        for fd in self._open:
            self._poller.register(fd, select.POLLIN | select.POLLHUP)
        self.killed = False
        """Whether it was past its time."""
        self.within(limit_s)

    def __enter__(self) -> Followed:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def code(self) -> int:
        """How it ended."""
        return int(self._process.returncode or 0)

    def within(self, limit_s: float) -> None:
        """Give it so much time from now on."""
        self._deadline = time.monotonic() + limit_s

    def texts(self) -> Iterator[str]:
        """Yield all that it has written to standard output, whenever that is more."""
        while not self.killed:
            before = len(self._kept[self._out])
            has_ended = self._process.poll() is not None
            came = self._hear(IDLE_S)
            if len(self._kept[self._out]) > before:
                yield self.text()
            elif has_ended and not came:
                return  # who still has its streams is another one
            self.killed = time.monotonic() > self._deadline

    def _hear(self, limit_s: float) -> bool:
        if not self._open:
            time.sleep(limit_s / 10)
        events = self._poller.poll(limit_s * 1000) if self._open else []
        for fd, _ in events:
            data = os.read(fd, 1 << 16)
            self._kept[fd] = (self._kept[fd] + data)[-self._most :]
            if not data:
                self._poller.unregister(fd)
                self._open.discard(fd)
        return bool(events)

    def stop(self) -> None:
        """End it, if it has not ended."""
        for end in (self._process.terminate, self._process.kill):
            until = time.monotonic() + GRACE_S
            if self._process.poll() is None:
                end()
            while self._process.poll() is None and time.monotonic() < until:
                self._hear(IDLE_S)
        self._process.stdout.close()
        self._process.stderr.close()

    def text(self) -> str:
        """Return what it has written to standard output."""
        return str(self._kept[self._out], "utf-8", "replace")

    def errors(self) -> str:
        """Return what it has written to standard error."""
        return str(self._kept[self._err], "utf-8", "replace")

    def why(self) -> str:
        """Return the line of its standard error that says why it did not end well."""
        parts = [part.splitlines() for part in RULE.split(self.errors())]
        lines = [line.strip() for part in (*parts[::2], *parts[1::2]) for line in part]
        lines = [line for line in lines if line and not OWN.match(line)]
        telling = [line for line in lines if TELLING.search(line)]
        return (*telling, *lines, f"it ended with code {self.code}")[0][:LONGEST]
