"""With which code each rank ended, as its launcher tells: the first that did not follow others."""

from __future__ import annotations

import bisect
import signal
from collections.abc import Iterator
from typing import NamedTuple

from preflight.triage.families.consequences import ENDS_ITSELF
from preflight.triage.family import Finding
from preflight.triage.rule import FOLLOWED, Kind, Rule
from preflight.triage.story import Seen, Story
from preflight.triage.words import absent, rank_of, ranked

BY_SIGNAL = 128
"""Shells and container engines tell a signal as a code above it."""
CODE = Rule(
    r"exitcode  : (?P<exit_code>-?\d{1,3}) \(pid: (?P<pid>\d{1,9})\)",
    Kind.FACT,
    source="torchrun's table of failures",
)
RANK = Rule(
    r"rank      : (?P<rank>\d{1,7}) \(local_rank: (?P<failed_local>\d{1,4})\)",
    Kind.FACT,
    source="torchrun's table of failures, the line before",
)
AGENT = Rule(
    r"failed \(exitcode: (?P<exit_code>-?\d{1,3})\) local_rank: (?P<local_rank>\d{1,4}) "
    r"\(pid: (?P<pid>\d{1,9})\)",
    Kind.FACT,
    source="torchrun's agent",
)
TASKS = Rule(
    r"srun: error: (?P<node>[\w.-]{1,80}): tasks? (?P<tasks>[\d,-]{1,200}): "
    r"(?P<how>Segmentation fault|Bus error|Killed|Out Of Memory|Aborted|Illegal instruction|"
    r"Floating point exception|Exited with exit code \d{1,3})",
    Kind.FACT,
    source="srun",
)
MPI = Rule(
    r"process rank (?P<rank>\d{1,7}) with PID \d{1,9} on node (?P<node>[\w.-]{1,80}) "
    r"exited on(?: signal (?P<signal>\d{1,2}))?",
    Kind.FACT,
    source="Open MPI's mpirun; 5 tells the signal in the next line",
)
MPI_SIGNAL = Rule(
    r"signal (?P<mpi_signal>\d{1,2}) \([A-Z]",
    Kind.FACT,
    source="Open MPI 5's mpirun, the line after `exited on`",
)
DEEPSPEED = Rule(
    r"\] exits with return code = (?P<exit_code>-?\d{1,3})",
    Kind.FACT,
    source="DeepSpeed launcher/launch.py",
)
SPAWNED = Rule(
    r"process (?P<rank>\d{1,7}) terminated with (?:signal (?P<name>SIG[A-Z]{2,6})|"
    r"exit code (?P<exit_code>\d{1,3}))",
    Kind.FACT,
    source="torch.multiprocessing.spawn",
)
SENT = Rule(
    r"Signal (?P<signal>\d{1,2}) \(SIG[A-Z]{2,6}\) received by PID (?P<pid>\d{1,9})",
    Kind.FACT,
    source="torchrun's table of failures",
)
HOST = Rule(
    r"host      : (?P<failed_on>[\w.-]{1,253})",
    Kind.FACT,
    source="torchrun's table of failures, the line before that of the rank",
)
RULES = (CODE, HOST, RANK, AGENT, TASKS, MPI, MPI_SIGNAL, DEEPSPEED, SPAWNED, SENT)
HOW = {
    "Segmentation fault": -signal.SIGSEGV,
    "Bus error": -signal.SIGBUS,
    "Killed": -signal.SIGKILL,
    "Out Of Memory": -signal.SIGKILL,
    "Aborted": -signal.SIGABRT,
    "Illegal instruction": -signal.SIGILL,
    "Floating point exception": -signal.SIGFPE,
}
NEAR = 40
"""Lines of other ranks that may stand between the two lines of a table's entry."""
MOST_TASKS = 4096
"""Tasks that are told one by one."""


class Exit(NamedTuple):
    """A process, or several, that ended."""

    seen: Seen
    ranks: tuple[int, ...]
    code: int
    """As Python tells it: of a signal the negative number."""


