"""No evidence is never a pass, and one broken check or node is a row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from preflight import catalog
from preflight.api import Want
from preflight.catalog import Loaded
from preflight.judge import judge, judge_check, outdated, understood
from tests.checks_made import made, simple

WANT = Want(nodes=["a", "b"])
THERE = {"a", "b"}


def said(one: Loaded, facts: dict[str, Any]) -> dict[str, tuple[str, str]]:
    found = judge_check(one, {"a": facts.get("a"), "b": facts.get("b")}, WANT, THERE)
    return {node: (v.status, v.summary) for node, v in found.items()}


@pytest.mark.parametrize(
    ("fact", "expected"),
    [
        ({"value": ["pass", "fine"]}, ("pass", "fine")),
        (None, ("unknown", "the check gave no facts for this node")),
        ({}, ("unknown", "the check gave no facts for this node")),
        ({"problem": {"kind": "timeout", "message": "no answer in 10 s"}},
         ("unknown", "no answer in 10 s")),
        ({"problem": {"kind": "unobservable", "message": "ip: denied"}}, ("unknown", "ip: denied")),
        ({"problem": {"kind": "needs_root", "message": "needs root"}}, ("skip", "needs root")),
        ({"problem": {"kind": "bug", "message": "KeyError: 'x'", "traceback": "T"}},
         ("unknown", "bug in check site.one: KeyError: 'x'")),
        ({"value": ["pass", ""]}, ("unknown", "bug in check site.one: no verdict for this node")),
        ({"value": ["good", "x"]}, ("unknown", "bug in check site.one: no verdict for this node")),
        ({"value": ["pass", 5]}, ("unknown", "bug in check site.one: no verdict for this node")),
        ({"value": ["fail", "x", "nowhere"]},
         ("unknown", "bug in check site.one: no verdict for this node")),
        ({"value": ["fail", "x", "pair", [5]]},
         ("unknown", "bug in check site.one: no verdict for this node")),
        ({"value": ["fail", "x", "node", [], float("nan")]},
         ("unknown", "bug in check site.one: no verdict for this node")),
        ({"value": 5}, ("unknown", "bug in check site.one: TypeError: cannot unpack")),
    ],
)  # fmt: skip
def test_one_fact(tmp_path: Path, fact: Any, expected: tuple[str, str]) -> None:
    one = simple(tmp_path, "site.one")
    status, summary = said(one, {"a": fact})["a"]
    assert status == expected[0]
    assert summary.startswith(expected[1])


def test_a_node_at_a_limit_of_its_own(tmp_path: Path) -> None:
    one, kind = simple(tmp_path, "site.one"), "unobservable"
    said = {"Too many open files": "ulimit -n", "Resource temporarily unavailable": "ulimit -u"}
    for words, limit in said.items():
        fact = {"problem": {"kind": kind, "message": f"cannot start a process: {words}"}}
        found = judge_check(one, {"a": fact, "b": fact}, WANT, THERE)["a"]
        assert (found.status, found.fix) == (
            "unknown",
            f"see {limit} there, and raise it in /etc/security/limits.conf or for sshd's service",
        )


def test_a_judge_that_crashes_on_one_node_costs_only_that_node(tmp_path: Path) -> None:
    found = said(
        simple(tmp_path, "site.one"), {"a": {"value": 5}, "b": {"value": ["pass", "fine"]}}
    )
    assert found["a"][0] == "unknown"
    assert found["b"] == ("pass", "fine")


COMPARE = """
def probe(node):
    return 1


def compare(facts, want):
    return {body}


