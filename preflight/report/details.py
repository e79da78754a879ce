"""Every result, for those who asked."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from preflight.report.curves import curve
from preflight.report.folding import folded, out_of
from preflight.report.grid import STYLES, WORDS
from preflight.report.grouping import by
from preflight.report.model import Report, Result
from preflight.report.page import INDENT, MOST, Page

WIDEST_WORD = max(map(len, WORDS.values()))
INSIDE = INDENT + WIDEST_WORD + 1


def details(page: Page, report: Report) -> None:
    """Write the results of each check, nodes of which the same is said together."""
    page.title("every result")
    claims = {check.id: check.claim for check in report.checks}
    for check, rows in by(report.results, lambda r: r.check).items():
        page.wrap(claims.get(check, ""), check + " ", indent=0, style="dim", label_style="bold")
        for same in by(rows, alike).values():
            result(page, same, len(report.nodes))
        curve(page, report, check, [row.node for row in rows], True, INSIDE)


def alike(row: Result) -> tuple[str, ...]:
    """Return all that is said of a node."""
    said = (row.status, row.summary, row.observed, row.expected, row.details, str(row.waived))
    return tuple(map(compact, said))


def result(page: Page, same: Sequence[Result], total: int) -> None:
    """Write what is said of some nodes."""
    row = same[0]
    word = WORDS[row.status]
    nodes = [r.node for r in same]
    who = out_of(nodes, total) if len(nodes) == total else folded(nodes)
    text, most = f"{who}: {row.summary}", MOST + len(who)
    page.wrap(text, word.ljust(WIDEST_WORD), label_style=STYLES.get(word, ""), most=most)
    if row.observed is not None or row.expected is not None:
        parts = {"observed": row.observed, "expected": row.expected}
        said = [f"{name} {compact(value)}" for name, value in parts.items() if value is not None]
        page.wrap(", ".join(said), indent=INSIDE, style="dim")
    if row.waived:
        page.wrap(f"waived until {row.waived.until} by {row.waived.owner}", indent=INSIDE)
    for text in row.details:
        for line in text.rstrip("\n").split("\n"):
            page.keep(line, INSIDE)


def compact(value: Any) -> str:
    """Return a value on one line, text as it is."""
    return value if isinstance(value, str) else json.dumps(value, default=str)
