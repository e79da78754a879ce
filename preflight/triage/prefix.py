"""Whose line it is and when it was written, by what launchers and libraries put before it."""

from __future__ import annotations

import datetime as dt
import functools
import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import NamedTuple

LONGEST = 2000
"""Characters of a line that are looked at; the rest is data that somebody printed."""
ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?")
STAMP = re.compile(
    r"\[?(\d{4})[-/](\d\d)[-/](\d\d)[T _](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?"
    r" ?(Z|[+-]\d\d:?\d\d)?\]?[:,]?(?=\s|$|\[)"
)
GLOG = re.compile(r"\[[EWIF](\d{1,2})(\d\d) (\d\d):(\d\d):(\d\d)\.(\d+) [\w.]+:\d+\]")
SYSLOG = re.compile(r"([A-Z][a-z]{2}) +(\d{1,2}) (\d\d):(\d\d):(\d\d)(?= [\w.-]+ )")
DATE = re.compile(
    r"\[(?:[A-Z][a-z]{2} )?([A-Z][a-z]{2}) +(\d{1,2}) (?:(\d{4}) )?(\d\d):(\d\d):(\d\d)"
    r"(?: (\d{4}))?\] ?"
)
"""Of `dmesg -T`, with the year last, and of Fabric Manager."""
TIMED = (STAMP, GLOG, SYSLOG, DATE)
NCCL = re.compile(
    r"(?<![\w.-])(?P<node>[\w.-]+):(?P<pid>\d{1,9}):\d+ (?:\[[^\]]*\] )?(?=\S* ?NCCL |[\w./]+:\d+ )"
)
IN_GROUP = re.compile(r"\[Rank (?P<rank>\d{1,7})\]:? ?")
DEFAULT_GROUP = re.compile(
    r"\[PG (?:0|ID 0 PG GUID 0)(?: ?\([^)]*\))? Rank (?P<rank>\d{1,7})\]:? ?"
)
OF_A_GROUP = (IN_GROUP, DEFAULT_GROUP)
"""Ranks within a process group: they count only where no other is told."""
OWNED = (
    NCCL,
    re.compile(r"\[[EWIF] [\w.]+:\d+\] ?"),  # torch before 2.4
    re.compile(r"\[ *\d+\.\d{6}\] ?"),  # dmesg
    re.compile(r"(?P<node>[\w.-]+) (?:kernel|[\w./-]+\[\d+\]): ?"),  # syslog
    re.compile(r"\[rank(?P<rank>\d{1,7})\]:? ?"),  # torch >= 2.2
    IN_GROUP,
    DEFAULT_GROUP,
    re.compile(r"\[\d+,(?P<rank>\d{1,7})\]<\w+>: ?"),  # Open MPI
    re.compile(r"\[PG (?:ID )?\d[^\]]{0,100} Rank \d{1,7}\]:? ?"),  # of another group
    re.compile(r"\[(?:default|trainer|worker)(?P<local_rank>\d{1,7})\]: ?"),  # torchrun --tee
    re.compile(r"\((?:[\w.:]+ )?pid=(?P<pid>\d{1,9})(?:, ip=(?P<node>[^) ]+))?[^)]*\) ?"),  # Ray
    re.compile(r"(?P<rank>\d{1,7}): (?!\d)"),  # srun --label
    re.compile(
        r"(?P<node>\d{1,3}(?:\.\d{1,3}){3}|(?!python|x\d)(?=[a-z][a-zA-Z_-]*\d)[\w.-]+): "
    ),  # pdsh
    re.compile(r"\[?(?:INFO|WARNING|WARN|ERROR|DEBUG|CRITICAL)\]?:? (?=\S)"),
    re.compile(r"\[[\w./-]+\.py:\d+:\w+\] ?"),  # DeepSpeed
    re.compile(r"(?:stdout|stderr) [FP] "),  # Kubernetes
    re.compile(r"[\u2502|] ?"),  # boxes of dashboards
)
"""What stands before the words of a line; tried again and again until none fits."""
MOST_PREFIXES = 8
NODE = r"(?P<node>[a-zA-Z][a-zA-Z-]*\d[\w-]*?)"
IN_NAME = (
    re.compile(r"(?P<folder>^.*attempt_\d+/\d{1,7})/(?:stdout|stderr)\.log$"),  # torchrun --log-dir
    re.compile(r"(?:rank|task)[_.-]?(?P<rank>\d{1,7})(?!\d)", re.IGNORECASE),
    re.compile(r"nccl[\w-]*\.(?P<node>[a-zA-Z][\w-]*)\.(?P<pid>\d{1,9})"),  # NCCL_DEBUG_FILE %h.%p
    re.compile(rf"(?:^|/)(?:dmesg|kern|journal|messages|syslog)[-_]{NODE}(?:\.[a-z.]+)?$"),
    re.compile(rf"(?:^|/){NODE}[-_.](?:dmesg|kern|journal|messages|syslog)(?:\.[a-z.]+)?$"),
)
INFO = "NCCL INFO "
TWO_NCCL = 4
"""Colons that two prefixes of NCCL have."""
PROCESSES = 1 << 15
MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]


