"""`preflight schema`."""

from __future__ import annotations

import json

import click

from preflight import catalog, inventory
from preflight.report import model


@click.command(name="schema")
@click.argument("what", type=click.Choice(["inventory", "report"]))
def command(what: str) -> int:
    """Print the JSON Schema of the inventory, for editors, or of the report, for dashboards."""
    if what == "inventory":
        schema = inventory.schema(catalog.load().expects)
    else:
        schema = model.Report.model_json_schema(by_alias=True)
    click.echo(json.dumps(schema, indent=2))
    return 0
