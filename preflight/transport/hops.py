"""Jump hosts: one login on each for all nodes behind it, since sshd takes few at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from preflight.errors import TransportError
from preflight.transport.destination import Destination
from preflight.transport.dial import Wire
from preflight.transport.failures import THROTTLED, lost

TRIES = 3
"""Of a jump host that turns logins away for the moment."""


class JumpLogin(Protocol):
    """A login on a jump host."""

    def forward(self, there: Destination) -> Wire:
        """Return a byte stream from it to another server."""

    def lost(self) -> bool:
        """Whether the connection is gone."""

    def close(self) -> None:
        """Log out."""


class Hops:
    """The jump hosts of a run."""

    def __init__(self, login: Callable[[Destination], JumpLogin]) -> None:
        self._login = login
        self._lock = threading.Lock()
        self._hops: dict[Destination, Hop] = {}

    def borrow(self, there: Destination) -> Hop:
        """Return a jump host that is logged in to; the caller gives it back.

        Raises:
            TransportError: the login failed, now or for an earlier node.
        """
        with self._lock:
            hop = self._hops.setdefault(there, Hop(there, self._login))
        hop.borrow()
        return hop


class Hop:
    """One jump host. A login that failed is not tried again for the next node: it is as slow.

    One that was only turned away is, a few times: it would cost all nodes behind it.
    """

    def __init__(self, there: Destination, login: Callable[[Destination], JumpLogin]) -> None:
        self._there = there
        self._login = login
        self._lock = threading.Lock()
        self._users = 0
        self._turned_away = 0
        self._connection: JumpLogin | None = None
        self._failure: TransportError | None = None

    def borrow(self) -> None:
        """Log in, unless somebody did.

        Raises:
            TransportError: as `Hops.borrow`.
        """
        with self._lock:
            if self._connection is not None and self._connection.lost():
                self._log_out()
            failure = self._failure
            if self._connection is None and failure is None:
                try:
                    self._connection = self._login(self._there)
                except TransportError as error:
                    failure = error
                    self._turned_away += error.kind == THROTTLED
                    if error.kind != THROTTLED or self._turned_away == TRIES:
                        self._failure = error
            if failure is not None:
                message = f"jump host {self._there.host}: {failure.message}"
                raise TransportError(failure.kind, message, failure.hint)
            self._users += 1

    def forward(self, there: Destination) -> Wire:
        """Return a byte stream from it to another server.

        Raises:
            TransportError: it cannot reach it, or the jump host itself is lost.
        """
        connection = self._connection
        if connection is None:
            raise lost(f"jump host {self._there.host}", "")
        return connection.forward(there)

    def give_back(self) -> None:
        """Do without it; the last one logs out."""
        with self._lock:
            self._users -= 1
            if self._users == 0:
                self._log_out()

    def _log_out(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
