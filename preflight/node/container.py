"""Containers: how they are entered, and what a job finds in one of docker or podman that runs.

Those two give their containers an environment, files and limits of their own; what enroot and
apptainer start has those of the node.
Sent to nodes: stdlib only, Python 3.8.
"""

from __future__ import annotations

import re
import signal
from typing import Any, Collection, Mapping, Protocol

from preflight.api import Account, Node, Ran, Unobservable, some
from preflight.node.variables import NAMES, PLANNED, PROXIES, SECRETS

EXEC_ENGINES = ("docker", "podman")
LIMIT_S = 8
"""For the engine's answer; below the 10 s of the checks, so that the words are ours."""
CLOSED = "permission denied while trying to connect to the docker"
"""In what docker says to users that are not in its group; an address and a request follow."""
ENVIRON, LIMITS = "/proc/self/environ", "/proc/self/limits"
ROWS = {"Max locked memory": "memlock", "Max open files": "nofile", "Max processes": "nproc"}
"""Of /proc/self/limits; columns are two spaces apart or more."""
BREAK, END = "\1", "."
"""What stands for the end of a line within a variable; the line that says: that was all."""
LOOK = rf"""
lines() {{
  while IFS= read -r line || [ -n "$line" ]; do printf '+%s\n' "$line"; done
}}
hide() {{
  while IFS= read -r line || [ -n "$line" ]; do
    case $line in
      *[Pp][Rr][Oo][Xx][Yy]=*@*) line="${{line%%=*}}=(hidden)@${{line##*@}}" ;;
    esac
    printf '%s\n' "$line"
  done
}}
file() {{
  [ -f "$1" ] || return 0
  printf '=%s\n' "$1"
  if [ -r "$1" ]; then lines <"$1"; else echo -; fi
}}
for name in tr grep; do
  command -v $name >/dev/null || {{ echo "there is no $name in it" >&2; exit 1; }}
done
for name in limits status uid_map cgroup; do file /proc/self/$name; done
while IFS=: read -r number name path; do
  case $number:$name in
    0:) place=/sys/fs/cgroup$path ;;
    *:pids) place=/sys/fs/cgroup/pids$path ;;
    *) continue ;;
  esac
  while place=${{place%/}}; [ ${{#place}} -ge 14 ]; do
    file "$place/pids.max"
    place=${{place%/*}}
  done
done </proc/self/cgroup
echo ={ENVIRON}
tr '\000\012' '\012\001' </proc/$$/environ |
  LC_ALL=C grep -E '^({NAMES}|{PLANNED}|{PROXIES}|HOME)=' |
  LC_ALL=C grep -vE '^([^=]*_)?({SECRETS})(_[^=]*)?=' | hide | lines
file "${{NCCL_CONF_FILE:-$HOME/.nccl.conf}}"
file /etc/nccl.conf
echo {END}
"""
"""Asks a container for all at once: `=PATH` begins a file, `+` each line of it, `-` says that it
may not be read. Of the environment only what is looked at comes out, so no secret does. /proc/self
would be the child that is to become tr(1), whose environment as a shell is gone by then."""


class Place(Protocol):
    """Where a job finds its environment and limits: a node, or a container that runs there."""

    def read(self, path: str) -> str | None:
        """As of `Node`."""

    def environ(self) -> Mapping[str, str]:
        """As of `Node`."""

    def account(self, name: str | None = None) -> Account | None:
        """As of `Node`."""

    def limits(self) -> Mapping[str, tuple[int, int]]:
        """As of `Node`."""


class Inside:
    """A container that runs, as far as LOOK asked it.

    Args:
        files: text by path, None where it may not be read.
    """

    def __init__(self, files: Mapping[str, str | None]) -> None:
        self._files = files

    def read(self, path: str) -> str | None:
        """Return a file's text, None if there is none."""
        text = self._files.get(path, "")
        if text is None:
            raise Unobservable(f"{path}: Permission denied")
        return text if path in self._files else None

    def environ(self) -> Mapping[str, str]:
        """Return the variables that are looked at."""
        lines = (self.read(ENVIRON) or "").split("\n")
        pairs = (line.replace(BREAK, "\n").partition("=") for line in lines if line)
        return {name: value for name, _, value in pairs}

    def account(self, name: str | None = None) -> Account | None:  # noqa: ARG002
        """Return None: its users were not asked for, HOME tells where their files are."""
        return None

    def limits(self) -> Mapping[str, tuple[int, int]]:
        """Return soft and hard limits by name; -1: none."""
        rows = (re.split(r"\s{2,}", line) for line in (self.read(LIMITS) or "").split("\n"))
        found = {row[0]: row[1:3] for row in rows if row[0] in ROWS}
        if set(found) != set(ROWS):
            raise Unobservable(
                f"{LIMITS} of the container: {some(sorted(set(ROWS) - set(found)))} is missing"
            )
        return {name: (number(found[row][0]), number(found[row][1])) for row, name in ROWS.items()}


