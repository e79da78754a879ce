"""What several commands share: options, and writing where the user asked."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from preflight.errors import ConfigError

verbose = click.option("-v", "--verbose", is_flag=True, help="Every result, with details.")
no_color = click.option(
    "--no-color",
    is_flag=True,
    default=lambda: bool(os.environ.get("NO_COLOR")),
    help="No colour; NO_COLOR does the same.",
)


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
