"""What NCCL's RAS tells of a job as JSON (`ncclras -f json`), in the words of its text.

Shapes: NCCL `src/ras/client_support.cc`, 2.28 and later; text since 2.24.
"""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import IO, Any

from preflight.triage.files import BROKEN, Log

MOST = 64 << 20
"""Bytes; a rank of a communicator takes 600."""
RESULTS = {
    1: "Unhandled CUDA error",
    2: "System error",
    3: "Internal error",
    4: "Invalid argument",
    5: "Invalid usage",
    6: "Remote process error",
}


def is_ras(head: bytes) -> bool:
    """Whether a file that begins so is what RAS tells."""
    return head[:1] == b"{" and b'"nccl_version"' in head and b'"cuda_runtime_version"' in head


@dataclass(frozen=True)
class Text(Log):
    """What JSON tells, as text; its lines are numbered as such."""

    content: bytes = b""

    def open(self) -> IO[bytes]:
        """Open the text."""
        return io.BytesIO(self.content)


def as_text(log: Log) -> Text:
    """Return it as the text that RAS writes.

    Raises:
        ConfigError: it cannot be read.
    """
    return Text(log.name, log.path, content="\n".join(lines(log)).encode())


def lines(log: Log) -> list[str]:
    """Return what it tells, as its text form has it; nothing if it is damaged.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        with log.open() as stream:
            data = stream.read(MOST + 1)
        told = json.loads(data) if len(data) <= MOST else {}
        return [f"NCCL version {told['nccl_version']} of RAS", *communicators(told)]
    except (*BROKEN, OSError, ValueError, RecursionError, TypeError, KeyError, AttributeError):
        return []


def communicators(told: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is odd about communicators."""
    for comm in told["communicators"]:
        for rank in comm["missing_ranks"]:
            yield from missing(rank)
        for rank in comm["ranks"]:
            for name in ("init_state", "async_error"):
                if error := RESULTS.get(rank["status"][name]):
                    yield f"Rank {rank['rank']} reported {error} {by(rank)}"
        for operation in comm["ranks"][0]["collective_counts"] if comm["ranks"] else ():
            yield from counts(comm["ranks"], operation)


def missing(rank: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is known of a rank that told nothing of its communicator."""
    state, number = rank["status"], rank["rank"]
    if state["considered_dead"]:
        yield "1 job process is considered dead (unreachable via the RAS network)"
        where = f"Process {rank['pid']} on node {rank['host']} managing GPU {rank['cuda_dev']}"
        yield f"{where} (rank {number})"
    elif state["unresponsive"]:
        yield "Missing communicator data from 1 rank"
    else:
        yield f"Rank {number} has status NOCOMM {by(rank)}"


def counts(ranks: list[Mapping[str, Any]], operation: str) -> Iterator[str]:
    """Yield who launched more or fewer operations than most."""
    by_count = Counter(rank["collective_counts"][operation] for rank in ranks)
    (usual, many), *others = by_count.most_common()
    if not others:
        return
    yield f"Communicator ranks have different {operation} operation counts"
    yield f"{many} ranks have launched up to operation {usual}"
    for rank in ranks:
        count = rank["collective_counts"][operation]
        if count != usual and by_count[count] <= max(1, len(ranks) // 4):
            yield f"Rank {rank['rank']} has launched up to operation {count} {by(rank)}"


def by(rank: Mapping[str, Any]) -> str:
    """Return whose rank it is."""
    return f"-- GPU {rank['cuda_dev']} managed by process {rank['pid']} on node {rank['host']}"
