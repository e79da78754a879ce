"""How fast logs are triaged beside `grep -c` with the same keywords; budgets, met or missed.

Two logs of 512 ranks are made: one of a training run, in which few lines tell anything, and one
full of NCCL INFO. CPU time of one core counts, so that a busy machine costs little.

    python benchmarks/triage.py              # 1 GB of the first, 256 MB of the second
    python benchmarks/triage.py --megabytes 100
"""

from __future__ import annotations

import argparse
import random
import re
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from preflight.triage import family  # noqa: E402 - the benchmarks are no package to install
from tests.triage import start_up  # noqa: E402

WORLD = 512
QUIET_BUDGET, INFO_BUDGET = 100.0, 25.0
"""MB/s on one core, of a log of a training run and of one full of NCCL INFO."""
GROWTH_BUDGET = 1.2
"""Times the memory that a log of a tenth of the size takes."""
LINE = (
    "[rank{}]: 2026-01-02 {:02}:{:02}:{:02},000 INFO train.py:88 step {} loss {:.4f} "
    "lr 3.0e-04 tokens/s {}"
)
FAULT = (
    "node7:4003:5003 [3] misc/socket.cc:71 NCCL WARN socketPollConnect: connect to 10.0.0.1<34567> "
    "returned Connection refused, exceeded error retry count after 35 attempts"
)
WORDS = re.compile(r"[A-Za-z_]\w*(?:[ :]+[A-Za-z_]\w*)*")


def training() -> Iterator[str]:
    """Yield lines of a training run."""
    pick = random.Random(1)
    for step in count():
        for rank in range(WORLD):
            hour, minute, second = step // 3600 % 24, step // 60 % 60, step % 60
            loss, speed = pick.random() * 4, pick.randrange(40_000, 60_000)
            yield LINE.format(rank, hour, minute, second, step, loss, speed)


def info() -> Iterator[str]:
    """Yield the start-up of ranks, as NCCL_DEBUG=INFO has it, without the steps."""
    for launch in count():
        for rank in range(WORLD):
            version = (start_up.OLD, start_up.MIDDLE, start_up.NEW)[launch % 3]
            for text in start_up.nccl(rank, WORLD, version, 8):
                local = rank % 8
                before = f"node{rank // 8}:{4000 + local}:{5000 + local} [{local}]"
                yield f"{before} NCCL INFO {text}"


def make(path: Path, lines: Iterator[str], megabytes: int) -> None:
    """Write a log of this size, whose last line tells of a fault."""
    block = "\n".join(islice(lines, 200_000)) + "\n"
    with path.open("w") as file:
        for _ in range(max(1, round(megabytes * 1e6 / len(block)))):
            file.write(block)
        file.write(FAULT + "\n")


def spent(command: list[str]) -> tuple[float, int]:
    """Run a command; return its CPU time in seconds and its greatest memory in KiB."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    script = "import resource,subprocess,sys\n" + (
        "code = subprocess.call(sys.argv[1:], stdout=subprocess.DEVNULL)\n"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *command], check=True, capture_output=True, text=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    memory, code = map(int, done.stdout.split())
    if code:
        sys.exit(f"{command[0]} exited with {code}: {done.stderr}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, memory


def triage(path: Path) -> list[str]:
    """Return the command."""
    return [sys.executable, "-m", "preflight", "triage", str(path)]


def keywords() -> list[str]:
    """Return the longest literal words of each rule's pattern."""
    rules = [rule for one in family.load() for rule in one.rules]
    found = {max(WORDS.findall(rule.pattern), key=len, default="") for rule in rules}
    return sorted(word for word in found if len(word) > 4)


def measure(name: str, path: Path, budget: float) -> int:
    """Print what a log costs; return the memory in KiB."""
    size = path.stat().st_size / 1e6
    ours, memory = spent(triage(path))
    words = [part for word in keywords() for part in ("-e", word)]
    theirs, _ = spent(["env", "LC_ALL=C", "grep", "-cF", *words, str(path)])
    speed = size / ours
    verdict = "met" if speed >= budget else "MISSED"
    print(
        f"{name}: {size:.0f} MB in {ours:.1f} s of CPU = {speed:.0f} MB/s, "
        f"budget {budget:g}: {verdict}"
    )
    print(
        f"   {ours / theirs:.2f} x grep -cF with {len(words) // 2} keywords "
        f"({size / theirs:.0f} MB/s)"
    )
    print(f"   {memory / 1024:.0f} MiB of memory")
    return memory


def main() -> None:
    """Make the logs and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1000, help="of the log of a training run")
    size = parser.parse_args().megabytes
    with tempfile.TemporaryDirectory() as folder:
        small, quiet, loud = (Path(folder) / name for name in ("small", "quiet", "loud"))
        make(small, training(), max(1, size // 10))
        make(quiet, training(), size)
        make(loud, info(), max(1, size // 4))
        _, first = spent(triage(small))
        whole = measure("training run", quiet, QUIET_BUDGET)
        measure("full of NCCL INFO", loud, INFO_BUDGET)
    growth = whole / first
    verdict = "met" if growth <= GROWTH_BUDGET else "MISSED"
    print(f"memory: {growth:.2f} x for ten times the log, budget {GROWTH_BUDGET:g}: {verdict}")


if __name__ == "__main__":
    main()
