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
    """Return a report with facts."""
    return report([KNOWN[check] for check in facts], facts)


def streams(**rates: float) -> dict[str, Any]:
    """Return facts of two nodes: what came to each from the other."""
    facts = case("network.bandwidth", "two_nodes")
    for node, gbps in rates.items():
        for drawn in facts[node]["drawn"].values():
            drawn["gbps"] = gbps
    return facts


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


def test_an_all_reduce_will_do_where_no_tcp_was_measured() -> None:
    ranks = case("collective.all_reduce", "well")
    assert {fact["run"]["sizes"][-1]["ms"] for fact in ranks.values()} == {96.0}
    found = measured.bandwidth(made({"collective.all_reduce": ranks}), PATH)
    assert found
    assert found.gbps == pytest.approx(8 * 64 * 2**20 / 96e6 * 2 * 3 / 4)
    assert found.instrument == (
        "busbw 1.05 GB/s of an all_reduce of 4 nodes by Gloo (collective.all_reduce);"
        " a CPU is what limits, the network may carry more"
    )
    both = {"network.bandwidth": streams(a=9.0, b=8.0), "collective.all_reduce": ranks}
    assert measured.bandwidth(made(both), PATH) == (
        8.0,
        "TCP of the slowest of 2 paths, a to b, usual 8.5 (network.bandwidth)",
    )


def test_an_all_reduce_by_nccl_goes_before_tcp() -> None:
    """RDMA carries it, which TCP tells nothing of."""
    ranks = case("collective.all_reduce", "well")
    for fact in ranks.values():
        fact["devices"] = [f"cuda:{index}" for index in range(8)]
        fact["run"]["world"] = 32
        fact["run"]["sizes"] = [
            {"bytes": 1 << 30, "count": 5, "ms": 6.0, "busy": 0.0, "wrong": 0, "ranks": [6.0] * 8}
        ]
    both = {"network.bandwidth": streams(a=9.0, b=8.0), "collective.all_reduce": ranks}
    found = measured.bandwidth(made(both), PATH)
    assert found
    assert found.gbps == pytest.approx(8 * 2**30 / 6e6 * 2 * 31 / 32)
    assert found.instrument == (
        "busbw 347 GB/s of an all_reduce of 32 GPUs by NCCL (collective.all_reduce)"
    )


def test_an_all_reduce_that_did_not_end_tells_nothing() -> None:
    ranks = case("collective.all_reduce", "a_rank_that_is_killed")
    assert measured.bandwidth(made({"collective.all_reduce": ranks}), PATH) is None


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
    altered = made({"network.bandwidth": {"a": streams()["a"]}}).model_copy(update={"facts": facts})
    with pytest.raises(ConfigError) as error:
        measured.bandwidth(altered, PATH)
    aloud(error.value, about=json.dumps(fact))
