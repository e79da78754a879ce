"""Reports and facts written on the spot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from preflight.api import Want
from preflight.catalog import Loaded
from preflight.inventory import Waiver
from preflight.report import build, model

RUN = model.Run(
    id="1", started_at="2026-11-30T03:15:22Z", seconds=1.5, level="quick", inventory="i.yaml",
    cluster="c",
)  # fmt: skip

THERE = {"reached": True, "user": "alice", "address": "10.0.0.1:22"}
LOST = {"reached": False, "kind": "refused", "message": "connection refused", "hint": ""}


def report(
    checks: Sequence[Loaded],
    facts: Mapping[str, Mapping[str, Any]],
    lost: Sequence[str] = (),
    waivers: Sequence[Waiver] = (),
    skips: Mapping[str, str] | None = None,
    **policy: Any,
) -> model.Report:
    """Return the report of a run in which checks gave these facts, by check id and node."""
    nodes = list(dict.fromkeys([*(n for by in facts.values() for n in by), *lost]))
    evidence: dict[str, dict[str, dict[str, Any]]] = {
        "access.ssh": {n: {"value": LOST if n in lost else THERE} for n in nodes}
    }
    for check_id, by in facts.items():
        one = next(one for one in checks if one.id == check_id)
        evidence[one.evidence] = {node: {"value": value} for node, value in by.items()}
    found = build.Facts(RUN, evidence, {checks[0].evidence: {nodes[0]: 0.5}}, {}, {nodes[0]: 2.0})
    want = Want({"port": 29500}, {}, nodes)
    return build.build(checks, found, want, skips or {}, waivers, build.Policy(**policy))
