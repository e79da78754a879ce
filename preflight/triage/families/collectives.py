"""Collectives that not all ranks came to, or not with the same operation and size.

A time-out alone is a symptom: what is known is who waited in which collective, and who did not.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from preflight.triage.family import Finding
from preflight.triage.rule import Kind, Rule
from preflight.triage.story import Seen, Story, first
from preflight.triage.words import (
    DETAIL,
    MISMATCHED,
    RECORDER,
    SAME_CALLS,
    STALLED,
    absent,
    counted,
    ranked,
    shown,
)

WHILE_STALLED = (
    "collective.pairs",
    "network.firewall",
    "network.path_mtu",
    "rdma.port",
    "rdma.counters",
    "gpu.health",
    "host.kernel_log",
)
UNIFORM = re.compile(r"_?(?:ALLREDUCE|BROADCAST|REDUCE|ALLGATHER_BASE|REDUCE_SCATTER_BASE)\w*$")
"""Operations of which each rank gives the same number of elements; of others they may differ."""
PG = r"(?:\[PG (?:ID )?(?P<pg>[^\]]{1,80}?) Rank \d{1,7}\]:? ?)?"
NUMBERS = (
    r"last enqueued (?:NCCL )?work: (?P<last_enqueued>-?\d{1,18}), "
    r"last completed (?:NCCL )?work: (?P<last_completed>-?\d{1,18})"
)
LONG = 19
"""Digits of a number that is none of torch's."""
FIELD = re.compile(r"(\w+)=(\[[\d, ]*\]|\w+)")


def work(told: Mapping[str, str]) -> Mapping[str, str]:
    """Return what a work is; which of its fields are told differs by version."""
    fields = dict(FIELD.findall(told["work"][:500]))
    seq = fields.get("SeqNum", "")
    seq = seq if seq.isdecimal() and len(seq) < LONG else ""
    size = fields.get("TensorShape") or fields.get("NumelIn", "")
    return {
        "work": "",
        "op": fields.get("OpType", ""),
        "size": size,
        "nth": f" {seq}" if seq else "",
        **({"seq": seq} if seq else {}),
    }


WATCHDOG = Rule(
    PG + r"(?:Watchdog caught collective operation timeout: )?WorkNCCL\((?P<work>[^)]{1,400}"
    r"Timeout\(ms\)=\d{1,12})\) (?:ran for \d{1,12} milliseconds|timed out in blocking wait)",
    Kind.SYMPTOM,
    says="{who} waited in vain in collective{nth} ({op})",
    stage="collective{nth}",
    refine=work,
    source="torch ProcessGroupNCCL.cpp, 1.11 to 2.9",
)
STATUS = Rule(
    PG + r"(?:Timeout at|Exception \(either an error or timeout\) detected by watchdog at|"
    r"failure detected by watchdog at) (?:NCCL )?work(?: sequence id)?: (?P<seq>\d{1,18})"
    r"(?:, | PG status: )" + NUMBERS,
    Kind.SYMPTOM,
    says="{who} waited in vain in collective {seq}",
    stage="collective {seq}",
    source="torch ProcessGroupNCCL.cpp, 2.3 to 2.9",
)
DUMPED = Rule(
    PG + r"Received a dump signal .*[Ll]ast enqueued NCCL work: (?P<last_enqueued>-?\d{1,18}), "
    r"last completed NCCL work: (?P<last_completed>-?\d{1,18})",
    Kind.CONSEQUENCE,
    says="{who} was asked by another rank what it does",
    source="torch ProcessGroupNCCL.cpp since 2.4",
)
RULES = (WATCHDOG, STATUS, DUMPED)


@dataclass
class Wait:
    """What a rank said of the collective in which it waited."""

    rank: int
    seq: int | None = None
    op: str = ""
    size: str = ""
    enqueued: int | None = None
    lines: list[Seen] = field(default_factory=list)

    def learn(self, seen: Seen) -> None:
        """Take in a line."""
        told = seen.told
        if "seq" in told and self.seq is None:
            self.seq = int(told["seq"])
        self.op = self.op or told.get("op", "")
        self.size = self.size or told.get("size", "")
        if "last_enqueued" in told:
            self.enqueued = int(told["last_enqueued"])
        self.lines.append(seen)


def find(story: Story) -> Iterator[Finding]:
    """Find who did not come to a collective, or came with another one."""
    for waits in groups(story).values():
        yield from compared(story, waits)


def groups(story: Story) -> dict[str, dict[int, Wait]]:
    """Return who waited in what, by process group and rank."""
    found: dict[str, dict[int, Wait]] = {}
    for rule in (WATCHDOG, STATUS, DUMPED):
        for seen in story.of_rule(rule):
            rank = story.whose(seen.who).rank
            if rank is not None:
                waits = found.setdefault(group_of(seen), {})
                waits.setdefault(rank, Wait(rank)).learn(seen)
    return found


