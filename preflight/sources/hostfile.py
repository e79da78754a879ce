"""Host files: plain lists of nodes, and those of MPI and DeepSpeed.

Source: Open MPI's and PRRTE's hostfile lexer (slots, max-slots, user-name, port), MPICH's Hydra
and Intel MPI (`host:N`), DeepSpeed (`worker-0 slots=8`), and $PBS_NODEFILE, which names a node
once for each of its slots. Keys that say nothing of where a node is are left alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
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

MOST_LINE = 1 << 18
"""Characters; 10,000 names of 25 fit on a line."""

_SECTION = re.compile(r"\[[A-Za-z_][\w.-]*(?::[a-z]+)?\]")
_COMMENT = re.compile(r"(?:^|\s)(?:#|//).*")
_RANK = re.compile(r"[0-9]{1,9}=.*")


@dataclass
class _Listing:
    """All that a file lists."""

    nodes: dict[str, tuple[NodeSpec, int]] = field(default_factory=dict)
    """Each with the line that names it first."""
    slots: dict[int | None, str] = field(default_factory=dict)
    """All numbers of slots, None where there is none, each with the first node that has it."""
    named: int = 0
    """How often any node is named, lines that are the same counted once."""
    again: int = 0
    """Lines that name a node once more."""

    def add(self, line: int, node: NodeSpec, slots: int | None) -> bool:
        """Take a node; return whether it was there already.

        Raises:
            ValueError: it was there with other settings, or there are too many.
        """
        self.named += 1
        again = node.name in self.nodes
        if self.named > MAX_NODES:
            repeats = ", repeated ones too" if again or len(self.nodes) < MAX_NODES else ""
            raise ValueError(
                f"more than {MAX_NODES:,} nodes up to here{repeats}, which is the most"
            )
        known, first = self.nodes.setdefault(node.name, (node, line))
        if known != node:
            raise ValueError(
                f"{node.name!r} is there already, on line {first}, with another user or port; "
                "an inventory can give each a name of its own"
            )
        self.slots.setdefault(slots, node.name)
        return again


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
    known: set[tuple[str, ...]] = set()
    for line, words in _lines(text, source):
        if words in known:  # not expanded again: a $PBS_NODEFILE is made of such lines
            listing.again += 1
            continue
        known.add(words)
        try:
            again = [listing.add(line, node, slots) for node, slots in _nodes(words)]
        except ValueError as error:
            raise ConfigError(f"{source}:{line}: {error}") from error
        listing.again += any(again)
    if not listing.nodes:
        raise ConfigError(f"{source}: names no node; write one a line, such as gpu01")
    gpus, why = _gpus(listing)
    notes = [f"{source}: {why}"] if why else []
    if listing.again:
        lines = "1 line names a node" if listing.again == 1 else f"{listing.again} lines name nodes"
        notes.append(f"{source}: {lines} for the second time or more; each node is taken once")
    cluster = Cluster(
        name=Path(source).stem or source,
        source=None,
        nodes=tuple(node for node, _ in listing.nodes.values()),
        launch=Launch(gpus_per_node=gpus),
    )
    return Found(cluster, f"the host file {source}", tuple(notes))


def _lines(text: str, source: str) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield the number and the words of each line that has any.

    Raises:
        ConfigError: a line is too long.
    """
    # not splitlines, which ends lines where no editor does
    for number, line in enumerate(text.split("\n"), 1):
        if len(line) > MOST_LINE:
            raise ConfigError(
                f"{source}:{number}: is longer than {MOST_LINE:,} characters; write one node a line"
            )
        parts = _COMMENT.sub("", line).split("=")
        words = tuple("=".join(part.strip() for part in parts).split())
        if words:
            yield number, words


def _nodes(words: Sequence[str]) -> Iterator[tuple[NodeSpec, int | None]]:
    """Yield the nodes of one line, each with its slots.

    Raises:
        ValueError: what is wrong with the line.
    """
    named, *others = words
    if _SECTION.fullmatch(named) or any(word.startswith("ansible_") for word in others):
        raise ValueError("this is an Ansible inventory; try preflight init --ansible FILE")
    if named == "rank" and others and _RANK.fullmatch(others[0]):
        raise ValueError(
            "this is an Open MPI rankfile, which says where each process goes; give the host file "
            "that mpirun has beside it"
        )
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


def _gpus(listing: _Listing) -> tuple[int | None, str]:
    """Return the GPUs a node that the slots stand for, or why they stand for none."""
    (first, node), *others = listing.slots.items()
    if others:
        other, its = others[0]
        numbers = f"{node} has {_told(first)}, {its} has {_told(other)}"
        return None, f"slots differ ({numbers}) and are not taken for GPUs"
    if not first:
        return None, ""
    if listing.again:  # Open MPI adds them up, others do not
        return None, "slots of nodes that are named again are not taken for GPUs"
    if first > MOST_GPUS:
        return None, f"{first} slots a node are taken for CPU cores, not for GPUs"
    return first, ""


def _told(slots: int | None) -> str:
    return "none" if slots is None else str(slots)
