"""What a line of a log tells, as data."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum


class Kind(IntEnum):
    """What a line is to the question why the job died; the greatest is blamed."""

    FACT = 0
    """Says something about a rank: no fault at all."""
    CONSEQUENCE = 1
    """Follows from the end of another rank, or can: never the headline."""
    SYMPTOM = 2
    """Says what did not work, and so where to look: it may still have been done by a CAUSE."""
    CAUSE = 3
    """What it says is enough to end a job."""


@dataclass(frozen=True)
class Rule:
    """What a line tells.

    Args:
        pattern: RE2 syntax, ASCII, searched anywhere in a line (launchers put things before it,
            and ranks write into each other's lines). Named groups are kept: `rank`, `node`,
            `local_rank` and `pid` say whose line it is, the others can stand in `says`, `fix` and
            `confirm` as `{name}`, and are facts of the rank (`story.Rank.facts`).
        kind: see `Kind`.
        cause: the check of design.md's catalogue that shows it, or a `job.` word; empty for a
            fact and for a consequence.
        says: what it says, as one clause for a person.
        confidence: from 0 to 1, that the cause is this if a line says so and nothing else is known.
        fix: what mends it; a command where there is one.
        confirm: what would show that it is so.
        checks: further checks that would show it.
        stage: how far the job was: launch, rendezvous, bootstrap, transport setup, collective,
            exit; empty: it does not tell.
        starts: the line begins a launch: errors before it are of an earlier one.
        refine: from the named groups, what they mean beside themselves (an errno in words), or
            None: the line is none of this rule's after all.
        source: where the shape of the line is from.
    """

    pattern: str
    kind: Kind
    cause: str = ""
    says: str = ""
    confidence: float = 0.0
    fix: str = ""
    confirm: str = ""
    checks: tuple[str, ...] = ()
    stage: str = ""
    starts: bool = False
    refine: Callable[[Mapping[str, str]], Mapping[str, str] | None] | None = None
    source: str = ""


SURE = 0.93
"""Confidence in what says plainly what ended a job."""


def cause(
    pattern: str,
    name: str,
    says: str,
    fix: str,
    source: str,
    *,
    confidence: float = SURE,
    kind: Kind = Kind.CAUSE,
    checks: tuple[str, ...] = (),
    confirm: str = "",
    stage: str = "",
    refine: Callable[[Mapping[str, str]], Mapping[str, str] | None] | None = None,
) -> Rule:
    """Return a rule of a line that is enough to end a job.

    The arguments are those of `Rule`; `name` is its cause, and if that is a check, `confirm` is to
    run it where nothing else is given.
    """
    run = "" if name.startswith("job.") else f"preflight run --only {name}"
    return Rule(
        pattern,
        kind,
        cause=name,
        says=says,
        confidence=confidence,
        fix=fix,
        confirm=confirm or run,
        checks=checks,
        stage=stage,
        refine=refine,
        source=source,
    )


RAISED = Rule(
    pattern="",
    kind=Kind.SYMPTOM,
    says="raised {type}: {message}",
)
"""The last line of a Python traceback, which the reader finds; its pattern is of no line. It is for
a family to say whose fault an exception is."""

FOLLOWED = Rule(
    pattern="",
    kind=Kind.CONSEQUENCE,
    says="raised {type}: {message}",
)
"""The last line of a traceback by which a rank only says that another one, or what it did together
with others, has failed; see `BY_OTHERS`."""

BY_OTHERS = re.compile(
    r"(?:\w+\.)*(?:Dist(?:Backend|Network|Store)?Error|ChildFailedError|SignalException"
    r"|Connection(?:Reset|Aborted)?Error|BrokenPipeError|KeyboardInterrupt|CalledProcessError"
    r"|Rendezvous\w*Error|Process(?:Raised|Exited)Exception|(?:Ray)?(?:Actor|Task)\w*Error"
    r"|WorkerCrashedError)(?::|$)"
    r"|\w+: (?:NCCL (?:error|communicator)|\[?.{0,80}gloo/|Gloo |Socket Timeout|wait timeout"
    r"|\[Rank \d|\[PG |\[\d+\] is setting up NCCL|Connection (?:closed|reset)|Broken pipe)"
)
"""What stands at the beginning of the last line of such a traceback."""

WENT_ON = Rule(pattern="", kind=Kind.FACT)
"""A step of training that a rank told of after a traceback: it had only told of an exception."""
