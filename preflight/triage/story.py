"""What the logs of a job tell, by rank: bounded in size, however long they are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import NamedTuple

from preflight.triage.prefix import Who
from preflight.triage.rule import FOLLOWED, RAISED, WENT_ON, Kind, Rule

KEPT = 4
"""Lines of one rule and one rank that are kept as evidence; the others are counted."""
LAST = 2
"""Lines below the last one: an empty one, and what a shell adds."""
MOST_KEYS = 200_000
"""Of rule and rank: beyond that (a log of noise) nothing new is kept."""

NEAR = 10
"""Lines of a log's end: whoever ends a job that is stuck adds a few."""
FURTHER = {"bootstrap", "transport setup", "collective"}
"""Stages that a job reaches when all its ranks have met."""


class Seen(NamedTuple):
    """A line that a rule is of."""

    file: str
    line: int
    text: str
    who: Who
    time: str
    order: int
    """By which lines of one file are in order; of several files it says nothing."""
    rule: Rule
    told: Mapping[str, str]
    """Its named groups, and what `Rule.refine` makes of them."""


@dataclass
class Rank:
    """What one rank, or one process whose rank is not known, has said of itself."""

    who: Who
    facts: dict[str, str] = field(default_factory=dict)
    """The first value of each; what changes (`last_...`) the last."""
    where: dict[str, Seen] = field(default_factory=dict)
    """The line of each fact."""
    first_error: Seen | None = None
    last: Seen | None = None


@dataclass
class Logs:
    """What is known of all logs."""

    lines: dict[str, int] = field(default_factory=dict)
    """How many each has, once it is read."""
    runs: set[str] = field(default_factory=set)
    """Folders of torchruns: one a node."""
    ranks: set[int] = field(default_factory=set)
    """Those that have a log by their name."""
    folders: set[str] = field(default_factory=set)
    """Where torchruns put what one process writes, were it nothing."""

    def meet(self, owner: Who) -> None:
        """Take in whose log there is."""
        if owner.folder:
            self.runs.add(owner.run)
            self.folders.add(owner.folder)
        if owner.rank is not None:
            self.ranks.add(owner.rank)


