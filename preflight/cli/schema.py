"""`preflight schema`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from preflight import catalog, inventory
from preflight.cli import flags
from preflight.report import model


@click.command(name="schema")
@click.argument("what", type=click.Choice(["inventory", "report"]))
@flags.checks
def command(what: str, dirs: tuple[Path, ...]) -> int:
    """Print the JSON Schema of the inventory, for editors, or of the report, for dashboards.

    The inventory's has the keys under `expect:` of all checks, with --checks also of your own.
    """
    of_inventory = what == "inventory"
    schema = inventory.schema(catalog.load(dirs).expects) if of_inventory else model.schema()
    click.echo(json.dumps(schema, indent=2))
    return 0
