"""`preflight run`."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from preflight.api import LEVELS
from preflight.cli import complete, flags, options, progress
from preflight.errors import ConfigError
from preflight.inventory import Cluster
from preflight.node_names import expand
from preflight.report import build, model, terminal
from preflight.run import Outcome, Plan
from preflight.transport import Transport
from preflight.transport.loopback import LocalTransport
from preflight.transport.ssh import SshTransport

PORT = re.compile(r":\d+$")


@click.command(name="run")
@click.argument("source", metavar="[INVENTORY]", required=False, type=options.PATH)
@options.hosts
@options.hostfile_in
@click.option(
    "--only",
    multiple=True,
    shell_complete=complete.check_ids,
    metavar="ID",
    help="Only this check or group; repeatable.",
)
@click.option(
    "--skip",
    multiple=True,
    shell_complete=complete.check_ids,
    metavar="ID[=REASON]",
    help="Not this one; repeatable.",
)
@flags.require
@click.option(
    "--level",
    type=click.Choice(LEVELS),
    default="standard",
    show_default=True,
    help="quick sends nothing between nodes, deep adds load.",
)
@click.option(
    "--nodes",
    metavar="EXPR",
    shell_complete=complete.nodes,
    help="Only these nodes, such as 'gpu[01-04]'.",
)
@click.option("--exclude", metavar="EXPR", shell_complete=complete.nodes, help="Not these nodes.")
@click.option("--fanout", type=click.IntRange(1, 1024), help="Logins at the same time.")
@click.option(
    "--deadline",
    type=click.FloatRange(1, 86400),
    callback=options.number,
    default=300,
    show_default=True,
    metavar="SECONDS",
    help="For the whole run.",
)
@flags.fail_on
@flags.checks
@click.option("--json", "json_path", metavar="PATH", help="Write the report; - is stdout.")
@options.verbose
@options.no_color
def command(source: Path | None, **given: Any) -> int:
    """Say whether the nodes of INVENTORY can train together.

    Without one: those of --hosts or --hostfile-in, else those of the Slurm job that this is
    started in, else this machine.

    Exit codes: 0 ready, 1 not ready, 2 usage or inventory error (nothing was contacted),
    3 undetermined, 130 interrupted.
    """
    plan, policy, transports = prepare(source, given)
    report = reported(plan, policy, transports)
    if given["json_path"] != "-":
        manuals = {one.id: one.manual for one in plan.checks}
        terminal.show(report, not given["no_color"], given["verbose"], manuals, policy.today)
    if given["json_path"]:
        options.write(given["json_path"], report.to_json())
    return build.EXIT_CODES[report.verdict]


def prepare(source: Path | None, given: Mapping[str, Any]) -> tuple[Plan, build.Policy, Any]:
    """Return what is to be done; whatever is wrong with it is said here, before any contact.

    Raises:
        ConfigError: inventory, options, check files, key files.
    """
    ways = {"--hosts": given["hosts"], "--hostfile-in": given["hostfile_in"]}
    options.refuse_several({"INVENTORY": source, **ways})
    other = options.without_inventory(given) if source is None else None
    for note in (*other.notes, *options.unasked(other)) if other else ():
        options.say(note)
    known, cluster = options.loaded(source, given["dirs"], other and other.cluster)
    cluster = narrowed(cluster, given)
    skips = options.skipped(cluster, known)
    for word in given["skip"]:
        ids, _, why = word.partition("=")
        skips |= dict.fromkeys(options.skippable("--skip", ids, known), why or "skipped by --skip")
    require = [*cluster.checks.require, *given["require"]]
    only = [word.strip() for text in given["only"] for word in text.split(",")]
    policy = build.Policy(
        require=frozenset(options.words("--require", require, known)),
        fail_on_warn=given["fail_on"] == "warn",
        today=dt.datetime.now(dt.timezone.utc).date(),
    )
    transports = ways_to(cluster)
    options.see_writable(given["json_path"])
    checks = known.select(only, given["level"])
    plan = Plan(cluster, checks, given["level"], skips, given["deadline"])
    return plan, policy, transports


def ways_to(cluster: Cluster) -> dict[str, Transport]:
    """Return the ways to all nodes, which have what they need.

    Raises:
        ConfigError: key files.
    """
    ssh = SshTransport(options.say)
    try:
        ssh.validate(cluster.nodes)
    except ConfigError as error:
        raise ConfigError(": ".join(filter(None, (cluster.source, str(error))))) from error
    return {"ssh": ssh, "local": LocalTransport()}


def reported(plan: Plan, policy: build.Policy, transports: Mapping[str, Transport]) -> model.Report:
    """Do a run and return its report.

    Raises:
        ConfigError: checks contradict each other; nothing was contacted.
    """
    outcome = progress.watched(plan, transports)
    return build.build(
        plan.checks, found(plan, outcome), plan.want, plan.skips, plan.cluster.waivers, policy
    )


def narrowed(cluster: Cluster, given: Mapping[str, Any]) -> Cluster:
    """Return the cluster with only the nodes asked for.

    Raises:
        ConfigError: a node that there is not, or none left.
    """
    names = [node.name for node in cluster.nodes]
    wanted = options.known_nodes("--nodes", given["nodes"], names, expand) or set(names)
    wanted -= options.known_nodes("--exclude", given["exclude"], names, expand)
    if not wanted:
        raise ConfigError("--exclude: leaves no node to check")
    nodes = tuple(node for node in cluster.nodes if node.name in wanted)
    fanout = given["fanout"] or cluster.fanout
    return cluster.model_copy(update={"nodes": nodes, "fanout": fanout})


def host(login: Mapping[str, Any]) -> str:
    """Return where a login went, without the port; nothing where it went nowhere."""
    return PORT.sub("", login.get("address", "")).strip("[]")


def found(plan: Plan, outcome: Outcome) -> build.Facts:
    """Return a run's evidence in the report's words."""
    run_model = model.Run(
        id=outcome.run_id,
        started_at=outcome.started_at,
        seconds=outcome.seconds,
        level=plan.level,
        inventory=plan.cluster.source,
        cluster=plan.cluster.name,
    )
    addresses = {
        node.name: host(outcome.logins[node.name]) or node.address or node.name
        for node in plan.cluster.nodes
    }
    return build.Facts(
        run_model, outcome.facts, outcome.fact_seconds, addresses, outcome.node_seconds
    )
