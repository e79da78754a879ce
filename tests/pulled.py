"""A command's output, to be asked for where a stream hands it over."""

from __future__ import annotations

import queue
from typing import Protocol

from preflight.errors import TransportError
from preflight.transport import Listener, Stream


class Starts(Protocol):
    """A connection, as far as it starts commands."""

    def execute(self, command: str, listener: Listener) -> Stream:
        """Start one."""


class Pulled:
    """A command that runs: `preflight.transport.Stream`, and `recv`."""

    def __init__(self, connection: Starts, command: str) -> None:
        self._come: queue.SimpleQueue[bytes | TransportError] = queue.SimpleQueue()
        self._rest = b""
        self._stream = connection.execute(command, self)
        self.send = self._stream.send
        self.stderr_tail = self._stream.stderr_tail
        self.close_stdin = self._stream.close_stdin
        self.close = self._stream.close

    def hear(self, data: bytes) -> bool:
        """Keep what has come."""
        self._come.put(data)
        return True

    def end(self, error: TransportError | None, last_words: str) -> None:  # noqa: ARG002
        """Keep how it ended."""
        self._come.put(error or b"")

    def recv(self, size: int) -> bytes:
        """Return some bytes of its standard output, at most `size`; `b""` at the end.

        Raises:
            TransportError: the connection was lost before the end.
        """
        if not self._rest:
            come = self._come.get(timeout=60)
            if not come or isinstance(come, TransportError):
                self._come.put(come)  # for whoever asks again
            if isinstance(come, TransportError):
                raise come
            self._rest = come
        data, self._rest = self._rest[:size], self._rest[size:]
        return data
