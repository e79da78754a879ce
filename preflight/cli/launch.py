"""`preflight launch`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click

from preflight import launching
from preflight.cli import flags, options
from preflight.errors import ConfigError, printable
from preflight.inventory import Cluster
from preflight.launching import LOOPBACK, MASTER, PROGRAM, Start
from preflight.report import model

STARTS = re.compile(r"python[0-9.]*|torchrun")
"""Programs that are no script."""


class BehindDashes(click.Command):
    """Takes what stands behind `--` for the user's program, also where no argument is before it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take the words apart."""
        end = args.index("--") if "--" in args else len(args)
        ctx.params["program"] = tuple(args[end + 1 :])
        return super().parse_args(ctx, args[:end])


@click.command(
    name="launch",
    cls=BehindDashes,
    options_metavar="[OPTIONS]",
    epilog="What follows -- is the script and its arguments: -- train.py --epochs 3",
)
@click.argument(
    "source", metavar="[INVENTORY] [-- SCRIPT ARG...]", required=False, type=options.PATH
)
@click.option(
    "--from-report",
    "report_path",
    type=options.PATH,
    metavar="REPORT",
    help="Take address and interface as this run has verified them.",
)
@click.option("--sbatch", is_flag=True, help="A script for sbatch in place of the commands.")
@flags.checks
def command(
    source: Path | None,
    report_path: Path | None,
    sbatch: bool,
    dirs: tuple[Path, ...],
    program: tuple[str, ...],
) -> int:
    """Print the torchrun command of each node of INVENTORY.

    Without one: of the nodes of the Slurm job that this is started in, else of this machine. No
    node is contacted: `launch.port`, `launch.interface`, `launch.gpus_per_node`, `launch.env` and
    the rest of `launch` are the inventory's, and the port is verified by `preflight run`.
    """
    nothing = {"hosts": None, "hostfile_in": None}
    other = None if source else options.without_inventory(nothing)
    for note in options.unasked(other) if other else ():
        options.say(note.replace("preflight run", "preflight launch"))
    _, cluster = options.loaded(source, dirs, other and other.cluster)
    see_plan(cluster, program)
    ground = None
    if report_path:
        ground = launching.verified(model.read(report_path), report_path, cluster)
    start = Start(cluster, program or PROGRAM, ground)
    for note in notes(start):
        options.say(note)
    click.echo(start.script() if sbatch else "\n\n".join(blocks(start)))
    return 0


def see_plan(cluster: Cluster, program: tuple[str, ...]) -> None:
    """Refuse what cannot be launched.

    Raises:
        ConfigError: a program that is no script, or a master that each node takes for itself.
    """
    if program and STARTS.fullmatch(Path(program[0]).name):
        raise ConfigError(
            f"{program[0]}: torchrun starts Python itself; name the script alone, as in -- train.py"
        )
    named = cluster.launch.env.get(MASTER, "")
    if len(cluster.nodes) > 1 and LOOPBACK.fullmatch(named):
        raise ConfigError(
            f"{cluster.source}: launch.env.{MASTER}: {named!r} is each node itself; leave it out, "
            f"or give an address of {cluster.master}"
        )


def blocks(start: Start) -> Iterator[str]:
    """Yield each node's command below a comment that says where it goes."""
    user = start.cluster.launch.user
    for node, line in start.commands().items():
        yield printable(f"# {node}" + (f", as {user}" if user else "")) + f"\n{line}"


def notes(start: Start) -> Iterator[str]:
    """Yield what the user should know of the commands."""
    cluster, launch = start.cluster, start.cluster.launch
    if len(cluster.nodes) > 1 and start.ground is None:
        run = f"preflight run {cluster.source or ''}".rstrip()
        yield (
            f"port {launch.port} and {start.address} are not verified: {run} --json REPORT, "
            "then --from-report REPORT"
        )
    if start.ground and not (launch.interface or start.ground.interface):
        yield "no interface is named: the nodes choose different ones, or were not asked"
    if launch.gpus_per_node is None:
        yield "launch.gpus_per_node is not given: one rank on each node"
    if launch.container and launch.container.image:
        yield "the container has nothing of the node's files: add the mounts that the job needs"
