"""Bandwidth over message size: the table for people, and the data in the report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from preflight.catalog import load_file
from preflight.report.curves import curve, sized
from preflight.report.model import Point, Report
from preflight.report.page import Page
from tests.report.made import ready
from tests.report_made import report


def growing(peak: float, sizes: int = 5, first: int = 4096) -> list[Point]:
    """Return a curve that comes to its peak where a message is large."""
    return [
        Point(
            bytes=size,
            ms=(0.1 + size / peak / 1e6),
            algbw=size / (1e5 + size / peak),
            busbw=size / (1e5 + size / peak),
        )
        for size in (first * 16**power for power in range(sizes))
    ]


def with_curves(**curves: list[Point]) -> Report:
    return ready().model_copy(update={"curves": {"network.mtu": curves}})


def shown(found: Report, *nodes: str, width: int = 80, verbose: bool = False) -> list[str]:
    page = Page(width, "ascii")
    curve(page, found, "network.mtu", nodes, verbose)
    return page.text().plain.splitlines()


def test_of_all_together() -> None:
    assert shown(with_curves(**{"*": growing(10)}), "gpu01") == [
        "      size     ms  busbw GB/s",
        "     4 KiB    0.1      0.0408",
        "    64 KiB  0.107       0.615  ##",
        "     1 MiB  0.205        5.12  #####################",
        "    16 MiB   1.78        9.44  ######################################",
        "   256 MiB   26.9        9.96  ########################################",
    ]


def test_of_the_slowest_node() -> None:
    found = with_curves(gpu01=growing(10), gpu02=growing(2), gpu03=growing(1))
    assert shown(found, "gpu01", "gpu02")[0] == "      size     ms  busbw GB/s  on gpu02"
    assert shown(found, "gpu04") == []
    assert shown(ready(), "gpu01") == []


@pytest.mark.parametrize("width", [40, 80, 120])
def test_thirty_sizes_are_a_few_lines_but_for_those_who_ask(width: int) -> None:
    points = [
        Point(bytes=8 << power, ms=power, algbw=power, busbw=power + 0.123) for power in range(31)
    ]
    found = with_curves(**{"*": points})
    few = shown(found, width=width)
    assert len(few) == 13
    assert few[1].startswith("       8 B ")
    assert few[-1].startswith("     8 GiB ")
    assert len(shown(found, width=width, verbose=True)) == 32
    assert max(map(len, few)) <= width


def test_nothing_came_through() -> None:
    none = with_curves(**{"*": [Point(bytes=1024, ms=1e9, algbw=0, busbw=0)]})
    assert shown(none)[1] == "   1 KiB  1000000000           0"


def test_sizes_for_people() -> None:
    assert [sized(size) for size in (8, 1000, 1536, 25 << 20, 16 << 30, 4 << 40)] == [
        *("8 B", "1000 B", "1.5 KiB", "25 MiB", "16 GiB", "4096 GiB"),
    ]


CURVES = '''"""All is fast.

Why: w
Facts: f
Source: s
Fix: x
"""
from preflight.api import Check, Point, fail

def exercise(fleet, want): return {}
def judge(facts, want): return fail("slow")
def curves(facts): return %s
CHECK = Check(exercise=exercise, judge=judge, curves=curves)
'''


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (
            '{node: [Point(8, 0.1, 2.0, 3)] for node in facts} | {"*": []}',
            {"site.fast": {"a": [{"bytes": 8, "ms": 0.1, "algbw": 2.0, "busbw": 3.0}]}},
        ),
        ("{}", {}),
        ('{"a": [Point(8, float("nan"), 1, 1)]}', {}),
        ("1 / 0", {}),
    ],
)
def test_data_of_the_report(tmp_path: Path, told: str, expected: object) -> None:
    path = tmp_path / "site" / "fast.py"
    path.parent.mkdir()
    path.write_text(CURVES % told)
    found = report([load_file(path)], {"site.fast": {"a": {}}})
    text = found.to_json()
    assert json.loads(text)["curves"] == expected
    assert Report.model_validate_json(text).to_json() == text
