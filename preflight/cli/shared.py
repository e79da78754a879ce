"""What is written to be shared: a new file, with names replaced by a key of this user."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import click
import platformdirs

from preflight.cli import options
from preflight.errors import ConfigError

KEY_BYTES = 32


def see_new(path: str, option: str) -> None:
    """See that nothing would be overwritten.

    Args:
        path: the file to write.
        option: the option that names it.

    Raises:
        ConfigError: there is such a file.
    """
    if path != "-" and os.path.lexists(path):
        raise ConfigError(f"{path}: exists; remove it, or name another file with {option}")


def write_new(path: str, text: str) -> None:
    """Write a text where there was no file.

    Raises:
        ConfigError: it cannot be written.
    """
    if path == "-":
        click.echo(text, nl=False)
        return
    try:
        with Path(path).open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ConfigError(options.unwritable(path, error)) from error


def secret() -> bytes:
    """Return the key of this user's replacements, made at first need.

    Where it cannot be kept, what is written now has a key of its own.
    """
    path = platformdirs.user_data_path("preflight") / "anonymise.key"
    fresh = secrets.token_bytes(KEY_BYTES)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            with os.fdopen(
                os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb"
            ) as file:
                file.write(fresh)
        kept = path.read_bytes()
    except OSError:
        kept = b""
    if len(kept) == KEY_BYTES:
        return kept
    options.say(f"{path} cannot be used: names will differ from those in other recordings")
    return fresh
