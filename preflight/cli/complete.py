"""What the shell completes: ids of checks, names of nodes. Whatever is wrong, it says nothing."""

from __future__ import annotations

from pathlib import Path

import click

from preflight import catalog
from preflight.cli import options
from preflight.errors import PreflightError
from preflight.inventory import Cluster, this_machine
from preflight.node_names import names


def check_ids(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001 - click's signature
    """Return the ids and groups that begin like what was typed, behind the last comma of it."""
    front, comma, last = incomplete.rpartition(",")
    try:
        known = catalog.load(ctx.params.get("dirs") or ())
    except PreflightError:
        return []
    words = sorted({*known, *(one.group for one in known.values())})
    return [front + comma + word for word in words if word.startswith(last)]


def nodes(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001 - click's signature
    """Return the nodes that the line is about, and that begin like what was typed of the last one.

    Those that are typed already are not offered once more.
    """
    front, comma, last = incomplete.rpartition(",")
    try:
        typed = names(front) if comma else ()
        cluster = _cluster(ctx)
    except (PreflightError, ValueError):
        return []
    left = [node.name for node in cluster.nodes if node.name not in typed]
    return [front + comma + name for name in left if name.startswith(last)]


def _cluster(ctx: click.Context) -> Cluster:
    """Return the nodes of the inventory on the line, else what the command takes without one.

    Raises:
        PreflightError: something on the line is wrong.
    """
    # click takes no arguments from a line that ends in an option without its value
    source = next(filter(None, (ctx.params.get("source"), *ctx.args)), None)
    if source is not None:
        return options.loaded(Path(source), ctx.params.get("dirs") or ())[1]
    if "hosts" in ctx.params:
        return options.without_inventory(ctx.params).cluster
    return this_machine()
