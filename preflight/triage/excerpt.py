"""The lines of a job's logs that tell what ended it, fit to be shared, as a case for a test.

Form: `tests/triage/cases.py`. Names, addresses, users, paths and serials are replaced, the same by
the same; secrets are taken out. What programs print of their own is not known, so a person is to
read it before it is shared.
"""

from __future__ import annotations

import hmac
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import IO

from preflight import __version__
from preflight.anonymise import COMMON, anonymise
from preflight.node.variables import HIDDEN
from preflight.secrecy import SECRET_NAME
from preflight.triage import flight_recorder, model, prefix, ras
from preflight.triage.family import Family
from preflight.triage.files import Log
from preflight.triage.hypotheses import Hypothesis
from preflight.triage.reading import ONLY_TOLD, Reader
from preflight.triage.rule import Kind
from preflight.triage.sieve import AFTER, ANSI, TRACEBACK
from preflight.triage.story import NEAR, Seen, Story

MARK = "#: "
ONE_FILE = "job.log"
ORDINARY = re.compile(
    r"(?:std(?:out|err)|out(?:put)?|err(?:or)?|job|train|dmesg|kern|messages|syslog|slurm[-_\d]*)"
    r"(?:\.(?:log|txt|out|err))?"
)
"""Names of files that tell of nobody."""
FEW = 8
"""Ranks whose start-up is taken at first; all, if the case needs them."""
AROUND = {True: 2, False: 1}
"""Lines that are taken before and after an error, or a fact of a rank's start-up."""
FRAMES = 6
"""Lines of a traceback that are taken before its last one."""
PIECES = 20
"""States of a progress bar."""
CONTROLS = dict.fromkeys([*range(9), *range(10, 32), *range(127, 160), 0x2028, 0x2029], " ")
NAMED = re.compile(
    r"://(?:[^/@\s]+@)?([A-Za-z][\w.-]*)|\[([A-Za-z][\w.-]*)\]:\d"
    r"|\b[Hh]ost(?:name)?='?([\w.-]+)"
    r"|\b((?:[a-z][\w-]*\.)+(?:com|net|org|edu|gov|io|ai|cloud|internal|local|lan|corp|example))\b"
)
"""Where names of machines stand."""
USERS = re.compile(r"\b(?:user|USER|LOGNAME|username)=([\w.-]+)|\buid=\d+\(([\w.-]+)\)")
SECRETS = re.compile(
    r"(?P<name>\b[A-Za-z][\w-]*(?=[=:])|--[A-Za-z][\w-]*(?= [^\s-]))(?P<is>=|: ?| )"
    r"(?P<value>[^\s,;'\"]+)"
    r"|(?P<bearer>\bBearer )\S+|\b(?:hf|ghp|gho|glpat|xox[bp]|sk|AKIA)[_-]?[A-Za-z0-9_-]{16,}"
    r"|\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"  # JSON web tokens
)
JOB_NAME = re.compile(r"job_?name", re.IGNORECASE)
PATHS = re.compile(
    r"(?P<host>(?<=://)[^\s/'\"]+)(?P<in>(?:/[\w.+@=%~-]+)+)|(?<![\w.:/~-])(?:/[\w.+@=%~-]+){2,}"
)
SYSTEM = {"dev", "proc", "sys", "usr", "lib", "lib64", "bin", "sbin", "etc", "run"}
"""Folders under which all names are those of every machine."""
LIBRARIES = {"site-packages", "dist-packages", "torch", "nccl", "gloo", "csrc", "src"}
"""Folders under which all names are those of a library."""
TELLS_NOTHING = {
    *COMMON,
    *("pytorch", "third_party", "envs", "venv", "workspace", "checkpoints", "logs", "cache"),
    *("triton", "huggingface", "torch_extensions", "hub", "datasets", "scratch", "nfs", "lustre"),
}
REPLACED = re.compile(r"\.|python\d|py\d|(?:user|host-|group)[0-9a-f]{6}")


@dataclass(frozen=True)
class Excerpt:
    """A case."""

    text: str
    lines: int
    told: str
    """What the logs tell."""
    cause: str
    """What the case tells when it is read."""
    left_out: tuple[str, ...]
    """Files that are no text."""


@dataclass(frozen=True)
class Lines(Log):
    """A log in memory."""

    content: str = ""

    def open(self) -> IO[bytes]:
        """Open it."""
        return io.BytesIO(self.content.encode())


