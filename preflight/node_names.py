"""Node names and ranges of them, as Slurm writes them: `gpu[01-07,09],login`.

Expanded here rather than by ClusterShell, which sorts (the first node is the default master),
refuses Slurm's `[01-100]`, and builds a range before anyone can count it.
"""

from __future__ import annotations

import ipaddress
import itertools
import math
import re
from collections.abc import Iterator
from typing import NamedTuple

from preflight.errors import ConfigError
from preflight.yaml_lines import shown

MAX_NODES = 10_000
"""Of one run; the largest training clusters known have some 4,000 machines of 8 GPUs."""
MAX_NAME = 253
"""RFC 1035, section 3.1: the longest name in DNS."""

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_RANGE = re.compile(
    r"(?P<low>[0-9]{1,18})(?:-(?P<high>[0-9]{1,18})(?:/(?P<step>[1-9][0-9]{0,8}))?)?"
)
_PIECE = re.compile(r"(?:[^\[\],]|\[[^\[\]]*\])+")


def expand(expression: str) -> tuple[str, ...]:
    """Return the names an expression stands for, in the order they are written.

    Raises:
        ConfigError: it is not an expression, names a node twice, or names too many.
    """
    try:
        return names(expression)
    except ValueError as error:
        raise ConfigError(f"{shown(expression)}: {error}") from error


def names(expression: str) -> tuple[str, ...]:
    """Do what `expand` does, for callers that say themselves where the expression stands.

    Raises:
        ValueError: what is wrong with it.
    """
    found: dict[str, None] = {}
    for piece in pieces(expression):
        parts = _parts(piece)
        if len(found) + math.prod(map(_count, parts)) > MAX_NODES:
            raise ValueError(f"stands for more than {MAX_NODES:,} nodes, which is the most")
        for name in map("".join, itertools.product(*map(_words, parts))):
            if problem := address_problem(name):
                raise ValueError(problem)
            if name in found:
                raise ValueError(f"names {name!r} twice")
            found[name] = None
    return tuple(found)


def address_problem(name: str) -> str | None:
    """Return what is wrong with a node's name or address, None if nothing is."""
    if len(name) > MAX_NAME:
        return f"a name is longer than {MAX_NAME} characters"
    if _NAME.fullmatch(name) or is_address(name):
        return None
    if re.fullmatch(r"[^@]+@[^@]+", name):
        return f"{shown(name)}: a user goes under ssh: {{user: ...}}"
    if re.fullmatch(r"[^:]+:[0-9]+", name):
        return f"{shown(name)}: a port goes under ssh: {{port: ...}}"
    if name.startswith("@"):
        return f"{shown(name)} is a group, and groups are not known here; write names or ranges"
    return f"{shown(name)} is not a name (letters, digits, dots, dashes, underscores)"


def is_range(expression: str) -> bool:
    """Whether it stands for names, rather than being one."""
    return "[" in expression or "," in expression


def is_address(name: str) -> bool:
    """Whether it is an IP address."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def pieces(expression: str) -> list[str]:
    """Split an expression at the commas outside of brackets.

    Raises:
        ValueError: a bracket is left open, or there is nothing between two commas.
    """
    found = _PIECE.findall(expression)
    if ",".join(found) == expression and found:
        return [piece.strip() for piece in found]
    if not re.fullmatch(r"[^\[\]]*(?:\[[^\[\]]*\][^\[\]]*)*", expression):
        raise ValueError("brackets do not pair; write a range like gpu[01-07]")
    raise ValueError("a name is missing at a comma" if "," in expression else "names no node")


class _Numbers(NamedTuple):
    """The numbers of one range in brackets, padded to a width."""

    width: int
    numbers: range

    def words(self) -> Iterator[str]:
        return (f"{number:0{self.width}}" for number in self.numbers)


def _parts(piece: str) -> list[str | list[_Numbers]]:
    """Split into words and lists of ranges, which alternate."""
    return [
        [_numbers(text) for text in part.split(",")] if place % 2 else part
        for place, part in enumerate(re.split(r"[\[\]]", piece))
    ]


def _numbers(text: str) -> _Numbers:
    found = _RANGE.fullmatch(text)
    if not found:
        raise ValueError(f"{shown(text)} in brackets is not a number, nor a range like 01-07")
    low, high = found["low"], found["high"] or found["low"]
    if int(high) < int(low):
        raise ValueError(f"{shown(text)} ends before it begins; swap the numbers")
    return _Numbers(len(low), range(int(low), int(high) + 1, int(found["step"] or 1)))


def _count(part: str | list[_Numbers]) -> int:
    return 1 if isinstance(part, str) else sum(len(each.numbers) for each in part)


def _words(part: str | list[_Numbers]) -> list[str]:
    return [part] if isinstance(part, str) else [word for each in part for word in each.words()]
