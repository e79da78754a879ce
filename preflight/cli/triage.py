"""`preflight triage`."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from preflight import catalog
from preflight.catalog import Catalog
from preflight.cli import flags, options, shared
from preflight.cli.run import reported, ways_to
from preflight.errors import ConfigError
from preflight.inventory import Cluster
from preflight.report import build, terminal
from preflight.report.triage import render
from preflight.run import Plan
from preflight.transport import Transport
from preflight.triage import cluster, excerpt, family, files, model
from preflight.triage.family import Family
from preflight.triage.files import Log
from preflight.triage.reading import Reader

ANALYSED, NOTHING = 0, 3
LEVEL, DEADLINE_S = "standard", 300
"""Of the run that checks the hypotheses, as of `preflight run`."""
MOST_FLAWS = 3
"""Files that are named which could not be read to their end, or not at all."""


@dataclass(frozen=True)
class Site:
    """The cluster that the logs are of, and how to ask it."""

    known: Catalog
    cluster: Cluster
    transports: Mapping[str, Transport]


@click.command(name="triage")
@click.argument("logs", metavar="LOG...", nargs=-1, required=True, type=click.Path())
@flags.inventory
@flags.checks
@click.option("--json", "json_path", metavar="PATH", help="Write it as JSON; - is stdout.")
@click.option(
    "--save-case",
    "case_path",
    metavar="PATH",
    help="Write what tells it to a new file, names replaced; - is stdout.",
)
@options.verbose
@options.no_color
def command(
    logs: tuple[str, ...],
    source: Path | None,
    dirs: tuple[Path, ...],
    json_path: str | None,
    case_path: str | None,
    verbose: bool,
    no_color: bool,
) -> int:
    """Say what ended a job, by its logs: files, folders, patterns, .gz, .zst; - is stdin.

    With an inventory the nodes that they blame are checked for just that, with some of their
    peers, and it is said what the cluster shows of it now.

    Exit codes: 0 analysed, 2 a log cannot be read, or the inventory is wrong (nothing was
    contacted), 3 there is nothing in them that is known.
    """
    options.see_writable(json_path)
    see_case(case_path, logs, json_path)
    site = seen(source, dirs) if source else None
    found = files.find(logs)
    families = family.load()
    reader = Reader(families)
    for log in found:
        reader.read(log)
    answer = model.triage(reader.stories, families, len(found), flaws(found))
    answer = asked(answer, site, dirs) if answer.hypotheses else answer
    if "-" not in (json_path, case_path):
        terminal.put(lambda width, coding: render(answer, width, coding, verbose), not no_color)
    if json_path:
        options.write(json_path, answer.to_json())
    if case_path:
        save(case_path, found, reader, families)
    return ANALYSED if any(reader.stories) else NOTHING


def seen(source: Path, dirs: Sequence[Path]) -> Site:
    """Return the cluster of an inventory; whatever is wrong with it is said before logs are read.

    Raises:
        ConfigError: inventory, check files or key files.
    """
    known, nodes = options.loaded(source, dirs)
    return Site(known, nodes, ways_to(nodes))


def flaws(logs: Sequence[Log]) -> list[str]:
    """Return what of the logs could not be read."""
    found = [flaw for log in logs for flaw in log.flaws]
    more = len(found) - MOST_FLAWS
    return [*found[:MOST_FLAWS], *([f"so it is with {more} more files"] if more > 0 else ())]


def asked(answer: model.Triage, site: Site | None, dirs: Sequence[Path]) -> model.Triage:
    """Return the answer with what the cluster shows, or with the command that would ask it.

    Raises:
        ConfigError: checks contradict each other; nothing was contacted.
    """
    if site is None:
        told = cluster.command(answer, catalog.load(dirs))
        return answer.model_copy(update={"command": told})
    target = cluster.target(answer, site.cluster, site.known)
    if not target.checks:
        return answer
    chosen = [node for node in site.cluster.nodes if node.name in target.nodes]
    nodes = site.cluster.model_copy(update={"nodes": tuple(chosen)})
    checks = site.known.select(target.checks, LEVEL)
    checks.sort(key=lambda one: target.checks.index(one.id) if one.id in target.checks else -1)
    plan = Plan(nodes, checks, LEVEL, options.skipped(nodes, site.known), DEADLINE_S)
    policy = build.Policy(today=dt.datetime.now(dt.timezone.utc).date())
    report = reported(plan, policy, site.transports)
    return cluster.with_cluster(answer, target, report, site.known, str(site.cluster.source))


def see_case(path: str | None, logs: Sequence[str], json_path: str | None) -> None:
    """See that a case can be written.

    Raises:
        ConfigError: it cannot.
    """
    if path is None:
        return
    if files.STDIN in logs:
        raise ConfigError("--save-case reads logs twice, which standard input cannot: name a file")
    if path == json_path == "-":
        raise ConfigError("--json and --save-case: only one of them can be written to stdout")
    shared.see_new(path, "--save-case")
    options.see_writable(path)


def save(path: str, logs: Sequence[Log], reader: Reader, families: Sequence[Family]) -> None:
    """Write the case, and say what is to be known of it.

    Raises:
        ConfigError: it cannot be written, or a log cannot be read again.
    """
    name = "job" if path == "-" else Path(path).stem
    made = excerpt.excerpt(name, logs, reader.stories, families, shared.secret())
    shared.write_new(path, made.text)
    for left in made.left_out:
        options.say(f"{left} is no text and not in the case: attach it yourself")
    if made.cause != made.told:
        options.say(
            f"the case alone tells {made.cause} and not {made.told}: say so where you share it"
        )
    where = "" if path == "-" else f" in {path}"
    options.say(f"{made.lines} lines{where}, names replaced; still, read it before you share it")
