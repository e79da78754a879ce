"""Options that mean the same in several commands."""

from __future__ import annotations

import click

from preflight.cli import complete, options

checks = click.option(
    "--checks",
    "dirs",
    multiple=True,
    type=options.PATH,
    metavar="DIR",
    help="A folder with checks of your own; repeatable.",
)
inventory = click.option(
    "-i",
    "--inventory",
    "source",
    type=options.PATH,
    metavar="INVENTORY",
    help="The inventory to go by.",
)
require = click.option(
    "--require",
    multiple=True,
    shell_complete=complete.check_ids,
    metavar="ID",
    help="Undetermined unless it says something; repeatable.",
)
_GRAVE = click.Choice(["fail", "warn"])
_COUNTS = "What makes a node not ready."
fail_on = click.option("--fail-on", type=_GRAVE, default="fail", show_default=True, help=_COUNTS)
fail_on_again = click.option("--fail-on", type=_GRAVE, show_default="as the run did", help=_COUNTS)
