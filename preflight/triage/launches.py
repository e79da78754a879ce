"""Tells the launches of one log apart, by lines that begin one and by which process has a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from preflight.triage.rule import Kind
from preflight.triage.story import Seen

MOST_LAUNCHES = 10_000
"""In one file; what comes after is all told of the last one."""
MOST_WAITING = 20_000
"""Lines that wait for what tells of which launch they are: about 20 MB."""


Place = tuple[str, str, str]
"""A node, a rank and a GPU: in one launch only one process has it."""


class Process(NamedTuple):
    """A process, as NCCL begins its lines."""

    node: str
    pid: int


class Launches:
    """Says of which launch of its log each line is: `give` gets both, the first launch is 0.

    Where a process takes a rank and a GPU that another one has had, a later launch has begun: with
    the lines of all that have not yet told their rank, if none of them spoke among the others. So
    ranks of one launch stay together, however their lines are mixed: one that is late, or comes
    after another one has failed, takes nobody's place. Until that is seen, lines wait.
    """

    def __init__(self, give: Callable[[int, Seen], None]) -> None:
        self._give = give
        self._number, self._failed = 0, False
        self._spoken: set[Process] = set()
        """Those of this launch."""
        self._places: dict[Place, Process] = {}
        self._fresh: set[Process] = set()
        """Those that have spoken since any of `_spoken` has: of this launch, or of the next."""
        self._waiting: list[Seen] = []
        """What was said since the first of them spoke; and before anybody did."""
        self._of_nobody = True
        """Whether no rank and no process has spoken, and no launch begun."""

    def take(self, seen: Seen) -> None:
        """Take in the next line."""
        process = process_of(seen)
        if self._of_nobody and (process or seen.rule.starts or seen.who.rank is not None):
            self.settle()
        if seen.rule.starts and self._failed:
            self.settle()
            self.begin()
        if process in self._spoken:
            self.settle()
        elif process:
            (self._fresh if self._spoken else self._spoken).add(process)
        self._waiting.append(seen)
        if process and (place := place_of(seen)):
            holder = self._places.setdefault(place, process)
            if holder != process and process in self._fresh:
                self.part(process)
            self._places[place] = process
        if not (self._fresh or self._of_nobody) or len(self._waiting) > MOST_WAITING:
            self.settle()

    def part(self, taker: Process) -> None:
        """Begin another launch within what waits, unless those after its begin spoke before it."""
        owners = [process_of(seen) for seen in self._waiting]
        placed = {*self._places.values()} - {taker}
        last = max((place for place, one in enumerate(owners) if one in placed), default=-1)
        begin = next(place for place in range(last + 1, len(owners)) if owners[place])
        after = {one for one in owners[begin:] if one}
        if after & {*owners[:begin]}:
            self.settle()
            return
        rest = self._waiting[begin:]
        del self._waiting[begin:]
        self.settle()
        self.begin()
        self._spoken, self._waiting = after, rest

    def begin(self) -> None:
        """Begin another launch."""
        self._number, self._failed = min(self._number + 1, MOST_LAUNCHES), False
        self._spoken, self._places = set(), {}

    def settle(self) -> None:
        """Give what waits to this launch."""
        for seen in self._waiting:
            self._failed |= seen.rule.kind > Kind.FACT
            self._give(self._number, seen)
        self._waiting.clear()
        self._spoken |= self._fresh
        self._fresh.clear()
        self._of_nobody = False

    def end(self) -> list[Seen]:
        """Give what waits at the end of the log; return it if nothing tells of which launch it is.

        The kernel's log is such.
        """
        if self._of_nobody:
            return self._waiting
        self.settle()
        return []


def process_of(seen: Seen) -> Process | None:
    """Return who has written a line, as far as it is known which machine's process that is."""
    who = seen.who
    return Process(who.node, who.pid) if who.node and who.pid is not None else None


def place_of(seen: Seen) -> Place | None:
    """Return the node, rank and GPU that a process says it has."""
    told, who = seen.told, seen.who
    if "bus_id" in told:
        return who.node, told["comm_rank"], told["bus_id"]
    return (who.node, str(who.rank), told["on_gpu"]) if "on_gpu" in told else None
