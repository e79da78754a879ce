"""Rules about how a job was launched, as several families write them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from preflight.triage.rule import Kind, Rule

SURE = 0.93


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
    refine: Callable[[Mapping[str, str]], Mapping[str, str] | None] | None = None,
) -> Rule:
    """Return a rule of a line about how the job was launched."""
    return Rule(
        pattern,
        kind,
        cause=name,
        says=says,
        confidence=confidence,
        fix=fix,
        confirm=confirm or f"preflight run --only {name}",
        checks=checks,
        stage="launch",
        refine=refine,
        source=source,
    )
