"""Hosts and groups of groups as Ansible understands them, whatever they were written in."""

from __future__ import annotations

import graphlib
import itertools
import math
import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from preflight.node_names import MAX_NODES, is_address
from preflight.yaml_lines import shown

ALL, UNGROUPED = "all", "ungrouped"

Variables = Mapping[str, Any]

_RANGE = re.compile(
    r"(?:(?P<first>[0-9]{0,9}):(?P<last>[0-9]{1,9})|(?P<from>[A-Za-z]):(?P<to>[A-Za-z]))"
    r"(?::(?P<step>[1-9][0-9]{0,8}))?"
)


@dataclass
class Group:
    """What is written of one group, at whatever number of places."""

    hosts: dict[str, None] = field(default_factory=dict)
    children: dict[str, None] = field(default_factory=dict)
    variables: dict[str, Any] = field(default_factory=dict)


class Groups(dict[str, Group]):
    """All groups by name, and the variables that hosts have of their own."""

    def __init__(self) -> None:
        super().__init__({ALL: Group(), UNGROUPED: Group()})
        self.own: dict[str, dict[str, Any]] = {}

    def group(self, name: str) -> Group:
        """Return a group, made if it is new."""
        return self.setdefault(name, Group())

    def add(self, group: str, pattern: str, variables: Variables) -> None:
        """Put the hosts of a pattern such as `web[01:10]:2222` into a group.

        Raises:
            ValueError: a bad range, or too many hosts.
        """
        host, port = split_port(pattern)
        for name in expanded(host):
            self.group(group).hosts[name] = None
            own = self.own.setdefault(name, {})
            own.update(({"ansible_port": port} if port else {}) | dict(variables))
        if len(self.own) > MAX_NODES:
            raise ValueError(f"more than {MAX_NODES:,} hosts up to here, which is the most")

    def variables(self, wanted: str) -> dict[str, Variables]:
        """Return the hosts of a group, as they are written, each with all its variables.

        A host's own go before those of its groups, the innermost group first; of groups of one
        depth the last by name goes first.

        Raises:
            ValueError: a group is in itself.
        """
        parents: dict[str, set[str]] = {name: {ALL} - {name} for name in self}
        for name, group in self.items():
            for child in group.children.keys() - {ALL}:
                parents[child].add(name)
        depths: dict[str, int] = {}
        around: dict[str, set[str]] = {}
        for name in _outermost_first(parents):
            depths[name] = max((depths[parent] + 1 for parent in parents[name]), default=0)
            around[name] = {name}.union(*(around[parent] for parent in parents[name]))
        groups_of: dict[str, set[str]] = {host: {ALL} for host in self.own}
        for name, group in self.items():
            for host in group.hosts:
                groups_of[host] |= around[name]
        found: dict[str, Variables] = {}
        for host, groups in groups_of.items():
            if wanted in groups:
                ordered = sorted(groups, key=lambda name: (depths[name], name))
                inherited = (self[name].variables.items() for name in ordered)
                found[host] = dict(itertools.chain(*inherited)) | self.own[host]
        return found


def _outermost_first(parents: Mapping[str, set[str]]) -> Sequence[str]:
    try:
        return tuple(graphlib.TopologicalSorter(parents).static_order())
    except graphlib.CycleError as error:
        circle = " in ".join(error.args[1])
        raise ValueError(f"groups are in a circle, {circle}; take one out of the other") from error


def split_port(pattern: str) -> tuple[str, int | None]:
    """Return host or range, and the port behind it."""
    if is_address(pattern):
        return pattern, None
    found = re.fullmatch(r"(?P<host>.+?)(?::(?P<port>[0-9]{1,5}))?", pattern)
    host, port = (found["host"], found["port"]) if found else (pattern, None)
    inside = host.removeprefix("[").removesuffix("]")
    return inside if is_address(inside) else host, int(port) if port else None


def expanded(pattern: str) -> list[str]:
    """Return the names that a pattern such as `web[01:10]` or `db-[a:f]` stands for.

    Raises:
        ValueError: a bad range, or too many names.
    """
    if not re.fullmatch(r"[^\[\]]*(?:\[[^\[\]]*\][^\[\]]*)*", pattern):
        raise ValueError(f"{shown(pattern)}: brackets do not pair; write a range like web[01:10]")
    parts = [
        _words(part) if place % 2 else [part]
        for place, part in enumerate(re.split(r"[\[\]]", pattern))
    ]
    if math.prod(map(len, parts)) > MAX_NODES:
        raise ValueError(
            f"{shown(pattern)} stands for more than {MAX_NODES:,} hosts, which is the most"
        )
    return ["".join(words) for words in itertools.product(*parts)]


def _words(text: str) -> Sequence[str]:
    """Return the words of one range."""
    found = _RANGE.fullmatch(text)
    if not found:
        raise ValueError(f"{shown(text)} in brackets is not a range like 01:10 or a:f")
    step = int(found["step"] or 1)
    if found["from"]:
        letters = string.ascii_letters
        first, last = letters.index(found["from"]), letters.index(found["to"])
        words: Sequence[str] = letters[first : last + 1 : step]
    else:
        low = found["first"] or "0"
        numbers = range(int(low), int(found["last"]) + 1, step)
        if len(numbers) > MAX_NODES:
            raise ValueError(
                f"{shown(text)} stands for more than {MAX_NODES:,} hosts, which is the most"
            )
        width = len(low) if low.startswith("0") else 0
        words = [f"{number:0{width}}" for number in numbers]
    if not words:
        raise ValueError(f"{shown(text)} ends before it begins; swap the two")
    return words
