"""What several commands share: options, and writing where the user asked."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from preflight import catalog, inventory
from preflight.catalog import Catalog
from preflight.errors import ConfigError
from preflight.inventory import Cluster
from preflight.yaml_lines import read_text

verbose = click.option("-v", "--verbose", is_flag=True, help="Every result, with details.")
no_color = click.option(
    "--no-color",
    is_flag=True,
    default=lambda: bool(os.environ.get("NO_COLOR")),
    help="No colour; NO_COLOR does the same.",
)


def loaded(source: Path | None, dirs: Sequence[Path]) -> tuple[Catalog, Cluster]:
    """Return the checks and the cluster; an inventory is read once, it may be a pipe.

    Raises:
        ConfigError: check files or inventory are wrong.
    """
    if source is None:
        return catalog.load(dirs), inventory.this_machine()
    text = read_text(source)
    known = catalog.load([*inventory.check_dirs(text, str(source)), *dirs])
    cluster = inventory.load_text(text, str(source), known.expects)
    inventory.check_ids(cluster, [*known, *{one.group for one in known.values()}])
    return known, cluster


def skipped(cluster: Cluster, known: Catalog) -> dict[str, str]:
    """Return the checks that the inventory skips, with its reasons."""
    words = cluster.checks.skip.items()
    return {check_id: why for word, why in words for check_id in known.match(word, "checks.skip")}


def write(path: str, text: str) -> None:
    """Write a whole file, or standard output for `-`; a file is replaced at once or not at all.

    Raises:
        ConfigError: it cannot be written.
    """
    if path == "-":
        sys.stdout.write(text)
        return
    target = Path(path)
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(target)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise ConfigError(f"{path}: cannot write: {error.strerror}") from error


def known_nodes(
    option: str,
    expression: str | None,
    names: Sequence[str],
    expand: Callable[[str], Sequence[str]],
) -> set[str]:
    """Return the nodes that an option names.

    Raises:
        ConfigError: a bad expression, or a node that the inventory does not have.
    """
    try:
        wanted = expand(expression) if expression else ()
    except ConfigError as error:
        raise ConfigError(f"{option}: {error}") from error
    for name in wanted:
        if name not in names:
            raise ConfigError(f"{option}: {name!r} is not in the inventory")
    return set(wanted)