def excerpt(
    name: str,
    logs: Sequence[Log],
    stories: Sequence[Story],
    families: Sequence[Family],
    key: bytes,
) -> Excerpt:
    """Return a case of what ended the job: with few ranks if they tell the same, else with all.

    Args:
        name: how the case is called.
        logs: all that was read.
        stories: what was found in them.
        families: what is known of causes.
        key: a secret; the same gives the same replacements.

    Raises:
        ConfigError: a log cannot be read again.
    """
    story, ranked = model.last_that_failed(stories, families)
    cause = ranked[0].cause if ranked else "none"
    head = {"case": name, "source": source(story), "cause": cause, "world": "0"}

    def of(wanted: Iterable[Seen], silent: bool) -> Excerpt:
        hosts = names(story)
        parts, left_out = taken(logs, wanted, silent, hosts)
        hidden = replaced(parts, hosts, key)
        count = sum(map(len, hidden.values()))
        found = first_cause(hidden, families)
        without = f"dumps of the flight recorder: {len(left_out)}"
        told = head | ({"without": without} if left_out else {})
        return Excerpt(written(told, hidden), count, cause, found, left_out)

    made = of(few(story, ranked), silent=False)
    return made if made.cause == cause else of(story.events(), silent=True)


def source(story: Story) -> str:
    """Return what job it was, as far as it was told."""
    told = [f"a job of {story.world} ranks" if story.world else "a job"]
    for fact, what in (("nccl_version", "NCCL"), ("torch_version", "torch")):
        version = next((seen.told[fact] for seen in story.stated(fact).values()), "")
        told += [f"{what} {version}"] if re.fullmatch(r"[\w.+-]{1,40}", version) else []
    return f"{', '.join(told)}; excerpt by preflight {__version__}"


def few(story: Story, ranked: Sequence[Hypothesis]) -> list[Seen]:
    """Return the lines of all hypotheses, first errors, and the start-up of few ranks."""
    blamed = [rank for one in ranked for rank in one.ranks]
    told = story.ranks()
    chosen = [rank for rank in dict.fromkeys([*blamed, *told]) if rank in told][:FEW]
    found = [seen for one in ranked for seen in one.evidence]
    for rank in chosen:
        found += told[rank].where.values()
        found += filter(None, [told[rank].first_error, told[rank].last])
    return found or [*story.events()]


def taken(
    logs: Sequence[Log], wanted: Iterable[Seen], silent: bool, hosts: Sequence[str]
) -> tuple[dict[str, list[str]], tuple[str, ...]]:
    """Return the wanted lines by file, and the files that are no text.

    With `silent` also the empty file of each process of which no line is: that it was there counts.
    """
    by_file: dict[str, list[Seen]] = {}
    for seen in wanted:
        by_file.setdefault(seen.file, []).append(seen)
    found: dict[str, list[str]] = {}
    left_out = []
    runs = [run for log in logs if (run := prefix.of_file(log.name).run)]
    numbers = {run: str(number) for number, run in enumerate(dict.fromkeys(runs))}
    several = len(numbers) > 1
    for log in logs:
        head = log.head()
        owner = prefix.of_file(log.name)
        run = numbers.get(owner.run, "") if several else ""
        if flight_recorder.is_dump(head):
            left_out.append(log.name)
        if flight_recorder.is_dump(head) or log.name not in by_file:
            if silent and owner.folder:
                found[called(log.name, [*found], False, hosts, run)] = []
            continue
        source = ras.as_text(log) if ras.is_ras(head) else log
        lines = around(source, by_file[log.name])
        found[called(log.name, [*found], len(by_file) == 1, hosts, run)] = lines
    return found, tuple(left_out)


def called(
    name: str, others: Sequence[str], alone: bool, hosts: Sequence[str], run: str = ""
) -> str:
    """Return how a file is called in a case: so that it still tells whose it is, and no more.

    Of torchruns that no folder of a node tells apart, `run` does.
    """
    owner = prefix.of_file(name)
    if alone and owner == prefix.NOBODY:
        return ONE_FILE
    path = PurePath(name)
    machines = {*hosts, *(host.partition(".")[0] for host in hosts)}
    short = path.name
    if owner != prefix.NOBODY and prefix.of_file(short) != owner:  # torchrun's folders say it
        *above, _, _, _ = path.parts
        nodes = [part for part in above if part in machines]
        short = "/".join([*(nodes or filter(None, [run])), *path.parts[-3:]])
    elif owner == prefix.NOBODY and not (path.stem in machines or ORDINARY.fullmatch(short)):
        short = f"{len(others)}{path.suffix}"
    return f"{len(others)}/{short}" if short in others else short


def around(log: Log, wanted: Sequence[Seen]) -> list[str]:
    """Return lines of a log with those around them, and its last ones.

    Raises:
        ConfigError: it cannot be read.
    """
    found: dict[int, bytes] = {}
    number, lines = 1, [b""]
    for block in log.blocks():
        lines = block.split(b"\n")
        last = number + len(lines) - 1
        for seen in wanted:
            if number <= seen.line <= last:
                for place in places(lines, seen.line - number, seen):
                    found[number + place] = lines[place]
        number = last
    rest = lines if lines[-1] else lines[:-1]  # nothing follows the end of the last line
    for place in range(max(0, len(rest) - NEAR), len(rest)):
        found[number - len(lines) + 1 + place] = lines[place]
    return [words for n in sorted(found) for words in clean(found[n])]


