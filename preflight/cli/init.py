"""`preflight init`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from preflight import catalog
from preflight.cli import options, progress
from preflight.errors import ConfigError
from preflight.inventory import Cluster
from preflight.run import Outcome, Plan
from preflight.sources import Found, ansible
from preflight.sources.draft import draft
from preflight.sources.learnt import Learnt, learnt
from preflight.transport.loopback import LocalTransport
from preflight.transport.ssh import SshTransport

LOOKED = ("gpu.inventory", "network.mtu", "storage.mounts")
"""The checks whose facts an inventory can learn from."""
LOOK_S = 60
"""For all nodes together; nodes that are silent for longer are written as they are."""
MOST_SAID = 8
"""Nodes that do not answer and are named, each with its reason."""


@click.command(name="init")
@options.hosts
@options.hostfile_in
@click.option(
    "--ansible",
    "ansible_file",
    type=options.PATH,
    metavar="FILE",
    help="The hosts of an Ansible inventory, INI or YAML.",
)
@click.option("--group", metavar="NAME", help="Only this group of the Ansible inventory.")
@click.option(
    "-o",
    "--output",
    default=options.INVENTORY,
    show_default=True,
    metavar="PATH",
    help="The file to write; - is stdout.",
)
@click.option("--force", is_flag=True, help="Replace the file if there is one.")
def command(output: str, force: bool, **given: Any) -> int:
    """Write an inventory, filled in with what one look at the nodes tells.

    The nodes are those of --hosts, --hostfile-in or --ansible, else those of the Slurm job that
    this is started in, else this machine. Those that do not answer are written all the same.

    Exit codes: 0 written, 2 usage error (nothing was contacted), 130 interrupted.
    """
    found = nodes(given)
    refuse_existing(output, force)
    for note in found.notes:
        options.say(note)
    seen, silent = look(found.cluster)
    text = draft(found, seen, silent, options.INVENTORY if output == "-" else output)
    if output == "-" or force:
        options.write(output, text)
    else:
        create(Path(output), text)
    say_what_is_missing(found.cluster, seen)
    if output != "-":
        count = len(found.cluster.nodes)
        told = f"{count} node{'s' * (count != 1)}, {count - len(silent)} answered"
        options.say(f"wrote {output}: {told}; next: preflight run {output}")
    return 0


def nodes(given: Mapping[str, Any]) -> Found:
    """Return the nodes that the inventory will have.

    Raises:
        ConfigError: options are wrong, or the files that they name.
    """
    path, group = given["ansible_file"], given["group"]
    ways = {"--hosts": given["hosts"], "--hostfile-in": given["hostfile_in"], "--ansible": path}
    options.refuse_several(ways)
    if path is not None:
        return ansible.read(path, group)
    if group is not None:
        raise ConfigError(
            "--group: is a group of an Ansible inventory; name that with --ansible FILE"
        )
    return options.without_inventory(given)


def refuse_existing(output: str, force: bool) -> None:
    """Refuse a file that there is, or that cannot be written; nothing was contacted yet.

    Raises:
        ConfigError: it is so.
    """
    path = Path(output)
    if output == "-":
        return
    if os.path.lexists(path) and (not force or path.is_dir()):
        raise taken(path)
    options.see_writable(output)


def taken(path: Path) -> ConfigError:
    """Return the error of a file that there is."""
    if path.is_dir():
        return ConfigError(f"{path}: is a directory; name a file with -o")
    return ConfigError(f"{path}: is there already; --force replaces it, -o names another file")


def create(path: Path, text: str) -> None:
    """Write a file that must not be there.

    Raises:
        ConfigError: it is, or it cannot be written.
    """
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise taken(path) from error
    except OSError as error:
        raise ConfigError(options.unwritable(path, error)) from error


def look(cluster: Cluster) -> tuple[Learnt, list[str]]:
    """Look once at the nodes; return what they have alike, and those that did not answer.

    Raises:
        ConfigError: key files.
    """
    known = catalog.load()
    checks = [known[check_id] for check_id in LOOKED]
    ssh = SshTransport(options.say)
    ssh.validate(cluster.nodes)
    plan = Plan(cluster, checks, "quick", {}, LOOK_S)
    outcome = progress.watched(plan, {"ssh": ssh, "local": LocalTransport()})
    silent = [node.name for node in cluster.nodes if not outcome.logins[node.name]["reached"]]
    say_silent(silent, outcome)
    facts = [values(outcome.facts.get(one.evidence, {})) for one in checks]
    return learnt(len(cluster.nodes), *facts), silent


def values(facts: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the facts of the nodes that have them."""
    return {node: fact["value"] for node, fact in facts.items() if "value" in fact}


def say_silent(silent: list[str], outcome: Outcome) -> None:
    """Say which nodes did not answer, and why."""
    for name in silent[:MOST_SAID]:
        login = outcome.logins[name]
        hint = f"; {login['hint']}" if login["hint"] else ""
        options.say(f"{name} did not answer: {login['message']}{hint}")
    if len(silent) > MOST_SAID:
        options.say(f"{len(silent) - MOST_SAID} more did not answer")


def say_what_is_missing(cluster: Cluster, seen: Learnt) -> None:
    """Say what the nodes did not tell."""
    if seen.gpus.value is None and cluster.launch.gpus_per_node is None:
        options.say(f"launch.gpus_per_node was not learnt: {seen.gpus.why}")
    if seen.interface.value is None or not seen.interface.is_sure:
        options.say(f"launch.interface was not learnt: {seen.interface.why}")
