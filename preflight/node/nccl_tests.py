"""What all_reduce_perf of nccl-tests says: its text in any version, and its JSON since 2.19.

Pure: nothing is run here, and no text makes it raise. Where and how it is run: `mpi.py`.
Source: nccl-tests 2.9.0 to 2.19.6: src/common.cu, src/all_reduce.cu, since 2.17.3 src/util.cu.
Sent to nodes: stdlib only, Python 3.8.
"""

from __future__ import annotations

import json
import math
import re
from statistics import median
from typing import Any, Mapping, Sequence, TypedDict

from preflight.node.nccl_log import ANY_HOST, HEAD

LOG = HEAD + r"(?P<words>[^\n]*)\n?"
"""A line of NCCL's own log. It may stand in the middle of a row, which goes on after it."""
LABEL = re.compile(r"^(?:\[\d+,\d+\]<std\w+>: ?| *\d+: )", re.MULTILINE)
"""What mpirun and srun put before each line where they are told to."""
PLACE = re.compile(
    r"#\s+Rank\s+(\d{1,9}) .{0,40}?Pid\s+\d+ on\s+(\S+) device\s+(\d{1,9}) \[[^\]]*\]"
)
VERSION = re.compile(r"# nccl-tests version (\S+) nccl-headers=\d+ nccl-library=(\d{1,9})")
NCCL = re.compile(r"NCCL version (\d+\.\d+\.\d+)")
"""A line of NCCL itself; it depends on NCCL_DEBUG."""
BEGUN = "# nThread "
REPEATED = re.compile(r" iters: (\d{1,9}) (?:agg|validation)")
TABLE = re.compile(r"#\s+size\s+count\s+type\s")
ROW = re.compile(r"\s*\d{1,18}\s+\d+\s+[a-z]\w*\s+[a-z]\w*\s")
TIMES = ("time", "cputime")
OUTSIDE = re.compile(r"# Out of bounds values\s*: (\d{1,18}) ")
AVERAGE = re.compile(r"# Avg bus bandwidth\s*: \S")
"""The last thing that it always says. It is of small sizes too: not to be judged by."""
FAILURE = re.compile(r"(?<!\S)(\S{1,255}): (?:Test (?:CUDA|NCCL)|Cuda|NCCL) failure \S+ '([^\n]*)'")
MOST_OFF = 1e-5
"""Error of a sum of float32, for each rank but one: DeltaMaxValue of 2.9.0, which did not count."""
NO_NUMBER = "a time or bandwidth that is no number"
UNCHECKED = "its sums were not looked at"
NO_ROW = "its output has no row that can be read"


class Place(TypedDict):
    """A rank, and where it ran."""

    rank: int
    host: str
    gpu: int
    """CUDA's number of it, in that process."""


class Size(TypedDict):
    """An all_reduce of one size; times are not in place."""

    bytes: int
    count: int
    """How often it was done; 0: not told."""
    ms: float
    algbw: float
    """GB/s."""
    busbw: float
    wrong: int
    """Values, in place or not; before 2.13, which did not count them, 1 if there are any."""
    ranks: list[float]
    """Median time of each process in ms; empty: not told."""


class Failure(TypedDict):
    """What a process said is wrong; the host is empty where it did not say its own."""

    host: str
    words: str


class Told(TypedDict):
    """All that an output says."""

    version: str
    """Of nccl-tests; empty: before 2.17.4 it did not say."""
    nccl: str
    places: list[Place]
    outputs: int
    """How many processes wrote one: more than one where each thinks that it is alone."""
    sizes: list[Size]
    at: str
    """Where it ends: at the `store` (no ranks are listed), the `group` (they are, no more), in the
    `all_reduce`; empty: it is whole."""
    failures: list[Failure]


def parsed(text: str) -> Told:
    """Return what a text says, however short it is cut off: only whole lines count."""
    told = Told(version="", nccl="", places=[], outputs=0, sizes=[], at="store", failures=[])
    columns: list[str] = []
    count = 0
    for line in cleaned(text, told["failures"]):
        if line.startswith(BEGUN):
            told["outputs"] += 1
            repeated = REPEATED.search(line)
            count = int(repeated[1]) if repeated else 0
        elif TABLE.match(line):
            columns = line.split()[1:]
        elif columns and ROW.match(line):
            add_row(told, line.split(), columns, count)
        else:
            add_words(told, line)
    if told["at"]:
        told["at"] = "all_reduce" if columns else "group" if told["places"] else "store"
    elif not told["sizes"] and not told["failures"]:
        told["at"] = "all_reduce"
        told["failures"].append(Failure(host="", words=NO_ROW))
    return told


