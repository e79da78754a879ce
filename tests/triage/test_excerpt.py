"""What `--save-case` writes: the same first cause, and nothing that says whose logs they were."""

from __future__ import annotations

from pathlib import Path

import pytest

from preflight.triage import excerpt, files
from preflight.triage.reading import Reader
from tests.triage import cases
from tests.triage.cases import Case
from tests.triage.test_cases import EVERY, FAMILIES, answer

KEY = b"k" * 32


def saved(names: list[str], folder: Path) -> tuple[Case, excerpt.Excerpt]:
    reader = Reader(FAMILIES)
    logs = files.find(names)
    for log in logs:
        reader.read(log)
    made = excerpt.excerpt("saved", logs, reader.stories, FAMILIES, KEY)
    (folder / "saved.log").write_text(made.text, encoding="utf-8")
    return cases.read(folder / "saved.log"), made


@pytest.mark.parametrize(("case", "within"), EVERY)
def test_read_back_it_tells_the_same(case: Case, within: bool, tmp_path: Path) -> None:
    told = answer(case.write(tmp_path / "logs", within))
    first = told.hypotheses[0].cause if told.hypotheses else "none"
    again, made = saved([str(tmp_path / "logs")], tmp_path)
    assert again.head["cause"] == made.told == made.cause == first
    back = answer(again.write(tmp_path / "back", True))
    assert [one.cause for one in back.hypotheses[:1]] == [one.cause for one in told.hypotheses[:1]]
