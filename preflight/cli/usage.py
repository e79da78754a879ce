"""What click finds wrong with a command line, on one line and in our words."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

import click

from preflight.cli import COMMANDS
from preflight.yaml_lines import nearest, shown

_NOT_IN = re.compile(r"(?P<value>.*) is not (?:one of|in the range|a valid) .*", re.DOTALL)
_MEANT = {
    r"Option '(?P<a>.+)' requires an argument\.": "{a}: needs a value",
    r"Option '(?P<a>.+)' does not take a value\.": "{a}: takes no value",
    r"Got unexpected extra arguments? \((?P<a>.*)\)": "{a!r}: one word too many",
}


def wording(error: click.ClickException) -> str:
    """Return one line: which command, what is wrong with what was typed, where to read more."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    named = [word for word in sys.argv[1:2] if word in COMMANDS]  # click does not always tell
    path = context.command_path if context else " ".join(["preflight", *named])
    return f"{path}: {_problem(error, context.command if context else None)}; {path} --help"


def _problem(error: click.ClickException, command: click.Command | None) -> str:
    if isinstance(error, click.NoSuchOption):
        known = [name for param in command.params for name in param.opts] if command else []
        return f"there is no option {shown(error.option_name)}{nearest(error.option_name, known)}"
    if isinstance(error, click.MissingParameter):
        return f"{_name(error.param)} is missing"
    if isinstance(error, click.BadParameter):
        return f"{_name(error.param)}: {_value(error)}"
    if match := re.match(r"No such command '(.*)'", error.message, re.DOTALL):
        near = nearest(match[1], COMMANDS) or f"; there are {choices(COMMANDS, 'and')}"
        return f"there is no command {shown(match[1])}{near}"
    for pattern, words in _MEANT.items():
        if match := re.fullmatch(pattern, error.message):
            return words.format(**match.groupdict())
    return error.message.rstrip(".")


def _name(param: click.Parameter | None) -> str:
    if isinstance(param, click.Option):
        return max(param.opts, key=len)
    return (param.human_readable_name if param else "") or "an argument"


def _value(error: click.BadParameter) -> str:
    """Return what is wrong with a value: click tells types, we tell what may be written."""
    match = _NOT_IN.fullmatch(error.message)
    kind = error.param.type if error.param else None
    if match and isinstance(kind, click.Choice):
        return f"{match['value']} is not {choices(kind.choices)}"
    if match and isinstance(kind, (click.IntRange, click.FloatRange)):
        number = "a whole number" if isinstance(kind, click.IntRange) else "a number"
        return f"{match['value']} is not {number} from {kind.min} to {kind.max}"
    return error.message.rstrip(".")


def choices(words: Sequence[str], joint: str = "or") -> str:
    """Return `a, b or c`."""
    *others, last = words
    return f"{', '.join(others)} {joint} {last}" if others else last
