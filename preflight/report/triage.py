"""What ended a job, for people: what is to be known first stands first."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from preflight.report.folding import some
from preflight.report.page import Page, is_command
from preflight.triage.model import NOT_KNOWN, Asked, Cause, Error, Evidence, Moment, Shown, Triage

OTHERS = 2
"""Further hypotheses that are shown; all with --verbose."""
LINES = 2
"""Of evidence; all with --verbose."""
SURE, LIKELY = 0.8, 0.5
LONGEST_NAME = 36
"""Characters of a file's name; of a longer one its end is shown."""
NARROWEST = 24
"""Columns of the text of a moment; where there are fewer, its place in the logs is left out."""


@dataclass(frozen=True)
class Files:
    """How files are called: by what follows the folder that all are in; in full with --verbose."""

    folder: str
    verbose: bool

    def place(self, line: Evidence | Error | Moment) -> str:
        """Return where a line is."""
        name = line.file if self.verbose else shortened(line.file.removeprefix(self.folder))
        return f"{name}:{line.line}"


def files(answer: Triage, verbose: bool) -> Files:
    """Return how the files are called of which an answer tells."""
    lines: list[Evidence | Error | Moment] = [*answer.timeline]
    lines += [line for one in answer.hypotheses for line in one.evidence]
    lines += [answer.first_error] if answer.first_error else []
    folders = {posixpath.dirname(line.file) for line in lines}
    common = (
        posixpath.commonpath(folders) if len({name[:1] == "/" for name in folders}) == 1 else ""
    )
    return Files(f"{common}/" if len(common) > 1 else "", verbose)


def render(answer: Triage, width: int, encoding: str, verbose: bool) -> Text:
    """Return it for a terminal of this width."""
    page = Page(width, encoding)
    named = files(answer, verbose)
    page.wrap(counted(answer, named.folder), indent=0, style="dim")
    page.blank()
    if answer.hypotheses:
        show_first(page, answer, named)
        show_others(page, answer.hypotheses, named)
        show_timeline(page, answer.timeline, named)
    else:
        page.wrap(answer.headline, indent=0, style="bold")
        page.wrap(came_to(answer, named), indent=0, style="dim")
    if answer.untold:
        page.title("What to do" if answer.headline == NOT_KNOWN else "What these logs cannot tell")
        for text in answer.untold:
            page.wrap(text)
    if answer.asked:
        show_asked(page, answer.asked)
    if answer.command and (answer.asked is None or answer.asked.unreached):
        page.title("To see whether the cluster shows it")
        page.command(answer.command, "run:")
    return page.text()


def counted(answer: Triage, folder: str) -> str:
    """Return what was read."""
    within = f" in {folder.rstrip('/')}" if folder else ""
    words = [f"{answer.files} file{'s' * (answer.files != 1)}{within}"]
    if answer.launches > 1:
        which = ", told of is the last that failed" if answer.hypotheses else ""
        words.append(f"{answer.launches} launches{which}")
    if answer.ranks:
        words.append(f"{len(answer.ranks)} rank{'s' * (len(answer.ranks) != 1)}")
    nodes = {rank.node for rank in answer.ranks if rank.node}
    if nodes:
        words.append(f"{len(nodes)} node{'s' * (len(nodes) != 1)}")
    return ", ".join(words)


def came_to(answer: Triage, named: Files) -> str:
    """Return how far the job was, and whose error was the first."""
    parts = [f"at {answer.stage}"] if answer.stage else []
    if answer.first_error:
        parts.append(f"the first error is {whose(answer.first_error, named)}")
    return "; ".join(parts)


def whose(error: Error, named: Files) -> str:
    """Return whose an error is, when it was and where it stands."""
    words = [f"of rank {error.rank}" if error.rank is not None else ""]
    words += [f"on {error.node}" if error.node else ""]
    words += [f"at {moment(error.time)}" if error.time else "", f"in {named.place(error)}"]
    return " ".join(filter(None, words))


def moment(time: str) -> str:
    """Return a time as it was told; a year that was not is left out."""
    return time.removeprefix("0000-").replace("T", " ")


def shortened(name: str) -> str:
    """Return a file's name, of a long one the folders that it ends with."""
    if len(name) <= LONGEST_NAME:
        return name
    *folders, last = name.split("/")
    while folders and len(f".../{folders[-1]}/{last}") <= LONGEST_NAME:
        last = f"{folders.pop()}/{last}"
    return f".../{last}" if len(last) <= LONGEST_NAME else f"...{last[3 - LONGEST_NAME :]}"


