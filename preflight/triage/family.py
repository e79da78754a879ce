"""What families of causes know.

A family is a module in `families/` with `RULES`, and if one line alone does not tell, with
`find(story)`, which compares what the ranks have said. All modules there are loaded; to add one,
no other file is edited.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from preflight.triage import families
from preflight.triage.rule import Kind, Rule
from preflight.triage.story import Seen, Story


@dataclass(frozen=True)
class Finding:
    """Something that may have ended the job, with the lines that say so."""

    cause: str
    kind: Kind
    says: str
    confidence: float
    fix: str
    evidence: tuple[Seen, ...]
    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    confirm: str = ""
    checks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Family:
    """A module of `families/`."""

    name: str
    rules: tuple[Rule, ...]
    find: Callable[[Story], Iterable[Finding]]


def load() -> tuple[Family, ...]:
    """Return all families, by name."""
    found = []
    for info in sorted(pkgutil.iter_modules(families.__path__), key=lambda info: info.name):
        module = importlib.import_module(f"{families.__name__}.{info.name}")
        found.append(Family(info.name, module.RULES, getattr(module, "find", nothing)))
    return tuple(found)


def nothing(story: Story) -> Iterator[Finding]:  # noqa: ARG001 - the shape of a family's `find`
    """Find nothing."""
    return iter(())
