"""What `preflight triage --json` writes: `preflight.triage/1`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from preflight.errors import printable
from preflight.triage.family import Family
from preflight.triage.hypotheses import Hypothesis, hypotheses, stage
from preflight.triage.rule import Kind
from preflight.triage.story import Seen, Story, first

TEXT = 400
"""Characters of a line that are shown."""


class Part(BaseModel):
    """A part of the answer; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid")


class Evidence(Part):
    """A line."""

    file: str
    line: int
    text: str


class Error(Part):
    """The first error of all."""

    rank: int | None
    node: str | None
    file: str
    line: int
    time: str | None
    text: str


class Cause(Part):
    """A hypothesis."""

    cause: str
    check: str | None
    summary: str
    nodes: list[str]
    ranks: list[int]
    confidence: float
    evidence: list[Evidence]
    fix: str
    confirm: str
    checks: list[str]
    """What would show it, `check` first."""
    confirmed: Literal["yes", "no", "unknown"] | None = None
    """What the cluster says; null: it was not asked."""


class Moment(Part):
    """Something that happened."""

    time: str | None
    rank: int | None
    node: str | None
    text: str
    file: str
    line: int


class RankFacts(Part):
    """What a rank said of itself."""

    rank: int
    node: str | None
    facts: dict[str, str]
    last_completed: int | None = None
    last_enqueued: int | None = None
    first_error: Evidence | None = None


class Triage(Part):
    """The answer."""

    schema_: Literal["preflight.triage/1"] = Field(default="preflight.triage/1", alias="schema")
    headline: str
    stage: str | None
    first_error: Error | None
    hypotheses: list[Cause]
    timeline: list[Moment]
    ranks: list[RankFacts]
    untold: list[str]
    """What the logs cannot tell, and what to set next time to know."""
    files: int
    launches: int

    def to_json(self) -> str:
        """Return it as JSON."""
        return self.model_dump_json(indent=2, by_alias=True) + "\n"


NO_FAULT = "no fault is told in these logs"


def triage(stories: Sequence[Story], families: Sequence[Family], files: int) -> Triage:
    """Return what is to be said: of the last launch in which something went wrong."""
    found = [(story, hypotheses(story, families)) for story in stories]
    story, ranked = next(
        ((one, some) for one, some in reversed(found) if some),
        found[-1] if found else (Story(), []),
    )
    errors = [*story.events(Kind.SYMPTOM, Kind.CAUSE)] or [*story.events(Kind.CONSEQUENCE)]
    error = first(errors)
    return Triage(
        headline=headline(story, ranked),
        stage=stage(story) or None,
        first_error=of_error(story, error) if error else None,
        hypotheses=[of_hypothesis(one) for one in ranked],
        timeline=timeline(story),
        ranks=ranks(story),
        untold=untold(story, ranked),
        files=files,
        launches=len(stories),
    )


def headline(story: Story, ranked: Sequence[Hypothesis]) -> str:
    """Return what is to be known first."""
    if ranked:
        return ranked[0].says
    if any(True for _ in story.events(Kind.CONSEQUENCE)):
        return "ranks were ended by others; what ended the first of them is not in these logs"
    return NO_FAULT


def of_error(story: Story, seen: Seen) -> Error:
    """Return the first error."""
    who = story.whose(seen.who)
    return Error(
        rank=who.rank,
        node=story.node_of(who) or None,
        file=seen.file,
        line=seen.line,
        time=seen.time or None,
        text=shown(seen),
    )


def of_hypothesis(one: Hypothesis) -> Cause:
    """Return a hypothesis as data."""
    return Cause(
        cause=one.cause,
        check=one.check,
        summary=one.says,
        nodes=list(one.nodes),
        ranks=list(one.ranks),
        confidence=one.confidence,
        evidence=[of_line(line) for line in one.evidence],
        fix=one.fix,
        confirm=one.confirm,
        checks=list(one.checks),
    )


def of_line(seen: Seen) -> Evidence:
    """Return a line as data."""
    return Evidence(file=seen.file, line=seen.line, text=shown(seen))


def shown(seen: Seen) -> str:
    """Return a line's words, fit for a terminal."""
    return printable(seen.text)[:TEXT]


MOMENTS = 8
"""Lines of the timeline."""


def timeline(story: Story) -> list[Moment]:
    """Return what happened, in order: the first of each kind of thing."""
    by_rule: dict[int, list[Seen]] = {}
    for seen in story.events():
        if seen.rule.stage or seen.rule.kind > Kind.FACT:
            by_rule.setdefault(id(seen.rule), []).append(seen)
    firsts = [one for lines in by_rule.values() if (one := first(lines))]
    told = sorted(firsts, key=lambda seen: (seen.time[5:], seen.file, seen.order))
    if len(told) > MOMENTS:
        faults = [seen for seen in told if seen.rule.kind > Kind.FACT][:MOMENTS]
        others = [seen for seen in told if seen.rule.kind is Kind.FACT][-(MOMENTS - len(faults)) :]
        kept = [*faults, *(others if len(faults) < MOMENTS else ())]
        told = [seen for seen in told if seen in kept]
    found = []
    for seen in told:
        who = story.whose(seen.who)
        found.append(
            Moment(
                time=seen.time or None,
                rank=who.rank,
                node=story.node_of(who) or None,
                text=shown(seen),
                file=seen.file,
                line=seen.line,
            )
        )
    return found


def ranks(story: Story) -> list[RankFacts]:
    """Return what each rank said of itself."""
    found = []
    for number, rank in story.ranks().items():
        facts = {name: value for name, value in rank.facts.items() if value}
        found.append(
            RankFacts(
                rank=number,
                node=story.node_of(rank.who) or None,
                facts={name: printable(value) for name, value in facts.items()},
                last_completed=number_of(facts.get("last_completed")),
                last_enqueued=number_of(facts.get("last_enqueued")),
                first_error=of_line(rank.first_error) if rank.first_error else None,
            )
        )
    return found


def number_of(text: str | None) -> int | None:
    """Return a number that was told."""
    return int(text) if text and text.lstrip("-").isdigit() and len(text) < 19 else None


def untold(story: Story, ranked: Sequence[Hypothesis]) -> list[str]:
    """Return what cannot be told from these logs, and how to know the next time."""
    found = []
    told = story.ranks()
    missing = [rank for rank in range(min(story.world, 100_000)) if rank not in told]
    if told and missing:
        found.append(
            f"nothing is here from {len(missing)} of {story.world} ranks: give their logs, too"
        )
    if not ranked or ranked[0].confidence < SURE:
        if not story.stated("nccl_version"):
            found.append("what NCCL did: set NCCL_DEBUG=INFO for the next run")
        if not story.stated("last_enqueued"):
            found.append(
                "which collective each rank was in: set TORCH_NCCL_TRACE_BUFFER_SIZE=2000 and "
                "TORCH_NCCL_DUMP_ON_TIMEOUT=1, and give the nccl_trace_rank_* files"
            )
    return found


SURE = 0.8
"""From which confidence on nobody needs to be told how to know more."""