def certainty(cause: Cause) -> str:
    """Return in words how likely a hypothesis is."""
    if cause.confirmed == "yes":
        return "confirmed"
    return next((word for least, word in CERTAIN if cause.confidence >= least), "possible")


CERTAIN = ((SURE, "sure"), (LIKELY, "likely"))


def show_first(page: Page, answer: Triage, named: Files) -> None:
    """Show what most likely ended the job."""
    cause = answer.hypotheses[0]
    label = f"{certainty(cause).upper()} "
    page.wrap(answer.headline, label, 0, "bold", label_style="bold red")
    page.wrap("; ".join(filter(None, [cause.cause, came_to(answer, named)])), indent=0, style="dim")
    page.blank()
    show_reasons(page, cause, named)


def show_others(page: Page, causes: Sequence[Cause], named: Files) -> None:
    """Show the hypotheses after the first."""
    shown = causes[1:] if named.verbose else causes[1 : 1 + OTHERS]
    if shown:
        page.title("If it was not that")
    for number, cause in enumerate(shown, 2):
        page.blank()
        page.heading(str(number), certainty(cause), cause.summary, cause.cause)
        show_reasons(page, cause, named)
    if rest := len(causes) - 1 - len(shown):
        page.blank()
        page.wrap(f"{rest} less likely: --verbose shows all", style="dim")


def show_reasons(page: Page, cause: Cause, named: Files) -> None:
    """Show what speaks for a hypothesis, what mends it, and what the cluster shows."""
    fixes = [cause.fix]
    if cause.confirmed:
        page.wrap(seen(cause), label="now:")
        fixes = [one.fix or "" for one in cause.shown if cause.confirmed == "yes"] or fixes
    for fix in filter(None, fixes):
        if is_command(fix):
            page.command(fix, "fix:")
        else:
            page.wrap(fix, label="fix:")
    lines = cause.evidence if named.verbose else cause.evidence[:LINES]
    most = 4 * page.width if named.verbose else 2 * page.width - 10
    for line in lines:
        page.wrap(f"{named.place(line)}: {line.text}", style="dim", most=most)
    if more := len(cause.evidence) - len(lines):
        page.wrap(f"and {more} more such line{'s' * (more != 1)}", style="dim")
    if cause.confirm and not cause.confirmed:
        page.wrap(cause.confirm, label="see:")


def seen(cause: Cause) -> str:
    """Return what the cluster shows of a hypothesis."""
    told = "; ".join(map(in_words, cause.shown))
    if cause.confirmed == "yes":
        return f"the cluster shows it: {told}"
    if cause.confirmed == "no":
        return f"the cluster does not show it now, it may have been so then: {told}"
    return f"the cluster cannot tell: {told}" if told else "no check here can tell"


def in_words(shown: Shown) -> str:
    """Return what a check says."""
    if shown.status == "pass":
        return f"{shown.check} passes on {some(shown.nodes)}"
    return f"{some(shown.nodes)}: {shown.summary} ({shown.check})"


def show_timeline(page: Page, moments: Sequence[Moment], named: Files) -> None:
    """Show what happened, a line each."""
    if not moments:
        return
    page.title("What happened")
    times = [page.clean(moment(one.time or "").partition(".")[0][-8:]) for one in moments]
    names = [page.clean(actor(one), 20) for one in moments]
    said = [("" if one.fault or not one.stage else f"{one.stage}: ") + one.text for one in moments]
    wide = max(map(len, times)), max(map(len, names))
    for one, time, name, words in zip(moments, times, names, said, strict=True):
        before = f"   {time:{wide[0]}}{' ' * bool(wide[0])}{name:{wide[1]}} "
        after = page.clean(named.place(one))
        room = page.width - len(before) - len(after) - 1
        after = after if room >= NARROWEST else ""
        text = page.clean(words, room if after else page.width - len(before))
        page.line((before, "dim"), (text, "" if one.fault else "dim"), (f" {after}", "dim"))


def actor(one: Moment) -> str:
    """Return whose a moment is."""
    return f"rank {one.rank}" if one.rank is not None else one.node or ""


def show_asked(page: Page, asked: Asked) -> None:
    """Show whom of the cluster was asked."""
    page.title("Who was asked")
    if asked.nodes:
        page.wrap(f"{some(asked.nodes)}, with {some(asked.peers)} to meet and compare")
    else:
        page.wrap(f"all: {some(asked.peers)}")
    if asked.unreached:
        page.wrap(f"not reached: {some(asked.unreached)}")
    for text in asked.mapped:
        page.wrap(text)