def number(word: str) -> int:
    """Return a limit as getrlimit(2) would."""
    return -1 if word == "unlimited" else int(word)


def is_sealed(container: Mapping[str, Any]) -> bool:
    """Whether what runs in a container finds nothing of the node's environment and limits."""
    return bool(container) and container["engine"] in EXEC_ENGINES


def called(container: Mapping[str, Any]) -> str:
    """Return the name of a container, or of its image, in words."""
    engine, image = container["engine"], container.get("image")
    return f"{engine} image {image}" if image else f"{engine} container {container['name']}"


def closed(container: Mapping[str, Any]) -> str:
    """Return why a container cannot be looked into, empty if it can."""
    if not container:
        return ""
    if container.get("image"):
        return "the training environment is in an image, and preflight starts no containers"
    if container["engine"] not in EXEC_ENGINES:
        return "preflight does not look into {} containers".format(container["engine"])
    return ""


def see_whose(node: Node, container: Mapping[str, Any], user: str | None) -> None:
    """See that the login user's containers are those of the job's user.

    Each user has a podman of its own; docker is one for all.

    Raises:
        Unobservable: they are not.
    """
    login = node.account() if user and container.get("engine") == "podman" else None
    if login and login.name != user:
        raise Unobservable(f"podman shows {login.name} no containers of {user}: log in as {user}")


def entered(
    container: Mapping[str, Any], env: Mapping[str, str], own: Collection[str] = ()
) -> list[str]:
    """Return the words before the program.

    env(1) looks a command up in the PATH that was set for it, and says by its end what is wrong.

    Args:
        container: the job's, empty if it has none.
        env: variables for the program. An engine that had them itself would heed some: by HOME
            podman finds its containers.
        own: names of variables that it gets as the engine has them.
    """
    if not container:
        return ["env"]
    given = [*(f"{name}={env[name]}" for name in sorted(env)), *sorted(own)]
    words = [word for variable in given for word in ("--env", variable)]
    return [container["engine"], "exec", *words, container["name"]]


def ended(code: int) -> str:
    """Return how a process ended, in words."""
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"ended with code {code}"


def last_line(ran: Ran, program: str) -> str:
    """Return the last words of a command that failed; plain ones of docker that is closed to us."""
    if CLOSED in ran.err.lower():
        return "the login user may not use docker: put it into the group docker, or log in as root"
    lines = ran.err.strip().splitlines() or [f"{ended(ran.code)} without a word"]
    return re.sub(rf"^\S*env: '?{re.escape(program)}'?: ", "", lines[-1].strip())


def look(node: Node, container: Mapping[str, Any], env: Mapping[str, str]) -> Inside:
    """Return what a container that runs has.

    Args:
        node: where it runs.
        container: of the inventory's launch.
        env: variables that go before its own.

    Raises:
        Unobservable: it cannot be looked into.
    """
    try:
        ran = node.run([*entered(container, env), "sh", "-c", LOOK], timeout_s=LIMIT_S)
    except Unobservable as problem:
        raise Unobservable(f"{called(container)} cannot be looked into: {problem}") from problem
    lines = ran.out.split("\n")
    if ran.code or END not in lines:
        words = last_line(ran, "sh")
        raise Unobservable(f"{called(container)} cannot be looked into: {words}")
    files: dict[str, str | None] = {}
    path = ""
    for line in lines:
        sign, rest = line[:1], line[1:]
        if sign == "=":
            path = rest
            files[path] = ""
        elif sign == "+" and path:
            files[path] = f"{files[path]}{rest}\n"
        elif line == "-":
            files[path] = None
    return Inside(files)


def by_hand(container: Mapping[str, Any], command: str) -> str:
    """Return the command that runs another one in a container that runs, else that one itself."""
    if not is_sealed(container) or closed(container):
        return command
    return f"{container['engine']} exec {container['name']} sh -c '{command}'"
