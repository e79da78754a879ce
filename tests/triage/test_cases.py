"""Each case's cause, alone and within 200 lines of start-up output of every rank."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import pytest

from preflight import catalog
from preflight.triage import family, files, model
from preflight.triage.model import Triage
from preflight.triage.reading import Reader
from tests.triage import cases, start_up
from tests.triage.cases import Case

FAMILIES = family.load()
CHECKS = catalog.load(())
ONLY = re.compile(r"preflight run --only ([\w.,]*\w)")
REPORTED = {
    **dict.fromkeys(["C01", "C02"], "network.ephemeral"),
    **dict.fromkeys(["C06", "C08", "C09", "C11", "C90"], "network.names"),
    **dict.fromkeys(["C07", "C12", "C66"], "launch.env"),
    **dict.fromkeys(["C14", "C17", "C18", "C19", "C20"], "network.interface"),
    **dict.fromkeys(["C21", "C22", "C25", "C77", "C89"], "launch.plan"),
    **dict.fromkeys(["C26", "C27"], "gpu.inventory"),
    **dict.fromkeys(["C33", "C48", "C78"], "rdma.gid"),
    **dict.fromkeys(["C45", "C46"], "rdma.port"),
    **dict.fromkeys(["C42", "C47"], "rdma.devices"),
    **dict.fromkeys(["C53", "C55", "C65", "C81"], "gpu.fabric"),
    **dict.fromkeys(["C59", "C60"], "gpu.health"),
    **dict.fromkeys(["C61", "C62"], "software.driver"),
    **dict.fromkeys(["C63", "C83"], "host.shm"),
    **dict.fromkeys(["C64", "C85"], "host.limits"),
    **dict.fromkeys(["C71", "C87"], "storage.cache_dirs"),
    "C05": "rdma.efa",
    "C23": "network.port",
    "C29": "software.python",
    "C31": "launch.paths",
    "C32": "launch.proxy",
    "C34": "rdma.mtu",
    "C38": "gpu.p2p",
    "C40": "rdma.gdr",
    "C49": "rdma.pairs",
    "C50": "software.nccl",
    "C52": "rdma.qos",
    "C56": "gpu.nvlink",
    "C68": "gpu.processes",
    "C73": "storage.mounts",
    "C75": "host.clock",
    "C76": "network.foreign",
    "C80": "rdma.sharp",
    "C84": "network.idle",
    "C88": "storage.identity",
    "C93": "job.out_of_memory",
}
"""What had ended jobs of which somebody reported lines of a log, by the number of the report."""
SILENT = {
    **dict.fromkeys(["C36", "C57", "C69", "C70", "C92"], "it hangs after lines of healthy jobs"),
    **dict.fromkeys(["C51", "C67", "C79", "C86", "C91", "C94", "C95"], "it is only slow"),
}
"""Reports without a line that tells of a fault, and why there is none."""
REPORTS = 75
HARMLESS = {"N1", "N3", "N4", "N5", "N6", "N7"}
"""What is often blamed, and has never ended a job."""
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
        assert told.headline != model.NO_FAULT or told.first_error is None
    elif "cause" in case.head:
        assert found[:1] == case.words("cause"), told.hypotheses
        if "ranks" in case.head and within:  # the start-up says which process is which rank
            assert told.hypotheses[0].ranks == [int(rank) for rank in case.words("ranks")]
        assert case.head.get("says", "") in told.hypotheses[0].summary
    if "first" in case.head:
        assert told.first_error is not None
        assert case.head["first"] in told.first_error.text
    assert set(case.words("among")) <= set(found[:FIRST])
    confirms = (one.confirm for one in told.hypotheses)
    for names in (names for text in confirms for names in ONLY.findall(text)):
        assert CHECKS.select(names.split(","), "deep")  # an unknown one is an error
    assert not [one.cause for one in told.hypotheses[1:] if one.confidence >= model.SURE]
    assert not set(case.words("never")) & set(found[:1])


def test_reports_have_their_cause_in_first_place() -> None:
    """At least 95 % of them, and all among the first three: each case is held to its head."""
    assert len(REPORTED.keys() | SILENT.keys()) == len(REPORTED) + len(SILENT) == REPORTS
    first: dict[str, set[str]] = defaultdict(set)
    among: dict[str, set[str]] = defaultdict(set)
    for case in cases.found():
        report = case.head["case"][:3]
        first[report] |= {*case.words("cause")}
        among[report] |= {*case.words("cause"), *case.words("among")}
    assert not SILENT.keys() & first.keys()
    assert not {report for report, cause in REPORTED.items() if cause not in among[report]}
    later = {report for report, cause in REPORTED.items() if cause not in first[report]}
    assert len(later) <= 0.05 * len(REPORTED), later


def test_what_is_harmless_is_never_blamed() -> None:
    blamed = {(case.head["case"][:2], case.head["cause"]) for case in cases.found()}
    assert {one for one in blamed if one[0] in HARMLESS} == {(name, "none") for name in HARMLESS}


@pytest.mark.parametrize("version", [start_up.OLD, start_up.MIDDLE, start_up.NEW])
def test_a_clean_log_has_no_hypothesis(version: str, tmp_path: Path) -> None:
    case = Case("clean", {"nccl": version}, {"job.log": ["all done"]})
    told = answer(case.write(tmp_path, True))
    assert not told.hypotheses
    assert told.first_error is None
    assert told.headline == model.NO_FAULT