class Who(NamedTuple):
    """Whose line it is; a rank is often only known later, by its process."""

    rank: int | None = None
    node: str = ""
    pid: int | None = None
    folder: str = ""
    """Where torchrun puts what one process writes: its name is a number, but counted by node."""

    @property
    def run(self) -> str:
        """The folder of its torchrun: one a node; empty if it is not told."""
        return str(PurePath(self.folder).parents[1]) if self.folder else ""


NOBODY = Who()


class Prefix(NamedTuple):
    """What stood before a line's own words."""

    who: Who
    time: str
    """ISO 8601 as far as it was told; a year that is not told is 0000."""
    text: str
    indented: bool
    """Whether its own words begin with blanks, as those within a traceback do."""


def read(line: str, who: Who = NOBODY) -> Prefix:
    """Return whose line it is, when it was written, and its words; `who` is what the file tells."""
    head, info, words = line[:LONGEST].partition(INFO)
    if info and head:
        before = read_once(head + info, who)
        if before.text == INFO.rstrip():
            return Prefix(before.who, before.time, (info + words).rstrip(), False)
    return read_whole(line, who)


def read_whole(line: str, who: Who) -> Prefix:
    """Return the same of any line, however often it has been seen."""
    rest = ANSI.sub("", line[:LONGEST]).rstrip()
    time, local = "", None
    for _ in range(MOST_PREFIXES):
        before = rest
        for form in TIMED:
            if match := form.match(rest):
                time = time or moment(match)
                rest = rest[match.end() :].removeprefix(" ")
        for form in OWNED:
            if match := form.match(rest):
                told = {} if form in OF_A_GROUP and who.rank is not None else match.groupdict()
                who = named(who, told)
                local = told.get("local_rank", local)
                rest = rest[match.end() :]
                break
        if rest == before or rest.startswith("NCCL "):
            break
    if who.rank is None and who.pid is None:  # on one node it is the rank; nothing better is known
        who = named(who, {"rank": local})
    return Prefix(who, time, rest.lstrip(), rest[:1].isspace())


read_once = functools.lru_cache(PROCESSES)(read_whole)
"""Each process begins thousands of lines alike."""


def within(line: bytes, place: int, who: Who) -> Who:
    """Return whose words stand at a place of a line into which several ranks have written."""
    begin = max(0, place - LONGEST)
    if who.pid is not None and line.count(b":", begin, place) < TWO_NCCL:
        return who
    last = None
    before = line[begin:place].decode("utf-8", "replace")
    for last in NCCL.finditer(before):  # noqa: B007 - the last one counts
        pass
    return Who(None, last[1], int(last[2])) if last and last.start() > 0 and last[1] else who


def of_file(name: str) -> Who:
    """Return whose log a file is, by its name."""
    path = PurePath(name).as_posix()
    for form in IN_NAME:
        if match := form.search(path):
            return named(NOBODY, match.groupdict())
    return Who()


def named(who: Who, told: Mapping[str, str | None]) -> Who:
    """Return whose line it is by what is told of `rank`, `node`, `pid` and `folder`, too."""
    rank, node, pid = told.get("rank"), told.get("node"), told.get("pid")
    return Who(
        int(rank) if rank else who.rank,
        node or who.node,
        int(pid) if pid else who.pid,
        told.get("folder") or who.folder,
    )


def moment(match: re.Match[str]) -> str:
    """Return a time in ISO 8601, in UTC if its zone is told; empty if there is no such time."""
    told = match.groups()
    zone = None
    if match.re is STAMP:
        *words, fraction, zone = told
    elif match.re is GLOG:
        words, fraction = ["0", *told[:5]], told[5]
    elif told[0] not in MONTHS:
        return ""
    elif match.re is DATE:
        named_year = told[2] or told[6] or "0"
        words, fraction = [named_year, str(MONTHS.index(told[0]) + 1), told[1], *told[3:6]], ""
    else:
        words, fraction = ["0", str(MONTHS.index(told[0]) + 1), *told[1:]], ""
    year, month, day, hour, minute, second = map(int, words)
    micro = int((fraction or "0")[:6].ljust(6, "0"))
    try:
        when = dt.datetime(year or 2000, month, day, hour, minute, second, micro)  # noqa: DTZ001
    except ValueError:
        return ""
    if zone and zone != "Z":
        minutes = int(zone[1:3]) * 60 + int(zone[-2:])
        when -= dt.timedelta(minutes=minutes if zone[0] == "+" else -minutes)
    text = when.isoformat(timespec="milliseconds" if micro else "seconds")
    return text if year else "0000" + text[4:]
