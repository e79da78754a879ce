"""From a grid to a verdict: nothing told is never ready, and what is waived does not count."""

from __future__ import annotations

import datetime as dt
import json
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from preflight import catalog
from preflight.errors import ConfigError
from preflight.inventory import Waiver
from preflight.report import model
from preflight.report.terminal import render
from tests.checks_made import simple
from tests.messages.aloud import Aloud
from tests.report_made import report

TODAY = dt.date(2026, 11, 30)


def verdicts(found: model.Report) -> tuple[str, dict[str, str]]:
    return found.verdict, {node.name: node.verdict for node in found.nodes}


@pytest.mark.parametrize(
    ("status", "verdict"),
    [
        ("pass", "ready"),
        ("warn", "ready"),
        ("skip", "undetermined"),
        ("unknown", "undetermined"),
        ("fail", "not_ready"),
    ],
)
def test_one_result_alone(tmp_path: Path, status: str, verdict: str) -> None:
    one = simple(tmp_path, "site.one")
    assert report([one], {"site.one": {"a": [status, "x"]}}).verdict == verdict


def test_a_failure_outweighs_what_could_not_be_told(tmp_path: Path) -> None:
    one = simple(tmp_path, "site.one")
    found = report(
        [one], {"site.one": {"a": ["fail", "x"], "b": ["unknown", "x"], "c": ["pass", "x"]}}
    )
    assert verdicts(found) == (
        "not_ready",
        {"a": "not_ready", "b": "undetermined", "c": "ready"},
    )


def test_a_skip_beside_a_pass_is_ready_unless_required(tmp_path: Path) -> None:
    one, two = simple(tmp_path, "site.one"), simple(tmp_path, "site.two")
    facts = {"site.one": {"a": ["pass", "x"]}, "site.two": {"a": ["skip", "x"]}}
    assert report([one, two], facts).verdict == "ready"
    required = report([one, two], facts, require=frozenset({"site.two"}))
    assert required.verdict == "undetermined"


def test_warnings_count_when_asked(tmp_path: Path) -> None:
    one = simple(tmp_path, "site.one")
    found = report([one], {"site.one": {"a": ["warn", "x"]}}, fail_on_warn=True)
    assert found.verdict == "not_ready"


@pytest.mark.parametrize(
    ("node", "until", "verdict"),
    [
        (None, TODAY, "ready"),
        ("a", TODAY, "ready"),
        ("b", TODAY, "not_ready"),
        ("a", TODAY - dt.timedelta(1), "not_ready"),
    ],
)
def test_waivers(tmp_path: Path, node: str | None, until: dt.date, verdict: str) -> None:
    one, two = simple(tmp_path, "site.one"), simple(tmp_path, "site.two")
    waiver = Waiver(check="site.one", node=node, until=until, owner="ops", reason="RMA")
    facts = {"site.one": {"a": ["fail", "x"]}, "site.two": {"a": ["pass", "x"]}}
    found = report([one, two], facts, waivers=[waiver], today=TODAY)
    assert found.verdict == verdict
    row = found.results[0]
    assert row.status == "fail"
    assert (row.waived is not None) == (verdict == "ready")
    assert [cause.check for cause in found.causes] == ["site.one"]


@pytest.mark.parametrize("waived", [False, True])
def test_who_only_suffers_from_another_node_is_ready(tmp_path: Path, waived: bool) -> None:
    mtu, path = simple(tmp_path, "g.mtu", "g.path"), simple(tmp_path, "g.path")
    facts: dict[str, dict[str, list[object]]] = {
        "g.mtu": {"a": ["pass", "x"], "b": ["fail", "x"]},
        "g.path": {"a": ["fail", "x", "pair", ["b"]], "b": ["pass", "x"]},
    }
    waiver = Waiver(check="g.mtu", node="b", until=TODAY, owner="ops", reason="RMA")
    found = report([mtu, path], facts, waivers=[waiver] if waived else [], today=TODAY)
    expected = {"a": "not_ready", "b": "ready"} if waived else {"a": "ready", "b": "not_ready"}
    assert verdicts(found) == ("not_ready", expected)


