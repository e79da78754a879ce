"""Whatever is given as a log: never a crash, never a hang, and no memory without bounds."""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

import preflight.triage.families as package
from preflight.errors import ConfigError
from preflight.report.triage import render
from preflight.triage import family, files, prefix, reading, rule
from preflight.triage.model import Triage
from preflight.triage.reading import Reader
from tests.triage import cases, start_up
from tests.triage.test_cases import answer

CASES = cases.found()
LOGS = [
    "\n".join(line for lines in case.files.values() for line in lines).encode() for case in CASES
]
LIMIT_S = 300
"""For what takes seconds where a regular expression is linear, and hours where it is not."""
Change = Callable[[bytes, random.Random], bytes]


def truncated(log: bytes, pick: random.Random) -> bytes:
    return log[: pick.randrange(len(log) + 1)]


def shuffled(log: bytes, pick: random.Random) -> bytes:
    lines = log.split(b"\n")
    pick.shuffle(lines)
    return b"\n".join(lines)


def interleaved(log: bytes, pick: random.Random) -> bytes:
    """Two ranks write at once, each some bytes at a time."""
    other, out = pick.choice(LOGS), []
    rest = [log, other]
    while any(rest):
        one, count = pick.randrange(2), pick.randrange(1, 300)
        out.append(rest[one][:count])
        rest[one] = rest[one][count:]
    return b"".join(out)


def inserted(what: Callable[[random.Random], bytes]) -> Change:
    """Return what puts something into a log at ten places."""

    def change(log: bytes, pick: random.Random) -> bytes:
        for _ in range(10):
            at = pick.randrange(len(log) + 1)
            log = log[:at] + what(pick) + log[at:]
        return log

    return change


def with_bars(log: bytes, pick: random.Random) -> bytes:
    ends = [b"\r\n", b"\r", b"\n", b"\r\r\n", b"\n\n"]
    return b"".join(line + pick.choice(ends) for line in log.split(b"\n"))


def coloured(log: bytes, pick: random.Random) -> bytes:
    codes = [b"\x1b[31m", b"\x1b[0m", b"\x1b[2K", b"\x1b]0;title\x07", b"\x1b[", b"\x1b"]
    return b" ".join(pick.choice(codes) + word for word in log.split(b" "))


def as_numbers(log: bytes, pick: random.Random) -> bytes:
    """Numbers become longer than any number is."""
    return re.sub(rb"\d+", lambda _: b"9" * pick.choice([1, 20, 5000]), log)


CHANGES: Sequence[Change] = (
    truncated,
    shuffled,
    interleaved,
    inserted(lambda pick: pick.randbytes(40)),
    inserted(lambda _: b"\0" * 8),
    inserted(lambda _: b"\xff\xfe\xc3\xe2\x82"),
    inserted(lambda pick: b"7" * pick.choice([30, 5000])),
    inserted(lambda _: b"Traceback (most recent call last):\n"),
    with_bars,
    coloured,
    as_numbers,
)


