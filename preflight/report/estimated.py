"""The estimate as data: `preflight.estimate/1`, as `preflight estimate --json` writes it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict, Field

from preflight.json_schema import DRAFT
from preflight.report.model import Model

SCHEMA: Literal["preflight.estimate/1"] = "preflight.estimate/1"


class NetworkModel(Model):
    """What a node really gets, each way."""

    gbps: float
    latency_us: float


class GradientsModel(Model):
    """What is synchronised, and between whom; `nvlink_gbs` is null without NVLink."""

    parameters: float
    dtype: Literal["fp32", "fp16", "bf16", "fp8"]
    network: NetworkModel
    gpus_per_node: int
    nvlink_gbs: float | None
    compression: float


class Sources(Model):
    """Where bandwidth and latency are from, in words."""

    bandwidth: str
    latency: str


class Synchronisation(Model):
    """One of all GPUs: bytes that each has, and seconds by where they go."""

    bytes: float
    seconds: float
    network_s: float
    inside_s: float
    latency_s: float
    hierarchical: bool
    """Whether nodes add up inside before they send."""


class Shares(Model):
    """Of communication in a step."""

    with_overlap: float
    without_overlap: float


class Row(Model):
    """A step on some nodes; `days` and `cost` of the job where they are known."""

    nodes: int
    sync_s: float
    seconds: float
    share: float
    efficiency: float
    speed_up: float
    days: float | None
    cost: float | None


class RemedyModel(Model):
    """What helps, by which factor, and how many times as fast a step is then."""

    kind: Literal["network", "accumulation", "compression", "overlap"]
    factor: int
    step: Row
    faster: float


class EstimateModel(Model):
    """All of it; what is known only with --step-time is left out without."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=False)

    schema_: Literal["preflight.estimate/1"] = Field(alias="schema")
    gradients: GradientsModel
    sources: Sources
    nodes: int
    synchronisation: Synchronisation
    least_step_s: float
    """That a step must compute so that communication is not much."""
    step_s: float | None = None
    accumulation: int | None = None
    overlap: bool | None = None
    share: Shares | None = None
    scaling: list[Row] | None = None
    next_node_adds: float | None = None
    """In nodes that work alone."""
    last_node_worth: int | None = None
    remedies: list[RemedyModel] | None = None

    def to_json(self) -> str:
        """Return its text."""
        return self.model_dump_json(by_alias=True, exclude_unset=True, indent=1) + "\n"


def schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of the estimates that are written."""
    return {"$schema": DRAFT, **EstimateModel.model_json_schema(mode="serialization")}
