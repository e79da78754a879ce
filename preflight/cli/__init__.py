"""The command line: one module per command, loaded when it is called. The only place that exits."""

from __future__ import annotations

import importlib
import sys
import tempfile
import traceback
from typing import NoReturn

import click

from preflight import __version__
from preflight.errors import ConfigError, PreflightError, printable

COMMANDS = {
    "run": "Say whether the nodes of an inventory can train together.",
    "checks": "List the checks.",
    "explain": "Print a check's manual page.",
    "judge": "Judge the facts of a report again; no node is touched.",
    "schema": "Print the JSON Schema of inventory or report.",
}
"""Name and help of each; the help stands here so that `--help` need not import them all."""
USAGE, INTERNAL, INTERRUPTED = 2, 3, 130


class Commands(click.Group):
    """Imports a command's module only when it is asked for: the CLI must start at once."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names, in the order of a user's day."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Return one command."""
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(f"preflight.cli.{cmd_name}").command
        if not isinstance(command, click.Command):
            raise TypeError(cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="preflight", message="%(prog)s %(version)s")
def group() -> None:
    """Can these nodes train together? If not: which node, why, and the command that mends it."""


def main() -> NoReturn:
    """Run the command line and exit."""
    try:
        sys.exit(group.main(standalone_mode=False) or 0)
    except click.exceptions.Abort:
        leave("interrupted", INTERRUPTED)
    except KeyboardInterrupt:
        leave("interrupted", INTERRUPTED)
    except click.ClickException as error:
        error.show()
        sys.exit(USAGE)
    except ConfigError as error:
        leave(f"preflight: {printable(str(error))}", USAGE)
    except PreflightError as error:
        leave(f"preflight: {printable(str(error))}", INTERNAL)
    except BrokenPipeError:  # the reader of our output went away, as `| head` does
        sys.stderr.close()
        sys.exit(INTERNAL)
    except Exception:  # noqa: BLE001 - our own bug: versions and traceback in a file, fit to attach to an issue
        leave(f"preflight: internal error; please report it with {saved_trace()}", INTERNAL)


def leave(message: str, code: int) -> NoReturn:
    """Say one line and exit."""
    click.echo(message, err=True)
    sys.exit(code)


def saved_trace() -> str:
    """Write versions and traceback to a file and return its name."""
    with tempfile.NamedTemporaryFile(
        "w", prefix="preflight-", suffix=".txt", delete=False, encoding="utf-8"
    ) as file:
        file.write(f"preflight {__version__}, Python {sys.version}, {sys.platform}\n\n")
        file.write(traceback.format_exc())
    return file.name
