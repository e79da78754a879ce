"""What `preflight triage --json` writes: `preflight.triage/1`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from preflight.errors import printable
from preflight.json_schema import DRAFT
from preflight.triage.family import Family
from preflight.triage.hypotheses import Hypothesis, filled, hypotheses, stage
from preflight.triage.rule import Kind
from preflight.triage.story import Seen, Story, first

TEXT = 400
"""Characters of a line that are shown."""


class Part(BaseModel):
    """A part of the answer; unknown keys are refused."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_serialization_defaults_required=True,  # all that we write has all keys
    )


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


class Shown(Part):
    """What a check says on some nodes, which bears on a hypothesis."""

    check: str
    nodes: list[str]
    status: Literal["pass", "skip", "warn", "unknown", "fail"]
    summary: str
    fix: str | None


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
    peers: list[str]
    """Nodes, or addresses of which no rank has told whose they are, that these tried to reach."""
    confirmed: Literal["yes", "no", "unknown"] | None = None
    """What the cluster says; null: it was not asked, or no check can know."""
    shown: list[Shown] = []
    """What its checks say of it."""


class Asked(Part):
    """What the cluster was asked."""

    nodes: list[str]
    """That hypotheses name."""
    peers: list[str]
    """Other nodes, to meet those and to compare them with."""
    mapped: list[str]
    """How ranks and names of the logs became nodes of the inventory, where that is not plain."""
    unreached: list[str]


class Moment(Part):
    """Something that happened."""

    time: str | None
    rank: int | None
    node: str | None
    stage: str | None
    """How far the job was."""
    fault: bool
    """Whether it tells of one, or only how far the job came."""
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
    command: str | None = None
    """What checks it on the cluster; null: no check can."""
    asked: Asked | None = None
    """Null: the cluster was not asked."""
    files: int
    launches: int

    def to_json(self) -> str:
        """Return it as JSON."""
        return self.model_dump_json(indent=2, by_alias=True) + "\n"


def schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of the answers that are written."""
    return {"$schema": DRAFT, **Triage.model_json_schema(mode="serialization")}


NO_FAULT = "no fault is told in these logs"
NOT_KNOWN = "nothing in these logs is known"
NOTHING = (
    "looked for: what NCCL, torch.distributed, torchrun, Slurm, Ray, DeepSpeed, Open MPI, the "
    "kernel (Xid, mlx5, OOM) and Fabric Manager say, and Python tracebacks",
    "give what the job's ranks wrote to stdout and stderr, the kernel logs (dmesg) of their nodes, "
    "and nccl_trace_rank_* files",
)
"""What is said where no line is known."""


def triage(
    stories: Sequence[Story], families: Sequence[Family], files: int, flaws: Sequence[str] = ()
) -> Triage:
    """Return what is to be said: of the last launch in which something went wrong.

    Args:
        stories: what was read, by launch.
        families: what is known of causes.
        files: how many were read.
        flaws: what of them could not be.
    """
    story, ranked = last_that_failed(stories, families)
    told = ranked[0].evidence if ranked else story.faults(Kind.CONSEQUENCE)
    error = first(story.faults() or told)
    return Triage(
        headline=headline(story, ranked),
        stage=stage(story) or None,
        first_error=of_error(story, error) if error else None,
        hypotheses=[of_hypothesis(one, story) for one in ranked],
        timeline=timeline(story),
        ranks=ranks(story),
        untold=[*flaws, *(untold(story, ranked) if story else NOTHING)],
        files=files,
        launches=len(stories),
    )


def last_that_failed(
    stories: Sequence[Story], families: Sequence[Family]
) -> tuple[Story, list[Hypothesis]]:
    """Return the launch that is told of, and what may have ended it."""
    found = [(story, hypotheses(story, families)) for story in stories]
    last = found[-1] if found else (Story(), [])
    return next((one for one in reversed(found) if one[1]), last)


def headline(story: Story, ranked: Sequence[Hypothesis]) -> str:
    """Return what is to be known first."""
    if not story:
        return NOT_KNOWN
    if ranked:
        return ranked[0].says
    if story.faults(Kind.CONSEQUENCE):
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


def of_hypothesis(one: Hypothesis, story: Story) -> Cause:
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
        peers=peers(one, story),
    )


def peers(one: Hypothesis, story: Story) -> list[str]:
    """Return whom the lines of a hypothesis tell of beside those who wrote them."""
    told = dict.fromkeys(a for seen in one.evidence if (a := seen.told.get("address")))
    named = dict.fromkeys(map(story.node_at, told))
    return [printable(name) for name in named if name not in one.nodes]


def of_line(seen: Seen) -> Evidence:
    """Return a line as data."""
    return Evidence(file=seen.file, line=seen.line, text=shown(seen))


def shown(seen: Seen) -> str:
    """Return a line's words, fit for a terminal."""
    return printable(seen.text)[:TEXT]


MOMENTS = 8
"""Lines of the timeline."""


def timeline(story: Story) -> list[Moment]:
    """Return what happened, in order: the begin of each stage, and the first of each fault."""
    by_kind: dict[object, list[Seen]] = {}
    for seen in story.events():
        if seen.rule.kind > Kind.FACT:
            by_kind.setdefault(id(seen.rule), []).append(seen)
        elif seen.rule.stage:
            by_kind.setdefault(seen.rule.stage, []).append(seen)
    firsts = [one for lines in by_kind.values() if (one := first(lines))]
    told = in_order({(seen.file, seen.line): seen for seen in firsts}.values())
    faults = [seen for seen in told if seen.rule.kind > Kind.FACT][:MOMENTS]
    before = [seen for seen in told if seen.rule.kind is Kind.FACT]
    kept = [*before[-max(0, MOMENTS - len(faults)) :], *faults] if len(faults) < MOMENTS else faults
    return [of_moment(seen, story) for seen in told if seen in kept]


def in_order(lines: Iterable[Seen]) -> list[Seen]:
    """Return lines by time; one without a time is as late as the one before it in its file."""
    times: dict[str, str] = {}
    placed = []
    for seen in sorted(lines, key=lambda seen: seen.order):
        times[seen.file] = max(times.get(seen.file, ""), seen.time[5:])
        placed.append((times[seen.file], seen.order, seen))
    return [seen for *_, seen in sorted(placed, key=lambda one: one[:2])]


def of_moment(seen: Seen, story: Story) -> Moment:
    """Return a line of the timeline."""
    who = story.whose(seen.who)
    return Moment(
        time=seen.time or None,
        rank=who.rank,
        node=story.node_of(who) or None,
        stage=filled(seen.rule.stage, seen, story) or None,
        fault=seen.rule.kind > Kind.FACT,
        text=shown(seen),
        file=seen.file,
        line=seen.line,
    )


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
        came_to = stage(story).partition(" ")[0]
        if not (story.stated("nccl_version") or story.stated("interface")):
            found.append("what NCCL did: set NCCL_DEBUG=INFO for the next run")
        if not ranked and came_to in {"", "launch", "rendezvous"}:
            found.append(
                "how far the rendezvous came, if it hangs: set TORCH_CPP_LOG_LEVEL=INFO; whatever "
                "else listens on the port of the store, and keeps silent, leaves no line"
            )
        if not story.stated("last_enqueued") and came_to in {"", "collective", "exit"}:
            found.append(
                "which collective each rank was in: set TORCH_NCCL_TRACE_BUFFER_SIZE=2000 and "
                "TORCH_NCCL_DUMP_ON_TIMEOUT=1, and give the nccl_trace_rank_* files"
            )
    return found


SURE = 0.8
"""From which confidence on nobody needs to be told how to know more."""
