"""One node's facts turned into rubbish, of every check: whatever it is, it costs that node.

The facts are those of the checks' cases. What is as annotated and makes no sense all the same may
cost a node more, with which it goes together, and never all.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preflight.api import UNKNOWN, Want
from preflight.catalog import Loaded
from preflight.judge import judge_check, understood
from tests.test_checks import ALL, CATALOG, want_of

Place = tuple[Any, ...]
Facts = dict[str, Any]
NODES = ("node1", "node2", "node3", "node4")
"""Of checks that judge each node alone, all get the same facts."""
RUBBISH: tuple[Any, ...] = (
    *(None, True, "", "x", "999.1.1.1/99", -1, 0, 1.5, 70000, (1 << 63), 10**30, 1e308),
    *(float("nan"), float("inf"), [], {}, [[]], [None], ["x", 1], {"x": {}}, {"": None}),
)
KINDS = {str: "text", int: "number", float: "number", bool: "bool", list: "list", dict: "object"}
LOOSE = ("access.python", "access.ssh", "collective.all_reduce")
"""Checks that say of a part of their facts only that it is JSON."""
CRASHED = "bug in check"


def places(value: Any, place: Place = ()) -> Iterator[Place]:
    """Yield where anything is in a value."""
    yield place
    inner = enumerate(value) if isinstance(value, list) else ()
    for key, one in value.items() if isinstance(value, dict) else inner:
        yield from places(one, (*place, key))


def at(value: Any, place: Place) -> Any:
    for key in place:
        value = value[key]
    return value


def changed(value: Any, place: Place, new: Any) -> Any:
    """Return a value with another at a place, `...` for none."""
    if not place:
        return new
    value = copy.deepcopy(value)
    *way, last = place
    if new is ...:
        del at(value, tuple(way))[last]
    else:
        at(value, tuple(way))[last] = new
    return value


def cases(check_id: str) -> list[tuple[Want, Facts]]:
    """Return the facts of a check's cases, by node, and what was wanted."""
    found = []
    for one, path in ALL:
        case = json.loads(path.read_text())
        if one.id == check_id and "nodes" in case:
            found.append((want_of(case), case["nodes"]))
        elif one.id == check_id and "facts" in case and one.check.judge:
            nodes = dict.fromkeys(NODES, case["facts"])
            found.append((want_of({**case, "nodes": nodes}), nodes))
    return [(want, facts) for want, facts in found if len(facts) >= len(NODES)] or found


def statuses(one: Loaded, facts: Mapping[str, Any], want: Want) -> dict[str, tuple[str, str]]:
    evidence = understood([one], {one.evidence: facts})[one.evidence]
    found = judge_check(one, evidence, want, {*want.nodes})
    return {node: (said.status, said.summary) for node, said in found.items()}


CASES = {check_id: cases(check_id) for check_id in CATALOG}


def test_every_check_has_facts_to_spoil() -> None:
    assert [check_id for check_id, found in CASES.items() if not found] == []


@pytest.mark.parametrize("check_id", CATALOG)
@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data())
def test_rubbish(check_id: str, data: st.DataObject) -> None:
    one = CATALOG[check_id]
    want, values = data.draw(st.sampled_from(CASES[check_id]))
    node = data.draw(st.sampled_from([*values]))
    place = data.draw(st.sampled_from([*places(values[node])]))
    new = data.draw(st.sampled_from([*RUBBISH, *([...] if place else [])]))
    facts = {n: {"value": value} for n, value in values.items()}
    before = statuses(one, facts, want)
    spoilt = {"value": changed(values[node], place, new)}
    after = statuses(one, {**facts, node: spoilt}, want)
    assert set(after) == set(before)

    late: Any = {"problem": {"kind": "timeout", "message": "late"}}
    absent = statuses(one, {**facts, node: late}, want)
    status, summary = after[node]
    if summary.startswith("its answer cannot be understood: "):
        assert status == UNKNOWN
        assert {**after, node: absent[node]} == absent
    elif is_another_kind(at(values[node], place), new):
        assert check_id in LOOSE, summary
    crashed = {n for n, (_, words) in after.items() if CRASHED in words}
    assert len(values) < len(NODES) or crashed < set(values)


def is_another_kind(old: Any, new: Any) -> bool:
    """Whether no annotation that takes one takes the other; true or false is a number to Python."""
    if old is None or new is None or new is ... or isinstance(new, bool):
        return False
    return KINDS[type(old)] != KINDS[type(new)]
