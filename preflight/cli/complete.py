"""What the shell completes: ids of checks, names of nodes. Whatever is wrong, it says nothing."""

from __future__ import annotations

from pathlib import Path

import click

from preflight import catalog
from preflight.cli import options
from preflight.errors import PreflightError


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
    """Return the nodes of the inventory on the line that begin like what was typed."""
    # click takes no arguments from a line that ends in an option without its value
    source = next(filter(None, (ctx.params.get("source"), *ctx.args)), None)
    if source is None:
        return []
    try:
        _, cluster = options.loaded(Path(source), ctx.params.get("dirs") or ())
    except PreflightError:
        return []
    front, comma, last = incomplete.rpartition(",")
    return [front + comma + node.name for node in cluster.nodes if node.name.startswith(last)]
