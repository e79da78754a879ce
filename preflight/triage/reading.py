"""From logs to stories: one for each launch."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

import re2

from preflight.triage import prefix
from preflight.triage.family import Family
from preflight.triage.files import Log
from preflight.triage.prefix import Prefix, Who
from preflight.triage.rule import BY_OTHERS, FOLLOWED, RAISED, Kind
from preflight.triage.sieve import TRACEBACK, Hit, Sieve
from preflight.triage.story import Seen, Story

EXCEPTION = re.compile(
    r"(?P<type>(?:[A-Za-z_]\w*\.)*(?:[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Iteration|Warning)"
    r"|(?<=\.)[A-Z]\w*))(?:: (?P<message>.*))?$"
)
"""The line that ends a traceback."""
OWN = {"rank", "node", "pid"}
"""Groups that say whose line it is."""


class Reader:
    """Reads logs by the rules of all families; `stories` has what it found, by launch."""

    def __init__(self, families: Sequence[Family]) -> None:
        self._rules = [rule for family in families for rule in family.rules]
        self._patterns = [re2.compile(rule.pattern) for rule in self._rules]
        self._sieve = Sieve(self._rules)
        self._order = 0
        self.stories: list[Story] = []

    def read(self, log: Log) -> None:
        """Take in a log.

        Raises:
            ConfigError: it cannot be read.
        """
        owner = prefix.of_file(log.name)
        launch, failed = 0, False
        open_: dict[Who, int] = defaultdict(int)  # tracebacks whose end was not seen
        for hit in self._sieve.hits(log):
            self._order += 1
            before = prefix.read(hit.text, owner)
            for seen in (*self.matched(log, hit, before), *self.raised(log, hit, before, open_)):
                if seen.rule.starts and failed:
                    launch, failed = launch + 1, False
                failed |= seen.rule.kind > Kind.FACT
                while len(self.stories) <= launch:
                    self.stories.append(Story())
                self.stories[launch].add(seen)

    def matched(self, log: Log, hit: Hit, before: Prefix) -> Iterator[Seen]:
        """Yield what a line tells, once for each rule that it is of."""
        for place in hit.rules:
            rule = self._rules[place]
            match = self._patterns[place].search(hit.text)
            if match is None:
                continue
            told = {name: value for name, value in match.groupdict().items() if value is not None}
            if rule.refine:
                refined = rule.refine(told)
                if refined is None:
                    continue
                told |= refined
            who = prefix.within(hit.text, match.start(), before.who)
            if own := OWN & told.keys():
                who = prefix.named(who, {name: told.pop(name) for name in own})
            yield Seen(log.name, hit.number, before.text, who, before.time, self._order, rule, told)

    def raised(self, log: Log, hit: Hit, before: Prefix, open_: dict[Who, int]) -> Iterator[Seen]:
        """Yield the line if it ends a traceback."""
        if TRACEBACK.decode() in hit.text:
            open_[before.who] += 1
        elif open_[before.who] and not before.indented:
            match = EXCEPTION.match(before.text)
            if match:
                open_[before.who] -= 1
                told = {"type": match["type"], "message": match["message"] or ""}
                who, order = before.who, self._order
                rule = FOLLOWED if BY_OTHERS.match(before.text) else RAISED
                yield Seen(log.name, hit.number, before.text, who, before.time, order, rule, told)
