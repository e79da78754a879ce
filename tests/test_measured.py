"""What a report tells of the network: by facts as the checks' own cases have them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from preflight import catalog, measured
from preflight.errors import ConfigError
from preflight.report import model
from tests.messages.aloud import TESTS, Aloud
from tests.report_made import report

PATH = Path("report.json")
KNOWN = catalog.load()


def case(check: str, name: str) -> dict[str, Any]:
    path = TESTS / "checks" / check.replace(".", "/") / f"{name}.json"
    facts: dict[str, Any] = json.loads(path.read_text())["nodes"]
    return facts


def made(facts: Mapping[str, Mapping[str, Any]]) -> model.Report:
    """Return a report with facts, also of checks that there are not yet."""
    here = {check: by for check, by in facts.items() if check in KNOWN}
    base = report([KNOWN[check] for check in here], here)
    more = {
        check: {node: {"value": value} for node, value in by.items()}
        for check, by in facts.items()
        if check not in KNOWN
    }
    return base.model_copy(update={"facts": {**base.facts, **more}})


def streams(**rates: float) -> dict[str, Any]:
    """Return facts of two nodes: what came to each from the other, and how busy they were."""
    other = {"a": "b", "b": "a"}
    return {
        node: {"drawn": {other[node]: {"gbps": gbps, "busy": [0.1, 0.2], "error": ""}}}
        for node, gbps in rates.items()
    }


def test_the_slowest_path_counts() -> None:
    found = measured.bandwidth(
        made({"network.bandwidth": case("network.bandwidth", "sound")}), PATH
    )
    rates = [
        one["gbps"]
        for fact in case("network.bandwidth", "sound").values()
        for one in fact["drawn"].values()
    ]
    assert found
    assert found.gbps == min(rates)
    assert not found.is_bus
    assert found.instrument.startswith(f"TCP of the slowest of {len(rates)} paths, ")


def test_a_path_that_the_cpu_limits_says_so() -> None:
    facts = case("network.bandwidth", "cpu_limits_all")
    found = measured.bandwidth(made({"network.bandwidth": facts}), PATH)
    assert found
    assert found.instrument.endswith("; a CPU is what limits, the network may carry more")


def test_half_a_round_trip_is_the_latency() -> None:
    facts = case("network.latency", "well")
    found = measured.latency(made({"network.latency": facts}), PATH)
    usual = [t["times_us"][1] for fact in facts.values() for t in fact["trips"].values()]
    assert found
    assert found.us == max(usual) / 2


def test_an_all_reduce_goes_before_tcp() -> None:
    sizes = [{"bytes": 1 << 20, "busbw_gbs": 90.0}, {"bytes": 1 << 30, "busbw_gbs": 41.0}]
    slower = [{"bytes": 1 << 30, "busbw_gbs": 40.5, "algbw_gbs": 40.5}]
    by_nccl: dict[str, Any] = {
        "a": {"engine": "nccl-tests", "sizes": sizes},
        "b": {"engine": "nccl-tests", "sizes": slower},
        "c": {"engine": "nccl-tests", "sizes": []},
    }
    facts = {"network.bandwidth": streams(a=9.0, b=8.0), "collective.all_reduce": by_nccl}
    assert measured.bandwidth(made(facts), PATH) == (
        8 * 40.5,
        True,
        "busbw 40.5 GB/s of an all_reduce by nccl-tests (collective.all_reduce)",
    )
    by_nccl["a"]["sizes"] = by_nccl["b"]["sizes"] = []
    assert measured.bandwidth(made(facts), PATH) == (
        8.0,
        False,
        "TCP of the slowest of 2 paths, a to b, usual 8.5 (network.bandwidth)",
    )


@pytest.mark.parametrize("name", ["alone", "unreachable"])
def test_nothing_measured_is_nothing(name: str) -> None:
    facts = case("network.bandwidth", name)
    assert measured.bandwidth(made({"network.bandwidth": facts}), PATH) is None
    assert measured.latency(made({"network.bandwidth": facts}), PATH) is None


def test_a_path_that_carries_nothing(aloud: Aloud) -> None:
    with pytest.raises(ConfigError) as error:
        measured.bandwidth(made({"network.bandwidth": streams(a=9.0, b=0.0)}), PATH)
    aloud(error.value)


@pytest.mark.parametrize(
    "fact",
    [
        None,
        {},
        {"drawn": []},
        {"drawn": {"b": {"gbps": -1, "busy": [0, 0], "error": ""}}},
        {"drawn": {"b": {"gbps": "fast", "busy": [0, 0], "error": ""}}},
    ],
)
def test_facts_of_another_shape(fact: object, aloud: Aloud) -> None:
    facts = made({"network.bandwidth": streams(a=9.0, b=8.0)}).facts
    facts = {**facts, "network.bandwidth": {"a": {"value": fact}}}
    altered = made({"network.bandwidth": streams(a=9.0)}).model_copy(update={"facts": facts})
    with pytest.raises(ConfigError) as error:
        measured.bandwidth(altered, PATH)
    aloud(error.value, about=json.dumps(fact))
