"""From the grid to what explains it. Pure.

A failing result is explained by another when that one's check says so (`explains=`), neither
verdict says otherwise, and it can be by the nodes that both are about: what is wrong on a node
explains what fails there, and between it and any other; what is wrong between two nodes explains
what fails on either, and between the same two. What is about the whole cluster is explained by
what is wrong anywhere. What remains unexplained is a cause; causes that say the same of several
nodes are one.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from preflight.catalog import Loaded
from preflight.judge import Cell

Place = str | frozenset[str]
"""A node and all that it takes part in, or just these nodes among themselves."""


@dataclass
class Cause:
    """What explains some failing results; `cells` are its own, `explains` those that follow."""

    kind: str
    check: Loaded
    cells: list[Cell]
    explains: list[Cell] = field(default_factory=list)

    @property
    def nodes(self) -> list[str]:
        """The nodes to blame: for a pair both ends; for the cluster all that it is seen on."""
        peers = [p for c in self.cells for p in c.verdict.peers if self.kind == "pair"]
        return list(dict.fromkeys([*(c.node for c in self.cells), *peers]))

    @property
    def summary(self) -> str:
        """What is wrong, in the words of the first node."""
        return self.cells[0].verdict.summary

    @property
    def fix(self) -> str:
        """The command or sentence that mends it."""
        return fix_of(self.cells[0])


def fix_of(cell: Cell) -> str:
    """Return what mends a failing cell: the judge's words, else the docstring's in one line."""
    return cell.verdict.fix or " ".join(cell.check.manual.fix.split())


def find(cells: Sequence[Cell]) -> list[Cause]:
    """Return the causes of all failing cells, that which explains most first."""
    failing = [cell for cell in cells if cell.failed]
    origins = explained_by(failing)
    causes = merged(cell for cell, origin in zip(failing, origins, strict=True) if origin is None)
    owners = {id(cell): cause for cause in causes for cell in cause.cells}
    for cell, origin in zip(failing, origins, strict=True):
        if origin is not None:
            # to the start of the chain; the catalogue admits no circles
            while (before := origins[origin]) is not None:
                origin = before
            owners[id(failing[origin])].explains.append(cell)
    # Equal ones stay in the order of the checks, which goes from the ground up.
    return sorted(causes, key=lambda cause: -(len(cause.explains) + len(cause.cells)))


def explained_by(failing: Sequence[Cell]) -> list[int | None]:
    """Return for each failing cell which of them is the first that accounts for it, if any.

    Looked up and not compared each with each: there may be thousands.
    """
    # The first by source, effect and place; None is anywhere.
    first: dict[tuple[str, str, Place | None], int] = {}
    sources: defaultdict[str, set[str]] = defaultdict(set)
    for number, cell in enumerate(failing):
        source, narrowed = cell.check.id, cell.verdict.explains
        for effect in cell.check.check.explains:
            if effect != source and (narrowed is None or effect in narrowed):
                sources[effect].add(source)
                for place in (None, *reach(cell)):
                    first.setdefault((source, effect, place), number)
    return [
        min(
            (
                first[source, cell.check.id, place]
                for source in sources[cell.check.id]
                if cell.verdict.explained_by is None or source in cell.verdict.explained_by
                for place in ([None] if cell.verdict.scope == "cluster" else places(cell))
                if (source, cell.check.id, place) in first
            ),
            default=None,
        )
        for cell in failing
    ]


def reach(cell: Cell) -> set[Place]:
    """Return the places that what is wrong here can explain: of a pair, itself and each end."""
    if cell.verdict.scope != "pair":
        return {cell.node}
    nodes = about(cell)
    return {nodes, *(frozenset([node]) for node in nodes)}


def places(cell: Cell) -> set[Place]:
    """Return the places that can explain what is wrong here: any of its nodes, or all together."""
    nodes = about(cell)
    return {nodes, *nodes}


def about(cell: Cell) -> frozenset[str]:
    """Return the nodes that a cell is about."""
    peers = cell.verdict.peers if cell.verdict.scope == "pair" else ()
    return frozenset([cell.node, *peers])


def merged(roots: Iterable[Cell]) -> list[Cause]:
    """Return causes; cells that say the same of several nodes become one."""
    causes: dict[str, Cause] = {}
    for cell in roots:
        keys = said(cell)
        new = Cause(cell.verdict.scope, cell.check, [])
        cause = next((causes[key] for key in keys if key in causes), new)
        cause.cells.append(cell)
        for key in keys:
            causes.setdefault(key, cause)
    return list({id(cause): cause for cause in causes.values()}.values())


def said(cell: Cell) -> list[str]:
    """Return what a cell says, in one way or more; it is one with those that say any of it too.

    Of pairs those are one that are of several nodes with the same other, or of the same nodes.
    """
    verdict = cell.verdict
    words = [verdict.observed, verdict.expected, verdict.fix]
    if verdict.observed is None:
        words.append(verdict.summary.replace(cell.node, "NODE"))
    ways: list[object] = [words]
    if verdict.scope == "cluster":
        ways = [None]
    elif verdict.scope == "pair":
        ways = [[words, sorted(who)] for who in (verdict.peers, about(cell))]
    return [json.dumps([cell.check.id, verdict.scope, one], default=str) for one in ways]
