"""Recordings: taken on a node, kept in a file, read for the demo, answered from by a `Replay`."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from preflight.api import Want
from preflight.catalog import Loaded
from preflight.errors import ConfigError
from preflight.inventory import NodeSpec
from preflight.payload import Payload
from preflight.run import NEEDS_ROOT, plan_errand
from preflight.session import Session
from preflight.transport import Transport
from preflight.wording import first_problem, json_problem
from preflight.yaml_lines import read_text

RECORDER = "preflight.node.recorder"

Refusal = dict[Literal["absent", "unobservable"], str]
Text = str | Refusal | None
Mapped = dict[str, Any] | None
Numbers = list[int | float] | Refusal | None


class Model(BaseModel):
    """Unknown keys are errors: most are misspelt."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Answers(Model):
    """What one machine says, by method of `preflight.api.Node` and by `replay.key`."""

    run: dict[str, dict[str, Any]] = {}
    read: dict[str, Text] = {}
    listdir: dict[str, list[str] | Refusal | None] = {}
    readlink: dict[str, Text] = {}
    realpath: dict[str, Text] = {}
    stat: dict[str, Numbers] = {}
    access: dict[str, bool | Refusal] = {}
    statvfs: dict[str, Numbers] = {}
    visit: dict[str, dict[str, Any]] = {}
    which: dict[str, Text] = {}
    environ: dict[str, dict[str, str]] = {}
    account: dict[str, Mapped] = {}
    resolve: dict[str, list[str] | Refusal] = {}
    limits: dict[str, dict[str, Any]] = {}
    now: dict[str, float] = {}
    uname: dict[str, dict[str, str]] = {}
    psutil: dict[str, Any] = {}
    process: dict[str, Mapped] = {}
    nvml: dict[str, Any] = {}


class Wanted(Model):
    """What of an inventory the probes were told: told otherwise, they ask otherwise."""

    launch: dict[str, Any] = {}
    expect: dict[str, Any] = {}


class Recording(Model):
    """One node."""

    source: str = Field(min_length=1)
    """Where it comes from; one that was made up says so."""
    want: Wanted = Wanted()
    node: Answers
    exercises: dict[str, dict[str, Any]] = {}
    """What functions gave that drive several nodes, by module and name."""

    def to_json(self) -> str:
        """Return the file's text."""
        return self.model_dump_json(exclude_unset=True, indent=1) + "\n"


def load(path: Path) -> Recording:
    """Read a recording.

    Raises:
        ConfigError: it cannot be read, is cut off, or is something else.
    """
    try:
        return Recording.model_validate_json(read_text(path))
    except ValidationError as error:
        raise ConfigError(f"{path}: {wording(error)}") from error


def wording(error: ValidationError) -> str:
    """Return what is wrong first."""
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return f"is cut off, or not JSON: {json_problem(str(first['ctx']['error']))}"
    return f"is not a recording: {first_problem(error, most=3)}; `preflight record` writes one"


@dataclasses.dataclass
class Taken:
    """A node as it was recorded; by evidence key what a probe made of it, or why it is lost."""

    answers: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    facts: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    lost: dict[str, str] = dataclasses.field(default_factory=dict)
    machine: str = ""


def take(
    spec: NodeSpec, transport: Transport, checks: Sequence[Loaded], want: Want, deadline_s: float
) -> Taken:
    """Log in to a node and record all that the probes of these checks ask.

    One call a probe, each told what is known: a probe that hangs or crashes costs its own answers
    only, and two that ask the same thing get the same answer.

    Raises:
        AgentError: the agent did not start.
        ConfigError: checks contradict each other; nothing was contacted.
        TransportError: no login.
    """
    deadline = time.monotonic() + deadline_s
    errand = plan_errand(checks, want, deadline)
    texts = {one.module: one.text for one in checks}
    calls = {**errand.calls, **errand.rooted}
    payload = Payload(texts, [RECORDER, *(c[0] for c in calls.values() if is_shared(c[0]))])
    connection = transport.connect(spec)
    try:
        session = Session(connection, payload, spec.ssh.login_timeout_s, spec.ssh.python)
        try:
            taken = Taken(machine="{system} {machine}".format(**session.hello))
            for key, call in calls.items():
                # Root is told other things than the job's user; a recording holds one of them.
                if key in errand.rooted and session.hello.get("uid") != 0:
                    taken.lost[key] = NEEDS_ROOT
                    continue
                left = max(0.1, min(errand.limits[key], deadline - time.monotonic()))
                reply = session.call(RECORDER, "record", [*call, taken.answers], left)
                keep(taken, key, reply.value, reply.problem)
        finally:
            session.close()
    finally:
        connection.close()
    return taken


def is_shared(module: str) -> bool:
    """Whether a probe is not in a check's own file."""
    return module.startswith("preflight.node.")


def keep(taken: Taken, key: str, value: Any, problem: Any) -> None:
    """Add what one probe gave."""
    if problem is not None:
        taken.lost[key] = str(problem["message"])
        return
    for method, answers in value.pop("fresh").items():
        known = taken.answers.setdefault(method, {})
        for word, answer in answers.items():
            if method == "environ":  # each probe adds the variables that it looks at
                known.setdefault(word, {}).update(answer)
            else:
                known[word] = answer
    taken.facts[key] = value
