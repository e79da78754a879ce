"""Ansible inventories as INI: `[group]`, `[group:children]`, `[group:vars]`.

Source: Ansible's plugin `ini`. Values are read as text, which is all that is needed of them.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable

from preflight.errors import ConfigError
from preflight.sources.ansible_groups import UNGROUPED, Groups
from preflight.sources.ansible_variables import known
from preflight.yaml_lines import shown

MOST_LINE = 1 << 14
"""Characters; shlex takes the square of it for a long word."""

_SECTION = re.compile(r"\[(?P<group>[^:\[\]\s]+)(?::(?P<kind>\w+))?\]\s*(?:#.*)?")


class _Reader:
    """Reads line by line; what a line is depends on the section above it."""

    def __init__(self, source: str) -> None:
        self.groups = Groups(source)
        self.number = 0
        self.sections: dict[str, Callable[[str], None]] = {
            "hosts": self.host,
            "children": self.child,
            "vars": self.variable,
        }
        self.group, self.kind = UNGROUPED, "hosts"

    def line(self, number: int, text: str) -> None:
        """Read one line that is not empty.

        Raises:
            ValueError: what is wrong with it.
        """
        if len(text) > MOST_LINE:
            raise ValueError(f"is longer than {MOST_LINE:,} characters; write one host a line")
        self.number = number
        found = _SECTION.fullmatch(text)
        if not found:
            self.sections[self.kind](text)
            return
        self.group, self.kind = found["group"], found["kind"] or "hosts"
        if self.kind not in self.sections:
            raise ValueError(
                f"{shown(text)} is not a section; write [group], [group:children] or [group:vars]"
            )
        self.groups.group(self.group)

    def host(self, text: str) -> None:
        try:
            pattern, *words = shlex.split(text, comments=True)
        except ValueError as error:
            raise ValueError("a quote is not closed; add the missing one") from error
        if not all("=" in word for word in words):
            # which word is not said: it may be the rest of a password
            raise ValueError("a word is not key=value; put values with blanks in quotes")
        variables = dict(word.split("=", 1) for word in words)
        its = {key: plain(value) for key, value in variables.items()}
        self.groups.add(self.group, pattern, its, self.number)

    def child(self, text: str) -> None:
        name = text.split("#")[0].strip()
        self.groups[self.group].children[name] = None
        self.groups.group(name)

    def variable(self, text: str) -> None:
        key, equals, value = text.partition("=")
        if not equals:
            raise ValueError("this is not key=value, which is all that stands under :vars")
        self.groups[self.group].variables |= known({key.strip(): plain(value)})


def plain(value: str) -> str:
    """Return a value without what stands around it: blanks, a comment, quotes."""
    value = re.sub(r"\s#.*", "", value).strip()
    quoted = re.fullmatch(r"(['\"])(.*)\1", value)
    return quoted[2] if quoted else value


def read(text: str, source: str) -> Groups:
    """Return the groups of an inventory.

    Raises:
        ConfigError: a line is not right.
    """
    reader = _Reader(source)
    for number, line in enumerate(text.split("\n"), 1):
        words = line.strip()
        if words and words[0] not in "#;":
            try:
                reader.line(number, words)
            except ValueError as error:
                raise ConfigError(f"{source}:{number}: {error}") from error
    return reader.groups
