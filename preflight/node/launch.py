"""The environment in which a node's ranks start, as far as it steers communication.

Sent to nodes: stdlib only, Python 3.8.
"""

from __future__ import annotations

import re
from typing import Any, Mapping, Sequence, TypedDict

from preflight.api import Node, Unobservable, Want
from preflight.node.container import Place, called, closed, is_sealed, look, see_whose
from preflight.node.variables import is_taken, without_login

LONGEST = 512
"""Characters of a value that are kept."""
INVENTORY = "launch.env"
SHELL = "the shell"
CONF_FILE, SYSTEM_FILE = "NCCL_CONF_FILE", "/etc/nccl.conf"
DEFAULT = "python3"
"""The training interpreter where the inventory names none."""

NET, DISABLE = "NCCL_NET", "NCCL_IB_DISABLE"
NOT_ZERO = re.compile(r"\s*[-+]?(0[xX]0*[1-9a-fA-F]|0*[1-7]|[89])")
"""What strtoll(3), by which NCCL reads numbers, does not take for 0; it does a word."""

SEEMING = re.compile(
    r"\s*(?:(?:export|setenv|set)\s+)?(NCCL_[A-Z0-9_]+)(?:\s*=\s*(.*?)|:?\s+(\S+))\s*"
)
"""A line of nccl.conf as it is written by mistake: with spaces, a colon, or as for a shell."""


class Setting(TypedDict):
    """The value of a variable, and who sets it: `launch.env`, `the shell`, a container, a file."""

    value: str
    source: str


class Given(TypedDict):
    """Some variables of the job, by name; of a container and what is not seen, see `Settings`."""

    found: dict[str, Setting]
    container: str
    unseen: str


class Idle(TypedDict):
    """A line of a file that seems to set a variable, and does not."""

    source: str
    text: str
    meant: str
    """The line that would."""


class Settings(TypedDict):
    """What the job would find, by variable."""

    found: dict[str, Setting]
    idle: list[Idle]
    unreadable: list[str]
    """Files that may not be read, so that what they set is not known."""
    container: str
    """Whose they are, if a container's that runs, such as `docker container train`; else empty."""
    unseen: str
    """Why nothing but launch.env is known; empty where all is."""


def wanted(want: Want) -> tuple[dict[str, Any]]:
    """Return the arguments of probes that look at the launch environment."""
    keys = ("env", "user", "interface", "container")
    return ({key: want.launch[key] for key in keys if want.launch.get(key)},)


def place_of(node: Node, launch: Mapping[str, Any]) -> Place:
    """Return where the job finds its environment and limits: the node, or a container there.

    Raises:
        Unobservable: that container cannot be looked into.
    """
    container = launch.get("container", {})
    if not is_sealed(container):
        return node
    if closed(container):
        raise Unobservable(closed(container))
    see_whose(node, container, launch.get("user"))
    env = launch.get("env", {})
    return look(node, container, {CONF_FILE: env[CONF_FILE]} if env.get(CONF_FILE) else {})


def given(node: Node, launch: Mapping[str, Any], names: Sequence[str]) -> Given:
    """Return variables as launch.env has them, or else the place where the job starts."""
    container = launch.get("container", {})
    whose = called(container) if is_sealed(container) and not closed(container) else ""
    sources: list[tuple[str, Mapping[str, str]]] = [(INVENTORY, launch.get("env", {}))]
    unseen = ""
    try:
        sources.append((whose or SHELL, place_of(node, launch).environ()))
    except Unobservable as problem:
        unseen = str(problem)
    found: dict[str, Setting] = {}
    for source, environ in sources:
        for name in names:
            value = environ.get(name)
            if value is not None:
                value = without_login(name, value)[:LONGEST]
                found.setdefault(name, Setting(value=value, source=source))
    return Given(found=found, container=whose, unseen=unseen)


def settings(node: Node, launch: Mapping[str, Any]) -> Settings:
    """Return the variables that steer communication; launch.env's alone where no more is seen."""
    try:
        place = place_of(node, launch)
    except Unobservable as problem:
        return settings_in(None, launch, str(problem))
    return settings_in(place, launch)


