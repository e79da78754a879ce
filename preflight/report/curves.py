"""Bandwidth over message size, as a small table with bars for people."""

from __future__ import annotations

from collections.abc import Sequence

from preflight.api import TOGETHER
from preflight.report.model import Point, Report
from preflight.report.page import INDENT, Page

MOST_ROWS = 12
"""Sizes shown: nccl-tests has thirty from 8 B to 8 GiB, each little unlike the next."""
WIDEST_BAR = 40
HEAD = ("size", "ms", "busbw GB/s")
UNITS = ("B", "KiB", "MiB", "GiB")


def curve(
    page: Page,
    report: Report,
    check: str,
    nodes: Sequence[str],
    verbose: bool,
    indent: int = INDENT,
) -> None:
    """Write the slowest of a check's curves of some nodes, or that of all of them together."""
    known = report.curves.get(check, {})
    found = {node: known[node] for node in (TOGETHER, *nodes) if known.get(node)}
    if not found:
        return
    node = min(found, key=lambda one: fastest(found[one]))
    points = found[node] if verbose else some(found[node])
    numbers = [(sized(one.bytes), figure(one.ms), figure(one.busbw)) for one in points]
    widths = [max(map(len, column)) for column in zip(HEAD, *numbers, strict=True)]
    room = min(WIDEST_BAR, page.width - indent - sum(widths) - 2 * len(widths))
    margin = " " * indent
    whose = "" if node == TOGETHER else f"  on {node}"
    page.line((margin + row(HEAD, widths) + whose, "dim"))
    for point, cells in zip(points, numbers, strict=True):
        bar = "#" * round(room * point.busbw / (fastest(points) or 1))
        page.line((margin + row(cells, widths), ""), (f"  {bar}" if bar else "", "cyan"))


def row(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Return numbers in columns, aligned to the right."""
    return "  ".join(c.rjust(w) for c, w in zip(cells, widths, strict=True))


def figure(number: float) -> str:
    """Return a number in as many digits as are of use."""
    return f"{number:.0f}" if number >= 1000 else f"{number:.3g}"


def fastest(points: Sequence[Point]) -> float:
    """Return the best of all sizes."""
    return max(point.busbw for point in points)


def some(points: Sequence[Point]) -> Sequence[Point]:
    """Return as many as are shown, the first and the last among them."""
    if len(points) <= MOST_ROWS:
        return points
    step = (len(points) - 1) / (MOST_ROWS - 1)
    return [points[round(step * at)] for at in range(MOST_ROWS)]


def sized(size: float) -> str:
    """Return bytes for people: 64 MiB."""
    for unit in UNITS[:-1]:
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} {UNITS[-1]}"
