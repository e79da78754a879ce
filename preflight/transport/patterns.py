"""Host patterns, as `ssh_config` and `known_hosts` both write them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

WILD = frozenset("*?!")


@lru_cache(maxsize=4096)
def _compiled(pattern: str) -> re.Pattern[str]:
    escaped = re.escape(pattern.lower())
    return re.compile(escaped.replace(r"\*", ".*").replace(r"\?", "."), re.DOTALL)


def matches(patterns: Iterable[str], name: str) -> bool:
    """Whether one of the patterns fits the name and no `!pattern` does."""
    found = False
    for pattern in patterns:
        negated = pattern.startswith("!")
        if _compiled(pattern.removeprefix("!")).fullmatch(name.lower()):
            if negated:
                return False
            found = True
    return found
