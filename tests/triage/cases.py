"""Cases: excerpts of logs with what ended the job, one a file in `cases/`.

A file is a log with a head of `#: KEY: VALUE` lines, as `preflight triage --save-case` writes it:

    case     the id of the report it is from, or what it shows
    source   where the lines are from
    cause    what is to be in first place; `none`: no hypothesis at all
    among    further causes that are to be among the first three
    never    causes that are not to be in first place
    ranks    whom the first hypothesis names
    says     words that stand in its summary
    first    words that stand in the line of the first error
    nccl     the version of the start-up output that the lines are put into
    world    how many ranks there are; 0: the lines are taken as they are
    without  what the logs had, and the case has not
    needs    `start-up`: the lines alone do not say who else there is

`#: file: NAME` begins another file (a kernel log, another rank's).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.triage import start_up

HERE = Path(__file__).parent / "cases"
MARK = "#: "


@dataclass
class Case:
    """An excerpt and what is to be found in it."""

    name: str
    head: dict[str, str] = field(default_factory=dict)
    files: dict[str, list[str]] = field(default_factory=dict)

    @property
    def needs_start_up(self) -> bool:
        return self.head.get("needs") == "start-up"

    def words(self, key: str) -> list[str]:
        return [word.strip() for word in self.head.get(key, "").split(",") if word.strip()]

    def write(self, folder: Path, within: bool) -> list[str]:
        """Write the logs, within the start-up output of every rank or alone; return their names."""
        names = []
        world = int(self.head.get("world", "16")) if within else 0
        for number, (name, lines) in enumerate(self.files.items()):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            before = [*self.noise(world)] if number == 0 else []
            path.write_text("\n".join([*before, *lines]) + "\n", encoding="utf-8")
            names.append(str(path))
        return names

    def noise(self, world: int) -> Iterator[str]:
        version = self.head.get("nccl", start_up.MIDDLE)
        every = [start_up.lines(rank, world, version) for rank in range(world)]
        for together in zip(*every, strict=True):
            yield from together


def read(path: Path) -> Case:
    case = Case(path.stem)
    lines = case.files.setdefault("job.log", [])
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith(MARK):
            lines.append(line)
            continue
        key, _, value = line.removeprefix(MARK).partition(": ")
        if key == "file":
            lines = case.files.setdefault(value, [])
        else:
            case.head[key] = value
    case.files = {name: some for name, some in case.files.items() if any(some) or name != "job.log"}
    return case


def found() -> list[Case]:
    return [read(path) for path in sorted(HERE.rglob("*.log"))]