def places(lines: Sequence[bytes], place: int, seen: Seen) -> set[int]:
    """Return which lines are taken for one: with those around it, and of a traceback the head."""
    more = AROUND[seen.rule.kind > Kind.FACT]
    found = {*range(max(0, place - more), min(len(lines), place + more + 1))}
    if "type" in seen.told and "message" in seen.told:
        found |= {*range(max(0, place - FRAMES), place)}
        for above in range(max(0, place - AFTER), place):
            line = lines[above]
            if TRACEBACK in line or ONLY_TOLD.search(line.decode("utf-8", "replace")):
                found |= {above}
    return found


def clean(line: bytes) -> Iterator[str]:
    """Yield a line as text without what moves a cursor; states of a progress bar one by one."""
    for piece in ANSI.sub(b"", line).rstrip(b"\r").split(b"\r")[-PIECES:]:
        text = piece.decode("utf-8", "replace")[: prefix.LONGEST].translate(CONTROLS)
        yield f" {text}" if text.startswith(MARK) else text


def names(story: Story) -> list[str]:
    """Return what the job's machines are called."""
    found = [story.node_of(seen.who) for seen in story.events()]
    found += [value for name in ("node", "master", "address") for value in stated(story, name)]
    return [*dict.fromkeys(name for name in found if name)]


def stated(story: Story, fact: str) -> list[str]:
    """Return the values of a fact."""
    return [seen.told[fact] for seen in story.stated(fact).values()]


def replaced(
    parts: Mapping[str, list[str]], hosts: Sequence[str], key: bytes
) -> dict[str, list[str]]:
    """Return files, and their names, without what tells whose they are."""
    texts = [line for name, lines in parts.items() for line in (name, *lines)]
    masked = [SECRETS.sub(without_secret, line) for line in texts]
    machines = [
        *hosts,
        *(next(filter(None, found)) for line in texts for found in NAMED.findall(line)),
    ]
    users = [next(filter(None, found)) for line in texts for found in USERS.findall(line)]
    document = {
        "node": {
            "resolve": dict.fromkeys(machines),
            "environ": {str(number): {"USER": user} for number, user in enumerate(users)},
        },
        "text": masked,
    }
    hidden = iter(anonymise(document, key)["text"])

    def path(match: re.Match[str]) -> str:
        return (match["host"] or "") + without_path(match["in"] or match.group(), key)

    return {
        next(hidden): [PATHS.sub(path, next(hidden)) for _ in lines] for lines in parts.values()
    }


def without_secret(match: re.Match[str]) -> str:
    """Return what stands in for what may be a secret."""
    name = match["name"]
    if name is None:
        return f"{match['bearer'] or ''}{HIDDEN}"
    plain = name.lstrip("-").replace("-", "_")
    private = SECRET_NAME.search(plain) or JOB_NAME.search(plain)
    return f"{name}{match['is']}{HIDDEN}" if private else match.group()


def without_path(path: str, key: bytes) -> str:
    """Return a path with the names in it replaced that are not those of systems or libraries."""
    parts = path.split("/")[1:]
    found: list[str] = []
    for place, part in enumerate(parts):
        if part in LIBRARIES or (place == 0 and part in SYSTEM):
            found += parts[place:]
            break
        kept = part.lower() in TELLS_NOTHING or REPLACED.match(part)
        found.append(part if kept else other(part, key))
    return "/" + "/".join(found)


def other(part: str, key: bytes) -> str:
    """Return what stands in for a name of a folder or file, with its ending."""
    tag = hmac.digest(key, f"path:{part}".encode(), "sha256").hex()[:6]
    return f"name{tag}{PurePath(part).suffix}"


def written(head: Mapping[str, str], parts: Mapping[str, list[str]]) -> str:
    """Return the text of a case."""
    lines = [f"{MARK}{name}: {value}" for name, value in head.items()]
    for name, some in parts.items():
        lines += [f"{MARK}file: {name}"] if name != ONE_FILE else []
        lines += some
    return "\n".join(lines) + "\n"


def first_cause(parts: Mapping[str, list[str]], families: Sequence[Family]) -> str:
    """Return what is in first place when a case is read."""
    reader = Reader(families)
    for name, lines in parts.items():
        reader.read(Lines(name, None, content="\n".join(lines) + "\n"))
    _, ranked = model.last_that_failed(reader.stories, families)
    return ranked[0].cause if ranked else "none"
