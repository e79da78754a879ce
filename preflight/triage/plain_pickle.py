"""Reads pickles of plain data, and nothing else: there is no way in here to name a class.

Python's own `pickle` can be told to refuse classes, but a few damaged bytes still make it take all
memory (a memo of 2**31 places) or all time (tuples of tuples as keys). This machine knows the
opcodes of containers, strings and numbers only, and its memory grows with the pickle's length.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any


class NotPlain(ValueError):
    """It is no pickle of plain data."""


def loads(data: bytes) -> Any:
    """Return what was pickled.

    Raises:
        NotPlain: it is damaged, or has more in it than plain data.
    """
    machine = Machine(data)
    try:
        while (code := data[machine.position]) != STOP:
            machine.position += 1
            OPCODES[code](machine)
        return machine.stack[-1]
    except (IndexError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise NotPlain(f"at byte {machine.position}: {error!r}") from error


class Machine:
    """The state of a pickle that is being read."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def byte(self) -> int:
        """Take a byte."""
        self.position += 1
        return self.data[self.position - 1]

    def number(self, size: int) -> int:
        """Take an unsigned number of some bytes."""
        return int.from_bytes(self.take(size), "little")

    def take(self, size: int) -> bytes:
        """Take bytes."""
        end = self.position + size
        if end > len(self.data):
            raise NotPlain("it ends early")
        found = self.data[self.position : end]
        self.position = end
        return found

    def since_mark(self) -> list[Any]:
        """Take what was put since the last mark."""
        place = self.marks.pop()
        found = self.stack[place:]
        del self.stack[place:]
        return found

    def push(self, value: Any) -> None:
        """Put a value."""
        self.stack.append(value)

    def pack(self, size: int) -> None:
        """Make a tuple of the last values."""
        found = tuple(self.stack[-size:])
        if len(found) != size:
            raise NotPlain("a tuple of too few values")
        self.stack[-size:] = [found]

    def extend(self, values: list[Any]) -> None:
        """Add values to the list below them."""
        if not isinstance(self.stack[-1], list):
            raise NotPlain("values for what is no list")
        self.stack[-1].extend(values)

    def update(self, pairs: list[Any]) -> None:
        """Add keys and values to the dictionary below them."""
        into = self.stack[-1]
        if not isinstance(into, dict) or len(pairs) % 2:
            raise NotPlain("keys for what is no dictionary")
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):
            if not isinstance(key, (str, int)):
                raise NotPlain("a key that is no text")
            into[key] = value

    def text(self, size: int) -> None:
        """Put a string of some bytes."""
        self.push(self.take(size).decode("utf-8", "replace"))


STOP = ord(".")
OPCODES: dict[int, Callable[[Machine], object]] = {
    0x80: lambda m: m.take(1),  # PROTO
    0x95: lambda m: m.take(8),  # FRAME
    ord("("): lambda m: m.marks.append(len(m.stack)),
    ord("N"): lambda m: m.push(None),
    0x88: lambda m: m.push(True),
    0x89: lambda m: m.push(False),
    ord("K"): lambda m: m.stack.append(m.byte()),
    ord("M"): lambda m: m.push(m.number(2)),
    ord("J"): lambda m: m.push(struct.unpack("<i", m.take(4))[0]),
    0x8A: lambda m: m.push(int.from_bytes(m.take(m.number(1)), "little", signed=True)),
    ord("G"): lambda m: m.push(struct.unpack(">d", m.take(8))[0]),
    ord("X"): lambda m: m.text(m.number(4)),
    0x8C: lambda m: m.text(m.number(1)),
    ord("]"): lambda m: m.stack.append([]),
    ord("}"): lambda m: m.stack.append({}),
    ord(")"): lambda m: m.push(()),
    ord("a"): lambda m: m.extend([m.stack.pop()]),
    ord("e"): lambda m: m.extend(m.since_mark()),
    ord("s"): lambda m: m.update([m.stack.pop(-2), m.stack.pop()]),
    ord("u"): lambda m: m.update(m.since_mark()),
    ord("t"): lambda m: m.push(tuple(m.since_mark())),
    0x85: lambda m: m.pack(1),
    0x86: lambda m: m.pack(2),
    0x87: lambda m: m.pack(3),
    ord("h"): lambda m: m.stack.append(m.memo[m.byte()]),
    ord("j"): lambda m: m.stack.append(m.memo[m.number(4)]),
    ord("q"): lambda m: m.memo.__setitem__(m.byte(), m.stack[-1]),
    ord("r"): lambda m: m.memo.__setitem__(m.number(4), m.stack[-1]),
    0x94: lambda m: m.memo.__setitem__(len(m.memo), m.stack[-1]),
}
