"""From logs to stories: one for each launch."""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import PurePath

import re2

from preflight.triage import flight_recorder, prefix, ras
from preflight.triage.family import Family
from preflight.triage.files import Log
from preflight.triage.flight_recorder import Flight
from preflight.triage.launches import Launches
from preflight.triage.prefix import LONGEST, Prefix, Who
from preflight.triage.rule import BY_OTHERS, FOLLOWED, RAISED, WENT_ON, Rule
from preflight.triage.sieve import TRACEBACK, Hit, Sieve
from preflight.triage.story import Logs, Seen, Story

EXCEPTION = re.compile(
    r"(?P<type>(?:[A-Za-z_]\w*\.)*(?:[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Iteration|Warning)"
    r"|(?<=\.)[A-Z]\w*))(?::(?: (?P<message>.*))?)?$"
)
"""The line that ends a traceback."""
FRAME = re.compile(r'File "(?P<path>[^"]{1,400})", line (?P<line>\d{1,9})')
LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib/python\d|^<")
"""What stands in the paths of files that are not the program's own."""
ONLY_TOLD = re.compile(r"Exception ignored in|--- Logging error ---|xception was never retrieved")
"""What stands before a traceback by which nothing ends."""
STEP = re.compile(r"\b(?:step|iter|iteration|epoch|loss|it/s|s/it)\b", re.IGNORECASE)
"""What a line of progress has in it."""
MOST_OF_NOBODY = 100_000
"""Lines that do not tell of which launch they are; those of further files are of the first."""
OWN = {"rank", "node", "pid"}
"""Groups that say whose line it is."""

compiled = functools.cache(re2.compile)
"""Of re2's own cache, patterns of all families fall out again."""


class Reader:
    """Reads logs by the rules of all families; `stories` has what it found, by launch."""

    def __init__(self, families: Sequence[Family]) -> None:
        self._rules = [rule for family in families for rule in family.rules]
        self._patterns = [compiled(rule.pattern.encode("ascii")) for rule in self._rules]
        self._groups = [
            [(name.decode("ascii"), place) for name, place in pattern.groupindex.items()]
            for pattern in self._patterns
        ]
        self._sieve = Sieve(self._rules)
        self._order = 0
        self._stories: list[Story] = []
        self._flight = Flight()
        self._documents: list[Seen] = []
        self._logs = Logs()

    @property
    def stories(self) -> list[Story]:
        """What was read, by launch; what does not tell of which it is, is of the last one."""
        if self._documents:
            for seen in self._documents:
                self._give(max(0, len(self._stories) - 1), seen)
            self._stories[-1].extra[flight_recorder.NAME] = self._flight
            self._documents = []
        return self._stories

    def read(self, log: Log) -> None:
        """Take in a log.

        Raises:
            ConfigError: it cannot be read.
        """
        head = log.head()
        if flight_recorder.is_dump(head):
            self._documents += self.dumped(log, head)
        elif b"\0" in head.strip(b"\0"):  # a log that was emptied while it was written begins so
            log.flaws.append(f"{log.name} is no text: it was left out")
        else:
            self.read_lines(ras.as_text(log) if ras.is_ras(head) else log)

    def read_lines(self, log: Log) -> None:
        """Take in the lines of a log."""
        owner = prefix.of_file(log.name)
        self._logs.meet(owner)
        launches = Launches(self._give)
        tracebacks = Tracebacks()
        for hit in self._sieve.hits(log):
            self._order += 1
            before = prefix.read(hit.text, owner)
            for seen in self.matched(log, hit, before):
                launches.take(seen)
            if ended := tracebacks.read(before):
                who, words, order = before.who, before.text, self._order
                launches.take(Seen(log.name, hit.number, words, who, before.time, order, *ended))
        self._logs.lines[log.name] = self._sieve.lines
        if owner._replace(node="") != prefix.NOBODY or len(self._documents) > MOST_OF_NOBODY:
            launches.settle()
        self._documents += launches.end()

    def _give(self, launch: int, seen: Seen) -> None:
        """Tell a launch of one of its lines."""
        while len(self._stories) <= launch:
            self._stories.append(Story(self._logs))
        self._stories[launch].add(seen)

    def dumped(self, log: Log, head: bytes) -> Iterator[Seen]:
        """Yield what a dump of the flight recorder tells, once for each process group."""
        for rank, dump in flight_recorder.dumps(log, head):
            for group in self._flight.add(rank, log.name, dump):
                self._order += 1
                told = flight_recorder.told(group, rank)
                words = ", ".join(f"{name} {value}" for name, value in told.items())
                rule, who = flight_recorder.ISSUED, Who(rank)
                yield Seen(log.name, 1, words, who, "", self._order, rule, told)

    def matched(self, log: Log, hit: Hit, before: Prefix) -> Iterator[Seen]:
        """Yield what a line tells, once for each rule that it is of."""
        for place in hit.rules:
            rule = self._rules[place]
            pattern = self._patterns[place]
            match = pattern.match(hit.raw, hit.place) or pattern.search(hit.raw, hit.place)
            if match is None:
                continue
            told = {
                name: text(value[:LONGEST])
                for name, group in self._groups[place]
                if (value := match[group]) is not None
            }
            if rule.refine:
                refined = rule.refine(told)
                if refined is None:
                    continue
                told |= refined
            who = prefix.within(hit.raw, match.start(), before.who)
            if own := OWN & told.keys():
                who = prefix.named(who, {name: told.pop(name) for name in own})
            yield Seen(log.name, hit.number, before.text, who, before.time, self._order, rule, told)


def text(raw: bytes) -> str:
    """Return what was written."""
    return raw.decode("utf-8", "replace")


class Tracebacks:
    """The tracebacks of a log, by whose they are: ranks may write theirs at once."""

    def __init__(self) -> None:
        self._open: dict[Who, int] = defaultdict(int)
        self._at: dict[Who, str] = {}
        self._only_told: set[Who] = set()
        self._ended: set[Who] = set()

    def read(self, line: Prefix) -> tuple[Rule, dict[str, str]] | None:
        """Return what a line is to them, and what it tells."""
        who, text = line.who, line.text
        if ONLY_TOLD.search(text):
            self._only_told.add(who)
        elif TRACEBACK.decode() in text:
            if who not in self._only_told:
                self._open[who] += 1
            self._only_told.discard(who)
            self._at.pop(who, None)
        elif not self._open.get(who):
            return self.went_on(line)
        elif line.indented and (frame := FRAME.match(text)):
            if not LIBRARY.search(frame["path"]):
                self._at[who] = f"{PurePath(frame['path']).name}:{frame['line']}"
        elif not line.indented and (match := EXCEPTION.match(text)):
            self._open[who] -= 1
            self._ended.add(who)
            rule = FOLLOWED if BY_OTHERS.match(text) else RAISED
            told = {"type": match["type"], "message": match["message"] or ""}
            return rule, told | ({"at": at} if (at := self._at.pop(who, "")) else {})
        return None

    def went_on(self, line: Prefix) -> tuple[Rule, dict[str, str]] | None:
        """Return that a rank trained on after a traceback, if a line shows it."""
        if line.who in self._ended and STEP.search(line.text):
            self._ended.remove(line.who)
            return WENT_ON, {}
        return None
