"""What can go wrong on the controller, each kind with the words a user is shown.

Kept apart from `api.py` because none of it goes to nodes.
"""

from __future__ import annotations


class PreflightError(Exception):
    """Root of every error that preflight raises on purpose."""


class ConfigError(PreflightError):
    """The user's input is wrong: inventory, option or check file. One line, exit code 2.

    The message names file, line and key where there are any:
    `inventory.yaml:12: nodes.gpu07.ssh.prot: unknown key, did you mean 'port'?`
    """


class NodeError(PreflightError):
    """Something is wrong with one node: its row, never the end of a run.

    Args:
        kind: one word or two that tell the causes apart, such as `refused` or `no python`.
        message: what happened, with the address and the last words of the other side.
        hint: what to do next; may be empty.
    """

    def __init__(self, kind: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.hint = hint


class TransportError(NodeError):
    """A node could not be reached, logged in to, or was lost."""


def printable(text: str) -> str:
    """Return text of a foreign machine fit for a terminal: control characters are spelled out.

    Bidirectional controls and line separators too: they can reorder or forge a line.
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