def cleaned(text: str, failures: list[Failure]) -> list[str]:
    """Return the whole lines without the log of NCCL; its warnings go to the failures."""
    text = LABEL.sub("", text)

    def taken(match: re.Match[str]) -> str:
        if match["level"] == "WARN" and match["words"].strip():
            failures.append(Failure(host=match["host"], words=match["words"].strip()))
        version = NCCL.search(match["words"])
        return f"{version[0]}\n" if version else ""

    if names := hosts_of(text):
        text = re.sub(LOG.format("|".join(map(re.escape, names))), taken, text)
    text = re.sub(LOG.format(ANY_HOST), taken, text)
    return text.split("\n")[:-1]


def hosts_of(text: str) -> list[str]:
    """Return where ranks run, by their list of them; long names first, others may be a part."""
    return sorted({match[2] for match in PLACE.finditer(text)}, key=len, reverse=True)


def add_words(told: Told, line: str) -> None:
    """Take up a line that is none of the table."""
    if match := VERSION.match(line):
        told["version"], told["nccl"] = match[1], nccl_version(int(match[2]))
    elif match := NCCL.match(line):
        told["nccl"] = told["nccl"] or match[1]
    elif match := PLACE.match(line):
        told["places"].append(Place(rank=int(match[1]), host=match[2], gpu=int(match[3])))
    elif match := OUTSIDE.match(line):
        add_outside(told, int(match[1]))
    elif AVERAGE.match(line):
        told["at"] = ""
    elif match := FAILURE.search(line):
        words = ": ".join(filter(None, (part.strip() for part in match[2].split(" / "))))
        told["failures"].append(Failure(host=match[1], words=words))


def add_outside(told: Told, count: int) -> None:
    """Take up its own count of rows with wrong values."""
    if count and not any(size["wrong"] for size in told["sizes"]):
        told["failures"].append(Failure(host="", words=f"{count} values out of bounds"))


def nccl_version(code: int) -> str:
    """Return a version as words: 22706 is 2.27.6, and before 2.9 2804 was 2.8.4."""
    base = 10000 if code >= 10000 else 1000
    return f"{code // base}.{code % base // 100}.{code % 100}"


def add_row(told: Told, cells: Sequence[str], columns: Sequence[str], count: int) -> None:
    """Take up a row of the table."""
    starts = [place for place, name in enumerate(columns) if name in TIMES]
    if len(cells) < len(columns) or not starts or starts[-1] + 4 > len(columns):
        return
    values = [[number(cell) for cell in cells[start : start + 3]] for start in starts]
    ends = [cells[start + 3] for start in starts]
    if not all(three[0] > 0 and all(map(math.isfinite, three)) for three in values):
        told["failures"].append(Failure(host="", words=f"{NO_NUMBER}, of {cells[0]} bytes"))
    elif "N/A" in ends:
        told["failures"].append(Failure(host="", words=UNCHECKED))
    else:
        is_error = columns[starts[0] + 3] == "error"
        most = MOST_OFF * max(1, len(told["places"]) - 1)
        time, algbw, busbw = values[0]
        told["sizes"].append(
            Size(
                bytes=int(cells[0]),
                count=count,
                ms=milliseconds(time),
                algbw=algbw,
                busbw=busbw,
                wrong=max(wrong(number(end), most if is_error else None) for end in ends),
                ranks=[],
            )
        )


def wrong(value: float, most: float | None) -> int:
    """Return how many values are wrong: by their number, or by the largest error of any."""
    if most is not None:
        return 0 if value <= most else 1  # no NaN is: 2.9.0 itself takes that for right
    return int(value) if math.isfinite(value) else 1


def number(cell: str) -> float:
    """Return a number; NaN where it is none."""
    try:
        return float(cell)
    except ValueError:
        return math.nan


def refined(told: Told, text: str) -> Told:
    """Return what was told with the times of each process, and more digits, from its JSON.

    Its environment stands in there too: nothing of that is taken. A file that is cut off, or has
    an infinite number in it, is no JSON; the text says all but the times of each process.
    """
    try:
        by_size = {one["size"]: one for one in json.loads(text)["results"]}
        sizes = [with_digits(size, by_size[size["bytes"]]) for size in told["sizes"]]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return told
    return Told(**{**told, "sizes": sizes})


def with_digits(size: Size, result: Mapping[str, Any]) -> Size:
    """Return what was told of a size with what the JSON has of it."""
    out = result["out_of_place"]
    each = result.get("out_of_place_per_iter", {}).get("per_process_max_times_us", ())
    return Size(
        bytes=size["bytes"],
        count=size["count"],
        ms=milliseconds(out["time"]),
        algbw=float(out["alg_bw"]),
        busbw=float(out["bus_bw"]),
        wrong=size["wrong"],
        ranks=[milliseconds(median(map(float, ones))) for ones in each],
    )


def milliseconds(microseconds: Any) -> float:
    """Return a time.

    Raises:
        ValueError: it is no number.
    """
    value = float(microseconds)
    if not math.isfinite(value):
        raise ValueError(NO_NUMBER)
    return round(value / 1000, 6)
