"""What a run says is wrong, in a form that a test can hold to the whole of it."""

from __future__ import annotations

from typing import Any


def causes(report: dict[str, Any]) -> list[tuple[str, str, list[str]]]:
    """Return kind, check and nodes of every cause, having seen that the report hangs together.

    Every failing result is a cause's own or explained by one, and just those nodes are not ready
    that have a failing result for which no other node answers.
    """
    failing = {(r["check"], r["node"]) for r in report["results"] if r["status"] == "fail"}
    own = {(c["check"], node) for c in report["causes"] for node in c["nodes"]}
    explained = {(e["check"], e["node"]) for c in report["causes"] for e in c["explains"]}
    assert failing <= own | explained
    assert explained <= failing
    theirs = {
        (e["check"], e["node"])
        for c in report["causes"]
        for e in c["explains"]
        if c["kind"] == "node" and e["node"] not in c["nodes"]
    }
    bad = {node for _, node in failing - theirs}
    assert {n["name"] for n in report["nodes"] if n["verdict"] == "not_ready"} == bad
    return [(c["kind"], c["check"], c["nodes"]) for c in report["causes"]]


def results(report: dict[str, Any], *statuses: str) -> list[tuple[str, str, str]]:
    """Return check, node and summary of all results of some statuses."""
    return [
        (r["check"], r["node"], r["summary"]) for r in report["results"] if r["status"] in statuses
    ]


def summary(report: dict[str, Any], check: str, node: str) -> str:
    """Return the summary of one result."""
    (found,) = [r["summary"] for r in report["results"] if (r["check"], r["node"]) == (check, node)]
    return str(found)
