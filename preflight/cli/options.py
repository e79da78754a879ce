"""What several commands share: options, and writing where the user asked."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from preflight import catalog, inventory
from preflight.catalog import Catalog
from preflight.errors import ConfigError, PreflightError, printable
from preflight.inventory import Cluster
from preflight.judge import REACH
from preflight.sources import Found, hostfile, slurm
from preflight.sources import hosts as expression
from preflight.yaml_lines import nearest, read_text

PATH = click.Path(path_type=Path, readable=False)
"""Of a file or folder; whoever opens it says what is wrong with it."""
THIS_MACHINE = "this machine"
INVENTORY = "inventory.yaml"
"""What `preflight init` writes if it is not told where to."""

verbose = click.option("-v", "--verbose", is_flag=True, help="Every result, with details.")
no_color = click.option(
    "--no-color",
    is_flag=True,
    default=lambda: bool(os.environ.get("NO_COLOR")),
    help="No colour; NO_COLOR does the same.",
)
hosts = click.option(
    "--hosts", metavar="EXPR", help="These nodes: [user@]host[:port], 'gpu[01-08],10.0.0.5'."
)
hostfile_in = click.option(
    "--hostfile-in",
    type=PATH,
    metavar="FILE",
    help="The nodes of a host file: one a line, or as MPI and DeepSpeed have them.",
)


def number(ctx: click.Context, param: click.Parameter, value: float | None) -> float | None:
    """Refuse what is no number, which is in every range."""
    if value is not None and math.isnan(value):
        raise click.BadParameter("nan is not a valid number", ctx, param)
    return value


def loaded(
    source: Path | None, dirs: Sequence[Path], otherwise: Cluster | None = None
) -> tuple[Catalog, Cluster]:
    """Return the checks and the cluster; an inventory is read once, it may be a pipe.

    Args:
        source: the inventory.
        dirs: folders of checks that the command line names.
        otherwise: the cluster where there is no inventory; left out: this machine.

    Raises:
        ConfigError: check files or inventory are wrong.
    """
    if source is None:
        return catalog.load(dirs), otherwise or inventory.this_machine()
    try:
        text = read_text(source)
    except ConfigError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
        raise ConfigError(
            f"{source}: there is no such file; `preflight init` writes an inventory, "
            "--hosts names nodes without one"
        ) from error
    known = catalog.load([*inventory.check_dirs(text, str(source)), *dirs])
    cluster = inventory.load_text(text, str(source), known.expects)
    inventory.check_ids(cluster, [*known, *{one.group for one in known.values()}], REACH)
    return known, cluster


def without_inventory(given: Mapping[str, Any]) -> Found:
    """Return the nodes that options name, else those of the Slurm job, else this machine.

    Raises:
        ConfigError: what the options name is wrong.
    """
    if given["hosts"] is not None:
        return expression.read(given["hosts"])
    if given["hostfile_in"] is not None:
        return hostfile.read(given["hostfile_in"])
    return slurm.read(os.environ) or Found(inventory.this_machine(), THIS_MACHINE)


def unasked(found: Found) -> tuple[str, ...]:
    """Return the note that this machine is checked though an inventory is at hand."""
    if found.origin != THIS_MACHINE or not os.access(INVENTORY, os.R_OK):
        return ()
    return (f"{INVENTORY} is here and was not asked for: preflight run {INVENTORY}",)


def refuse_several(named: Mapping[str, object]) -> None:
    """Refuse more than one way of saying which nodes there are.

    Raises:
        ConfigError: more than one of them is given.
    """
    several = [name for name, value in named.items() if value is not None]
    if len(several) > 1:
        raise ConfigError(f"{' and '.join(several)}: each names the nodes; give only one of them")


def say(text: str) -> None:
    """Say something on standard error."""
    click.echo(f"preflight: {printable(text)}", err=True)


def skipped(cluster: Cluster, known: Catalog) -> dict[str, str]:
    """Return the checks that the inventory skips, with its reasons."""
    key = f"{cluster.source}: checks.skip"
    return {
        check_id: why
        for word, why in cluster.checks.skip.items()
        for check_id in words(key, [word], known)
    }


def skippable(option: str, word: str, known: Catalog) -> list[str]:
    """Return the ids of checks that are to be left out.

    Raises:
        ConfigError: there is no such check, or no run without it.
    """
    found = words(option, [word], known)
    if REACH in found:
        raise ConfigError(f"{option}: {word!r} includes {REACH}, which cannot be left out")
    return found


def see_writable(path: str | None) -> None:
    """See that a file can be written where the user asked, before the work is done.

    Raises:
        ConfigError: it cannot.
    """
    if path is None or path == "-":
        return
    target, part = places(path)
    try:
        if part != target:
            part.touch()
            part.unlink()
        elif not os.access(target, os.W_OK):  # not opened: who reads a pipe would see its end
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise ConfigError(unwritable(path, error)) from error


def write(path: str, text: str) -> None:
    """Write a whole file, or standard output for `-`; a file is replaced at once or not at all.

    Raises:
        PreflightError: it cannot be written.
    """
    if path == "-":
        sys.stdout.write(text)
        return
    target, part = places(path)
    try:
        part.write_text(text, encoding="utf-8")
        if part != target:
            part.replace(target)
    except OSError as error:
        if part != target:
            part.unlink(missing_ok=True)
        raise PreflightError(unwritable(path, error)) from error


def unwritable(path: str | Path, error: OSError) -> str:
    """Return what is said of a file that cannot be written."""
    folder = Path(path).parent
    if isinstance(error, FileNotFoundError) and not folder.is_dir():
        return f"{path}: cannot write: there is no folder {str(folder)!r}"
    return f"{path}: cannot write: {str(error.strerror).lower()}"


def places(path: str) -> tuple[Path, Path]:
    """Return the file that a path leads to, and the one to write that then replaces it.

    They are the same where the file is a device or a pipe, which is more than its name.
    """
    target = Path(path).resolve()
    with contextlib.suppress(OSError):  # it is not there, or its folder is closed to us
        if not stat.S_ISREG(target.stat().st_mode):
            return target, target
    return target, target.with_name(f".{target.name}.{os.getpid()}.part")


def words(option: str, given: Sequence[str], known: Catalog) -> list[str]:
    """Return the ids of checks that an option names; commas part them too.

    Raises:
        ConfigError: there is no such check or group.
    """
    parts = [part.strip() for text in given for part in text.split(",")]
    return [check_id for part in parts for check_id in known.match(part, option)]


def known_nodes(
    option: str,
    expression: str | None,
    names: Sequence[str],
    expand: Callable[[str], Sequence[str]],
) -> set[str]:
    """Return the nodes that an option names.

    Raises:
        ConfigError: a bad expression, or a node that there is not.
    """
    if expression is None:
        return set()
    try:
        wanted = expand(expression)
    except ConfigError as error:
        raise ConfigError(f"{option}: {error}") from error
    for name in wanted:
        if name not in names:
            raise ConfigError(f"{option}: {name!r} is not one of the nodes{nearest(name, names)}")
    return set(wanted)
