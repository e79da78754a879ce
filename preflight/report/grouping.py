"""Grouping, which every output needs: reports have more rows than people read."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


def by(rows: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Return the rows by a key, keys and rows in the order they come."""
    groups: dict[K, list[T]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups
