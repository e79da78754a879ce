"""`preflight judge`."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from pathlib import Path

import click

from preflight.api import Want
from preflight.catalog import Catalog
from preflight.cli import flags, options
from preflight.errors import ConfigError
from preflight.inventory import Cluster, Waiver
from preflight.report import build, model, terminal

MOST_NAMES = 3
"""That a message repeats."""


@click.command(name="judge")
@click.argument("report_path", metavar="REPORT", type=options.PATH)
@flags.inventory
@flags.checks
@flags.require
@flags.fail_on_again
@click.option("--json", "json_path", metavar="PATH", help="Write the new report; - is stdout.")
@options.verbose
@options.no_color
def command(
    report_path: Path,
    source: Path | None,
    dirs: tuple[Path, ...],
    require: tuple[str, ...],
    fail_on: str | None,
    json_path: str | None,
    verbose: bool,
    no_color: bool,
) -> int:
    """Judge the facts in REPORT again, by today's rules or by another inventory.

    No node is touched. What was asked for another launch is unknown. Exit codes are those of `run`.
    """
    options.see_writable(json_path)
    old = model.read(report_path)
    known, cluster = options.loaded(source, dirs)
    see_all_known(report_path, old, known)
    required = options.words("--require", require, known)
    if source:
        cluster = narrowed(cluster, old, report_path)
        names = [node.name for node in cluster.nodes]
        want = Want(cluster.wanted_launch, cluster.expect, names)
        waivers = list(cluster.waivers)
        skips = options.skipped(cluster, known)
        required += options.words("checks.require", cluster.checks.require, known)
    else:
        want = Want(old.want.launch, old.want.expect, [node.name for node in old.nodes])
        waivers = [Waiver.model_validate(waiver) for waiver in old.want.waivers]
        skips = old.want.skip
        required += old.want.require
    policy = build.Policy(
        require=frozenset(required),
        fail_on_warn=(fail_on or old.want.fail_on) == "warn",
        today=dt.datetime.now(dt.timezone.utc).date(),
    )
    report = build.again(old, known, want, skips, waivers, policy)
    if json_path != "-":
        manuals = {one.id: one.manual for one in known.values()}
        terminal.show(report, not no_color, verbose, manuals, policy.today)
    if json_path:
        options.write(json_path, report.to_json())
    return build.EXIT_CODES[report.verdict]


def see_all_known(path: Path, report: model.Report, known: Catalog) -> None:
    """Refuse a report of checks that are not there: without them the rest might look ready.

    Raises:
        ConfigError: names them.
    """
    lost = [one.id for one in report.checks if one.id not in known]
    if lost:
        raise ConfigError(
            f"{path}: made with checks that are not known here: {listed(lost)}; "
            "name their folder: --checks DIR"
        )


def narrowed(cluster: Cluster, report: model.Report, path: Path) -> Cluster:
    """Return the cluster with the report's nodes only, as `run --nodes` does.

    Raises:
        ConfigError: it lacks some of them.
    """
    names = [node.name for node in report.nodes]
    nodes = tuple(node for node in cluster.nodes if node.name in names)
    lost = [name for name in names if name not in {node.name for node in nodes}]
    if lost:
        raise ConfigError(
            f"{cluster.source}: lacks nodes of the report {path}: {listed(lost)}; add them"
        )
    return cluster.model_copy(update={"nodes": nodes})


def listed(names: Sequence[str]) -> str:
    """Return the first few names."""
    rest = len(names) - MOST_NAMES
    more = f" and {rest} more" if rest > 0 else ""
    return ", ".join(map(repr, names[:MOST_NAMES])) + more