CHECK = Check(probe=probe, compare=compare)
"""


def test_compare_is_given_only_nodes_with_values(tmp_path: Path) -> None:
    one = made(
        tmp_path, "site.one", COMPARE.format(body="{n: ok(str(sorted(facts))) for n in facts}")
    )
    found = said(one, {"a": {"value": 1}, "b": {"problem": {"kind": "timeout", "message": "late"}}})
    assert found == {"a": ("pass", "['a']"), "b": ("unknown", "late")}


def test_compare_that_forgets_a_node(tmp_path: Path) -> None:
    one = made(tmp_path, "site.one", COMPARE.format(body="{'a': ok('fine'), 'z': ok('who?')}"))
    found = said(one, {"a": {"value": 1}, "b": {"value": 1}})
    assert found == {
        "a": ("pass", "fine"),
        "b": ("unknown", "bug in check site.one: no verdict for this node, but None"),
    }


@pytest.mark.parametrize(
    ("body", "why"),
    [("1 / 0", "ZeroDivisionError: division by zero"), ("exit(0)", "SystemExit: 0")],
)
def test_compare_that_crashes(tmp_path: Path, body: str, why: str) -> None:
    one = made(tmp_path, "site.one", COMPARE.format(body=body))
    found = said(one, {"a": {"value": 1}, "b": {"value": 1}})
    assert set(found.values()) == {("unknown", f"bug in check site.one: {why}")}


TEN = [f"n{number}" for number in range(10)]
READS = "{n: ok(str(sum(f.values()))) for n, f in facts.items()}"
"""A compare that crashes on what is no object of numbers."""
MEETS = "{n: ok(str(len(facts[f] if f in facts else ()))) for n, f in facts.items()}"
"""One that crashes where a node and what it answered are both there, and that is a number."""


def found_of(one: Loaded, values: dict[str, Any]) -> dict[str, tuple[str, str]]:
    facts = {node: {"value": value} for node, value in values.items()}
    found = judge_check(one, facts, Want(nodes=[*values]), {*values})
    return {node: (said.status, said.summary) for node, said in found.items()}


@pytest.mark.parametrize("odd", [("n0",), ("n9",), ("n4",), ("n0", "n1"), ("n2", "n5", "n9")])
def test_compare_that_crashes_on_a_few_answers(tmp_path: Path, odd: tuple[str, ...]) -> None:
    one = made(tmp_path, "site.one", COMPARE.format(body=READS))
    values: dict[str, Any] = {node: "rubbish" if node in odd else {"a": 1} for node in TEN}
    why = "bug in check site.one: AttributeError: 'str' object has no attribute 'values'"
    found = found_of(one, values)
    words = f"its answer cannot be understood: {why}"
    assert {node for node, said in found.items() if said == ("unknown", words)} == {*odd}
    assert {said for node, said in found.items() if node not in odd} == {("pass", "1")}


@pytest.mark.parametrize("count", [1, 2, 3, 9])
def test_compare_that_crashes_on_most_answers(tmp_path: Path, count: int) -> None:
    one = made(tmp_path, "site.one", COMPARE.format(body=READS))
    values = dict.fromkeys(TEN[:count], "rubbish")
    why = "bug in check site.one: AttributeError: 'str' object has no attribute 'values'"
    assert set(found_of(one, values).values()) == {("unknown", why)}


def test_compare_that_crashes_on_what_one_of_two_answered(tmp_path: Path) -> None:
    one = made(tmp_path, "site.one", COMPARE.format(body=MEETS))
    found = found_of(one, {"a": "", "b": "c", "c": 7, "d": ""})
    why = "bug in check site.one: TypeError: object of type 'int' has no len()"
    words = f"the answer of one of b, c cannot be understood: {why}"
    assert [found[node] for node in "bc"] == [("unknown", words)] * 2
    assert [found[node] for node in "ad"] == [("pass", "0")] * 2


def test_compare_that_crashes_also_without_those_nodes(tmp_path: Path) -> None:
    # any two of "b", "c" and "d", or none of them
    body = "{n: ok('fine') for n in facts if 1 // (len(facts.keys() & {*'bcd'}) == 1)}"
    one = made(tmp_path, "site.one", COMPARE.format(body=body))
    found = found_of(one, dict.fromkeys("abcdef", 1))
    why = "bug in check site.one: ZeroDivisionError: integer division or modulo by zero"
    assert set(found.values()) == {("unknown", why)}


PROMISED = """
def probe(node) -> dict[str, int]:
    return {}


def compare(facts, want):
    return {n: ok(str(fact["a"])) for n, fact in facts.items()}


CHECK = Check(probe=probe, compare=compare)
"""


def test_what_is_not_as_its_check_promises_is_a_problem(tmp_path: Path) -> None:
    one = made(tmp_path, "site.one", PROMISED)
    late = {"problem": {"kind": "timeout", "message": "late"}}
    good = {"value": {"a": 1}}
    message = 'its answer cannot be understood: a is "1", not a whole number'
    facts: dict[str, Any] = {"a": good, "b": {"value": {"a": "1"}}, "c": late}
    evidence = understood([one], {one.evidence: facts, "another": {"a": {"value": "x"}}})
    assert evidence == {
        one.evidence: {
            "a": good,
            "b": {"problem": {"kind": "garbled", "message": message}},
            "c": late,
        },
        "another": {"a": {"value": "x"}},
    }
    found = judge_check(one, evidence[one.evidence], Want(nodes=["a", "b", "c"]), {*"abc"})
    assert {node: (said.status, said.summary) for node, said in found.items()} == {
        "a": ("pass", "1"),
        "b": ("unknown", message),
        "c": ("unknown", "late"),
    }


ARGS = """
def probe(node, *args):
    return 1


