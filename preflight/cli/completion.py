"""`preflight completion`."""

from __future__ import annotations

import click

LINES = {
    "bash": 'eval "$(_PREFLIGHT_COMPLETE=bash_source preflight)"  # in ~/.bashrc',
    "zsh": 'eval "$(_PREFLIGHT_COMPLETE=zsh_source preflight)"  # in ~/.zshrc',
    "fish": "_PREFLIGHT_COMPLETE=fish_source preflight | source  # in ~/.config/fish/config.fish",
}
"""By shell; https://click.palletsprojects.com/en/stable/shell-completion"""


@click.command(name="completion")
@click.argument("shell", type=click.Choice(list(LINES)))
def command(shell: str) -> int:
    """Print the line that switches on completion of commands, check ids and nodes in a shell."""
    click.echo(LINES[shell])
    return 0
