"""`preflight triage`."""

from __future__ import annotations

import click

from preflight.cli import options
from preflight.report import terminal
from preflight.report.triage import render
from preflight.triage import family, files, model
from preflight.triage.reading import Reader

ANALYSED, NOTHING = 0, 3


@click.command(name="triage")
@click.argument("logs", metavar="LOG...", nargs=-1, required=True)
@click.option("--json", "json_path", metavar="PATH", help="Write it as JSON; - is stdout.")
@options.verbose
@options.no_color
def command(logs: tuple[str, ...], json_path: str | None, verbose: bool, no_color: bool) -> int:
    """Say what ended a job, by its logs: files, folders, patterns, .gz, .zst; - is stdin.

    Exit codes: 0 analysed, 2 a log cannot be read, 3 there is nothing in them that is known.
    """
    options.see_writable(json_path)
    families = family.load()
    reader = Reader(families)
    found = files.find(logs)
    for log in found:
        reader.read(log)
    answer = model.triage(reader.stories, families, len(found))
    if json_path != "-":
        terminal.put(lambda width, coding: render(answer, width, coding, verbose), not no_color)
    if json_path:
        options.write(json_path, answer.to_json())
    return ANALYSED if any(reader.stories) else NOTHING