def judge(facts, want):
    return ok("fine")


CHECK = Check(probe=probe, judge=judge{more})
"""
DRIVES = """
def exercise(fleet, want):
    return {{}}


def judge(facts, want):
    return ok("fine")


CHECK = Check(exercise=exercise, judge=judge{more})
"""
BOTH = ", args=lambda want: (want.get('launch.port') and want.get('expect.mtu'),)"


@pytest.mark.parametrize(
    ("code", "more", "launch", "expect", "why"),
    [
        (ARGS, "", {"port": 2, "user": "b"}, {"mtu": 9000}, ""),
        (ARGS, ", args=lambda want: [want.launch['port']]", {"port": 1, "user": "b"}, {}, ""),
        (ARGS, ", args=lambda want: [want.launch['port']]", {"port": 2, "user": "b"}, {},
         "recorded for another launch: port"),
        (ARGS, ", args=lambda want: [want.launch, want.expect]", {"user": "b"}, {"mtu": 9000},
         "recorded for another launch: port, user; recorded for another expect: mtu"),
        (ARGS, ", args=lambda want: [want.expect['mtu'] + 1]", {"port": 1}, {"mtu": 9000},
         "recorded for another expect: mtu"),
        (ARGS, BOTH, {"port": 1}, {"mtu": 9000}, "recorded for another expect: mtu"),
        (ARGS, ", args=lambda want: (len(want.launch) + len(want.expect) > 2,)",
         {"port": 1, "user": "b"}, {"mtu": 9000}, "recorded for another inventory"),
        (DRIVES, "", {"port": 1}, {"mtu": 9000}, ""),
        (DRIVES, "", {"port": 1, "user": "b"}, {}, "recorded for another launch: user"),
        (DRIVES, ", args=lambda _: ()", {"port": 2, "user": "b"}, {}, ""),
    ],
)  # fmt: skip
def test_facts_for_another_want(
    tmp_path: Path,
    code: str,
    more: str,
    launch: dict[str, Any],
    expect: dict[str, Any],
    why: str,
) -> None:
    one = made(tmp_path, "site.one", code.format(more=more))
    assert outdated(one, Want({"port": 1}), Want(launch, expect)) == why


@pytest.mark.parametrize(
    ("args", "why"),
    [
        ("[want.expect['mtu']]", "KeyError: 'mtu'"),
        ("exit()", "SystemExit: None"),
        ("5", "TypeError: Value after * must be an iterable, not int"),
        ("[{1, 2}]", "TypeError: Object of type set is not JSON serializable"),
    ],
)
def test_arguments_that_crash(tmp_path: Path, args: str, why: str) -> None:
    one = made(tmp_path, "site.one", ARGS.format(more=f", args=lambda want: {args}"))
    found = said(one, {"a": {"value": 1}})
    assert found == dict.fromkeys("ab", ("unknown", f"bug in check site.one: {why}"))


@pytest.mark.parametrize(
    "more",
    ["fix=5", "reproduce=0", "explains='network.port'", "explained_by=5", "observed=nested(5000)"],
)
def test_a_verdict_that_is_none(tmp_path: Path, more: str) -> None:
    code = ARGS.format(more="").replace("ok(", "fail(").replace('fine"', f'x", {more}')
    nested = "def nested(n):\n    x = []\n    for _ in range(n):\n        x = [x]\n    return x\n"
    found = said(made(tmp_path, "site.one", nested + code), {"a": {"value": 1}})
    assert found["a"][0] == "unknown"
    assert found["a"][1].startswith("bug in check site.one: ")


def test_nodes_not_reached_and_skipped_checks(tmp_path: Path) -> None:
    one, two = simple(tmp_path, "site.one"), simple(tmp_path, "site.two")
    ssh = catalog.load()["access.ssh"]
    evidence: dict[str, dict[str, Any]] = {
        "access.ssh": {
            "a": {"value": {"reached": True, "user": "u", "address": "a:22"}},
            "b": {"value": {"reached": False, "kind": "refused", "message": "no", "hint": ""}},
        },
        one.evidence: {"a": {"value": ["pass", "fine"]}},
    }
    cells = judge([ssh, one, two], evidence, WANT, {"site.two": "not here"})
    assert [(c.check.id, c.node, c.verdict.status, c.verdict.summary) for c in cells] == [
        ("access.ssh", "a", "pass", "logged in as u to a:22"),
        ("access.ssh", "b", "fail", "no"),
        ("site.one", "a", "pass", "fine"),
        ("site.one", "b", "skip", "not reached"),
        ("site.two", "a", "skip", "not here"),
        ("site.two", "b", "skip", "not here"),
    ]
