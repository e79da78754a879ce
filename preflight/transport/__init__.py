"""How bytes reach a node: one `Connection` a node, on it one or two started commands.

A transport knows nothing of the agent; `session.py` speaks to the agent through a `Stream`.
Two live here: `ssh.py`, which with `protocol.py` is the only place that imports paramiko, and
`loopback.py`, this machine.
"""

from __future__ import annotations

from typing import Protocol, TypedDict

from preflight.errors import TransportError
from preflight.inventory import NodeSpec


class LoginFacts(TypedDict):
    """What one login showed; goes into the report as evidence of `access.ssh`."""

    address: str
    """Where the connection went, `host:port`, or `local`."""
    user: str
    server: str
    """The SSH server's own version string, empty where there is none."""
    host_key: str
    """`ssh-ed25519 SHA256:...`, empty for this machine."""
    auth: str
    """How the login was accepted: `publickey ~/.ssh/id_ed25519`, `agent ...`, `none`."""
    connect_s: float
    login_s: float


class Listener(Protocol):
    """Whoever is told what a command writes, by one thread of the stream's own."""

    def hear(self, data: bytes) -> bool:
        """Take some bytes of its standard output; false: no more, the stream is closed."""

    def end(self, error: TransportError | None, last_words: str) -> None:
        """Take note of the end, told once.

        Args:
            error: why the connection was lost before it, None if it was not.
            last_words: as `Stream.stderr_tail`.
        """


class Stream(Protocol):
    """The two byte streams of one command that runs on a node."""

    def send(self, data: bytes, limit_s: float) -> None:
        """Send all of it.

        Raises:
            TransportError: the connection is gone (`lost`), or not all was taken within the limit
                (`silent`); no more can be sent then, for only a part has gone.
        """

    def stderr_tail(self) -> str:
        """Return the last 2 KiB it wrote to standard error so far, decoded with replacement."""

    def close_stdin(self) -> None:
        """End its standard input; never raises."""

    def close(self) -> None:
        """Let go of it; never raises, may be called twice."""


class Connection(Protocol):
    """A login on one node."""

    facts: LoginFacts

    def execute(self, command: str, listener: Listener) -> Stream:
        """Start a command through the login shell.

        Raises:
            TransportError: refused, or the connection is gone.
        """

    def close(self) -> None:
        """Log out; never raises, may be called twice."""


class Transport(Protocol):
    """A way to log in."""

    def connect(self, spec: NodeSpec) -> Connection:
        """Log in to a node.

        Raises:
            TransportError: it could not; the kind tells why.
        """
