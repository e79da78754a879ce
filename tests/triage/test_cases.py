"""Each case's cause, alone and within 200 lines of start-up output of every rank."""

from __future__ import annotations

from pathlib import Path

import pytest

from preflight.triage import family, files, model
from preflight.triage.model import Triage
from preflight.triage.reading import Reader
from tests.triage import cases, start_up
from tests.triage.cases import Case

FAMILIES = family.load()
FIRST = 3


def answer(names: list[str]) -> Triage:
    reader = Reader(FAMILIES)
    logs = files.find(names)
    for log in logs:
        reader.read(log)
    return model.triage(reader.stories, FAMILIES, len(logs))


ALONE, WITHIN = False, True
EVERY = [
    pytest.param(case, within, id=f"{case.name} {'within start-up' if within else 'alone'}")
    for case in cases.found()
    for within in ((WITHIN,) if case.needs_start_up else (ALONE, WITHIN))
]


@pytest.mark.parametrize(("case", "within"), EVERY)
def test_case(case: Case, within: bool, tmp_path: Path) -> None:
    told = answer(case.write(tmp_path, within))
    found = [one.cause for one in told.hypotheses]
    assert {"cause", "never"} & case.head.keys(), "a case says what is to be found"
    if case.words("cause") == ["none"]:
        assert not found, told.hypotheses
    elif "cause" in case.head:
        assert found[:1] == case.words("cause"), told.hypotheses
        if "ranks" in case.head and within:  # the start-up says which process is which rank
            assert told.hypotheses[0].ranks == [int(rank) for rank in case.words("ranks")]
        assert case.head.get("says", "") in told.hypotheses[0].summary
    assert set(case.words("among")) <= set(found[:FIRST])
    assert not set(case.words("never")) & set(found[:1])


@pytest.mark.parametrize("version", [start_up.OLD, start_up.MIDDLE, start_up.NEW])
def test_a_clean_log_has_no_hypothesis(version: str, tmp_path: Path) -> None:
    case = Case("clean", {"nccl": version}, {"job.log": ["all done"]})
    told = answer(case.write(tmp_path, True))
    assert not told.hypotheses
    assert told.first_error is None
    assert told.headline == model.NO_FAULT
