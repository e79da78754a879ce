"""Whose all_reduce by NCCL is bad, so that it is repeated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from preflight.api import Want
from preflight.node.busbw import doubtful

CASES = Path(__file__).parents[1] / "checks" / "collective"
WANT = Want()


def facts(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((CASES / f"{name}.json").read_text())["nodes"]
    return found


@pytest.mark.parametrize(
    ("name", "groups"),
    [
        ("all_reduce/nccl_well", []),
        ("all_reduce/nccl_too_slow", [["gpu01", "gpu02", "gpu03", "gpu04"]]),
        ("all_reduce/nccl_hangs_by_docker0", [["gpu01", "gpu02", "gpu03", "gpu04"]]),
        ("all_reduce/slow_node", []),  # by Gloo
        ("all_reduce/wrong_sums_of_all", []),  # by Gloo
        ("local/less_than_nvlink", [["c"]]),
        ("local/well", []),
    ],
)
def test_doubtful(name: str, groups: list[list[str]]) -> None:
    assert doubtful(facts(name), WANT) == groups
