"""Why an agent did not start, in words, told from what was heard in its place."""

from __future__ import annotations

import re
import shlex

from preflight.errors import NodeError
from preflight.payload import MINIMUM

NOT_FOUND = re.compile(r"not found|unknown command", re.IGNORECASE)
"""What sh, bash, csh and fish say of a program that there is not."""
NO_SHELL = re.compile(r"not available|nologin|restricted", re.IGNORECASE)
"""What nologin (util-linux, shadow) and restricted shells say (rbash: `exec: restricted`)."""

MOST_HEARD = 200
"""Characters of each stream that a message repeats."""


class AgentError(NodeError):
    """The agent did not start on a node that was reached."""


def old_python(python: str | None, executable: str, version: str) -> AgentError:
    """Return the error of a node whose Python is too old; `python` is the inventory's, if any."""
    if python:
        return AgentError(
            "old python",
            f"ssh.python is {python!r}: {executable} is Python {version}, "
            f"and preflight needs {MINIMUM} or newer there",
            f"name a Python {MINIMUM} or newer in the inventory: ssh.python; "
            "or leave it out, then PATH is searched for one",
        )
    return AgentError(
        "old python",
        f"{executable} is Python {version}, and there is no Python {MINIMUM} or newer on PATH",
        f"install Python {MINIMUM} or newer, or name one in the inventory: ssh.python",
    )


def no_python(python: str | None) -> AgentError:
    """Return the error of a node where the shell found nothing to start."""
    if python:
        return AgentError(
            "no python",
            f"ssh.python is {python!r}: there is no such program, or it may not be run",
            "correct ssh.python in the inventory; or leave it out, then PATH is searched for one",
        )
    return AgentError(
        "no python",
        "there is no python3 on PATH, as a login that runs one command has it",
        "install python3, or name the interpreter in the inventory: ssh.python",
    )


def no_start(said: str, noise: str, late_s: float | None, python: str | None) -> AgentError:
    """Return the error of an agent that said nothing: either the shell or Python is at fault.

    Args:
        said: standard error, on one line.
        noise: standard output, on one line.
        late_s: how long it was waited for; None: it has ended.
        python: the inventory's, if any.
    """
    heard = words(said, noise)
    what = "ended" if late_s is None else f"no answer {late_s:g} s after the command was sent"
    told = f"; the node said: {heard}" if heard else ""
    hint = (
        "ssh NODE echo hi must print hi and no more, else see the account's login shell and its "
        f"start files; ssh NODE {shlex.quote(python or 'python3')} -c pass must print nothing, "
        "else name another python in the inventory: ssh.python"
    )
    if late_s is None and NO_SHELL.search(heard):
        hint = (
            "see the account's login shell, getent passwd USER there: "
            "nologin, false and restricted shells run no commands"
        )
    message = f"the login worked, but the agent did not start: {what}{told}"
    return AgentError("no agent", message, hint)


def words(said: str, noise: str) -> str:
    """Return what was heard: the end of standard error, the beginning of standard output."""
    if len(said) > MOST_HEARD:
        said = f"...{said[-MOST_HEARD:]}"
    if len(noise) > MOST_HEARD:
        noise = f"{noise[:MOST_HEARD]}..."
    return "; ".join(part for part in (said, noise) if part)


def no_sudo(said: str, noise: str, late_s: float | None) -> AgentError:
    """Return the error of an agent that sudo did not start; arguments as of `no_start`."""
    heard = words(said, "" if said else noise)  # a login that prints was well without sudo
    without = "or leave ssh.become out: checks that need root are then skipped"
    if late_s is not None:
        told = f"; it said: {heard}" if heard else ""
        return AgentError(
            "sudo",
            f"sudo -n did not start the agent within {late_s:g} s{told}",
            f"see what sudo waits for there, such as DNS or LDAP: ssh NODE sudo -n true; {without}",
        )
    if NOT_FOUND.search(heard):
        return AgentError("sudo", f"there is no sudo: {heard}", f"install sudo, {without}")
    return AgentError(
        "sudo",
        f"sudo -n was refused: {heard or 'it ended without a word'}",
        f"allow it without a password (NOPASSWD), {without}",
    )
