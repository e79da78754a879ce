"""The user's ssh-agent, spoken to over its socket (OpenSSH's PROTOCOL.agent).

Not the SSH library's own client, which has no time limit and one connection that threads may not
share. Here each request is a connection of its own.
"""

from __future__ import annotations

import socket
import struct
from contextlib import closing
from typing import NamedTuple

REQUEST_IDENTITIES, IDENTITIES_ANSWER = 11, 12
SIGN_REQUEST, SIGN_RESPONSE = 13, 14
FAILURE = b"\x05"
RSA_FLAGS = {"rsa-sha2-256": 2, "rsa-sha2-512": 4}
LIMIT_S = 10.0
"""For an answer; a key that wants a finger on a token is given up after it."""
REPLY_LIMIT = 256 * 1024
"""OpenSSH's own bound (authfd.c, MAX_AGENT_REPLY_LEN)."""


class AgentKey(NamedTuple):
    """A key, or a certificate, that the agent can sign with."""

    blob: bytes
    comment: str


class Agent:
    """The agent behind one socket."""

    def __init__(self, path: str) -> None:
        self._path = path

    def keys(self) -> list[AgentKey]:
        """Return what it holds, in its own order.

        Raises:
            OSError: there is no agent, or it does not answer.
        """
        reply = _Reply(self._ask(bytes([REQUEST_IDENTITIES]), IDENTITIES_ANSWER))
        count = reply.number()
        return [
            AgentKey(reply.string(), reply.string().decode("utf-8", "replace"))
            for _ in range(count)
        ]

    def sign(self, blob: bytes, data: bytes, algorithm: str) -> bytes:
        """Return the signature with a key of its.

        Raises:
            OSError: it refused, or does not answer.
        """
        flags = RSA_FLAGS.get(algorithm.removesuffix("-cert-v01@openssh.com"), 0)
        request = bytes([SIGN_REQUEST]) + _string(blob) + _string(data) + struct.pack(">I", flags)
        return _Reply(self._ask(request, SIGN_RESPONSE)).string()

    def _ask(self, request: bytes, expected: int) -> bytes:
        with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as sock:
            sock.settimeout(LIMIT_S)
            sock.connect(self._path)
            sock.sendall(_string(request))
            with sock.makefile("rb") as stream:
                head = stream.read(4)
                size = int.from_bytes(head, "big")
                reply = stream.read(size) if len(head) == 4 and size <= REPLY_LIMIT else b""
        if not reply or reply[0] != expected:
            raise OSError("it refused" if reply[:1] == FAILURE else "its answer makes no sense")
        return reply[1:]


class _Reply:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def number(self) -> int:
        head, self._data = self._data[:4], self._data[4:]
        if len(head) < 4:
            raise OSError("its answer is cut short")
        return int.from_bytes(head, "big")

    def string(self) -> bytes:
        size = self.number()
        value, self._data = self._data[:size], self._data[size:]
        if len(value) < size:
            raise OSError("its answer is cut short")
        return value


def _string(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data
