"""The environment in which a node's ranks start, as far as it steers communication.

Sent to nodes: stdlib only, Python 3.8.
"""

from __future__ import annotations

import re
from typing import Any, Mapping, TypedDict

from preflight.api import Node, Unobservable, Want

TAKEN = re.compile(
    r"(NCCL|GLOO|UCX|TORCH|FI|OFI_NCCL)_\w+|MASTER_(ADDR|PORT)|TP_SOCKET_IFNAME"
    r"|CUDA_DEVICE_MAX_CONNECTIONS",
    re.ASCII,
)
"""Variables that are looked at; FI_ is libfabric's, OFI_NCCL_ its plugin's, TP_ TensorPipe's."""
SECRET = re.compile(r"(^|_)(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)(_|$)")
LONGEST = 512
"""Characters of a value that are kept."""
INVENTORY = "launch.env"
SHELL = "the shell"
SYSTEM_FILE = "/etc/nccl.conf"
DEFAULT = "python3"
"""The training interpreter where the inventory names none."""
SEALED = ("docker", "podman")
"""Engines whose containers inherit neither the node's environment nor its files."""

NET, DISABLE = "NCCL_NET", "NCCL_IB_DISABLE"
NOT_ZERO = re.compile(r"\s*[-+]?(0[xX]0*[1-9a-fA-F]|0*[1-7]|[89])")
"""What strtoll(3), by which NCCL reads numbers, does not take for 0; it does a word."""


class Setting(TypedDict):
    """The value of a variable, and who sets it: `launch.env`, `the shell`, or a file."""

    value: str
    source: str


class Settings(TypedDict):
    """What the job would find, by variable."""

    found: dict[str, Setting]
    unreadable: list[str]
    """Files that the login user may not read, so that what they set is not known."""


def wanted(want: Want) -> tuple[dict[str, Any]]:
    """Return the arguments of probes that look at the launch environment."""
    keys = ("env", "user", "interface", "container")
    return ({key: want.launch[key] for key in keys if want.launch.get(key)},)


def settings(node: Node, launch: Mapping[str, Any]) -> Settings:
    """Return the variables that steer communication; the first who sets one wins, as in NCCL.

    Source: NCCL 2.30 src/misc/param.cc: initEnvFunc reads $NCCL_CONF_FILE or else ~/.nccl.conf,
    then /etc/nccl.conf, by setenv(3) without overwriting.
    """
    places: list[tuple[str, Mapping[str, str]]] = [(INVENTORY, launch.get("env", {}))]
    unreadable = []
    if launch.get("container", {}).get("engine") not in SEALED:
        places.append((SHELL, node.environ()))
        for path in files(node, launch):
            said = of_file(node, path)
            if said is None:
                unreadable.append(path)
            else:
                places.append((path, said))
    found: dict[str, Setting] = {}
    for source, values in places:
        for name in sorted(values):
            if is_taken(name):
                found.setdefault(name, Setting(value=values[name][:LONGEST], source=source))
    return Settings(found=found, unreadable=unreadable)


def tcp_only(found: Mapping[str, Setting]) -> str:
    """Return the variable that keeps NCCL from RDMA, empty if none does.

    Where NCCL_NET names a network, NCCL takes that one, whatever NCCL_IB_DISABLE says.
    """
    net = found[NET]["value"].lower() if NET in found else ""
    if net:
        return NET if net == "socket" else ""
    return DISABLE if DISABLE in found and NOT_ZERO.match(found[DISABLE]["value"]) else ""


def is_taken(name: str) -> bool:
    """Whether a variable steers communication, and holds no secret."""
    return bool(TAKEN.fullmatch(name)) and not SECRET.search(name)


def files(node: Node, launch: Mapping[str, Any]) -> list[str]:
    """Return the files from which NCCL would set variables, in its order."""
    named = launch.get("env", {}).get("NCCL_CONF_FILE") or node.environ().get("NCCL_CONF_FILE")
    if named:
        return [named, SYSTEM_FILE]
    own = home(node, launch.get("user"))
    return [f"{own}/.nccl.conf", SYSTEM_FILE] if own else [SYSTEM_FILE]


def home(node: Node, user: str | None) -> str | None:
    """Return the home of a user on the node, by default of the login user; None: no such user."""
    own = None if user else node.environ().get("HOME")
    if own is None:
        account = node.account(user)
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


def of_file(node: Node, path: str) -> dict[str, str] | None:
    """Return what a file sets, nothing where there is none, None where it may not be read."""
    try:
        return parsed(node.read(path) or "")
    except Unobservable:
        return None


def parsed(text: str) -> dict[str, str]:
    """Return what a file sets, the first of two lines first; NCCL knows neither quotes nor spaces.

    Source: NCCL 2.30 src/misc/param.cc, setEnvFile.
    """
    found: dict[str, str] = {}
    for line in text.split("\n"):
        name, equals, value = line.rstrip("\r").partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(name, value)
    return found
