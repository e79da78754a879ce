"""Finds the few lines that tell something in logs of any size.

All patterns of all families are one automaton (RE2: time is linear in what is read, whatever the
patterns), and run over whole blocks; only lines that it stops at are looked at one by one.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import re2

from preflight.triage.files import Log
from preflight.triage.rule import Rule

MEMORY = 64 << 20
"""Bytes that the automaton may take: with RE2's 8 MiB it is thrown away and made again."""
ANSI = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")
NAME = re.compile(r"\(\?P<\w+>")
TRACEBACK = b"Traceback (most recent call last)"
AFTER = 400
"""Lines that are taken after the head of a traceback: several ranks may write theirs at once."""


class Hit(NamedTuple):
    """A line, and which rules it may be of."""

    number: int
    """From 1."""
    raw: bytes
    text: str
    place: int
    """Where what it tells begins, at the earliest."""
    rules: tuple[int, ...]
    """Their places; none: it only follows the head of a traceback."""


@functools.lru_cache(maxsize=1)
def automata(patterns: tuple[str, ...]) -> tuple[Any, Any]:
    """Return what finds a line that any pattern is of, and what tells which are; they cost 0.1 s.

    The head of a traceback is found, too.
    """
    options = re2.Options()
    options.max_mem = MEMORY
    options.never_capture = True
    options.never_nl = True  # `[^)]*` stays in its line
    bare = [NAME.sub("(?:", pattern).encode("ascii") for pattern in patterns]
    everything = b"|".join(b"(?m:" + one + b")" for one in (re.escape(TRACEBACK), *bare))
    which = re2.Set.SearchSet(options)
    for one in bare:
        which.Add(one)
    which.Compile()
    return re2.compile(everything, options), which


class Sieve:
    """The rules as one automaton.

    Attributes:
        lines: how many the log has that was read last.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._any, self._which = automata(tuple(rule.pattern for rule in rules))
        self.lines = 0

    def hits(self, log: Log) -> Iterator[Hit]:
        """Yield the lines of a log that tell something, in order."""
        number, follow = 1, 0
        for block in log.blocks():
            block = plain(block)
            lines = block.replace(b"\r", b"\n")  # of progress bars; such lines are not counted
            start, counted = 0, 0
            while start < len(lines):
                if follow:
                    place = begin = start
                    follow -= 1
                else:
                    found = self._any.search(lines, start)
                    if found is None:
                        break
                    place = found.start()
                    begin = lines.rfind(b"\n", start, place) + 1 or start
                end = line_end(lines, place)
                line = lines[begin:end]
                number += block.count(b"\n", counted, begin)
                counted = begin
                which = self._which.Match(lines[place:end]) or ()  # None: no rule
                if TRACEBACK in line:
                    follow = AFTER
                if which or follow:
                    text = line.decode("utf-8", "replace")
                    yield Hit(number, line, text, place - begin, tuple(sorted(which)))
                start = end + 1
            number += block.count(b"\n", counted)
        self.lines = number - 1


def plain(block: bytes) -> bytes:
    """Return a block without colours, and with the ends of lines that Unix has.

    A log that was emptied while it was written goes on behind as many zeros as it had bytes.
    """
    if b"\0" in block:
        block = block.replace(b"\0", b"")
    if b"\x1b" in block:  # to look for one byte costs a tenth of looking for two
        block = ANSI.sub(b"", block)
    return block.replace(b"\r\n", b"\n") if b"\r" in block else block


def line_end(lines: bytes, position: int) -> int:
    """Return where the line ends."""
    end = lines.find(b"\n", position)
    return len(lines) if end < 0 else end