@pytest.mark.parametrize(
    ("node", "days", "strict", "verdict", "of_nodes"),
    [
        ("a", 1, False, "ready", ["ready", "ready"]),
        ("a", 1, True, "not_ready", ["not_ready", "ready"]),
        (None, 1, True, "not_ready", ["not_ready", "not_ready"]),
        ("z", 1, True, "ready", ["ready", "ready"]),
        (None, 0, True, "ready", ["ready", "ready"]),
    ],
)
def test_an_expired_waiver_is_a_warning(
    tmp_path: Path, node: str | None, days: int, strict: bool, verdict: str, of_nodes: list[str]
) -> None:
    one = simple(tmp_path, "site.one")
    until = TODAY - dt.timedelta(days)
    waiver = Waiver(check="site.two", node=node, until=until, owner="ops", reason="RMA")
    facts = {"site.one": {"a": ["pass", "x"], "b": ["pass", "x"]}}
    found = report([one], facts, waivers=[waiver], today=TODAY, fail_on_warn=strict)
    assert verdicts(found) == (verdict, dict(zip("ab", of_nodes, strict=True)))


@pytest.mark.parametrize(
    ("lost", "fact", "days", "verdict"),
    [
        (["c"], ["pass", "x"], 0, "ready"),
        (["c"], ["pass", "x"], -1, "not_ready"),
        (["c"], ["fail", "x"], 0, "not_ready"),
        (["c"], ["unknown", "x"], 0, "undetermined"),
        (["c", "d"], ["pass", "x"], 0, "not_ready"),
    ],
)
def test_a_node_that_is_waived_is_done_without(
    tmp_path: Path, lost: list[str], fact: list[str], days: int, verdict: str
) -> None:
    one, ssh = simple(tmp_path, "site.one"), catalog.load()["access.ssh"]
    until = TODAY + dt.timedelta(days)
    waiver = Waiver(check="access.ssh", node="c", until=until, owner="ops", reason="RMA")
    facts = {"site.one": {"a": fact, "b": ["pass", "x"]}}
    found = report([one, ssh], facts, lost, waivers=[waiver], today=TODAY)
    assert found.verdict == verdict
    assert found.nodes[2].verdict == ("undetermined" if days == 0 else "not_ready")
    text = render(found, 120, False, {}, TODAY).plain
    said = "2 of 3 nodes are ready: a,b; 1 failure waived; no check judged c\n"
    assert (said in text) == (verdict == "ready")


def test_where_every_node_is_waived_nothing_is_told(tmp_path: Path) -> None:
    one, ssh = simple(tmp_path, "site.one"), catalog.load()["access.ssh"]
    waiver = Waiver(check="access", until=TODAY, owner="ops", reason="move")
    found = report([one, ssh], {}, ["a", "b"], waivers=[waiver], today=TODAY)
    assert found.verdict == "undetermined"


def test_the_work_grows_with_the_nodes_and_not_with_their_square(tmp_path: Path) -> None:
    """A host expression may stand for 10,000 nodes, and none of them answer."""
    checks = [simple(tmp_path, "site.one"), simple(tmp_path, "site.two")]

    def steps(nodes: int) -> int:
        facts = {f"n{number}": ["fail", "it is odd"] for number in range(nodes)}
        taken = 0

        def count(frame: FrameType, event: str, arg: object) -> Any:  # noqa: ARG001
            nonlocal taken
            taken += event == "line"
            return count if "/preflight/report/" in frame.f_code.co_filename else None

        before = sys.gettrace()
        sys.settrace(count)
        try:
            render(report(checks, {"site.one": facts, "site.two": facts}), 80, False, {}, TODAY)
        finally:
            sys.settrace(before)
        return taken

    assert steps(400) < 15 * steps(40)


def test_seconds_and_coverage_are_those_measured(tmp_path: Path) -> None:
    one, two = simple(tmp_path, "site.one"), simple(tmp_path, "site.two")
    found = report([one, two], {"site.one": {"a": ["pass", "x"]}}, skips={"site.two": "not here"})
    assert [(r.check, r.status, r.seconds) for r in found.results] == [
        ("site.one", "pass", 0.5),
        ("site.two", "skip", 0.0),
    ]
    assert found.nodes[0].coverage == model.Coverage(ran=1, skipped=1)
    assert found.nodes[0].seconds == 2.0