class Meaning(NamedTuple):
    """What a code says of a job."""

    cause: str
    kind: Kind
    confidence: float
    says: str
    fix: str
    confirm: str
    checks: tuple[str, ...] = ()


SEGFAULT = Meaning(
    "job.rank_crashed",
    Kind.CAUSE,
    0.91,
    "crashed: {name}",
    "run again with PYTHONFAULTHANDLER=1 to see in which extension; upgrade or rebuild it",
    "dmesg -T | grep -i segfault",
)
MEANINGS = {
    -signal.SIGSEGV: SEGFAULT,
    -signal.SIGILL: SEGFAULT,
    -signal.SIGFPE: SEGFAULT,
    -signal.SIGBUS: Meaning(
        "host.shm",
        Kind.CAUSE,
        0.75,
        "got SIGBUS: most often /dev/shm was full",
        "more shared memory: docker --shm-size=16g, or --ipc=host; delete leftovers in /dev/shm",
        "df -h /dev/shm",
    ),
    -signal.SIGKILL: Meaning(
        "job.out_of_memory",
        Kind.CAUSE,
        0.7,
        "was killed (SIGKILL), nearly always by the kernel because memory was used up",
        "fewer data loader workers or more memory for the job (Slurm --mem, the container's limit)",
        "dmesg -T | grep -i -E 'oom|killed process'",
        ("host.memory",),
    ),
    -signal.SIGABRT: Meaning(
        "job.rank_crashed",
        Kind.SYMPTOM,
        0.6,
        "aborted itself (SIGABRT)",
        "its own last lines say why: look above its end, and set TORCH_SHOW_CPP_STACKTRACES=1",
        "",
    ),
}
RAISED_UNSEEN = Meaning(
    "job.python_error",
    Kind.SYMPTOM,
    0.5,
    "ended with exit code {code}, and why is not in these logs",
    "give its own output too: torchrun --log-dir DIR --redirects 3, or decorate main() with "
    "torch.distributed.elastic.multiprocessing.errors.record",
    "",
)


def find(story: Story) -> Iterator[Finding]:
    """Find what the exit codes mean, of those that nothing else explains."""
    every = list(exits(story))
    for code in dict.fromkeys(one.code for one in every):
        meaning = MEANINGS.get(code, RAISED_UNSEEN if code > 0 else None)
        if meaning and not explained(story, code):
            those = [one for one in every if one.code == code]
            yield finding(story, meaning, code, those)
    if not any(one.code in MEANINGS for one in every):
        yield from gone(story)


def explained(story: Story, code: int) -> bool:
    """Whether something else tells why processes ended with a code."""
    if code == -signal.SIGKILL:
        causes = {seen.rule.cause for seen in story.events(Kind.SYMPTOM, Kind.CAUSE)}
        return bool(causes & {"job.time_limit", "job.preempted"})
    if code == -signal.SIGABRT or code > 0:
        told = any(True for _ in story.events(Kind.SYMPTOM, Kind.CAUSE))
        ended = story.of_rule(ENDS_ITSELF) if code < 0 else lost(story)
        return told or bool(ended)
    return False


def lost(story: Story) -> list[Seen]:
    """Return where ranks say that they lost another: the launcher, which says it too, is none."""
    return [seen for seen in story.of_rule(FOLLOWED) if "ChildFailedError" not in seen.text]


def gone(story: Story) -> Iterator[Finding]:
    """Find the one rank that said nothing when all others lost their connections to it."""
    if any(True for _ in story.events(Kind.SYMPTOM, Kind.CAUSE)):
        return
    told = [seen for seen in lost(story) if rank_of(story, seen) >= 0]
    silent = absent(story, {rank_of(story, seen) for seen in told}) if told else []
    if len(silent) == 1:
        who = ranked(story, silent)
        yield Finding(
            cause="job.rank_crashed",
            kind=Kind.SYMPTOM,
            says=f"{who} ended before all others, and said nothing",
            confidence=0.45,
            fix=f"see the end of the log of {who}, and the kernel log of its node",
            evidence=tuple(sorted(told, key=lambda seen: seen.order)),
            ranks=tuple(silent),
            checks=("host.memory", "host.kernel_log"),
        )


