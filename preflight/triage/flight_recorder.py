"""Dumps of torch's flight recorder: which collectives each rank issued, and how far each came.

Shapes: torch's FlightRecorder.cpp and FlightRecorderDetail.hpp, versions 1.x (torch 2.2) to 2.10
(torch 2.13), as pickle and as JSON. Of Gloo the state is always `scheduled`, and the number of the
last completed collective is of no use.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from preflight.triage import plain_pickle
from preflight.triage.files import BROKEN, Log
from preflight.triage.plain_pickle import NotPlain
from preflight.triage.rule import Kind, Rule

MOST = 64 << 20
"""Bytes of a dump; 2000 entries with their stacks take 5 MB."""
PICKLE = 0x80
RANK = re.compile(r"(\d{1,7})(?:\.(?:pkl|pickle|json|gz|zst|bin))*$")
RANKS = re.compile(r"\d{1,7}")
KEPT = 4000
"""Of the last collectives of a group, how many are compared."""
DIMENSIONS, LARGEST = 64, 1 << 63
"""Of a tensor, and of a number: beyond that a dump is damaged."""
BETWEEN_TWO = {"send", "recv", "coalesced"}
"""Operations that have no number among the collectives."""
LIBRARY = re.compile(r"/torch/|/site-packages/|<frozen|\.cpp|\.so\b|\?\?")
"""Files whose frames do not say where the program was."""


ISSUED = Rule(
    pattern="", kind=Kind.FACT, source="a dump of the flight recorder", stage="collective"
)
"""What a dump says of one group of its rank; its pattern is of no line."""
NAME = "flight recorder"
"""Of the `Flight` in `Story.extra`."""


class Call(NamedTuple):
    """What is to be the same on all ranks under one number."""

    op: str
    elements: int | None
    """None: it may differ between ranks."""
    dtype: str


UNIFORM = re.compile(r"_?(?:all_?reduce|broadcast|reduce|all_gather_base|reduce_scatter_base)\w*$")
"""Operations of which each rank gives the same number of elements."""


@dataclass
class Group:
    """A process group, of all dumps."""

    name: str
    members: frozenset[int]
    calls: dict[int, dict[Call, list[int]]] = field(default_factory=lambda: defaultdict(dict))
    """By number: who issued what."""
    enqueued: dict[int, int] = field(default_factory=dict)
    """The number of the last collective that each rank issued."""
    completed: dict[int, int] = field(default_factory=dict)
    """The number of the last one that ended on each rank, where that is known."""
    where: dict[int, str] = field(default_factory=dict)
    """Where in the program each issued its last one."""

    @property
    def stuck(self) -> int | None:
        """The number of the first collective that did not end on all ranks; None: there is none."""
        if len(self.enqueued) < 2 and not self.completed:
            return None
        if self.completed:
            first = min(self.completed.values()) + 1
        else:
            first = min(self.enqueued.values()) + 1
        return first if max(self.enqueued.values()) >= first else None


class Flight:
    """What all dumps of a job tell."""

    def __init__(self) -> None:
        self.groups: dict[tuple[str, frozenset[int]], Group] = {}
        self.files: dict[int, str] = {}
        """The dump of each rank."""

    def add(self, rank: int, file: str, dump: Mapping[str, Any]) -> list[Group]:
        """Take in a rank's dump, and return its groups, the largest last."""
        self.files[rank] = file
        of_group: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
        for entry in listed(dump.get("entries")):
            if isinstance(entry, dict) and operation(entry) not in BETWEEN_TWO:
                of_group[group_name(entry)].append(entry)
        found = []
        for name, entries in of_group.items():
            group = self.group(name, dump, entries[-1])
            take(group, rank, entries[-KEPT:], status(dump, entries[-1]))
            if rank in group.enqueued:
                found.append(group)
        return sorted(found, key=lambda group: len(group.members))

    def group(self, name: str, dump: Mapping[str, Any], entry: Mapping[str, Any]) -> Group:
        """Return a group by its name and its members: of other ranks it may have the same name."""
        config = dump.get("pg_config")
        told = config.get(name) or config.get("") if isinstance(config, dict) else None
        text = str(told.get("ranks", "")) if isinstance(told, dict) else ""
        members = frozenset(int(rank) for rank in RANKS.findall(text[: 8 * 20_000]))
        pair = entry.get("process_group")
        called = str(pair[1]) if isinstance(pair, (list, tuple)) and len(pair) > 1 else ""
        key = name, members
        if key not in self.groups:
            self.groups[key] = Group(called or name, members)
        return self.groups[key]


def told(group: Group, rank: int) -> dict[str, str]:
    """Return what a rank's dump says of a group, as facts."""
    found = {"pg": group.name, "last_enqueued": str(group.enqueued[rank])}
    if rank in group.completed:
        found["last_completed"] = str(group.completed[rank])
    return found


