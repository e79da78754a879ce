"""Runs every case of every check: tests/checks/<group>/<name>/<case>.json.

A case holds `source` (where it comes from) and `verdict` or `verdicts`, and of these what it is
about: `node` (a recording) to `facts`, or to a `problem` the probe reports; `facts` of one node,
or `nodes` (facts by node) to verdicts; `want` of the inventory. A part left out of an expected
verdict is not compared, but status and summary must be there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from preflight import catalog
from preflight.api import Unobservable, Want
from preflight.catalog import Loaded
from preflight.judge import REACH, judge_check
from preflight.node.pairs import ALL_UP_TO, some_rounds
from preflight.node.replay import Replay

CASES = Path(__file__).parent / "checks"
CATALOG = catalog.load()
PARTS = {"source", "node", "problem", "facts", "nodes", "want", "verdict", "verdicts", "args"}


def cases(check_id: str) -> list[Path]:
    return sorted((CASES / check_id.replace(".", "/")).glob("*.json"))


ALL = [(CATALOG[check_id], path) for check_id in CATALOG for path in cases(check_id)]


def want_of(case: Mapping[str, Any]) -> Want:
    want = case.get("want", {})
    nodes = want.get("nodes") or list(case.get("nodes", {"node1": None}))
    launch = {"port": 29500, "env": {}, "master": nodes[0]} | want.get("launch", {})
    return Want(launch, want.get("expect"), nodes)


@pytest.mark.parametrize(("one", "path"), ALL, ids=[f"{one.id}-{path.stem}" for one, path in ALL])
def test_case(one: Loaded, path: Path) -> None:
    case = json.loads(path.read_text())
    assert set(case) <= PARTS
    assert case["source"]
    want = want_of(case)
    if "node" in case:
        assert observed(one, case, want) == case.get("facts", {"problem": case.get("problem")})
    if "problem" not in case:
        assert_verdicts(one, case, want)


def observed(one: Loaded, case: Mapping[str, Any], want: Want) -> Any:
    assert one.check.probe is not None
    args = one.check.args(want) if one.check.args else ()
    try:
        return json.loads(json.dumps(one.check.probe(Replay(case["node"]), *args)))
    except Unobservable as statement:
        return {"problem": str(statement)}


def assert_verdicts(one: Loaded, case: Mapping[str, Any], want: Want) -> None:
    expected = case["verdicts"] if "verdicts" in case else {want.nodes[0]: case["verdict"]}
    values = case["nodes"] if "nodes" in case else {want.nodes[0]: case["facts"]}
    facts = {node: {"value": value} for node, value in values.items()}
    found = judge_check(one, facts, want, set(want.nodes))
    for node, verdict in expected.items():
        assert {"status", "summary"} <= set(verdict)
        said = json.loads(json.dumps(vars(found[node])))
        assert {key: said[key] for key in verdict} == verdict, f"{path_of(one)}: {node}"
    assert set(found) == set(expected)


def path_of(one: Loaded) -> str:
    return str(one.path)


@pytest.mark.parametrize("check_id", list(CATALOG))
def test_every_check_has_its_three_kinds_of_case(check_id: str) -> None:
    kinds = set()
    for path in cases(check_id):
        case = json.loads(path.read_text())
        verdicts = [*case.get("verdicts", {}).values(), case.get("verdict") or {}]
        kinds |= {verdict.get("status") for verdict in verdicts}
        kinds |= {"unobservable"} if "problem" in case else set()
    assert "pass" in kinds, "no passing case"
    assert {"fail", "warn"} & kinds, "no failing case"
    if CATALOG[check_id].check.probe:
        assert {"unobservable", "unknown"} & kinds, "no unobservable case"


MET = [one for one in ALL if len(json.loads(one[1].read_text()).get("nodes", {})) > 1]


@pytest.mark.parametrize(("one", "path"), MET, ids=[f"{one.id}-{path.stem}" for one, path in MET])
def test_a_node_that_was_lost_meanwhile(one: Loaded, path: Path) -> None:
    case = json.loads(path.read_text())
    want = want_of(case)
    for lost in case["nodes"]:
        there = {node for node in want.nodes if node != lost}
        facts = {n: {"value": value} if n in there else None for n, value in case["nodes"].items()}
        found = judge_check(one, facts, want, there)
        assert found[lost].summary == "not reached" or one.id == REACH
        crashed = [said.details for said in found.values() if "bug in check" in said.summary]
        peers = [peer for said in found.values() for peer in said.peers]
        assert (crashed, lost in peers) == ([], False)


def test_bandwidth_of_many_nodes_is_told_to_be_of_a_sample() -> None:
    names = [f"n{number}" for number in range(ALL_UP_TO + 2)]
    drawn = {"gbps": 9.3, "busy": [0.1, 0.1], "error": ""}
    fact = json.loads((CASES / "network/bandwidth/sound.json").read_text())["nodes"]["a"]
    facts = {name: {"value": {**fact, "drawn": {}}} for name in names}
    for pair in (pair for together in some_rounds(names) for pair in together):
        for node, other in (pair, pair[::-1]):
            facts[node]["value"]["drawn"][other] = drawn
    want = want_of({"nodes": facts})
    found = judge_check(CATALOG["network.bandwidth"], facts, want, set(names))
    assert {verdict.status for verdict in found.values()} == {"pass"}
    assert all(verdict.summary.endswith(" (a sample of 65)") for verdict in found.values())


def test_all_reduces_of_two_of_many_nodes_are_told_to_be_of_a_sample() -> None:
    names = [f"n{number}" for number in range(ALL_UP_TO + 2)]
    met = {"gbps": 9.3, "receiving": 0.1, "sending": 0.1, "why": ""}
    fact = json.loads((CASES / "collective/pairs/well.json").read_text())["nodes"]["a"]
    facts = {name: {"value": {**fact, "pairs": {}}} for name in names}
    for pair in (pair for together in some_rounds(names) for pair in together):
        for node, other in (pair, pair[::-1]):
            facts[node]["value"]["pairs"][other] = met
    found = judge_check(CATALOG["collective.pairs"], facts, want_of({"nodes": facts}), set(names))
    assert {verdict.status for verdict in found.values()} == {"pass"}
    assert all(" (a sample of 65) alone is right" in one.summary for one in found.values())
