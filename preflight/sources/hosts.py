"""Nodes as people type them: `gpu[01-08],ubuntu@10.0.0.5:2222,[fd00::5]:2222`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from preflight.errors import ConfigError
from preflight.inventory import Cluster, NodeSpec, SshSettings
from preflight.node_names import MAX_NODES, is_address, names, pieces
from preflight.sources import Found
from preflight.yaml_lines import shortened, shown

LARGEST_PORT = 65535

# The host is taken apart later; in brackets with a colon it is an IPv6 address, else a range.
_ENTRY = re.compile(
    r"(?:(?P<user>[^@\s\[\]]+)@)?(?:\[(?P<ipv6>[^\[\]]*:[^\[\]]*)\]|(?P<host>[^@]+?))(?::(?P<number>[0-9]{1,9}))?"
)


class Entry(NamedTuple):
    """One node, and what stands around its name; the number is a port, or what a file says."""

    name: str
    user: str | None
    number: int | None


def entries(expression: str) -> Iterator[Entry]:
    """Yield the nodes of `[user@]HOST[:number]`, several with commas; HOST may be a range.

    Raises:
        ValueError: what is wrong with it.
    """
    for piece in pieces(expression):
        if is_address(piece):
            yield Entry(piece, None, None)
            continue
        if len(piece.split()) > 1:
            raise ValueError(f"{shown(piece)} has a blank in it; commas part names: gpu1,gpu2")
        found = _ENTRY.fullmatch(piece)
        if not found:
            raise ValueError(f"{shown(piece)} is not [user@]host[:port]")
        ipv6, number = found["ipv6"], found["number"]
        if ipv6 and not is_address(ipv6):
            raise ValueError(f"{shown(ipv6)} is not an IPv6 address")
        for name in (ipv6,) if ipv6 else names(found["host"]):
            yield Entry(name, found["user"], int(number) if number else None)


def spec(name: str, user: str | None, port: int | None) -> NodeSpec:
    """Return a node with the settings that are given.

    Raises:
        ValueError: the port is none.
    """
    if port is not None and not 0 < port <= LARGEST_PORT:
        raise ValueError(f"{port} is not a port from 1 to {LARGEST_PORT}")
    given = {"user": user, "port": port}
    ssh = SshSettings.model_validate({key: value for key, value in given.items() if value})
    return NodeSpec(name=name, ssh=ssh)


def read(expression: str) -> Found:
    """Return the cluster that `--hosts` names.

    Raises:
        ConfigError: it is not an expression, names a node twice, or names too many.
    """
    nodes: dict[str, NodeSpec] = {}
    try:
        for entry in entries(expression):
            if entry.name in nodes:
                raise ValueError(f"names {entry.name!r} twice")
            if len(nodes) == MAX_NODES:
                raise ValueError(f"stands for more than {MAX_NODES:,} nodes, which is the most")
            nodes[entry.name] = spec(*entry)
    except ValueError as error:
        raise ConfigError(f"--hosts: {shown(expression)}: {error}") from error
    name = shortened(expression)
    return Found(Cluster(name=name, source=None, nodes=tuple(nodes.values())), f"--hosts {name}")
