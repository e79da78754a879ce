"""What NCCL's RAS says of a job that hangs: who is dead, who is behind, who reported an error.

While a job runs well, counts differ now and then, too: what they tell is not sure.
"""

from __future__ import annotations

from collections.abc import Iterator

from preflight.triage.family import Finding
from preflight.triage.rule import Kind, Rule
from preflight.triage.story import Seen, Story
from preflight.triage.words import MISMATCHED, ranked

SOURCE = "NCCL ras/client_support.cc since 2.24"
BY = (
    r" -- GPU [\d,]{1,40}(?: \(NVML [\d,]{1,40}\))? managed by process \d{1,9} "
    r"on node (?P<node>\S{1,60})"
)
RANK = r"Rank (?P<rank>\d{1,7}) "
AHEAD_OR_BEHIND = 0.55
AGAIN = "ask RAS again: a rank whose counts no longer grow hangs; py-spy dump --pid PID shows where"


def symptom(pattern: str, cause: str, says: str, fix: str, confidence: float = 0.5) -> Rule:
    """Return a rule of what RAS found wrong."""
    return Rule(
        pattern,
        Kind.SYMPTOM,
        cause=cause,
        says=says,
        confidence=confidence,
        fix=fix,
        stage="collective",
        source=SOURCE,
    )


COUNTS = Rule(
    r"Communicator ranks have different (?P<operation>\w{1,40}) operation counts",
    Kind.FACT,
    source=SOURCE,
)
MANY = Rule(
    r"(?P<many>\d{1,7}) ranks have (?:launched up to operation (?P<count>\d{1,18})|"
    r"not launched any operations)",
    Kind.FACT,
    source=SOURCE,
)
ONE = Rule(
    RANK + r"has (?:launched up to operation (?P<count>\d{1,18})|not launched any operations)" + BY,
    Kind.SYMPTOM,
    stage="collective",
    source=SOURCE,
)
LISTED = Rule(
    RANK + BY.lstrip(),
    Kind.FACT,
    stage="collective",
    source=SOURCE + ": each of several ranks, below the line that tells what they did",
)
DEAD = Rule(
    r"(?P<dead>\d{1,7}) job process(?: is|es are) considered dead \(unreachable via the RAS",
    Kind.SYMPTOM,
    stage="collective",
    source=SOURCE,
)
PROCESS = Rule(
    r"Process (?P<process>\d{1,9}) on node (?P<node>\S{1,60}) managing GPU"
    r"(?:.{1,80}\(rank (?P<rank>\d{1,7})\))?",
    Kind.FACT,
    source=SOURCE,
)
RULES = (
    COUNTS,
    MANY,
    ONE,
    LISTED,
    DEAD,
    PROCESS,
    symptom(
        RANK + r"has status (?P<status>NOCOMM|INIT|ABORT|FINALIZE)" + BY,
        MISMATCHED,
        "{who} is in state {status}, the others are not: it has left the communicator or has not "
        "come to it",
        "see what that rank does: py-spy dump --pid PID",
    ),
    symptom(
        RANK + r"reported (?P<error>Unhandled CUDA error|System error|Internal error|"
        r"Invalid argument|Invalid usage)" + BY,
        "collective.all_reduce",
        "NCCL of {who} reported: {error}",
        "that rank's own log with NCCL_DEBUG=WARN says what failed",
        0.4,
    ),
    symptom(
        r"Missing communicator data from \d{1,7} (?:rank|job process)",
        "network.ephemeral",
        "some ranks did not answer RAS: they hang, have ended, or cannot be reached",
        "see whether these processes run, and whether their node can be reached",
        0.3,
    ),
    symptom(
        r"negative travel times were observed across \d{1,9} connection",
        "host.clock",
        "the clocks of the nodes differ",
        "chronyc tracking on each node; start chronyd or systemd-timesyncd",
        0.3,
    ),
)


def find(story: Story) -> Iterator[Finding]:
    """Find who is dead, and who has launched fewer operations than the others, or more."""
    yield from dead(story)
    yield from several(story)
    for one in sorted(story.of_rule(ONE), key=lambda seen: seen.order):
        usual = before(story, MANY, one)
        if usual is None or one.who.rank is None:
            continue
        count, many = int(one.told.get("count", "0")), int(usual.told.get("count", "0"))
        kind = before(story, COUNTS, one)
        operation = kind.told["operation"] if kind else "collective"
        yield Finding(
            cause=MISMATCHED,
            kind=Kind.SYMPTOM,
            says=f"{ranked(story, [one.who.rank])} has launched {count} {operation} operations, "
            f"the others {many}",
            confidence=AHEAD_OR_BEHIND,
            fix=AGAIN,
            evidence=(one, usual),
            ranks=(one.who.rank,),
        )


def several(story: Story) -> Iterator[Finding]:
    """Find several ranks that have launched fewer operations than most, or more."""
    for few in sorted(story.of_rule(MANY), key=lambda seen: seen.order):
        below = range(few.line + 1, few.line + int(few.told["many"]) + 1)
        those = [one for one in story.of_rule(LISTED) if one.file == few.file and one.line in below]
        usual = before(story, MANY, few)
        if not those or usual is None:
            continue
        kind = before(story, COUNTS, few)
        ranks = sorted({one.who.rank for one in those if one.who.rank is not None})
        yield Finding(
            cause=MISMATCHED,
            kind=Kind.SYMPTOM,
            says=f"{ranked(story, ranks)} have launched {few.told.get('count', '0')} "
            f"{kind.told['operation'] if kind else 'collective'} operations, the others "
            f"{usual.told.get('count', '0')}",
            confidence=AHEAD_OR_BEHIND,
            fix=AGAIN,
            evidence=(few, *those, usual),
            ranks=tuple(ranks),
        )


def dead(story: Story) -> Iterator[Finding]:
    """Find the processes that no longer answer."""
    for one in story.of_rule(DEAD):
        count = int(one.told["dead"])
        named = [
            seen
            for seen in story.of_rule(PROCESS)
            if seen.file == one.file and 0 < seen.line - one.line <= count
        ]
        who = f"{count} of the job's processes no longer answer"
        if len(named) == 1:
            who = f"process {named[0].told['process']} on {named[0].who.node} no longer answers"
        yield Finding(
            cause="job.rank_crashed",
            kind=Kind.SYMPTOM,
            says=f"{who}: dead or cut off, as NCCL's RAS tells",
            confidence=0.6,
            fix="see the end of its log, and the kernel log of its node",
            evidence=(one, *named),
            checks=("host.kernel_log", "network.route"),
        )


def before(story: Story, rule: Rule, seen: Seen) -> Seen | None:
    """Return the last line of a rule before another one."""
    lines = [one for one in story.of_rule(rule) if one.file == seen.file and one.line < seen.line]
    return max(lines, key=lambda one: one.line, default=None)
