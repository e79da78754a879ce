"""The report for people, on a terminal, 80 columns and up, with or without colour."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape

from preflight.errors import printable
from preflight.report.model import Report


def show(report: Report, color: bool, verbose: bool) -> None:
    """Print it."""
    console = Console(no_color=not color, highlight=False)
    console.print(escape(f"{report.verdict} {len(report.nodes)} nodes"))
    for cause in report.causes:
        console.print(
            escape(
                printable(
                    f"{cause.nodes} {cause.check}: {cause.summary} fix: {cause.fix} explains {len(cause.explains)}"
                )
            )
        )
    for r in report.results:
        if verbose or r.status not in ("pass", "skip"):
            console.print(escape(printable(f"{r.status} {r.check} {r.node} {r.summary}")))
