"""`preflight schema`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from preflight import catalog, inventory
from preflight.cli import flags
from preflight.report import estimated, model
from preflight.triage import model as triage


@click.command(name="schema")
@click.argument("what", type=click.Choice(["inventory", "report", "estimate", "triage"]))
@flags.checks
def command(what: str, dirs: tuple[Path, ...]) -> int:
    """Print the JSON Schema of the inventory, for editors, or of what commands write by --json.

    The inventory's has the keys under `expect:` of all checks, with --checks also of your own.
    """
    if what == "inventory":
        schema = inventory.schema(catalog.load(dirs).expects)
    else:
        of = {"report": model, "estimate": estimated, "triage": triage}
        schema = of[what].schema()
    click.echo(json.dumps(schema, indent=2))
    return 0
