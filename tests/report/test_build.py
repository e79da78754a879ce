"""From a grid to a verdict: nothing told is never ready, and what is waived does not count."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

from preflight.errors import ConfigError
from preflight.inventory import Waiver
from preflight.report import model
from tests.checks_made import simple
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


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "it: Invalid JSON"),
        ("{}", "tool: Field required"),
        ("[1]", "it: Input should be an object"),
    ],
)
def test_what_is_no_report(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "report.json"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        model.read(path)
    assert str(caught.value).startswith(f"{path}: not a preflight.report/1 report: {words}")


def test_a_report_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        model.read(tmp_path / "none.json")
