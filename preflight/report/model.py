"""The report as data: `preflight.report/1`, the contract with schedulers and dashboards.

Reading a report and writing it again gives the same bytes.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json, to_json

from preflight.errors import ConfigError
from preflight.inventory import Launch, Waiver
from preflight.json_schema import DRAFT
from preflight.judge import REACH
from preflight.wording import first_problem, json_problem

Status = Literal["pass", "skip", "warn", "unknown", "fail"]
RunVerdict = Literal["ready", "not_ready", "undetermined"]
SCHEMA: Literal["preflight.report/1"] = "preflight.report/1"
PROBLEM = ("kind", "message")
"""What every problem says, in the place of a value."""


class Model(BaseModel):
    """Frozen; unknown keys are errors, since they would be lost on writing."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        json_schema_serialization_defaults_required=True,  # all that we write has all keys
    )


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
    require: list[str]
    """Ids of checks that must say something."""
    skip: dict[str, str]
    """Reasons by id of the checks that were not to run."""
    fail_on: Literal["fail", "warn"]
    """`warn`: a warning counts as a failure."""

    def expired(self, today: dt.date) -> list[dict[str, Any]]:
        """Return the waivers that have ended."""
        return [one for one in self.waivers if dt.date.fromisoformat(one["until"]) < today]


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
    pairs: dict[str, dict[str, str]] = {}
    """What came of the pairs that are bad, by both nodes; of a check on pairs."""


class Point(Model):
    """What a message of one size took: milliseconds, and GB/s."""

    bytes: int
    ms: float
    algbw: float
    busbw: float


class Report(Model):
    """All of it."""

    schema_: Literal["preflight.report/1"] = Field(alias="schema")
    tool: Tool
    run: Run
    verdict: RunVerdict
    want: WantModel
    nodes: list[NodeModel]
    checks: list[CheckModel]
    results: list[Result]
    causes: list[Cause]
    curves: dict[str, dict[str, list[Point]]] = {}
    """How a rate grows with size: by check, and by node or, of all of them together, by `*`."""
    facts: dict[str, dict[str, dict[str, Any]]]

    def to_json(self) -> str:
        """Return the report's text."""
        return self.model_dump_json(by_alias=True, indent=1) + "\n"


def schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of the reports that are written."""
    return {"$schema": DRAFT, **Report.model_json_schema(mode="serialization")}


def read(path: Path) -> Report:
    """Read a report from anywhere.

    Raises:
        ConfigError: it cannot be read, is no report of this schema, or contradicts itself.
    """
    try:
        report = Report.model_validate(from_json(path.read_bytes(), allow_inf_nan=False))
    except OSError as error:
        raise ConfigError(f"{path}: {str(error.strerror).lower()}") from error
    except ValidationError as error:
        raise ConfigError(f"{path}: is not a {SCHEMA} report: {first_problem(error)}") from error
    except ValueError as error:
        raise ConfigError(f"{path}: is cut off, or not JSON: {json_problem(str(error))}") from error
    for flaw in flaws(report):
        raise ConfigError(f"{path}: {flaw}")
    return report


def flaws(report: Report) -> Iterator[str]:
    """Yield what is wrong with a report that has the right shape."""
    nodes, checks = [node.name for node in report.nodes], [check.id for check in report.checks]
    yield from unlike("nodes", nodes)
    yield from unlike("checks", checks)
    cells = Counter((row.check, row.node) for row in report.results)
    wanted = {(check, node): 1 for check in checks for node in nodes}
    for check, node in [*wanted, *cells]:
        count, right = cells[check, node], wanted.get((check, node), 0)
        if count != right:
            yield f"results: has {count} of {check!r} on {node!r}, it must have {right}"
    yield from flaws_of_want(report.want)
    for key, by_node in report.facts.items():
        for node, fact in by_node.items():
            if not is_fact(fact):
                yield f"facts.{key}.{node}: neither a value nor a problem"
            elif key == REACH and not is_login(fact):
                yield f"facts.{key}.{node}: does not say whether the node was reached"


def unlike(key: str, names: Sequence[str]) -> Iterator[str]:
    """Yield what is wrong with names that must be there, each once."""
    if not names:
        yield f"{key}: is empty, it must have at least one"
    for name, count in Counter(names).items():
        if count > 1:
            yield f"{key}: {name!r} is there {count} times"


def flaws_of_want(want: WantModel) -> Iterator[str]:
    """Yield what no inventory can have said."""
    if REACH in want.skip:
        yield f"want.skip: has {REACH}, which no run leaves out"
    yield from flaws_of(want.launch, Launch, "want", "launch")
    for place, waiver in enumerate(want.waivers):
        yield from flaws_of(waiver, Waiver, "want", "waivers", place)


def flaws_of(value: Any, kind: type[BaseModel], *where: str | int) -> Iterator[str]:
    """Yield what is wrong with a part of an inventory."""
    try:
        # as JSON, pydantic's strict mode takes text for a date
        kind.model_validate_json(to_json(value), strict=True)
    except ValidationError as error:
        yield first_problem(error, where)


def is_fact(fact: Mapping[str, Any]) -> bool:
    """Whether it is what a probe or an exercise gives: a value, or a problem."""
    if set(fact) != {"problem"}:
        return set(fact) == {"value"}
    problem = fact["problem"]
    return isinstance(problem, dict) and all(isinstance(problem.get(k), str) for k in PROBLEM)


def is_login(fact: Mapping[str, Any]) -> bool:
    """Whether it says if the node was reached, on which the judging of everything else rests."""
    value = fact.get("value", {"reached": False})
    return isinstance(value, dict) and isinstance(value.get("reached"), bool)
