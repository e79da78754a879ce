"""`preflight judge`."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import click

from preflight.api import Want
from preflight.cli import options
from preflight.inventory import Waiver
from preflight.report import build, model, terminal


@click.command(name="judge")
@click.argument("report_path", metavar="REPORT", type=click.Path(path_type=Path))
@click.option("-i", "--inventory", "source", type=click.Path(path_type=Path), metavar="INVENTORY")
@click.option("--checks", "dirs", multiple=True, type=click.Path(path_type=Path), metavar="DIR")
@click.option("--fail-on", type=click.Choice(["fail", "warn"]), default="fail", show_default=True)
@click.option("--json", "json_path", metavar="PATH", help="Write the new report; - is stdout.")
@options.verbose
@options.no_color
def command(
    report_path: Path,
    source: Path | None,
    dirs: tuple[Path, ...],
    fail_on: str,
    json_path: str | None,
    verbose: bool,
    no_color: bool,
) -> int:
    """Judge the facts in REPORT again, by today's rules or by another inventory.

    No node is touched. Exit codes are those of `run`.
    """
    old = model.read(report_path)
    known, cluster = options.loaded(source, dirs)
    names = [node.name for node in old.nodes]
    if source:
        want = Want(cluster.wanted_launch, cluster.expect, names)
        waivers = list(cluster.waivers)
        skips = options.skipped(cluster, known)
    else:
        want = Want(old.want.launch, old.want.expect, names)
        waivers = [Waiver.model_validate(waiver) for waiver in old.want.waivers]
        skips = {}
    policy = build.Policy(
        fail_on_warn=fail_on == "warn", today=dt.datetime.now(dt.timezone.utc).date()
    )
    report = build.again(old, known, want, skips, waivers, policy)
    if json_path:
        options.write(json_path, report.to_json())
    if json_path != "-":
        manuals = {one.id: one.manual for one in known.values()}
        terminal.show(report, not no_color, verbose, manuals)
    return build.EXIT_CODES[report.verdict]
