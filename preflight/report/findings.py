"""What is wrong, for people: causes, what waits for its waiver's end, warnings, what is unknown."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from preflight.api import FAIL, UNKNOWN, WARN
from preflight.catalog import Manual
from preflight.judge import REACH
from preflight.report import curves, pairs
from preflight.report.folding import out_of, some
from preflight.report.grouping import by
from preflight.report.model import Cause, Report, Result
from preflight.report.page import Page, is_command

BULLET = "-"
MOST_CAUSES = 20
"""Shown in full; a person mends the first few and runs again."""
MOST_NOTES = 10
"""Warnings, or things unknown, shown one by one; for the same reason."""
MOST_CONSEQUENCES = 4
"""Sets of nodes named among the consequences of one cause."""


@dataclass(frozen=True)
class Found:
    """A cause with the results it is made of."""

    cause: Cause
    own: Sequence[Result]
    followers: Sequence[Result]

    @property
    def counts(self) -> bool:
        """Whether something of it is not waived."""
        return not self.own or any(not r.waived for r in (*self.own, *self.followers))

    @property
    def nodes(self) -> list[str]:
        """The nodes to blame, without those whose failure is waived if others' is not."""
        waived = {r.node for r in self.own if r.waived}
        return [n for n in self.cause.nodes if n not in waived] or self.cause.nodes

    @property
    def live(self) -> list[Result]:
        """The own results of the nodes to blame."""
        blamed = set(self.nodes)
        return [r for r in self.own if r.node in blamed]


def causes(page: Page, report: Report, manuals: Mapping[str, Manual], verbose: bool) -> None:
    """Write the causes that count, what explains most first."""
    cells = {(r.check, r.node): r for r in report.results if r.status == FAIL}
    live = [found for cause in report.causes if (found := collect(cause, cells)).counts]
    shown = live if verbose else live[:MOST_CAUSES]
    explained: set[str] = set()
    for number, found in enumerate(shown, 1):
        page.blank()
        check = found.cause.check
        page.heading(str(number), who(found, report), summary(found), check)
        pairs.matrix(page, found.cause.pairs, [node.name for node in report.nodes])
        curves.curve(page, report, check, found.nodes, verbose)
        consequences(page, found, report)
        if check in manuals and check not in explained:
            page.wrap(first_sentence(manuals[check].why), "why:")
        explained.add(check)
        mend(page, found)
    rest = live[len(shown) :]
    if rest:
        page.blank()
        page.wrap(f"and {len(rest)} more causes; -v shows them", indent=0)
    for check, more in by(rest, lambda found: found.cause.check).items():
        page.wrap(f"{check} on {some(list(dict.fromkeys(n for f in more for n in f.nodes)))}")


def collect(cause: Cause, cells: Mapping[tuple[str, str], Result]) -> Found:
    """Return a cause with its failing results."""
    own = [cells[cause.check, n] for n in cause.nodes if (cause.check, n) in cells]
    after = [cells[e.check, e.node] for e in cause.explains if (e.check, e.node) in cells]
    return Found(cause, own, after)


def who(found: Found, report: Report) -> str:
    """Return whom a cause is about."""
    cause = found.cause
    if cause.kind == "pair" and len(cause.nodes) == 2:
        return " and ".join(cause.nodes)
    if cause.kind == "cluster":
        return "cluster"
    return out_of(found.nodes, len(report.nodes))


def summary(found: Found) -> str:
    """Return what is wrong; where nodes say it with other figures, whose words these are."""
    live = found.live
    if found.cause.kind == "node" and len({r.summary for r in live}) > 1:
        return f"{live[0].summary} ({live[0].node}; the others alike)"
    return live[0].summary if live else found.cause.summary


def consequences(page: Page, found: Found, report: Report) -> None:
    """Write what follows from a cause."""
    nodes_of: dict[str, list[str]] = {}
    for r in found.followers:
        nodes_of.setdefault(r.check, []).append(r.node)
    parts = []
    for nodes, checks in by(nodes_of, lambda check: tuple(nodes_of[check])).items():
        fail = "fails" if len(checks) == 1 else "fail"
        parts.append(f"{listed(checks)} {fail} on {out_of(nodes, len(report.nodes))}")
    if len(parts) > MOST_CONSEQUENCES:
        checks = list(nodes_of)
        nodes = tuple(dict.fromkeys(r.node for r in found.followers))
        parts = [f"{listed(checks)} fail on {out_of(nodes, len(report.nodes))}"]
    if found.cause.check == REACH and not any(r.waived for r in found.own):
        parts.append("nothing else could be checked there")
    if parts:
        page.wrap("; ".join(parts), "so:")
    if found.own and all(r.waived for r in found.own):
        page.wrap("this is waived; what follows from it is not", "but:")