def group_of(seen: Seen) -> str:
    """Return the name of the process group, which all versions write differently."""
    name = seen.told.get("pg", "0").rpartition("GUID ")[2]
    return name.partition("(")[0].strip() or "0"


def compared(story: Story, waits: Mapping[int, Wait]) -> Iterator[Finding]:
    """Compare the ranks of one process group."""
    waiting = [wait for wait in waits.values() if wait.seq is not None]
    if not waiting:
        yield from plain(story, waits)
        return
    last = max(wait.seq or 0 for wait in waiting)
    behind = [w for w in waits.values() if w.enqueued is not None and w.enqueued < last]
    if odd := mismatched(waiting):
        yield from other_call(story, waiting, odd)
    elif behind:
        nth = min(wait.enqueued or 0 for wait in behind) + 1
        late = sorted(wait.rank for wait in behind)
        there = [wait for wait in waiting if wait.rank not in late]
        yield not_there(story, late, there or waiting, nth, 0.65)
    elif silent := absent(story, waits.keys()):
        yield not_there(story, silent, waiting, min(w.seq or 0 for w in waiting), 0.4)
    else:
        yield stalled(story, waiting)


def plain(story: Story, waits: Mapping[int, Wait]) -> Iterator[Finding]:
    """Tell of time-outs that say nothing of which collective it was (torch before 1.12)."""
    there = [wait for wait in waits.values() if wait.op]
    if there:
        yield stalled(story, there)


def mismatched(waiting: Sequence[Wait]) -> list[Wait]:
    """Return those that issued another operation or size than most did under the same number."""
    for seq in sorted({wait.seq or 0 for wait in waiting}):
        there = [wait for wait in waiting if wait.seq == seq and wait.op]
        usual = Counter(call(wait) for wait in there).most_common(1)
        odd = [wait for wait in there if usual and call(wait) != usual[0][0]]
        if odd:
            return odd
    return []


def call(wait: Wait) -> tuple[str, str]:
    """Return what is to be the same on all ranks."""
    return wait.op, wait.size if UNIFORM.match(wait.op) else ""


def other_call(story: Story, waiting: Sequence[Wait], odd: Sequence[Wait]) -> Iterator[Finding]:
    """Tell of ranks that issued another collective."""
    one = odd[0]
    others = [wait for wait in waiting if wait.seq == one.seq and wait not in odd]
    yield Finding(
        cause=MISMATCHED,
        kind=Kind.CAUSE,
        says=f"{ranked(story, [wait.rank for wait in odd])} issued {described(one)} as collective "
        f"{one.seq}, the others {described(others[0])}",
        confidence=0.9,
        fix=SAME_CALLS,
        evidence=lines_of([*odd, *others]),
        ranks=tuple(sorted(wait.rank for wait in odd)),
        confirm=DETAIL,
    )


def not_there(
    story: Story, late: Sequence[int], there: Sequence[Wait], nth: int, confidence: float
) -> Finding:
    """Tell of ranks that did not come."""
    what = next((described(wait) for wait in there if wait.seq == nth and wait.op), "")
    who = ranked(story, late)
    return Finding(
        cause=MISMATCHED,
        kind=Kind.SYMPTOM,
        says=f"{who} did not come to collective {nth}{f' ({what})' if what else ''}, in which "
        f"{counted([wait.rank for wait in there])} waited",
        confidence=confidence,
        fix=f"see what {who} did then, in its own log or by py-spy dump --pid PID: it waits for "
        "data or a file, or takes a branch without that collective",
        evidence=lines_of(there),
        ranks=tuple(late),
        confirm=f"run again with {RECORDER}, and give the nccl_trace_rank_* files",
    )


def stalled(story: Story, waiting: Sequence[Wait]) -> Finding:
    """Tell of a collective to which all came, and which did not end."""
    nth = {wait.seq for wait in waiting if wait.seq is not None}
    number = f" {min(nth)}" if nth else ""
    what = next((described(wait) for wait in waiting if wait.op), "a collective")
    unseen = "" if story.world else ", as far as these logs tell"
    start = "; it was the first, so nothing was ever exchanged" if nth == {1} else ""
    ranks = sorted(wait.rank for wait in waiting)
    return Finding(
        cause=STALLED,
        kind=Kind.SYMPTOM,
        says=f"{counted(ranks)} waited in collective{number} ({what}){unseen}: the network or a "
        f"GPU stalled within it{start}",
        confidence=0.35,
        fix="check the fabric and the GPUs of these nodes; see their kernel logs of that time",
        evidence=lines_of(waiting),
        ranks=tuple(ranks),
        confirm=f"run again with {RECORDER} NCCL_DEBUG=INFO",
        checks=WHILE_STALLED,
    )


def lines_of(waits: Sequence[Wait]) -> tuple[Seen, ...]:
    """Return the lines of some ranks, one of each."""
    return tuple(one for wait in waits if (one := first(wait.lines)))


def described(wait: Wait) -> str:
    """Return a call in words."""
    return shown(wait.op, wait.size)