class Story:
    """All that was seen of one launch.

    `families` read it: `events`, `ranks`, `stated`, `count`.

    Args:
        logs: all that are read, also those of other launches.
    """

    def __init__(self, logs: Logs | None = None) -> None:
        self._logs = logs or Logs()
        self._seen: dict[tuple[int, Who], list[Seen]] = {}
        self._counts: dict[tuple[int, Who], int] = defaultdict(int)
        self._facts: dict[tuple[Who, str], tuple[str, Seen]] = {}
        self._last: dict[Who, Seen] = {}
        self._rank_of: dict[tuple[str, int], int] = {}
        self._rank_in: dict[str, int] = {}
        self._first_of: dict[PurePath, set[int]] = defaultdict(set)
        """By the folder of a torchrun's start: its first rank, for it counts on from there; several
        where ranks are told within a group."""
        self._host: dict[str, Seen] = {}
        self._rank_on: dict[tuple[str, str], int] = {}
        """By host and local rank, as torchrun's tables of failures tell it."""
        self._world = 0
        self.extra: dict[str, object] = {}
        """What is not lines: flight recorder dumps, RAS; by the reader's name."""

    def add(self, seen: Seen) -> None:
        """Take in a line."""
        key = id(seen.rule), seen.who
        kept = self._seen.get(key)
        if kept is None:
            if len(self._seen) >= MOST_KEYS:
                return
            kept = self._seen[key] = []
        self._counts[key] += 1
        if len(kept) < KEPT:
            kept.append(seen)
        elif seen.rule.kind is Kind.FACT:
            kept[-1] = seen  # the first few, and the last
        self._last[seen.who] = seen
        for name, value in seen.told.items():
            if name.startswith("last_") or (seen.who, name) not in self._facts:
                self._facts[seen.who, name] = value, seen
        self.learn(seen)

    def learn(self, seen: Seen) -> None:
        """Learn which process is which rank, by that of the largest communicator or by itself."""
        told, who = seen.told, seen.who
        self.learn_folder(who)
        if "failed_on" in told:
            self._host[seen.file] = seen
        host = self._host.get(seen.file)
        if "failed_local" in told and host and host.line + 1 == seen.line and who.rank is not None:
            name = host.told["failed_on"]
            for one in (name, name.partition(".")[0]):
                self._rank_on[one, told["failed_local"]] = who.rank
        if "nranks" in told and "comm_rank" in told and who.pid is not None:
            world = int(told["nranks"])
            if world > self._world:
                self._world = world
                self._rank_of = {}
            if world == self._world:
                self._rank_of.setdefault((who.node, who.pid), int(told["comm_rank"]))

    def learn_folder(self, who: Who) -> None:
        """Learn which rank writes to a folder, and by that of its neighbours."""
        if who.folder and who.rank is not None:
            self._rank_in.setdefault(who.folder, who.rank)
            path = PurePath(who.folder)
            self._first_of[path.parent].add(who.rank - int(path.name))

    def whose(self, who: Who) -> Who:
        """Return whose it is, with the rank if any line has told it."""
        if who.rank is None and who.pid is not None and (who.node, who.pid) in self._rank_of:
            return who._replace(rank=self._rank_of[who.node, who.pid])
        if who.rank is None and who.folder in self._rank_in:
            return who._replace(rank=self._rank_in[who.folder])
        path = PurePath(who.folder)
        if who.rank is None and who.folder:
            firsts = self._first_of.get(path.parent, set())
            if len(firsts) == 1 and min(firsts) >= 0:
                return who._replace(rank=min(firsts) + int(path.name))
        for node in path.parts if who.rank is None else ():
            if (node, path.name) in self._rank_on:
                return who._replace(rank=self._rank_on[node, path.name], node=who.node or node)
        if who.rank is None and who.folder and len(self._logs.runs) == 1:
            return who._replace(rank=int(path.name))
        return who

    @property
    def world(self) -> int:
        """The greatest number of ranks that any has stated; 0 if none has."""
        stated = [int(v) for (_, k), (v, _) in self._facts.items() if k in ("nranks", "world_size")]
        return max(stated, default=0)

    @property
    def known(self) -> set[int]:
        """The ranks that there are, as far as logs tell: some may have said nothing."""
        folders = (self.whose(Who(folder=folder)).rank for folder in self._logs.folders)
        silent = (rank for rank in folders if rank is not None)
        return {*self._logs.ranks, *self.ranks(), *silent}

    def events(self, *kinds: Kind) -> Iterator[Seen]:
        """Yield the kept lines of some kinds, or of all."""
        for lines in self._seen.values():
            for seen in lines:
                if not kinds or seen.rule.kind in kinds:
                    yield seen

    def of_rule(self, rule: Rule) -> list[Seen]:
        """Return the kept lines of a rule."""
        return [one for (key, _), lines in self._seen.items() if key == id(rule) for one in lines]

    def count(self, seen: Seen) -> int:
        """Return how many such lines there are of its rule and rank."""
        return self._counts[id(seen.rule), seen.who]

    def stuck(self, seen: Seen) -> bool:
        """Whether its log ends with a line, or nearly so, and the job came no further after it."""
        return self._logs.lines.get(seen.file, 0) - seen.line < NEAR and not any(
            one.file == seen.file and one.order > seen.order and one.rule.stage in FURTHER
            for one in self.events(Kind.FACT)
        )

    def lived_through(self) -> set[tuple[str, int]]:
        """Return the lines (file, number) that end a traceback after which their rank trained on.

        Where nobody says whose lines they are, they are of that kind only if nothing else failed.
        """
        after = {(seen.file, seen.who): seen.line for seen in self.of_rule(WENT_ON)}
        ended = [seen for rule in (RAISED, FOLLOWED) for seen in self.of_rule(rule)]
        found = {
            (seen.file, seen.line): self.whose(seen.who).rank is not None
            for seen in ended
            if after.get((seen.file, seen.who), 0) > seen.line
        }
        failed = any(
            (seen.file, seen.line) not in found
            for seen in self.events(Kind.CONSEQUENCE, Kind.SYMPTOM, Kind.CAUSE)
        )
        return {line for line, by_rank in found.items() if by_rank or not failed}

    def faults(self, *kinds: Kind) -> list[Seen]:
        """Return the kept lines that no rank lived through: symptoms and causes, or of `kinds`."""
        harmless = self.lived_through()
        seen = self.events(*kinds or (Kind.SYMPTOM, Kind.CAUSE))
        return [one for one in seen if (one.file, one.line) not in harmless]

    def stated(self, fact: str) -> dict[Who, Seen]:
        """Return the line in which each has stated a fact; `line.told[fact]` is its value."""
        return {
            self.whose(who): seen for (who, name), (_, seen) in self._facts.items() if name == fact
        }

    def ranks(self) -> dict[int, Rank]:
        """Return the ranks of which there is a line."""
        found: dict[int, Rank] = {}
        for (who, name), (value, seen) in self._facts.items():
            rank = self._rank(found, who)
            if rank and (name.startswith("last_") or name not in rank.facts):
                rank.facts[name], rank.where[name] = value, seen
        for who, seen in self._last.items():
            rank = self._rank(found, who)
            if rank and (rank.last is None or seen.order > rank.last.order):
                rank.last = seen
        for seen in self.faults(Kind.CONSEQUENCE, Kind.SYMPTOM, Kind.CAUSE):
            rank = self._rank(found, seen.who)
            if rank and (rank.first_error is None or earlier(seen, rank.first_error)):
                rank.first_error = seen
        return dict(sorted(found.items()))

    def _rank(self, found: dict[int, Rank], who: Who) -> Rank | None:
        who = self.whose(who)
        if who.rank is None:
            return None
        rank = found.setdefault(who.rank, Rank(who))
        if who.node and not rank.who.node:
            rank.who = who
        return rank

    def node_of(self, who: Who) -> str:
        """Return the node of a rank, as logs name it; empty if none does."""
        who = self.whose(who)
        if who.node or who.rank is None:
            return who.node
        told = (*self._rank_of.items(), *self._rank_on.items())
        return next((node for (node, _), rank in told if rank == who.rank and node), "")

    def called(self, who: Who) -> str:
        """Return what people call a rank, or of what is known of it, the most telling."""
        who = self.whose(who)
        if who.rank is not None:
            return f"rank {who.rank}"
        return who.node or (f"the process of {who.folder}" if who.folder else "a rank")

    def node_at(self, address: str) -> str:
        """Return the node that has stated an address, or the address."""
        owners = {
            seen.told["address"]: self.node_of(who)
            for who, seen in self.stated("address").items()
            if seen.rule.kind is Kind.FACT  # a fault tells the address of another
        }
        return owners.get(address) or address

    def is_last(self, seen: Seen) -> bool:
        """Whether nothing follows a line in its file."""
        return self._logs.lines.get(seen.file, 0) - seen.line <= LAST

    def owners(self, lines: Iterable[Seen]) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """Return the ranks and the nodes of lines."""
        whose = [self.whose(line.who) for line in lines]
        ranks = sorted({who.rank for who in whose if who.rank is not None})
        return tuple(ranks), tuple(dict.fromkeys(filter(None, map(self.node_of, whose))))

    def __bool__(self) -> bool:
        return bool(self._seen or self.extra)


def earlier(one: Seen, other: Seen) -> bool:
    """Whether a line is earlier than another, as far as that can be told."""
    if one.file == other.file:
        return one.order < other.order
    if one.time and other.time and one.time[:4] == other.time[:4]:
        return one.time < other.time
    if one.time[5:] and other.time[5:]:
        return one.time[5:] < other.time[5:]
    return one.order < other.order


def first(lines: Sequence[Seen]) -> Seen | None:
    """Return the earliest of some lines."""
    best = None
    for one in lines:
        if best is None or earlier(one, best):
            best = one
    return best
