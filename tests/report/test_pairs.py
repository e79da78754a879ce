from __future__ import annotations

import json
from pathlib import Path

import pytest

from preflight.catalog import load_file
from preflight.report.page import Page
from preflight.report.pairs import matrix
from tests.report_made import report


def shown(pairs: dict[str, dict[str, str]], nodes: list[str], width: int = 80) -> list[str]:
    page = Page(width)
    matrix(page, pairs, nodes)
    return page.text().plain.splitlines()


def test_a_matrix() -> None:
    pairs = {"gpu1": {"gpu2": "no answer"}, "gpu3": {"gpu2": "no answer", "gpu10": "refused"}}
    assert shown(pairs, ["gpu1", "gpu2", "gpu3", "gpu10"]) == [
        "   row towards column: x no answer; o refused; . fine",
        "            a b c d",
        "   gpu1   a - x . .",
        "   gpu2   b . - . .",
        "   gpu3   c . x - o",
        "   gpu10  d . . . -",
    ]


def test_where_it_tells_nothing_there_is_none() -> None:
    one = {"a": {"b": "no answer"}}
    assert shown(one, ["a", "b"]) == []
    two = {"a": {"b": "no answer", "c": "no answer"}}
    assert shown(two, ["a", "b", "c"])
    assert shown(two, [f"n{number}" for number in range(17)]) == []
    assert shown(two, ["a", "b", "c"], width=12) == []


def test_many_things_that_went_wrong() -> None:
    nodes = list("abcdef")
    pairs = {"a": {node: f"errno {node} " + "long " * 20 for node in nodes[1:]}}
    legend = shown(pairs, nodes)
    assert "   a  a - x o # % %" in legend
    assert max(map(len, legend)) <= 80


PAIRS = '''"""Pairs reach each other.

Why: w
Facts: f
Source: s
Fix: x
"""
from preflight.api import Check, fail

def exercise(fleet, want): return {}
def judge(facts, want): return fail("no", explained_by=())
def pairs(facts): return %s

CHECK = Check(exercise=exercise, judge=judge, pairs=pairs)
'''


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ("facts", {"a": {"b": "refused"}}),
        ("{}", {}),
        ("1", {}),
        ("{'a': 1}", {}),
        ("{'a': {'b': 7, 'c': ''}}", {"a": {"b": "7"}}),
    ],
)
def test_pairs_are_data_of_a_cause(tmp_path: Path, told: str, expected: object) -> None:
    path = tmp_path / "site" / "meet.py"
    path.parent.mkdir()
    path.write_text(PAIRS % told)
    made = report([load_file(path)], {"site.meet": {"a": {"b": "refused"}, "b": {"a": ""}}})
    (cause,) = json.loads(made.to_json())["causes"]
    assert cause["pairs"] == expected
