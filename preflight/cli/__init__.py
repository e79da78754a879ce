"""The command line: one module per command, loaded when it is called. The only place that exits."""

from __future__ import annotations

import atexit
import errno
import gc
import importlib
import os
import sys
import tempfile
import traceback
from typing import NoReturn

import click

from preflight import __version__
from preflight.errors import ConfigError, PreflightError, printable

HELP = {
    "Before launch": {
        "init": "Write an inventory from host names, a host file, a Slurm job or Ansible.",
        "run": "Say whether the nodes of an inventory can train together, and what is wrong.",
        "estimate": "Say what synchronising gradients costs, and how many nodes still pay.",
    },
    "At launch": {
        "launch": "Print the torchrun command of each node, or a script for sbatch.",
        "run": "In a job's prologue: exit code 0 is ready, 1 is not. --require ID to insist.",
    },
    "After a hang": {
        "triage": "Say what ended a job, by its logs; with -i, whether the cluster shows it.",
        "run": "On the nodes of the job that died: --nodes 'gpu[03,07]'.",
        "judge": "Judge the facts of an earlier report again; no node is touched.",
    },
    "To know and to extend": {
        "demo": "See it at work on six simulated nodes with three faults.",
        "checks": "List the checks.",
        "explain": "Print a check's manual page.",
        "record": "Record what a node answers, for a test case or a bug report.",
        "schema": "Print the JSON Schema of inventory, report, estimate or triage.",
        "completion": "Print the line that switches on completion in your shell.",
    },
}
"""What each command is for, by the moment of it.

It stands here and not in the commands so that `--help` need not import them all.
"""
COMMANDS = tuple(dict.fromkeys(name for part in HELP.values() for name in part))
USAGE, INTERNAL, INTERRUPTED = 2, 3, 130
GARBAGE = 250_000
"""Objects between two looks for cycles. Python's 700 has a run of 100 nodes spend a fifth of its
time on passes over facts that live to its end (benchmarks/fanout.py)."""


class Commands(click.Group):
    """Imports a command's module only when it is asked for: the CLI must start at once."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names, in the order of a user's day."""
        return [*COMMANDS]

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
        width = max(map(len, COMMANDS))
        for moment, commands in HELP.items():
            with formatter.section(moment):
                formatter.write_dl([(name.ljust(width), text) for name, text in commands.items()])


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="preflight", message="%(prog)s %(version)s")
def group() -> None:
    """Can these nodes train together? If not: which node, why, and the command that mends it."""


def main() -> NoReturn:
    """Run the command line and exit."""
    gc.set_threshold(GARBAGE)
    atexit.register(gc.freeze)  # a last look for cycles would take as long as judging 100 nodes
    try:
        sys.exit(group.main(standalone_mode=False) or 0)
    except (click.exceptions.Abort, KeyboardInterrupt):
        leave("interrupted", INTERRUPTED)
    except getattr(click.exceptions, "NoArgsIsHelpError", ()) as error:  # click 8.2 and newer
        error.show()
        sys.exit(USAGE)
    except click.ClickException as error:
        wording = importlib.import_module("preflight.cli.usage").wording
        leave(printable(wording(error)), USAGE)
    except PreflightError as error:
        code = USAGE if isinstance(error, ConfigError) else INTERNAL
        leave(f"preflight: {printable(str(error))}", code)
    except BrokenPipeError:  # the reader of our output went away, as `| head` does
        sys.stderr.close()
        sys.exit(INTERNAL)
    except Exception as error:  # noqa: BLE001 - our own bug: versions and traceback in a file, fit to attach to an issue
        if getattr(error, "errno", 0) in (errno.ENOSPC, errno.EDQUOT):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # no second try at exit
            leave(
                "preflight: cannot write the output: no space left; free some, or write elsewhere",
                INTERNAL,
            )
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
