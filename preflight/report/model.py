"""The report as data: `preflight.report/1`, the contract with schedulers and dashboards.

Reading a report and writing it again gives the same bytes.
"""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from preflight.errors import ConfigError

Status = Literal["pass", "skip", "warn", "unknown", "fail"]
RunVerdict = Literal["ready", "not_ready", "undetermined"]
SCHEMA: Literal["preflight.report/1"] = "preflight.report/1"


class Model(BaseModel):
    """Frozen; unknown keys are errors, since they would be lost on writing."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Tool(Model):
    """Who wrote the report."""

    name: str
    version: str


class Run(Model):
    """When, how deep, of what."""

    id: str
    started_at: str
    seconds: float
    level: Literal["quick", "standard", "deep"]
    inventory: str | None
    cluster: str


class WantModel(Model):
    """What was expected; with the facts it suffices to judge again."""

    launch: dict[str, Any]
    expect: dict[str, Any]
    waivers: list[dict[str, Any]]


class Coverage(Model):
    """How many checks said something of a node."""

    ran: int
    skipped: int


class NodeModel(Model):
    """One node of the run."""

    name: str
    address: str
    verdict: RunVerdict
    seconds: float
    coverage: Coverage


class CheckModel(Model):
    """One selected check."""

    id: str
    claim: str
    level: Literal["quick", "standard", "deep"]


class Waived(Model):
    """Who answers for a failure, until when and why."""

    until: dt.date
    owner: str
    reason: str


class Result(Model):
    """One cell of the grid."""

    check: str
    node: str
    status: Status
    summary: str
    observed: Any = None
    expected: Any = None
    details: list[str] = []
    fix: str | None = None
    reproduce: str | None = None
    waived: Waived | None = None
    seconds: float = 0.0


class Explained(Model):
    """A failing result that a cause accounts for."""

    check: str
    node: str


class Cause(Model):
    """A finding that explains failing results."""

    kind: Literal["node", "pair", "cluster"]
    nodes: list[str]
    check: str
    summary: str
    explains: list[Explained]
    fix: str | None


class Report(Model):
    """All of it."""

    schema_: Annotated[Literal["preflight.report/1"], Field(alias="schema")] = SCHEMA
    tool: Tool
    run: Run
    verdict: RunVerdict
    want: WantModel
    nodes: list[NodeModel]
    checks: list[CheckModel]
    results: list[Result]
    causes: list[Cause]
    facts: dict[str, dict[str, dict[str, Any]]]

    def to_json(self) -> str:
        """Return the report's text."""
        return self.model_dump_json(by_alias=True, indent=1) + "\n"


def read(path: Path) -> Report:
    """Read a report.

    Raises:
        ConfigError: it cannot be read, or is no report of this schema.
    """
    try:
        return Report.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "it"
        raise ConfigError(f"{path}: not a {SCHEMA} report: {where}: {first['msg']}") from error
