"""Agents started on this machine as sshd would start them, and what is left of them."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import select
import shlex
import shutil
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from preflight.api import Reply
from preflight.payload import Payload
from preflight.session import Session
from preflight.transport import Listener, LoginFacts, Stream
from preflight.transport.loopback import LocalStream

MODULE = "preflight.checks.made.one"
MARK = "PREFLIGHT_TEST_MARK"
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
VERSIONS = ("3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "3.14")


class Machine:
    """This machine, logged in to: each command goes through a shell, as sshd does it.

    Args:
        shell: the login shell.
        env: the whole environment, beside PATH and the mark.
        cwd: where the login starts.
        before: what the shell's start files do.
    """

    facts: LoginFacts

    def __init__(
        self,
        shell: str = "/bin/sh",
        env: Mapping[str, str] | None = None,
        cwd: Path = Path("/"),
        before: str = ":",
    ) -> None:
        self.mark = uuid.uuid4().hex
        self.command = ""
        env = {"PATH": SYSTEM_PATH, MARK: self.mark, **(env or {})}
        words = ["env", "-i", *(f"{name}={value}" for name, value in env.items()), shell, "-c"]
        self._line = f"{before}; cd {shlex.quote(str(cwd))} && exec {shlex.join(words)} "

    def execute(self, command: str, listener: Listener) -> Stream:
        self.command = command
        return LocalStream(self._line + shlex.quote(command), listener)

    def close(self) -> None:
        """Nothing is held."""

    @property
    def tag(self) -> str:
        """The tag of the agent that was started."""
        found = re.search(r"preflight-[0-9a-f]{16}:", self.command)
        assert found
        return found[0]

    def processes(self) -> dict[int, str]:
        """Return all living processes that this login has started, down to the last."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if f"{MARK}={self.mark}".encode() in (folder / "environ").read_bytes():
                    words = (folder / "cmdline").read_bytes().split(b"\0")
                    found[int(folder.name)] = b" ".join(words).decode(errors="replace")[-60:]
        return found

    def wait_empty(self) -> None:
        """Wait until nothing of it is left."""
        wait_until(lambda: not self.processes(), lambda: f"still there: {self.processes()}")


@contextlib.contextmanager
def agent(
    sent: str | Payload, machine: Machine | None = None, python: str | None = None
) -> Iterator[Session]:
    """Start an agent with one check's source, and end it; nothing of it may be left."""
    machine = machine or Machine()
    payload = Payload({MODULE: dedent(sent)}) if isinstance(sent, str) else sent
    session = Session(machine, payload, 20, python)
    try:
        yield session
    finally:
        session.close()
        machine.wait_empty()


def ask(session: Session, function: str, *args: Any, timeout_s: float = 10) -> Reply:
    return session.call(MODULE, function, args, timeout_s)


def wait_until(
    holds: Callable[[], Any], what: Callable[[], str] = lambda: "it did not come to be"
) -> None:
    """Wait until something holds."""
    limit = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < limit, what()
        select.select([], [], [], 0.01)


@functools.cache
def pythons() -> Mapping[str, str]:
    """Return the interpreters of this machine by version, such as 3.8: PATH's and pyenv's."""
    places = [str(path) for path in Path("~/.pyenv/versions").expanduser().glob("*/bin/python")]
    places += [p for v in ("2.7", "3.6", "3.7", *VERSIONS) if (p := shutil.which(f"python{v}"))]
    found: dict[str, str] = {}
    for place in places:
        version = said_version(place)
        if version:
            found.setdefault(version, place)
    return found


def said_version(place: str) -> str | None:
    """Return the version that an interpreter says it is; a shim may stand for nothing."""
    code = "import sys; sys.stdout.write('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([place, "-S", "-c", code], capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else None


def python(version: str) -> str:
    """Return an interpreter of a version; skips the test where there is none."""
    if version not in pythons():
        pytest.skip(f"no Python {version} on this machine")
    return pythons()[version]


def program_folder(folder: Path, programs: Mapping[str, str], tools: Sequence[str]) -> str:
    """Fill a folder with links to programs and to system tools, for use as the whole PATH."""
    folder.mkdir(exist_ok=True)
    for tool in tools:
        found = shutil.which(tool, path=SYSTEM_PATH)
        assert found, tool
        (folder / tool).symlink_to(found)
    for name, target in programs.items():
        (folder / name).symlink_to(target)
    return str(folder)


def kill(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
