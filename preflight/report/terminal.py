"""The report for people, on a terminal or in a file: 80 columns and up, with or without colour."""

from __future__ import annotations

import datetime as dt
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence

from rich.console import Console
from rich.text import Text

from preflight.api import SKIP, UNKNOWN, WARN
from preflight.catalog import ALWAYS, Manual
from preflight.report.details import details
from preflight.report.findings import causes, listed, unknowns, waived, warnings
from preflight.report.folding import folded, out_of
from preflight.report.grid import coverage, matrix
from preflight.report.grouping import by
from preflight.report.model import Report, Result
from preflight.report.page import Page

NARROWEST, WIDEST = 40, 120
"""Columns. Longer lines are hard to read, and the check's id would stand far from its summary."""
TITLES = {
    "ready": ("READY", "bold green"),
    "not_ready": ("NOT READY", "bold red"),
    "undetermined": ("UNDETERMINED", "bold magenta"),
}
COULD_NOT = " could not be told of"
MOST_OF_VERDICT = 2000
"""Characters: the ready nodes are what people copy."""


def show(
    report: Report, color: bool, verbose: bool, manuals: Mapping[str, Manual], today: dt.date
) -> None:
    """Print it; `manuals` by check id say why a check matters."""
    put(lambda width, encoding: render(report, width, verbose, manuals, today, encoding), color)


def put(drawn: Callable[[int, str], Text], color: bool) -> None:
    """Print what is drawn for the width and encoding of standard output."""
    # Asks for the width of standard output alone, and takes 80 where that is no terminal.
    width = min(max(shutil.get_terminal_size().columns, NARROWEST), WIDEST)
    console = Console(color_system="auto" if color else None, highlight=False)
    text = drawn(width, console.encoding)
    # Not printed by rich: it exits with the code of `not ready` when the reader goes away.
    with console.capture() as capture:
        console.print(text, soft_wrap=True)
    sys.stdout.write(capture.get())
    sys.stdout.flush()


def render(
    report: Report,
    width: int,
    verbose: bool,
    manuals: Mapping[str, Manual],
    today: dt.date,
    encoding: str = "utf-8",
) -> Text:
    """Return the report's lines, none wider than `width` but for commands to copy."""
    page = Page(width, encoding)
    header(page, report)
    page.blank()
    verdict(page, report, today)
    causes(page, report, manuals, verbose)
    unknowns(page, report, verbose)
    warnings(page, report, verbose)
    waived(page, report, today)
    matrix(page, report)
    coverage(page, report)
    if verbose:
        details(page, report)
    return page.text()


def header(page: Page, report: Report) -> None:
    """Write what was checked, how deep and how long it took."""
    run, count = report.run, len(report.nodes)
    nodes = f"{count} node{'s' * (count != 1)}"
    page.wrap(f"{run.cluster}, {nodes}, {run.level} level, {duration(run.seconds)}", indent=0)


def duration(seconds: float) -> str:
    """Return a time for people."""
    if seconds >= 120:
        return f"{seconds // 60:.0f} min {seconds % 60:.0f} s"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def verdict(page: Page, report: Report, today: dt.date) -> None:
    """Write the verdict, and of how many and which nodes it is the other way."""
    title, style = TITLES[report.verdict]
    parts = one_node(report) if len(report.nodes) == 1 else many_nodes(report)
    ended = len(report.want.expired(today))
    if ended:
        parts.append(f"{ended} waiver{'s have' if ended > 1 else ' has'} expired")
    page.wrap("; ".join(parts), title + " ", indent=0, label_style=style, most=MOST_OF_VERDICT)


def one_node(report: Report) -> list[str]:
    """Return what is said of a single node, in parts."""
    name = report.nodes[0].name
    if report.verdict == "not_ready":
        return [f"{name} is not ready"]
    return (
        [f"{name} is ready{reservations(report)}"] if report.verdict == "ready" else open_(report)
    )


def many_nodes(report: Report) -> list[str]:
    """Return what is said of several nodes, in parts, first what decides."""
    total = len(report.nodes)
    names = [node.name for node in report.nodes if node.verdict == "ready"]
    if len(names) == total:
        return [f"{out_of(names, total)} are ready{reservations(report)}"]
    are = "is" if len(names) == 1 else "are"
    ready = f"none of {total} nodes is ready"
    if names:
        ready = f"{len(names)} of {total} nodes {are} ready: {folded(names)}"
    parts = [ready, *open_(report)]
    if report.verdict == "ready":
        return [ready, reservations(report).removeprefix(", "), *parts[1:]]
    return parts if report.verdict == "not_ready" else [*parts[1:], ready]


def reservations(report: Report) -> str:
    """Return what a reader who stops at `ready` should know."""
    waived = sum(r.waived is not None for r in report.results)
    return "".join(
        (
            f", {waived} failure{'s' * (waived > 1)} waived" if waived else "",
            ", with warnings" if any(r.status == WARN for r in report.results) else "",
        )
    )


def open_(report: Report) -> list[str]:
    """Return of which nodes what could not be told, in parts."""
    total = len(report.nodes)
    rows = by(report.results, lambda r: r.node)
    reasons: dict[str, list[str]] = {}
    unclear: dict[str, None] = {}
    for node in report.nodes:
        if node.verdict == "undetermined":
            reasons.setdefault(
                reason(rows.get(node.name, ()), report.want.require, unclear), []
            ).append(node.name)
    what = f"{len(unclear)} checks" if len(unclear) > 2 else listed(list(unclear))
    return [f"{why or what + COULD_NOT} {out_of(names, total)}" for why, names in reasons.items()]


def reason(rows: Sequence[Result], required: Sequence[str], unclear: dict[str, None]) -> str:
    """Return why a node is undetermined, or note the checks that could not tell."""
    found = [r.check for r in rows if r.status == UNKNOWN]
    unclear.update(dict.fromkeys(found))
    if found:
        return ""
    told = {r.check for r in rows if r.status != SKIP}
    if all(check.startswith(f"{ALWAYS}.") for check in told):
        return "no check judged"
    missing = [check for check in required if check not in told]
    verb = "which is" if len(missing) == 1 else "which are"
    return f"{listed(missing)}, {verb} required, said nothing on"
