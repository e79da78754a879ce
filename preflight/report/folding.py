"""Many node names in few words."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet

from preflight.node_names import address_problem

FEW = 5
"""As many are counted at a glance; of more the number is said."""
MOST_WIDE = 160
"""Columns: two lines of an 80-column terminal; a longer set is cut."""


def folded(names: Collection[str]) -> str:
    """Return node names as Slurm and ClusterShell write a set of them: `gpu[01-04,06]`."""
    if any(map(address_problem, names)):  # a report from elsewhere may hold any text as a name
        return ",".join(names)
    return str(NodeSet.fromlist(list(names), resolver=RESOLVER_NOGROUP))


def some(names: Sequence[str]) -> str:
    """Return node names for people: folded, counted where they are many, cut where too many."""
    fold, count = folded(names), f" ({len(names)} nodes)" if len(names) > FEW else ""
    if len(fold) > MOST_WIDE:
        fold = fold[:MOST_WIDE].rpartition(",")[0] + ",..."
    return fold + count


def out_of(names: Sequence[str], total: int) -> str:
    """Return what `some` does, or that it is all of them."""
    if len(names) == total > 1:
        return "both nodes" if total == 2 else f"all {total} nodes"
    return some(names)