def test_reading_and_writing_gives_the_same_bytes(tmp_path: Path) -> None:
    one = simple(tmp_path, "site.one")
    found = report([one], {"site.one": {"a": ["fail", "ü"], "b": ["pass", "x"]}}, lost=["c"])
    text = found.to_json()
    path = tmp_path / "report.json"
    path.write_text(text, encoding="utf-8")
    assert model.read(path).to_json() == text


RUN = {
    "id": "1",
    "started_at": "2026-11-30T03:15:22Z",
    "seconds": 1.5,
    "level": "quick",
    "inventory": None,
    "cluster": "c",
}
NODE = {
    "name": "a",
    "address": "",
    "verdict": "ready",
    "seconds": 1,
    "coverage": {"ran": 1, "skipped": 0},
}
SMALL: dict[str, Any] = {
    "schema": "preflight.report/1",
    "tool": {"name": "preflight", "version": "0"},
    "run": RUN,
    "verdict": "ready",
    "want": {
        "launch": {},
        "expect": {},
        "waivers": [],
        "require": [],
        "skip": {},
        "fail_on": "fail",
    },
    "nodes": [NODE],
    "checks": [{"id": "access.ssh", "claim": "It holds", "level": "quick"}],
    "results": [{"check": "access.ssh", "node": "a", "status": "pass", "summary": "x"}],
    "causes": [],
    "facts": {"access.ssh": {"a": {"value": {"reached": True}}}},
}
ROW = SMALL["results"][0]
WAIVER = {"check": "access.ssh", "until": "2026-12-31", "owner": "ops", "reason": "RMA"}


def test_the_least_of_a_report(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text(json.dumps(SMALL))
    assert model.read(path).facts == SMALL["facts"]


NO_REPORTS = {
    "empty": "",
    "cut": json.dumps(SMALL)[:100],
    "NaN": '{"seconds": NaN}',
    "no keys": "{}",
    "no schema": json.dumps({key: value for key, value in SMALL.items() if key != "schema"}),
    "a list": "[1]",
    "nodes": json.dumps(SMALL | {"nodes": 5}),
    "an unknown key": json.dumps(SMALL | {"node": []}),
    "level": json.dumps(SMALL | {"run": RUN | {"level": "deeper"}}),
    "seconds": json.dumps(SMALL | {"run": RUN | {"seconds": 0}}).replace(": 0,", ": 1e999,"),
}


@pytest.mark.parametrize("name", NO_REPORTS)
def test_what_is_no_report(tmp_path: Path, name: str, aloud: Aloud) -> None:
    path = tmp_path / "report.json"
    path.write_text(NO_REPORTS[name])
    with pytest.raises(ConfigError) as caught:
        model.read(path)
    aloud(caught.value, about=name)


def want(**more: Any) -> dict[str, Any]:
    return {"want": SMALL["want"] | more}


CHANGES: list[dict[str, Any]] = [
    {"nodes": []},
    {"nodes": [NODE, NODE]},
    {"checks": []},
    {"results": []},
    {"results": [], "facts": {}},
    {"results": [ROW, ROW]},
    {"results": [ROW, {**ROW, "node": "b"}]},
    want(waivers=[{**WAIVER, "until": 5}]),
    want(waivers=[WAIVER, {"check": "access.ssh"}]),
    want(waivers=[{**WAIVER, "until": "soon"}]),
    want(launch={"port": "x"}),
    want(skip={"access.ssh": "no"}),
    want(fail_on="unknown"),
    {"facts": {"access.ssh": {"a": {"value": 5}}}},
    {"facts": {"access.ssh": {"a": {"value": {"reached": 1}}}}},
    {"facts": {"m:f": {"a": {}}}},
    {"facts": {"m:f": {"a": {"problem": {"kind": "bug"}}}}},
]


def test_reports_that_no_run_wrote(tmp_path: Path, aloud: Aloud) -> None:
    path = tmp_path / "report.json"
    told = []
    for change in CHANGES:
        path.write_text(json.dumps(SMALL | change))
        with pytest.raises(ConfigError) as caught:
            model.read(path)
        told.append(caught.value)
    aloud(*told)


def test_a_report_that_is_not_there(tmp_path: Path, aloud: Aloud) -> None:
    with pytest.raises(ConfigError) as caught:
        model.read(tmp_path / "none.json")
    aloud(caught.value)
