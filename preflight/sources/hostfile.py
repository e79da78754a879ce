"""Host files: plain lists of nodes, and those of MPI and DeepSpeed.

Source: Open MPI's and PRRTE's hostfile lexer (slots, max-slots, user-name, port), MPICH's Hydra
and Intel MPI (`host:N`), DeepSpeed (`worker-0 slots=8`), and $PBS_NODEFILE, which names a node
once for each of its slots. Keys that say nothing of where a node is are left alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from preflight.errors import ConfigError
from preflight.inventory import Cluster, Launch, NodeSpec
from preflight.node_names import MAX_NODES
from preflight.sources import Found
from preflight.sources.hosts import entries, spec
from preflight.yaml_lines import read_text, shown

MOST_GPUS = 16
"""Of one machine (HGX-2 and DGX-2); where there are more slots, they are CPU cores."""
LEAST_PORT = 1024
"""`host:N` is a port from here on; what is less are slots. 22 is what ssh takes anyway."""
SLOTS = ("slots", "slot", "cpu", "count")
USER = ("username", "user-name", "user_name", "user")

_SECTION = re.compile(r"\[[A-Za-z_][\w.-]*(?::[a-z]+)?\]")
_COMMENT = re.compile(r"(?:^|\s)(?:#|//).*")


@dataclass
class _Listed:
    """A node, the line that names it first, and its slots if every line of it says them."""

    spec: NodeSpec
    line: int
    slots: int | None


@dataclass
class _Listing:
    """All that a file lists."""

    nodes: dict[str, _Listed] = field(default_factory=dict)
    again: int = 0
    """Lines that name a node once more."""

    def add(self, line: int, node: NodeSpec, slots: int | None) -> bool:
        """Take a node; return whether it was there already.

        Raises:
            ValueError: it was there with other settings, or there are too many.
        """
        known = self.nodes.get(node.name)
        if known is None:
            if len(self.nodes) == MAX_NODES:
                raise ValueError(f"more than {MAX_NODES:,} nodes up to here, which is the most")
            self.nodes[node.name] = _Listed(node, line, slots)
            return False
        if known.spec != node:
            raise ValueError(
                f"{node.name!r} is there already, on line {known.line}, with another user or port; "
                "an inventory can give each a name of its own"
            )
        known.slots = known.slots + slots if known.slots and slots else None
        return True


def read(path: Path) -> Found:
    """Return the cluster that a host file lists.

    Raises:
        ConfigError: it cannot be read, or a line is not right.
    """
    return parsed(read_text(path), str(path))


def parsed(text: str, source: str) -> Found:
    """Return the cluster that the text of a host file lists.

    Raises:
        ConfigError: a line is not right, or there is none.
    """
    listing = _Listing()
    for line, words in _lines(text):
        try:
            again = [listing.add(line, node, slots) for node, slots in _nodes(words)]
        except ValueError as error:
            raise ConfigError(f"{source}:{line}: {error}") from error
        listing.again += any(again)
    if not listing.nodes:
        raise ConfigError(f"{source}: names no node; write one a line, such as gpu01")
    gpus, notes = _gpus(listing, source)
    if listing.again:
        lines = "1 line names a node" if listing.again == 1 else f"{listing.again} lines name nodes"
        notes.append(f"{source}: {lines} for the second time or more; each node is taken once")
    cluster = Cluster(
        name=Path(source).stem or source,
        source=None,
        nodes=tuple(listed.spec for listed in listing.nodes.values()),
        launch=Launch(gpus_per_node=gpus),
    )
    return Found(cluster, f"the host file {source}", tuple(notes))


def _lines(text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the number and the words of each line that has any."""
    # not splitlines, which ends lines where no editor does
    for number, line in enumerate(text.split("\n"), 1):
        words = re.sub(r"\s*=\s*", "=", _COMMENT.sub("", line)).split()
        if words:
            yield number, words


def _nodes(words: list[str]) -> Iterator[tuple[NodeSpec, int | None]]:
    """Yield the nodes of one line, each with its slots.

    Raises:
        ValueError: what is wrong with the line.
    """
    named, *others = words
    if _SECTION.fullmatch(named) or any(word.startswith("ansible_") for word in others):
        raise ValueError("this is an Ansible inventory; try preflight init --ansible FILE")
    values = dict(map(_setting, others))
    slots = next((_number(key, values[key]) for key in SLOTS if key in values), None)
    user = next((values[key] for key in USER if values.get(key)), None)
    port = _number("port", values["port"]) if "port" in values else None
    for name, its_user, number in entries(named):
        its_port, its_slots = port, slots
        if number is not None and number >= LEAST_PORT:
            its_port = number
        elif number is not None:
            its_slots = number
        yield spec(name, its_user or user, its_port), its_slots


def _setting(word: str) -> tuple[str, str]:
    key, equals, value = word.partition("=")
    if not equals:
        raise ValueError(f"{shown(word)} is not key=value; write one node a line")
    return key.lower(), value.strip("\"'")


def _number(key: str, text: str) -> int:
    if not re.fullmatch("[0-9]{1,9}", text):
        raise ValueError(f"{key}: {shown(text)} is not a number")
    return int(text)


def _gpus(listing: _Listing, source: str) -> tuple[int | None, list[str]]:
    """Return the GPUs a node that the slots stand for, and what is to be said of it."""
    counts = {listed.slots for listed in listing.nodes.values()}
    count = counts.pop()
    if counts or not count:
        return None, []
    if count > MOST_GPUS:
        return None, [f"{source}: {count} slots a node are taken for CPU cores, not for GPUs"]
    return count, []
