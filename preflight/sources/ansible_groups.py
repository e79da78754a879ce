"""Hosts and groups of groups as Ansible understands them, whatever they were written in."""

from __future__ import annotations

import graphlib
import itertools
import re
import shlex
import string
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from preflight.node_names import MAX_NODES, is_address
from preflight.sources.ansible_variables import known
from preflight.yaml_lines import shortened, shown

ALL, UNGROUPED = "all", "ungrouped"

MOST_WRITTEN = 10 * MAX_NODES
"""Names of hosts and groups, each as often as it is written: a host may be in several groups."""
MOST_OF_CIRCLE = 4
"""Groups of it that a message names."""

Variables = Mapping[str, Any]
Place = tuple[int, str]
"""The depth of a group and its name: where several set a variable, the largest counts."""

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
    """All groups by name, and the variables that hosts have of their own.

    Args:
        source: the file's name.
    """

    def __init__(self, source: str) -> None:
        super().__init__({ALL: Group(), UNGROUPED: Group()})
        self.source = source
        self.own: dict[str, dict[str, Any]] = {}
        self.lines: dict[str, int] = {}
        """Of each host, the line that names it first."""
        self.written = 0

    def group(self, name: str) -> Group:
        """Return a group, made if it is new.

        Raises:
            ValueError: too many names.
        """
        self._count(1)
        return self.setdefault(name, Group())

    def add(self, group: str, pattern: str, variables: Variables, line: int) -> None:
        """Put the hosts of a pattern such as `web[01:10]:2222` into a group.

        Raises:
            ValueError: a bad range, or too many hosts.
        """
        host, port = split_port(pattern)
        names = expanded(host)
        self._count(len(names))
        its = ({"ansible_port": port} if port else {}) | known(variables)
        for name in names:
            self[group].hosts[name] = None
            self.own.setdefault(name, {}).update(its)
            self.lines.setdefault(name, line)
        if len(self.own) > MAX_NODES:
            raise ValueError(f"more than {MAX_NODES:,} hosts up to here, which is the most")

    def _count(self, names: int) -> None:
        self.written += names
        if self.written > MOST_WRITTEN:
            raise ValueError(
                f"more than {MOST_WRITTEN:,} names up to here, repeated ones too, which is the most"
            )

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
        inside: set[str] = set()
        setters: dict[str, dict[str, Place]] = {}
        for name in _outermost_first(parents):
            depths[name] = max((depths[parent] + 1 for parent in parents[name]), default=0)
            if name == wanted or not inside.isdisjoint(parents[name]):
                inside.add(name)
            own = dict.fromkeys(self[name].variables, (depths[name], name))
            setters[name] = _innermost(setters[parent] for parent in parents[name]) | own
        groups_of: dict[str, list[str]] = {host: [ALL] for host in self.own}
        for name, group in self.items():
            for host in group.hosts:
                groups_of[host].append(name)
        return {
            host: {
                variable: self[name].variables[variable]
                for variable, (_, name) in _innermost(setters[group] for group in groups).items()
            }
            | self.own[host]
            for host, groups in groups_of.items()
            if not inside.isdisjoint(groups)
        }


def _innermost(several: Iterable[Mapping[str, Place]]) -> dict[str, Place]:
    """Return for each variable the innermost of the groups that set it."""
    found: dict[str, Place] = {}
    for setters in several:
        for variable, place in setters.items():
            found[variable] = max(place, found.get(variable, place))
    return found


def _outermost_first(parents: Mapping[str, set[str]]) -> Sequence[str]:
    try:
        return tuple(graphlib.TopologicalSorter(parents).static_order())
    except graphlib.CycleError as error:
        circle = error.args[1]
        words = map(shortened, circle if len(circle) <= MOST_OF_CIRCLE else circle[:MOST_OF_CIRCLE])
        more = f" and so on, {len(circle) - 1} in all" if len(circle) > MOST_OF_CIRCLE else ""
        raise ValueError(
            f"groups are in a circle, {' in '.join(words)}{more}; take one out of the other"
        ) from error


def printed(source: str) -> str:
    """Return the advice to give what Ansible itself makes of an inventory."""
    return f"give what `ansible-inventory -i {shlex.quote(source)} --list --yaml` prints"


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
    parts: list[Sequence[str]] = []
    count = 1
    for place, part in enumerate(re.split(r"[\[\]]", pattern)):
        parts.append(_words(part) if place % 2 else [part])
        count *= len(parts[-1])
        if count > MAX_NODES:
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
