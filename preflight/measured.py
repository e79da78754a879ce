"""Bandwidth and latency that a run has measured, out of its report.

Several checks can tell them. An all_reduce by NCCL is what training does. TCP streams, of a run
with `--level deep`, fill a link better than an all_reduce by Gloo does, for which a CPU is often
too slow. Of all paths the slowest one counts, since every collective waits for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Annotated, NamedTuple, TypeVar

from pydantic import BaseModel, Field, ValidationError

from preflight.errors import ConfigError
from preflight.node.streams import BUSY
from preflight.report.model import Report
from preflight.wording import first_problem

ALL_REDUCE, STREAMS, TRIPS = "collective.all_reduce", "network.bandwidth", "network.latency"
M = TypeVar("M", bound=BaseModel)


class Bandwidth(NamedTuple):
    """What the network carries."""

    gbps: float
    instrument: str


class Latency(NamedTuple):
    """What a message takes, one way."""

    us: float
    instrument: str


class Size(BaseModel):
    """What an all_reduce of one size took."""

    bytes: Annotated[int, Field(gt=0)]
    ms: Annotated[float, Field(gt=0)]
    busy: float


class Rank(BaseModel):
    """What came of one rank of several."""

    at: str
    world: Annotated[int, Field(gt=1)]
    sizes: list[Size]


class AllReduce(BaseModel):
    """Of the facts of collective.all_reduce: what is used here."""

    run: Rank | None
    devices: list[str] = []
    """Of each rank of the node; of CPUs Gloo carries the data."""


class Drawn(BaseModel):
    """Of what came from one other node."""

    gbps: Annotated[float, Field(ge=0)]
    busy: list[float]
    error: str


class Streams(BaseModel):
    """Of the facts of network.bandwidth."""

    drawn: dict[str, Drawn]


class Talk(BaseModel):
    """Of round trips to one other node: least, median and 99th percentile."""

    times_us: list[Annotated[float, Field(ge=0)]]


class Talks(BaseModel):
    """Of the facts of network.latency."""

    trips: dict[str, Talk]


def bandwidth(report: Report, path: Path) -> Bandwidth | None:
    """Return what the network carries, by the best instrument that has told.

    Raises:
        ConfigError: the facts are not what such a check gives, or a path carries nothing.
    """
    ran = [fact for _, fact in facts(report, path, ALL_REDUCE, AllReduce) if fact.run]
    devices = [device for fact in ran for device in fact.devices]
    gpus = 0 if "cpu" in devices else len(devices)
    told = by_all_reduce([fact.run for fact in ran if fact.run], gpus)
    return told if told and gpus else by_streams(report, path) or told


def by_all_reduce(told: Sequence[Rank], gpus: int) -> Bandwidth | None:
    """Return the bus bandwidth of the largest size, at which latency counts least.

    Args:
        told: by the ranks of each node.
        gpus: of all nodes; 0: it was done on CPUs.
    """
    if not told or any(run.at or not run.sizes for run in told):
        return None
    found = [max(run.sizes, key=lambda size: size.bytes) for run in told]
    slowest, world = max(found, key=lambda size: size.ms / size.bytes), told[0].world
    gbps = 8 * slowest.bytes / slowest.ms / 1e6 * 2 * (world - 1) / world
    by = f"{gpus} GPUs by NCCL" if gpus else f"{len(told)} nodes by Gloo"
    words = f"busbw {gbps / 8:.3g} GB/s of an all_reduce of {by} ({ALL_REDUCE})"
    return Bandwidth(gbps, limited(words, [size.busy for size in found]))


def by_streams(report: Report, path: Path) -> Bandwidth | None:
    """Return the slowest path between two nodes, by TCP."""
    paths = {
        (source, node): one
        for node, fact in facts(report, path, STREAMS, Streams)
        for source, one in fact.drawn.items()
        if not one.error
    }
    if not paths:
        return None
    (a, b), slowest = min(paths.items(), key=lambda item: item[1].gbps)
    if not slowest.gbps:
        raise ConfigError(
            f"{path}: {STREAMS}: nothing came through from {a!r} to {b!r}; mend that, and run again"
        )
    usual = median(one.gbps for one in paths.values())
    words = f"TCP of the slowest of {len(paths)} paths, {a} to {b}, usual {usual:.3g} ({STREAMS})"
    return Bandwidth(slowest.gbps, limited(words, slowest.busy))


def limited(words: str, busy: Iterable[float]) -> str:
    """Return what is said of an instrument, and whether the network was what limited."""
    is_cpu = max(busy, default=0.0) >= BUSY
    return words + ("; a CPU is what limits, the network may carry more" if is_cpu else "")


def latency(report: Report, path: Path) -> Latency | None:
    """Return half of the slowest usual round trip between two nodes.

    Raises:
        ConfigError: the facts are not what such a check gives.
    """
    trips = {
        (node, other): talk.times_us[1]
        for node, fact in facts(report, path, TRIPS, Talks)
        for other, talk in fact.trips.items()
        if len(talk.times_us) > 1
    }
    if not trips:
        return None
    (a, b), slowest = max(trips.items(), key=lambda item: item[1])
    return Latency(slowest / 2, f"half the round trip of {a} to {b}, the slowest ({TRIPS})")


def facts(report: Report, path: Path, check: str, kind: type[M]) -> Iterator[tuple[str, M]]:
    """Yield what a check has found, by node.

    Raises:
        ConfigError: it is not what such a check gives.
    """
    by_node: Mapping[str, Mapping[str, object]] = report.facts.get(check, {})
    for node, fact in by_node.items():
        if "value" in fact:
            try:
                yield node, kind.model_validate(fact["value"])
            except ValidationError as error:
                where = ("facts", check, node)
                raise ConfigError(f"{path}: {first_problem(error, where)}") from error
