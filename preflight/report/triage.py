"""What ended a job, for people."""

from __future__ import annotations

from rich.text import Text

from preflight.report.page import Page
from preflight.triage.model import Cause, Error, Evidence, Moment, Triage

OTHERS = 3
"""Hypotheses that are shown in full; of the others the first line."""
LINES = 2
"""Of evidence; all with --verbose."""
SURE, LIKELY = 0.8, 0.5


def render(answer: Triage, width: int, encoding: str, verbose: bool) -> Text:
    """Return it for a terminal of this width."""
    page = Page(width, encoding)
    page.line((counted(answer), "dim"))
    page.blank()
    page.wrap(answer.headline, indent=0, style="bold red" if answer.hypotheses else "bold")
    if answer.stage:
        page.wrap(f"at {answer.stage}" + first_error(answer.first_error), indent=0, style="dim")
    for number, cause in enumerate(answer.hypotheses, 1):
        if number > OTHERS and not verbose:
            rest = len(answer.hypotheses) - OTHERS
            page.blank()
            page.wrap(f"{rest} less likely: preflight triage --verbose shows all", style="dim")
            break
        show_cause(page, number, cause, verbose)
    if answer.timeline and answer.hypotheses:
        page.title("What happened")
        for moment in answer.timeline:
            show_moment(page, moment)
    if answer.untold:
        page.title("What these logs cannot tell")
        for text in answer.untold:
            page.wrap(text)
    return page.text()


def counted(answer: Triage) -> str:
    """Return what was read."""
    words = [f"{answer.files} file{'s' if answer.files != 1 else ''}"]
    if answer.launches > 1:
        words.append(f"{answer.launches} launches, the last that failed is told of")
    if answer.ranks:
        words.append(f"{len(answer.ranks)} ranks")
    return ", ".join(words)


def first_error(error: Error | None) -> str:
    """Return whose error was the first."""
    if error is None:
        return ""
    who = f"rank {error.rank}" if error.rank is not None else ""
    where = f"on {error.node}" if error.node else ""
    words = " ".join(filter(None, [who, where, f"at {error.time}" if error.time else ""]))
    return f"; first error: {words} ({error.file}:{error.line})" if words else ""


def show_cause(page: Page, number: int, cause: Cause, verbose: bool) -> None:
    """Show a hypothesis."""
    page.blank()
    page.heading(str(number), certainty(cause.confidence), cause.summary, cause.cause)
    if cause.confirmed:
        page.wrap(CONFIRMED[cause.confirmed], label="seen:")
    for line in cause.evidence if verbose else cause.evidence[:LINES]:
        show_line(page, line)
    if cause.confirm and not cause.confirmed:
        page.wrap(cause.confirm, label="see:")
    if cause.fix:
        page.wrap(cause.fix, label="fix:")


CONFIRMED = {
    "yes": "the cluster confirms it",
    "no": "the cluster does not show it now",
    "unknown": "the cluster could not be asked",
}


def certainty(confidence: float) -> str:
    """Return a confidence in words."""
    return "sure" if confidence >= SURE else "likely" if confidence >= LIKELY else "possible"


def show_line(page: Page, line: Evidence) -> None:
    """Show a line of a log."""
    page.wrap(f"{line.file}:{line.line}: {line.text}", style="dim", most=300)


def show_moment(page: Page, moment: Moment) -> None:
    """Show something that happened."""
    who = f"rank {moment.rank}" if moment.rank is not None else moment.node or ""
    when = (moment.time or "").removeprefix("0000-")
    page.wrap(
        f"{moment.text} ({moment.file}:{moment.line})", label=f"{when} {who}".strip(), most=200
    )
