"""Which rank did not come to a collective, or came with another one, by flight recorder dumps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from preflight.triage.family import Finding
from preflight.triage.flight_recorder import ISSUED, NAME, Call, Flight, Group
from preflight.triage.rule import Kind, Rule
from preflight.triage.story import Seen, Story
from preflight.triage.words import MISMATCHED, SAME_CALLS, STALLED, counted, ranked, shown

RULES: tuple[Rule, ...] = ()
KNOWN, WAITS_ELSEWHERE, NO_DUMP, ALL_CAME = 0.85, 0.6, 0.5, 0.5
"""Confidence: that a rank is to blame which did not come; if it waited in another group then; if
of it alone there is no dump; that it is the network or a GPU if all came."""


def find(story: Story) -> Iterator[Finding]:
    """Compare the dumps of all ranks, group by group."""
    flight = story.extra.get(NAME)
    if not isinstance(flight, Flight):
        return
    stuck = [group for group in flight.groups.values() if group.stuck is not None]
    waiting = {rank for group in stuck for rank in waits(group)}
    for group in sorted(flight.groups.values(), key=lambda group: -len(group.members)):
        if different := first_difference(group):
            yield other_call(story, group, *different)
        elif group in stuck:
            yield not_there(story, group, waiting)


def waits(group: Group) -> list[int]:
    """Return the ranks that issued a collective that did not end on them."""
    nth = group.stuck or 0
    ended = group.completed
    return [rank for rank, last in group.enqueued.items() if last >= nth > ended.get(rank, 0)]


def first_difference(group: Group) -> tuple[int, dict[Call, list[int]]] | None:
    """Return the first number under which ranks issued different things."""
    for number in sorted(group.calls):
        if len(group.calls[number]) > 1:
            return number, group.calls[number]
    return None


def other_call(story: Story, group: Group, nth: int, calls: dict[Call, list[int]]) -> Finding:
    """Tell of the ranks that issued something else than most did."""
    usual = max(calls, key=lambda one: len(calls[one]))
    odd = next(one for one in calls if one != usual)
    ranks = sorted(calls[odd])
    return Finding(
        cause=MISMATCHED,
        kind=Kind.CAUSE,
        says=f"{ranked(story, ranks)} issued {called(odd, usual)} as collective {nth} of "
        f"{group.name or 'its group'}, the others {called(usual, odd)}",
        confidence=0.95,
        fix=SAME_CALLS + at(group, ranks),
        evidence=lines(story, group, [*ranks, *sorted(calls[usual])]),
        ranks=tuple(ranks),
    )


def not_there(story: Story, group: Group, waiting: set[int]) -> Finding:
    """Tell of the ranks that did not come, or that all came."""
    nth = group.stuck or 0
    there = waits(group)
    late = sorted(rank for rank, last in group.enqueued.items() if last < nth)
    free = [rank for rank in late if rank not in waiting]
    undumped = sorted(group.members - group.enqueued.keys())
    what = called(usual_call(group, nth))
    where = f"collective {nth} of {group.name or 'their group'} ({what})"
    if late:
        blamed, confidence = (free, KNOWN) if free else (late, WAITS_ELSEWHERE)
        says = f"{ranked(story, blamed)} did not come to {where}, in which {counted(there)} waited"
    elif undumped and len(undumped) <= max(1, len(there) // 4):
        blamed, confidence = undumped, NO_DUMP
        says = f"{counted(there)} waited in {where}; of {ranked(story, blamed)} there is no dump"
    else:
        return all_came(story, group, there, where)
    return Finding(
        cause=MISMATCHED,
        kind=Kind.SYMPTOM,
        says=says,
        confidence=confidence,
        fix=f"see what {ranked(story, blamed)} did then: its own log" + at(group, blamed),
        evidence=lines(story, group, [*blamed, *there]),
        ranks=tuple(blamed),
    )


def all_came(story: Story, group: Group, there: Sequence[int], where: str) -> Finding:
    """Tell of a collective that did not end though all came to it."""
    return Finding(
        cause=STALLED,
        kind=Kind.SYMPTOM,
        says=f"all {counted(there)} came to {where}, and it did not end: the network or a GPU "
        "stalled within it",
        confidence=ALL_CAME,
        fix="check the fabric and the GPUs of these nodes; see their kernel logs of that time",
        evidence=lines(story, group, there),
        ranks=tuple(sorted(there)),
        checks=("collective.pairs", "rdma.port", "network.path_mtu", "gpu.health"),
    )


def usual_call(group: Group, nth: int) -> Call:
    """Return what most issued under a number."""
    calls = {one: len(ranks) for one, ranks in group.calls.get(nth, {}).items()}
    return Counter(calls).most_common(1)[0][0] if calls else Call("", None, "")


def called(call: Call, other: Call | None = None) -> str:
    """Return a call in words; its type only where nothing else tells it from the other."""
    size = str(call.elements) if call.elements is not None else ""
    alike = other is not None and call[:2] == other[:2]
    return shown(call.op, size) + (f" of type {call.dtype}" if alike else "")


def at(group: Group, ranks: Sequence[int]) -> str:
    """Return where in the program the last collective of the first rank was."""
    where = next((group.where[rank] for rank in ranks if group.where.get(rank)), "")
    return f"; its last collective was issued at {where}" if where else ""


def lines(story: Story, group: Group, ranks: Sequence[int]) -> tuple[Seen, ...]:
    """Return what the dumps of some ranks say of a group."""
    every = {
        seen.who.rank: seen
        for seen in story.of_rule(ISSUED)
        if seen.told["pg"] == group.name and seen.who.rank in group.enqueued
    }
    return tuple(every[rank] for rank in ranks if rank in every)
