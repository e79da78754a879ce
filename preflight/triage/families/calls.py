"""Where in the program each rank was when it waited in vain: the lines of their tracebacks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from preflight.triage.family import Finding
from preflight.triage.rule import FOLLOWED, RAISED, Kind, Rule
from preflight.triage.story import Seen, Story
from preflight.triage.words import DETAIL, MISMATCHED, SAME_CALLS, rank_of, ranked

RULES: tuple[Rule, ...] = ()
TIMED_OUT = "imed out waiting"
SHOWN = 3
"""Places that are named."""


def find(story: Story) -> Iterator[Finding]:
    """Find that ranks waited for each other at different places of the program."""
    places: dict[str, dict[int, Seen]] = defaultdict(dict)
    for seen in (*story.of_rule(FOLLOWED), *story.of_rule(RAISED)):
        if TIMED_OUT in seen.text and "at" in seen.told and (rank := rank_of(story, seen)) >= 0:
            places[seen.told["at"]].setdefault(rank, seen)
    if len(places) < 2:
        return
    told = sorted(places.items(), key=lambda place: len(place[1]))
    odd = sorted(told[0][1]) if len(told[0][1]) < len(told[-1][1]) else []
    where = [f"{ranked(story, sorted(those))} at {at}" for at, those in told]
    more = f" and {len(where) - SHOWN} more" if len(where) > SHOWN else ""
    yield Finding(
        cause=MISMATCHED,
        kind=Kind.SYMPTOM,
        says="ranks waited for each other at different places of the program: "
        + ", ".join(where[:SHOWN])
        + more,
        confidence=0.5,
        fix=SAME_CALLS,
        evidence=tuple(next(iter(those.values())) for _, those in told),
        ranks=tuple(odd) or tuple(sorted(rank for _, those in told for rank in those)),
        confirm=DETAIL,
    )
