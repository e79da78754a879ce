"""What came of pairs of nodes, as a small matrix for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from string import ascii_lowercase

from rich.cells import cell_len

from preflight.report.page import INDENT, Page

MOST_NODES = 16
"""Of a matrix: more is a wall of dots, and the JSON report has it all."""
MARKS = "xo#%"
"""For what came of pairs, the commonest first; the last is for all the rest."""
MOST_WORDS = 40
"""Columns for what a mark means."""


def matrix(page: Page, pairs: Mapping[str, Mapping[str, str]], nodes: Sequence[str]) -> None:
    """Write who did not reach whom: rows towards columns. Nothing for a single pair."""
    counts = Counter(word for row in pairs.values() for word in row.values())
    widest = max(map(cell_len, nodes), default=0)
    if counts.total() < 2 or len(nodes) > MOST_NODES or 2 * len(nodes) + widest > page.width // 2:
        return
    words = [word for word, _ in counts.most_common()]
    mark = {word: MARKS[min(at, len(MARKS) - 1)] for at, word in enumerate(words)}
    legend = [f"{mark[word]} {word[:MOST_WORDS]}" for word in words[: len(MARKS)]]
    page.wrap("row towards column: " + "; ".join([*legend, ". fine"]))
    letters = ascii_lowercase[: len(nodes)]
    page.line((" " * (INDENT + widest + 4) + " ".join(letters), "dim"))
    for letter, node in zip(letters, nodes, strict=True):
        row = pairs.get(node, {})
        cells = ["-" if other == node else mark.get(row.get(other, ""), ".") for other in nodes]
        begin = " " * INDENT + node + " " * (widest - cell_len(node)) + f"  {letter} "
        page.line((begin, "dim"), (" ".join(cells), ""))
