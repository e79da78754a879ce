"""`preflight completion`."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

import click

LINES = {
    "bash": 'eval "$(_PREFLIGHT_COMPLETE=bash_source preflight)"  # in ~/.bashrc',
    "zsh": 'eval "$(_PREFLIGHT_COMPLETE=zsh_source preflight)"  # in ~/.zshrc, below compinit',
    "fish": "_PREFLIGHT_COMPLETE=fish_source preflight | source  # in ~/.config/fish/config.fish",
}
"""By shell; https://click.palletsprojects.com/en/stable/shell-completion"""


@click.command(name="completion")
@click.argument("shell", type=click.Choice(list(LINES)))
def command(shell: str) -> int:
    """Print the line that switches on completion of commands, check ids and nodes in a shell."""
    click.echo(reached(shell) + LINES[shell])
    return 0


def reached(shell: str) -> str:
    """Return what puts this program on the PATH, if it is not: the shells call it by its name."""
    if shutil.which("preflight"):
        return ""
    folder = shlex.quote(str(Path(sys.executable).parent))
    return f"set -a PATH {folder}; " if shell == "fish" else f"PATH=$PATH:{folder}; "