def take(
    group: Group, rank: int, entries: list[Mapping[str, Any]], summed: Mapping[str, Any]
) -> None:
    """Take a rank's entries into its group."""
    by_number: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
    for entry in entries:
        number = whole(entry.get("collective_seq_id", entry.get("seq_id")))
        if number is not None:
            by_number[number].append(entry)
    if not by_number:
        return
    for number, some in by_number.items():
        group.calls[number].setdefault(call(some), []).append(rank)
    group.enqueued[rank] = max(by_number)
    group.where[rank] = place(by_number[max(by_number)][-1])
    if not str(entries[-1].get("profiling_name")).startswith("gloo:"):
        ended = [n for n, some in by_number.items() if some[-1].get("state") == "completed"]
        number = whole(summed.get("last_completed_collective"))
        before = min(by_number) - 1
        group.completed[rank] = max(number if number is not None else before, *ended, before)


def call(entries: list[Mapping[str, Any]]) -> Call:
    """Return what was issued under one number; more than one if they were coalesced."""
    ops = sorted({operation(entry) for entry in entries})
    if len(entries) > 1 or not UNIFORM.match(ops[0]):
        return Call(" and ".join(ops), None, "")
    sizes = listed(entries[0].get("input_sizes"))
    elements = sum(math.prod(whole(n) or 0 for n in listed(one)[:DIMENSIONS]) for one in sizes)
    kinds = listed(entries[0].get("input_dtypes"))
    kind = str(kinds[0]) if kinds else ""
    return Call(ops[0], elements if sizes and elements < LARGEST else None, kind)


def place(entry: Mapping[str, Any]) -> str:
    """Return the line of the program that issued it; empty if the dump has no stacks."""
    for frame in listed(entry.get("frames")):
        if isinstance(frame, dict) and not LIBRARY.search(str(frame.get("filename", "/torch/"))):
            return f"{frame['filename']}:{frame.get('line')}"
    return ""


def operation(entry: Mapping[str, Any]) -> str:
    """Return the operation of `nccl:all_reduce`, or of `nccl:send 1->2`."""
    words = str(entry.get("profiling_name", "")).rpartition(":")[2].split(" ")
    return words[0]


def group_name(entry: Mapping[str, Any]) -> str:
    """Return the name of a group, as `pg_config` has it."""
    pair = entry.get("process_group")
    if isinstance(pair, (list, tuple)) and pair:
        return str(pair[0])
    return str(entry.get("pg_name", entry.get("pg_id", "0")))


def status(dump: Mapping[str, Any], entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return how far a group is, as the dump itself sums it up."""
    every = dump.get("pg_status")
    found = every.get(str(entry.get("pg_id"))) if isinstance(every, dict) else None
    return found if isinstance(found, dict) else {}


def listed(value: Any) -> list[Any]:
    """Return a list as such; none if it is something else."""
    return list(value) if isinstance(value, (list, tuple)) else []


def whole(value: Any) -> int | None:
    """Return a number, which JSON has as text."""
    if isinstance(value, str) and value.lstrip("-").isdigit() and len(value) < 19:
        return int(value)
    number = isinstance(value, int) and not isinstance(value, bool) and abs(value) < LARGEST
    return value if number else None


def dumps(log: Log, head: bytes) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the rank and the dump that a file holds; that it holds none is a flaw of the log.

    Raises:
        ConfigError: it cannot be read.
    """
    load = load_json if head.lstrip()[:1] == b"{" else plain_pickle.loads
    name = RANK.search(log.name)
    try:
        with log.open() as stream:
            data = stream.read(MOST + 1)
        dump = load(data) if len(data) <= MOST else None
    except (*BROKEN, NotPlain, OSError):
        dump = None
    if isinstance(dump, list):  # torch 2.2
        dump = {"entries": dump}
    if not isinstance(dump, dict) or not isinstance(dump.get("entries"), list):
        log.flaws.append(
            f"{log.name} is damaged, or no dump of the flight recorder: it was left out"
        )
    elif name is None:
        log.flaws.append(
            f"{log.name} is a dump of the flight recorder, and left out: of which rank, only the "
            "name of its file can tell: name it nccl_trace_rank_N"
        )
    else:
        yield int(name[1]), dump


def load_json(data: bytes) -> Any:
    """Return what JSON holds.

    Raises:
        NotPlain: it is damaged.
    """
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise NotPlain(str(error)) from error


def is_dump(head: bytes) -> bool:
    """Whether a file that begins so may be a dump: no text begins with this byte."""
    return head[:1] == bytes([PICKLE]) or (head[:1] == b"{" and b'"entries"' in head)