def mend(page: Page, found: Found) -> None:
    """Write how to mend a cause, and how to see it by hand."""
    live = found.live or list(found.own)
    fix = live[0].fix if live else found.cause.fix
    where = ""
    if found.cause.kind == "pair" and live:
        where = f"on {some([r.node for r in live])}:"
    else:
        where = on_each(found.cause.check, live)
    if fix:
        remedy(page, fix, where)
    if live and live[0].reproduce:
        page.command(live[0].reproduce, "see:", where if found.cause.kind == "pair" else "")


def on_each(check: str, rows: Sequence[object]) -> str:
    """Return where the same fix goes for several nodes; a login is mended on this machine."""
    return "on each of these nodes:" if len(rows) > 1 and check != REACH else ""


def remedy(page: Page, fix: str, where: str) -> None:
    """Write a fix: commands to copy as they are, prose in lines."""
    if is_command(fix):
        page.command(fix, "fix:", where)
    else:
        page.wrap(fix, "fix:")


def waived(page: Page, report: Report, today: dt.date) -> None:
    """Write the failures that someone answers for, and the waivers that have ended."""
    rows = [r for r in report.results if r.waived]
    if rows:
        page.title("waived")
    for (check, said, waiver), same in by(rows, lambda r: (r.check, r.summary, r.waived)).items():
        page.heading(BULLET, out_of([r.node for r in same], len(report.nodes)), said, check)
        if waiver:
            page.wrap(f"until {waiver.until} by {waiver.owner}: {waiver.reason}")
    over = report.want.expired(today)
    if over:
        strict = ", and count as failures in this run" if report.want.fail_on == WARN else ""
        page.title("expired waivers, which waive nothing" + strict)
    for w in over:
        names = [w["node"]] if "node" in w else [node.name for node in report.nodes]
        who = out_of(names, len(report.nodes))
        page.heading(BULLET, who, "until {until} by {owner}: {reason}".format(**w), w["check"])


def warnings(page: Page, report: Report, verbose: bool) -> None:
    """Write the warnings."""
    rows = [r for r in report.results if r.status == WARN]
    if rows:
        strict = ", which count as failures in this run" if report.want.fail_on == WARN else ""
        page.title("warnings" + strict)
        notes(page, rows, report, verbose)


def unknowns(page: Page, report: Report, verbose: bool) -> None:
    """Write what could not be told, and why."""
    rows = [r for r in report.results if r.status == UNKNOWN]
    if rows:
        traces = any(r.details for r in rows) and not verbose
        page.title("could not be told" + (" (-v shows details)" if traces else ""))
    notes(page, rows, report, verbose)


def notes(page: Page, rows: Sequence[Result], report: Report, verbose: bool) -> None:
    """Write results, those that say the same of several nodes or checks together."""
    same = by(rows, lambda r: (r.check, r.summary, r.fix))
    nodes_of = {key: tuple(r.node for r in some_rows) for key, some_rows in same.items()}
    blocks = by(same, lambda key: (key[1], key[2], nodes_of[key]))
    shown = list(blocks.items()) if verbose else list(blocks.items())[:MOST_NOTES]
    for (said, fix, nodes), keys in shown:
        checks = [key[0] for key in keys]
        right = checks[0] if len(checks) == 1 else f"{len(checks)} checks"
        page.heading(BULLET, out_of(nodes, len(report.nodes)), said, right)
        if len(checks) > 1:
            page.wrap(" ".join(checks), style="dim")
        curves.curve(page, report, checks[0], nodes, verbose)
        if fix:
            remedy(page, fix, on_each(checks[0], nodes))
    if len(shown) < len(blocks):
        page.wrap(f"and {len(blocks) - len(shown)} more; -v shows them")


def first_sentence(text: str) -> str:
    """Return it, on one line."""
    flat = " ".join(text.split())
    end = flat.find(". ")
    return flat if end < 0 else flat[: end + 1]


def listed(words: Sequence[str]) -> str:
    """Return `a`, `a and b`, or `a, b and c`."""
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))
