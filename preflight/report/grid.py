"""The grid node x group for people, and how much of the nodes was checked."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len

from preflight.api import FAIL, SKIP
from preflight.judge import REACH
from preflight.report.folding import out_of, some
from preflight.report.grouping import by
from preflight.report.model import Report
from preflight.report.page import Page

WORDS = {SKIP: "-", "pass": "ok", "waived": "waived", "warn": "warn", "unknown": "?", FAIL: "FAIL"}
"""What stands in the grid, in order of gravity."""
GRAVITY = list(WORDS.values())
STYLES = {"ok": "green", "waived": "yellow", "warn": "yellow", "?": "magenta", "FAIL": "bold red"}
NEEDS_ROOT = "needs root"
GAP = 1
"""Between columns: nine groups and a label then fit in 80."""
LEAST_LABEL = 14
"""Columns for a row's name that the grid leaves free, if any name needs them."""
MOST_ROWS = 12
"""Rows of unlike nodes; what is wrong with each stands above the grid anyway."""
MOST_COUNTS = 4
"""Different numbers of checks that are told one by one."""
MOST_SKIPS = 8
"""Reasons for skipping that are told one by one."""


def matrix(page: Page, report: Report) -> None:
    """Write a row for each set of nodes that are alike, trouble first."""
    groups = list(by(report.checks, lambda check: group_of(check.id)))
    rows = alike(report, groups)
    ran = [at for at in range(len(groups)) if any(words[at] != "-" for words, _ in rows)]
    if not ran:
        return
    page.blank()
    shown = rows[:MOST_ROWS]
    others = sum(map(healthy, (words for words, _ in rows))) == 1 < len(rows)
    labels = [
        f"{len(nodes)} others"
        if others and healthy(words) and len(nodes) > 1
        else out_of(nodes, len(report.nodes))
        for words, nodes in shown
    ]
    columns = [[groups[at], *(words[at] for words, _ in shown)] for at in ran]
    widest = max(map(cell_len, labels))
    for some_columns in fitting(columns, page.width - min(widest, LEAST_LABEL) - 2):
        table(page, ["", *labels], some_columns)
    if len(shown) < len(rows):
        rest = [n for _, nodes in rows[MOST_ROWS:] for n in nodes]
        page.wrap(f"and {len(rest)} nodes unlike these: {some(rest)}", indent=0)


def alike(report: Report, groups: Sequence[str]) -> list[tuple[tuple[str, ...], list[str]]]:
    """Return the words of each row and the nodes it is of, those in most trouble first."""
    worst: dict[tuple[str, str], str] = {}
    for r in report.results:
        place = (r.node, group_of(r.check))
        word = WORDS["waived" if r.waived else r.status]
        worst[place] = max(word, worst.get(place, "-"), key=GRAVITY.index)
    rows = by(
        (node.name for node in report.nodes),
        lambda name: tuple(worst.get((name, group), "-") for group in groups),
    )
    return sorted(
        rows.items(), key=lambda row: sorted(map(GRAVITY.index, row[0]), reverse=True), reverse=True
    )


def healthy(words: Sequence[str]) -> bool:
    """Whether a row is of nodes without trouble."""
    return "ok" in words and set(words) <= {"ok", "-"}


def fitting(columns: Sequence[list[str]], room: int) -> list[list[list[str]]]:
    """Return the columns in as many tables as their width takes."""
    tables: list[list[list[str]]] = [[]]
    left = room
    for column in columns:
        width = max(map(cell_len, column)) + GAP
        if tables[-1] and width > left + GAP:
            tables.append([])
            left = room
        tables[-1].append(column)
        left -= width
    return tables


def table(page: Page, labels: Sequence[str], columns: Sequence[list[str]]) -> None:
    """Write some columns of the grid; a label too wide for them has a line of its own."""
    widths = [max(map(cell_len, column)) + GAP for column in columns]
    margin = min(max(map(cell_len, labels)) + 2, page.width - sum(widths) + GAP)
    for row, name in enumerate(labels):
        words = [column[row] for column in columns]
        if cell_len(name) > margin - 2:
            page.wrap(name, indent=0)
        start = name if cell_len(name) <= margin - 2 else ""
        cells = [
            (word + " " * (width - cell_len(word)), STYLES.get(word, "") if row else "dim")
            for word, width in zip(words, widths, strict=True)
        ]
        page.line((start + " " * (margin - cell_len(start)), ""), *trimmed(cells))


def trimmed(cells: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return a line's cells without the blanks after the last word."""
    return [*cells[:-1], (cells[-1][0].rstrip(), cells[-1][1])]


def group_of(check_id: str) -> str:
    """Return a check's group."""
    return check_id.split(".", maxsplit=1)[0]


def coverage(page: Page, report: Report) -> None:
    """Write how many checks ran where, and why not the others; nodes not reached are left out."""
    lost = {r.node for r in report.results if r.check == REACH and r.status == FAIL}
    nodes = [node for node in report.nodes if node.name not in lost]
    if not nodes:
        return
    page.blank()
    total = len(nodes)
    counts = by(nodes, lambda node: (node.coverage.ran, node.coverage.ran + node.coverage.skipped))
    everywhere = out_of([node.name for node in nodes], total)
    if lost and total > 1:
        everywhere = f"the {total} nodes reached"
    parts = []
    for (ran, of), same in sorted(counts.items(), reverse=True):
        where = everywhere if len(same) == total else some([node.name for node in same])
        parts.append(f"{f'{ran} of' if ran < of else 'all'} {of} checks ran on {where}")
    if len(parts) > MOST_COUNTS:
        low, high = min(counts)[0], max(counts)[0]
        parts = [f"{low} to {high} of {len(report.checks)} checks ran on {total} nodes"]
    skips = skipped(report, {node.name for node in nodes})
    line = "; ".join([*parts, *skips])
    if len(skips) == len(parts) == 1 and cell_len(line) <= page.width:
        parts, skips = [line], []
    page.wrap("; ".join(parts), indent=0)
    for skip in skips[:MOST_SKIPS]:
        page.wrap(skip)
    if len(skips) > MOST_SKIPS:
        more = len(skips) - MOST_SKIPS
        page.wrap(f"and {more} more reason{'s' * (more > 1)}; -v shows them")


def skipped(report: Report, reached: set[str]) -> list[str]:
    """Return what was skipped, by reason and nodes."""
    rows = [r for r in report.results if r.status == SKIP and r.node in reached]
    by_check = by(rows, lambda r: (r.check, r.summary))
    nodes_of = {key: tuple(r.node for r in same) for key, same in by_check.items()}
    lines = []
    for (reason, nodes), keys in by(nodes_of, lambda key: (key[1], nodes_of[key])).items():
        ids = [check for check, _ in keys]
        where = "" if len(nodes) == len(reached) else f" (on {some(nodes)})"
        if reason == NEEDS_ROOT:
            need = "needs" if len(ids) == 1 else "need"
            lines.append(f"{len(ids)} {need} root{where}: {' '.join(ids)}")
        else:
            lines.append(f"{' '.join(whole_groups(ids, report))} skipped{where}: {reason}")
    return lines


def whole_groups(ids: Sequence[str], report: Report) -> list[str]:
    """Return check ids, those of a group that is there entirely as `gpu.*`."""
    every = by((check.id for check in report.checks), group_of)
    words: list[str] = []
    for group, members in by(ids, group_of).items():
        whole = len(members) == len(every.get(group, ())) > 1
        words += [f"{group}.*"] if whole else members
    return words