def told(log: bytes, name: str = "job.log") -> Triage:
    """Return the answer, written and shown once."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(log)
        found = answer([str(path)])
    assert json.loads(found.to_json())["schema"] == "preflight.triage/1"
    assert render(found, 80, "ascii", True).plain
    return found


@settings(max_examples=80)
@given(
    log=st.sampled_from(LOGS),
    changes=st.lists(st.sampled_from(CHANGES), min_size=1, max_size=3),
    pick=st.randoms(use_true_random=False),
)
def test_what_is_broken_is_read(log: bytes, changes: list[Change], pick: random.Random) -> None:
    for change in changes:
        log = change(log, pick)
    told(log)


@pytest.mark.parametrize("log", LOGS, ids=[case.name for case in CASES])
def test_numbers_that_are_none(log: bytes) -> None:
    told(as_numbers(log, random.Random(1)))


@settings(max_examples=50)
@given(st.binary(max_size=2000))
def test_what_is_no_log_is_read(log: bytes) -> None:
    told(log)


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.ZstdCompressor().compress])
def test_what_is_packed_and_cut_off_is_read_to_there(pack: Callable[[bytes], bytes]) -> None:
    packed = pack(b"\n".join(LOGS))
    for end in range(0, len(packed), len(packed) // 20):
        told(packed[:end])
    broken = bytearray(packed)
    broken[len(broken) // 2] ^= 0xFF
    told(bytes(broken))


def test_a_line_without_an_end(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    with path.open("wb") as file:
        for _ in range(64):
            file.write(b"loss 3.14159 " * (1 << 16))
            file.write(b"NCCL WARN Cuda failure 2 'out of memory'")
    found = answer([str(path)])
    assert [one.cause for one in found.hypotheses] == ["job.out_of_memory"]


def test_lines_that_end_as_those_of_progress_bars() -> None:
    bars = b"\r".join(b"%d%%|###   | %d/100 [00:01<00:09]" % (n, n) for n in range(200_000))
    fault = b"node7:4003:5003 [3] NCCL WARN Cuda failure 2 'out of memory'"
    found = told(bars + b"\r" + fault + b"\r" + bars + b"\nlast\r\n")
    assert found.first_error
    assert found.first_error.text.endswith("NCCL WARN Cuda failure 2 'out of memory'")
    assert found.first_error.line == 1


def test_a_log_that_was_emptied_while_it_was_written() -> None:
    rank = b"[rank3]: "
    raised = [
        b"Traceback (most recent call last):",
        b'  File "/w/train.py", line 7',
        b"KeyError: 1",
    ]
    found = told(b"\0" * 5000 + b"\n".join(rank + line for line in raised) + b"\n")
    assert [(one.cause, one.ranks) for one in found.hypotheses] == [("job.python_error", [3])]


def test_many_lines_of_one_block_that_tell_something() -> None:
    told(b"\r".join(b"x NCCL WARN Cuda failure 2 'out of memory'" for _ in range(20_000)))


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_bytes(LOGS[0])
    os.mkfifo(tmp_path / "pipe.log")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket.log"))
        (tmp_path / "gone.log").symlink_to(tmp_path / "nowhere")
        (tmp_path / "zeros.log").symlink_to("/dev/zero")
        (tmp_path / "around").symlink_to(tmp_path)
        assert [log.name for log in files.find([str(tmp_path)])] == [str(tmp_path / "job.log")]
        for name in ("pipe.log", "socket.log", "zeros.log"):
            with pytest.raises(ConfigError) as error:
                files.find([str(tmp_path / name)])
            assert str(error.value) == (
                f"{tmp_path / name}: is a pipe, socket or device: COMMAND | preflight triage -"
            )


def test_a_name_that_cannot_be_one() -> None:
    name = "a" * 5000
    with pytest.raises(ConfigError, match=r"cannot be read: file name too long$"):
        files.find([name])


def test_what_may_not_be_read(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_bytes(LOGS[0])
    (tmp_path / "job.log").chmod(0)
    user = os.geteuid()
    try:
        if not user:
            for folder in (tmp_path, *tmp_path.parents[:2]):
                folder.chmod(0o755)
            os.seteuid(65534)
        with pytest.raises(ConfigError, match=r"job.log: cannot be read: permission denied$"):
            answer([str(tmp_path / "job.log")])
    finally:
        os.seteuid(user)


# Memory


def peak(log: Path) -> int:
    """Return the greatest memory, in KiB, that reading a log takes."""
    script = (
        "import resource, subprocess, sys\n"
        "subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)\n"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    argv = [sys.executable, "-c", script, sys.executable, "-m", "preflight", "triage", str(log)]
    done = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=LIMIT_S)
    return int(done.stdout)


def test_memory_does_not_grow_with_a_log(tmp_path: Path) -> None:
    part = "\n".join(line for rank in range(64) for line in start_up.lines(rank, 64))
    part += "\n" + LOGS[0].decode() + "\n"
    sizes = []
    for megabytes in (30, 300):
        path = tmp_path / f"{megabytes}.log"
        with path.open("w") as file:
            for _ in range(megabytes * 1_000_000 // len(part)):
                file.write(part)
        sizes.append(peak(path))
        path.unlink()
    assert sizes[1] < 1.3 * sizes[0]


# Regular expressions

WORDS = ("a", "9", "A.", "a.", "Error", "node0:1:2 ", "[rank0]: ", "[1,0]<stdout>:", "( pid=", "\\")
MORE = ("\x1b]", "\x1b[;", "a1", "a-", "12:", "10.0.0.1", "node1: ", "/tmp/", "x y ", '"', "[PG 0 ")
ENDLESS = [word * (4_000_000 // len(word)) for word in (*WORDS, *MORE)]


def patterns() -> list[re.Pattern[str]]:
    """Return all regular expressions that are run by Python's own engine over what logs tell."""
    names = [f"{package.__name__}.{one.name}" for one in family.load()]
    modules: list[ModuleType] = [prefix, reading, rule, *(sys.modules[name] for name in names)]
    found: dict[str, re.Pattern[str]] = {}
    for module in modules:
        for value in vars(module).values():
            for one in value if isinstance(value, tuple) else (value,):
                if isinstance(one, re.Pattern) and isinstance(one.pattern, str):
                    found[one.pattern] = one
    return [*found.values()]


def test_no_regular_expression_runs_for_ever() -> None:
    """Each is run over what is long and nearly fits; within the limit only if that is linear."""
    script = (
        "import re, sys, json\n"
        "patterns, lines = json.load(sys.stdin)\n"
        "for pattern, flags in patterns:\n"
        "    for line in lines:\n"
        "        re.compile(pattern, flags).search(line)\n"
    )
    longest = [text[: prefix.LONGEST] for text in ENDLESS]
    every: Any = [[(one.pattern, one.flags) for one in patterns()], longest]
    done = subprocess.run(
        [sys.executable, "-c", script],
        input=json.dumps(every),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("text", ENDLESS, ids=[word.strip() for word in (*WORDS, *MORE)])
def test_long_lines_that_nearly_begin_as_others(text: str) -> None:
    fault = "NCCL WARN Cuda failure 2 'out of memory'"
    told(f"{text}{fault}\n{text[:2000]} {fault} {text}".encode())


# What tells nothing


@pytest.mark.parametrize("version", [start_up.OLD, start_up.MIDDLE, start_up.NEW])
def test_few_lines_of_a_sound_job_are_looked_at(version: str, tmp_path: Path) -> None:
    """Of each rank those that state something: each costs as much as a thousand others."""
    path, world = tmp_path / "job.log", 16
    lines = [line for rank in range(world) for line in start_up.lines(rank, world, version)]
    path.write_text("\n".join(lines) + "\n")
    reader = Reader(family.load())
    (log,) = files.find([str(path)])
    hits = [hit.text for hit in reader._sieve.hits(log)]
    assert not [text for text in hits if " via " in text or "step" in text]
    assert len(hits) <= 10 * world
