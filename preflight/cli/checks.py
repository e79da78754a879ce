"""`preflight checks`."""

from __future__ import annotations

from pathlib import Path

import click

from preflight import catalog
from preflight.cli import flags


@click.command(name="checks")
@flags.checks
def command(dirs: tuple[Path, ...]) -> int:
    """List the checks: id, level, claim."""
    known = catalog.load(dirs)
    width = max(map(len, known))
    for one in known.values():
        click.echo(f"{one.id:{width}}  {one.check.level:8}  {one.manual.claim}")
    return 0