def finding(story: Story, meaning: Meaning, code: int, those: list[Exit]) -> Finding:
    """Return what an exit code means."""
    ranks = tuple(sorted({rank for one in those for rank in one.ranks}))
    nodes = tuple(dict.fromkeys(filter(None, (story.node_of(one.seen.who) for one in those))))
    who = f"rank {ranks[0]}" if len(ranks) == 1 else f"{len(ranks)} ranks" if ranks else "a rank"
    where = f" on {nodes[0]}" if len(nodes) == 1 else ""
    name = signal.Signals(-code).name if code < 0 else ""
    return Finding(
        cause=meaning.cause,
        kind=meaning.kind,
        says=f"{who}{where} " + meaning.says.format(code=code, name=name),
        confidence=meaning.confidence,
        fix=meaning.fix,
        evidence=tuple(one.seen for one in those),
        ranks=ranks,
        nodes=nodes,
        confirm=meaning.confirm and f"on {nodes[0] if nodes else 'its node'}: {meaning.confirm}",
        checks=meaning.checks,
    )


def exits(story: Story) -> Iterator[Exit]:
    """Yield how processes ended."""
    table = sorted((seen.file, seen.line, seen.who.rank or 0) for seen in story.of_rule(RANK))
    for seen in story.of_rule(CODE):
        yield Exit(seen, above(table, seen) or own(story, seen), coded(int(seen.told["exit_code"])))
    for seen in (*story.of_rule(AGENT), *story.of_rule(DEEPSPEED)):
        yield Exit(seen, own(story, seen), coded(int(seen.told["exit_code"])))
    yield from of_mpi(story)
    for seen in story.of_rule(SPAWNED):
        code = seen.told.get("exit_code")
        by_name = getattr(signal, seen.told.get("name", ""), 0)
        yield Exit(seen, own(story, seen), coded(int(code)) if code else -int(by_name))
    for seen in story.of_rule(TASKS):
        how = seen.told["how"]
        code_of_task = HOW.get(how) or coded(int(how.rsplit(" ", 1)[-1]))
        yield Exit(seen, tasks(seen.told["tasks"]), code_of_task)


def of_mpi(story: Story) -> Iterator[Exit]:
    """Yield the processes that Open MPI says were ended by a signal, told there or a line below."""
    below = {
        (seen.file, seen.line - 1): seen.told["mpi_signal"] for seen in story.of_rule(MPI_SIGNAL)
    }
    for seen in story.of_rule(MPI):
        number = seen.told.get("signal") or below.get((seen.file, seen.line))
        if number:
            yield Exit(seen, own(story, seen), -int(number))


def coded(code: int) -> int:
    """Return an exit code as Python tells it."""
    return BY_SIGNAL - code if code > BY_SIGNAL else code


def above(table: list[tuple[str, int, int]], seen: Seen) -> tuple[int, ...]:
    """Return the rank that torchrun's table has in one of the lines above an exit code."""
    place = bisect.bisect_left(table, (seen.file, seen.line, 0)) - 1
    if place < 0 or table[place][0] != seen.file or seen.line - table[place][1] > NEAR:
        return ()
    return (table[place][2],)


def own(story: Story, seen: Seen) -> tuple[int, ...]:
    """Return the rank of a line, if it is known."""
    rank = story.whose(seen.who).rank
    return () if rank is None else (rank,)


def tasks(text: str) -> tuple[int, ...]:
    """Return the numbers of `0-3,7`: Slurm's tasks are the ranks."""
    found: list[int] = []
    for part in text.split(","):
        begin, _, end = part.partition("-")
        if begin.isdigit() and (not end or end.isdigit()):
            found += range(int(begin), min(int(end or begin), int(begin) + MOST_TASKS) + 1)
    return tuple(found[:MOST_TASKS])
