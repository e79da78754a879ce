"""From stories to what most likely ended the job, in order.

How lines are weighed: what is enough to end a job (`Kind.CAUSE`) comes before what only did not
work (`Kind.SYMPTOM`), and of a kind the more certain and the earlier. Consequences are never
blamed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from string import Formatter
from typing import Any

from preflight.triage.family import Family, Finding
from preflight.triage.rule import Kind
from preflight.triage.story import Seen, Story, first

SHADOWED = 0.5
"""Of the confidence in a symptom, where something else is enough to have ended the job."""
FIRST = 0.05
"""More confidence in what the first error of all tells."""
MOST = 0.99
BESIDE = 0.75
"""At most, of what is not the likeliest: only one of them has ended the job."""
RAISED_BY_PROGRAM = "job.python_error"
EVIDENCE = 5
"""Lines of a hypothesis."""


@dataclass(frozen=True)
class Hypothesis:
    """What may have ended the job."""

    cause: str
    kind: Kind
    says: str
    confidence: float
    fix: str
    confirm: str
    checks: tuple[str, ...]
    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    evidence: tuple[Seen, ...]

    @property
    def check(self) -> str | None:
        """The check that shows it; none where only a log can."""
        return None if self.cause.startswith("job.") else self.cause


def hypotheses(story: Story, families: Sequence[Family]) -> list[Hypothesis]:
    """Return what may have ended the job, the likeliest first; none if nothing did."""
    findings = [*of_rules(story)]
    for family in families:
        findings += family.find(story)
    first_error = first(story.faults())
    merged = explained([merge(story, found) for found in by_cause(findings)])
    enough = any(one.kind is Kind.CAUSE for one in merged)
    ranked = []
    for one in merged:
        confidence = one.confidence
        if enough and one.kind is not Kind.CAUSE:
            confidence *= SHADOWED
        if first_error in one.evidence:
            confidence += FIRST
        ranked.append(replace(one, confidence=round(min(MOST, confidence), 2)))
    ranked.sort(key=lambda one: (-one.confidence, place(one)))
    return [
        *ranked[:1],
        *(replace(one, confidence=min(one.confidence, BESIDE)) for one in ranked[1:]),
    ]


def explained(found: Sequence[Hypothesis]) -> list[Hypothesis]:
    """Return hypotheses without the exception that another one explains by the same line."""
    told = {
        (seen.file, seen.line)
        for one in found
        if one.cause != RAISED_BY_PROGRAM
        for seen in one.evidence
    }
    return [
        one
        for one in found
        if one.cause != RAISED_BY_PROGRAM
        or (one.evidence[0].file, one.evidence[0].line) not in told
    ]


def place(one: Hypothesis) -> tuple[str, int]:
    """Return where it stands among others that are as likely: the earlier is first."""
    lines = first(one.evidence)
    return (lines.time, lines.order) if lines else ("", 0)


def of_rules(story: Story) -> Iterable[Finding]:
    """Yield what single lines tell, once for each rule and each way in which it says it."""
    found: dict[tuple[int, str], list[Seen]] = {}
    for seen in story.faults():
        if seen.rule.cause:
            found.setdefault((id(seen.rule), filled(seen.rule.says, seen, story)), []).append(seen)
    for (_, says), lines in found.items():
        lines.sort(key=lambda seen: (seen.file, seen.order))
        seen = first(lines) or lines[0]
        rule = seen.rule
        yield Finding(
            cause=filled(rule.cause, seen, story),
            kind=rule.kind,
            says=says,
            confidence=rule.confidence,
            fix=filled(rule.fix, seen, story),
            evidence=(seen, *(one for one in lines if one is not seen)),
            confirm=filled(rule.confirm, seen, story),
            checks=rule.checks,
        )


class Told(dict[str, Any]):
    """What a line tells; what it does not is told so."""

    def __missing__(self, key: str) -> str:
        return f"an unknown {key.replace('_', ' ')}"


def filled(text: str, seen: Seen, story: Story) -> str:
    """Return a rule's text with what its line has told in place of `{name}`."""
    node = story.node_of(seen.who) or "its node"
    told = Told(seen.told, who=story.called(seen.who), node=node)
    return Formatter().vformat(text, (), told)


def by_cause(findings: Iterable[Finding]) -> Iterable[list[Finding]]:
    """Return the findings of each cause, the strongest first."""
    found: dict[str, list[Finding]] = {}
    for one in findings:
        found.setdefault(one.cause, []).append(one)
    for ones in found.values():
        yield sorted(ones, key=strength)


def strength(finding: Finding) -> tuple[int, float, int]:
    """Return by what the findings of one cause are sorted."""
    line = first(finding.evidence)
    return -finding.kind, -finding.confidence, line.order if line else 0


def merge(story: Story, findings: Sequence[Finding]) -> Hypothesis:
    """Return what the findings of one cause say together: the strongest has the word."""
    best = findings[0]
    lines = [line for finding in findings for line in finding.evidence]
    ranks, nodes = next(
        filter(any, (story.owners(some) for some in (best.evidence, lines))), ((), ())
    )
    checks = [best.cause, *(name for finding in findings for name in finding.checks)]
    return Hypothesis(
        cause=best.cause,
        kind=best.kind,
        says=best.says,
        confidence=best.confidence,
        fix=best.fix,
        confirm=best.confirm,
        checks=tuple(dict.fromkeys(name for name in checks if not name.startswith("job."))),
        ranks=best.ranks or ranks,
        nodes=best.nodes or nodes,
        evidence=tuple(unique(lines)[:EVIDENCE]),
    )


def unique(lines: Iterable[Seen]) -> list[Seen]:
    """Return lines each once, of different ranks first."""
    found: dict[tuple[str, int], Seen] = {}
    for line in lines:
        found.setdefault((line.file, line.line), line)
    fresh: dict[object, Seen] = {}
    rest = []
    for line in found.values():
        if line.who in fresh:
            rest.append(line)
        else:
            fresh[line.who] = line
    return [*fresh.values(), *rest]


def stage(story: Story) -> str:
    """Return how far the job was when it failed, or how far it came; empty if nothing tells."""
    error = first(story.faults())
    if error and error.rule.stage:
        return filled(error.rule.stage, error, story)
    best: tuple[int, Seen | None] = (-1, None)
    for seen in story.events():
        known = [n for n, name in enumerate(STAGES) if seen.rule.stage.startswith(name)]
        if known and known[-1] > best[0]:
            best = known[-1], seen
    return filled(best[1].rule.stage, best[1], story) if best[1] else ""


STAGES = ("launch", "rendezvous", "bootstrap", "transport setup", "collective", "exit")
