"""Rules about how a job was launched, as several families write them."""

from __future__ import annotations

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
        source=source,
    )
