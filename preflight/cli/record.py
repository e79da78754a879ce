"""`preflight record`."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import click

from preflight import __version__, recording
from preflight.anonymise import anonymise
from preflight.api import LEVELS, Want
from preflight.catalog import Loaded
from preflight.cli import complete, flags, options, shared
from preflight.errors import ConfigError, TransportError
from preflight.inventory import Cluster, NodeSpec
from preflight.no_agent import AgentError
from preflight.run import NEEDS_ROOT
from preflight.transport import Transport
from preflight.transport.loopback import LocalTransport
from preflight.transport.ssh import SshTransport
from preflight.yaml_lines import nearest

THIS_MACHINE = "localhost"
LIMIT_S = 300
"""For the whole recording; each probe has its check's own limit besides."""
UNDETERMINED = 3


@click.command(name="record")
@click.argument("node", shell_complete=complete.nodes)
@flags.inventory
@click.option(
    "--only",
    multiple=True,
    shell_complete=complete.check_ids,
    metavar="ID",
    help="Only what this check or group asks; repeatable.",
)
@flags.checks
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    help="A new file; - is stdout.  [default: NODE.json]",
)
def command(
    node: str,
    source: Path | None,
    only: tuple[str, ...],
    dirs: tuple[Path, ...],
    output: str | None,
) -> int:
    """Record what NODE of the inventory, or `localhost`, answers to the checks' questions.

    From the recording the checks find what they found on the node: for a test case, a bug report,
    or `preflight demo`. Names, addresses, serials, keys and users are replaced, the same by the
    same in all your recordings.

    Exit codes: 0 recorded, 2 usage or inventory error (nothing was contacted), 3 the node was not
    reached, or not all could be recorded that needs no root.
    """
    known, cluster = options.loaded(source, dirs)
    spec = one_node(cluster, node)
    checks = [one for one in known.select(only, LEVELS[-1]) if one.check.probe]
    path = output or f"{node}.json"
    shared.see_new(path, "-o")
    options.see_writable(path)
    ssh = SshTransport(options.say)
    ssh.validate([spec])
    transport: Transport = ssh if spec.transport == "ssh" else LocalTransport()
    want = Want(cluster.wanted_launch, cluster.expect, [one.name for one in cluster.nodes])
    try:
        taken = recording.take(spec, transport, checks, want, LIMIT_S)
    except (TransportError, AgentError) as error:
        hint = error.hint.replace("ssh NODE", f"ssh {node}")
        options.say("; ".join(filter(None, (f"{node}: {error.message}", hint))))
        return UNDETERMINED
    today = dt.datetime.now(dt.timezone.utc).date()
    document = {
        "source": f"{taken.machine}, recorded {today} by preflight {__version__}",
        "want": {"launch": want.launch, "expect": want.expect},
        "node": taken.answers,
    }
    made = recording.Recording.model_validate(anonymise(document, shared.secret()))
    shared.write_new(path, made.to_json())
    tell(path, taken, checks)
    return UNDETERMINED if {*taken.lost.values()} - {NEEDS_ROOT} else 0


def one_node(cluster: Cluster, name: str) -> NodeSpec:
    """Return a node of the inventory.

    Raises:
        ConfigError: it has no such node.
    """
    by_name = {spec.name: spec for spec in cluster.nodes}
    if name in by_name:
        return by_name[name]
    if cluster.source is None:
        raise ConfigError(
            f"{name!r}: without an inventory only {THIS_MACHINE!r} can be recorded; give one: -i"
        )
    raise ConfigError(f"{cluster.source}: {name!r} is not one of its nodes{nearest(name, by_name)}")


def tell(path: str, taken: recording.Taken, checks: list[Loaded]) -> None:
    """Say on standard error what was recorded, and what was not."""
    for key, why in taken.lost.items():
        ids = " ".join(one.id for one in checks if one.evidence == key)
        options.say(f"not recorded: what {ids} asks: {why}")
    count = sum(map(len, taken.answers.values()))
    where = "" if path == "-" else f" in {path}"
    options.say(f"{count} answers{where}, names replaced; still, read it before you share it")