def settings_in(place: Place | None, launch: Mapping[str, Any], unseen: str = "") -> Settings:
    """Return the variables of a place; the first who sets one wins, as in NCCL.

    Source: NCCL 2.30 src/misc/param.cc: initEnvFunc reads $NCCL_CONF_FILE or else ~/.nccl.conf,
    then /etc/nccl.conf, by setenv(3) without overwriting.
    """
    container = launch.get("container", {})
    whose = called(container) if is_sealed(container) and not closed(container) else ""
    sources: list[tuple[str, Mapping[str, str]]] = [(INVENTORY, launch.get("env", {}))]
    unreadable = []
    idle: list[Idle] = []
    if place:
        sources.append((whose or SHELL, place.environ()))
        for path in files(place, launch):
            text, name = text_of(place, path), f"{path} of {whose}" if whose else path
            if text is None:
                unreadable.append(name)
            else:
                sources.append((name, parsed(text)))
                idle += [Idle(source=name, text=line, meant=to) for line, to in misspelt(text)]
    found: dict[str, Setting] = {}
    for source, values in sources:
        for name in sorted(values):
            if is_taken(name):
                found.setdefault(name, Setting(value=values[name][:LONGEST], source=source))
    return Settings(found=found, idle=idle, unreadable=unreadable, container=whose, unseen=unseen)


def tcp_only(found: Mapping[str, Setting]) -> str:
    """Return the variable that keeps NCCL from RDMA, empty if none does.

    Where NCCL_NET names a network, NCCL takes that one, whatever NCCL_IB_DISABLE says.
    """
    net = found[NET]["value"].lower() if NET in found else ""
    if net:
        return NET if net == "socket" else ""
    return DISABLE if DISABLE in found and NOT_ZERO.match(found[DISABLE]["value"]) else ""


def files(place: Place, launch: Mapping[str, Any]) -> list[str]:
    """Return the files from which NCCL would set variables, in its order."""
    named = launch.get("env", {}).get(CONF_FILE) or place.environ().get(CONF_FILE)
    if named:
        return [named, SYSTEM_FILE]
    user = None if is_sealed(launch.get("container", {})) else launch.get("user")
    own = home(place, user)
    return [f"{own}/.nccl.conf", SYSTEM_FILE] if own else [SYSTEM_FILE]


def home(place: Place, user: str | None) -> str | None:
    """Return the home of a user, by default of the login user; None: no such user."""
    own = None if user else place.environ().get("HOME")
    if own is None:
        account = place.account(user)
        own = account.home if account else None
    return own


def expanded(node: Node, path: str, user: str | None) -> str:
    """Return a path of the inventory as the shell of the job's user would: `~` is the home."""
    if not path.startswith("~"):
        return path
    name, slash, rest = path[1:].partition("/")
    own = home(node, name or user)
    return path if own is None else own + slash + rest


def interpreter(node: Node, launch: Mapping[str, Any]) -> str:
    """Return the training interpreter: a path, or a name to be looked for on PATH.

    A path that is not absolute begins at the working directory of the job.
    """
    user, workdir = launch.get("user"), launch.get("workdir")
    python = expanded(node, launch.get("python") or DEFAULT, user)
    if "/" not in python or python.startswith("/") or not workdir:
        return python
    return f"{expanded(node, workdir, user)}/{python}"


def text_of(place: Place, path: str) -> str | None:
    """Return the text of a file, empty where there is none, None where it may not be read."""
    try:
        return place.read(path) or ""
    except Unobservable:
        return None


def parsed(text: str) -> dict[str, str]:
    """Return what a file sets, the first of two lines first.

    NCCL knows neither quotes nor spaces, and takes a carriage return into the value.
    Source: NCCL 2.30 src/misc/param.cc, setEnvFile.
    """
    found: dict[str, str] = {}
    for line in text.split("\n"):
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(name, value)
    return found


def misspelt(text: str) -> list[tuple[str, str]]:
    """Return the lines of a file that seem to set a variable and do not, with what would."""
    found = []
    for line in text.split("\n"):
        match = SEEMING.fullmatch(line)
        if match and is_taken(match[1]) and not line.startswith(f"{match[1]}="):
            found.append(
                (line.strip()[:LONGEST], f"{match[1]}={match[2] or match[3] or ''}"[:LONGEST])
            )
    return found
