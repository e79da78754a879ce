"""The main job: connect, probe, exercise. Yields events and prints nothing."""

from __future__ import annotations

import datetime as dt
import time
import traceback
import uuid
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from preflight.api import Reply, Want
from preflight.catalog import Loaded
from preflight.errors import ConfigError, TransportError
from preflight.fanout import fan_out
from preflight.fleet import Fleet
from preflight.inventory import Cluster, NodeSpec
from preflight.payload import Payload
from preflight.session import AgentError, Session
from preflight.transport import Connection, Transport

CLOSE_TIMEOUT_S = 5.0
"""For all agents together to end after their stdin ended; they need milliseconds."""
NEEDS_ROOT = "needs root"

Facts = dict[str, dict[str, dict[str, Any]]]
Call = tuple[str, str, tuple[Any, ...]]


@dataclass(frozen=True)
class Plan:
    """What is to be done; made and found right before anything is contacted."""

    cluster: Cluster
    checks: Sequence[Loaded]
    level: str
    skips: Mapping[str, str]
    deadline_s: float

    @property
    def want(self) -> Want:
        """What judges are told."""
        names = [node.name for node in self.cluster.nodes]
        return Want(self.cluster.wanted_launch, self.cluster.expect, names)

    @property
    def running(self) -> list[Loaded]:
        """The checks that are not skipped."""
        return [one for one in self.checks if one.id not in self.skips]


@dataclass(frozen=True)
class NodeDone:
    """A node has answered its probes, or could not be reached."""

    node: str
    reached: bool
    message: str


@dataclass(frozen=True)
class Exercising:
    """An exercise begins."""

    check: str


@dataclass(frozen=True)
class Outcome:
    """The last event: all evidence of the run."""

    run_id: str
    started_at: str
    seconds: float
    facts: Facts
    fact_seconds: Mapping[str, Mapping[str, float]]
    """What each fact took on its node, by evidence key and node."""
    logins: Mapping[str, Mapping[str, Any]]
    node_seconds: Mapping[str, float]


Event = NodeDone | Exercising | Outcome


@dataclass
class Visit:
    """What became of one node."""

    spec: NodeSpec
    login: dict[str, Any] = field(default_factory=lambda: {"reached": False})
    replies: dict[str, Reply] = field(default_factory=dict)
    """By evidence key."""
    seconds: float = 0.0
    connection: Connection | None = None
    sessions: list[Session] = field(default_factory=list)

    def close(self) -> None:
        """End its agents and log out; never raises."""
        for session in self.sessions:
            session.close()
        if self.connection is not None:
            self.connection.close()


@dataclass(frozen=True)
class Errand:
    """What is done on every node: the same payload and the same calls."""

    payload: Payload
    calls: Mapping[str, Call]
    """By evidence key."""
    rooted: Mapping[str, Call]
    limits: Mapping[str, float]
    deadline: float


def run(plan: Plan, transports: Mapping[str, Transport]) -> Generator[Event, None, None]:
    """Do it. Closing the generator, or an exception in it, ends all agents.

    Raises:
        ConfigError: checks contradict each other; nothing was contacted.
    """
    want = plan.want
    started_at = dt.datetime.now(dt.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    begun = time.monotonic()
    errand = plan_errand(plan.running, want, begun + plan.deadline_s)
    names = [spec.name for spec in plan.cluster.nodes]
    visits = {spec.name: Visit(spec) for spec in plan.cluster.nodes}

    def one(visit: Visit) -> Visit:
        go(visit, transports[visit.spec.transport], errand)
        return visit

    try:
        for done in fan_out(one, tuple(visits.values()), plan.cluster.fanout, errand.deadline):
            visit = done.result
            login = visit.login
            yield NodeDone(visit.spec.name, login["reached"], login.get("message", ""))
        for name in names:
            late(visits[name], plan.deadline_s)
        replies: dict[str, dict[str, Reply]] = {
            key: {n: visits[n].replies[key] for n in names if key in visits[n].replies}
            for key in [*errand.calls, *errand.rooted]
        }
        fleet = Fleet(
            {n: visits[n].sessions[0] for n in names if visits[n].login["reached"]},
            {n: visits[n].login for n in names},
            errand.deadline,
        )
        for check in (c for c in plan.running if c.check.exercise):
            yield Exercising(check.id)
            replies[check.id] = exercise(check, fleet, want)
    finally:
        close(list(visits.values()))
    yield Outcome(
        run_id=uuid.uuid4().hex,
        started_at=started_at,
        seconds=round(time.monotonic() - begun, 3),
        facts={k: {n: fact(r) for n, r in by.items()} for k, by in replies.items()},
        fact_seconds={k: {n: r.seconds for n, r in by.items()} for k, by in replies.items()},
        logins={name: visits[name].login for name in names},
        node_seconds={name: round(visits[name].seconds, 3) for name in names},
    )


def plan_errand(checks: Sequence[Loaded], want: Want, deadline: float) -> Errand:
    """Return what is asked of every node; a probe that several checks share is asked once.

    Raises:
        ConfigError: two checks give one probe different arguments.
    """
    calls: dict[bool, dict[str, Call]] = {False: {}, True: {}}
    limits: dict[str, float] = {}
    for one in checks:
        if one.check.probe is None:
            continue
        call = one.call(want)
        known = calls[one.check.needs_root].setdefault(one.evidence, call)
        if known != call:
            raise ConfigError(f"{one.path}: gives {one.evidence} other arguments than others do")
        limits[one.evidence] = max(limits.get(one.evidence, 0.0), one.check.timeout_s)
    payload = Payload({one.module: one.text for one in checks})
    return Errand(payload, calls[False], calls[True], limits, deadline)


def go(visit: Visit, transport: Transport, errand: Errand) -> None:
    """Log in to one node, start the agent and ask it everything; never raises an expected error."""
    begun = time.monotonic()
    try:
        visit.connection = transport.connect(visit.spec)
        visit.login |= visit.connection.facts
        session = start(visit, errand, None)
        visit.login |= {"reached": True, "hello": session.hello, "psutil": session.psutil}
        visit.login["noise"] = session.noise
        visit.replies |= ask(session, errand.calls, errand)
        if errand.rooted:
            visit.replies |= as_root(visit, session, errand)
    except (TransportError, AgentError) as error:
        visit.login |= {"kind": error.kind, "message": error.message, "hint": error.hint}
    visit.seconds = time.monotonic() - begun


def start(visit: Visit, errand: Errand, become: str | None) -> Session:
    """Start an agent on a node that we are logged in to.

    Raises:
        AgentError: it did not start.
        TransportError: the connection was lost.
    """
    if visit.connection is None:
        raise AgentError("no agent", "not logged in")
    # An interpreter on a loaded node or on a cold network file system takes seconds to start, so
    # it has the time of a login over again.
    limit = max(0.1, min(visit.spec.ssh.login_timeout_s, errand.deadline - time.monotonic()))
    session = Session(visit.connection, errand.payload, limit, visit.spec.ssh.python, become)
    visit.sessions.append(session)
    return session


def ask(session: Session, calls: Mapping[str, Call], errand: Errand) -> dict[str, Reply]:
    """Return the answers of all probes; they run side by side on the node."""
    left = max(0.1, errand.deadline - time.monotonic())
    limits = {key: min(errand.limits[key], left) for key in calls}
    asked = {key: session.ask(*call, timeout_s=limits[key]) for key, call in calls.items()}
    return {key: session.answer(pending, limits[key]) for key, pending in asked.items()}


def as_root(visit: Visit, session: Session, errand: Errand) -> dict[str, Reply]:
    """Return the answers of probes that need root, by a second agent under sudo if allowed."""
    if session.hello.get("uid") == 0:
        return ask(session, errand.rooted, errand)
    why = NEEDS_ROOT
    if visit.spec.ssh.become:
        try:
            return ask(start(visit, errand, visit.spec.ssh.become), errand.rooted, errand)
        except (TransportError, AgentError) as error:
            why = f"{NEEDS_ROOT}: {error.message}"
    problem = Reply(None, {"kind": "needs_root", "message": why})
    return dict.fromkeys(errand.rooted, problem)


def fact(reply: Reply) -> dict[str, Any]:
    """Return a reply as the report keeps it."""
    return {"value": reply.value} if reply.problem is None else {"problem": dict(reply.problem)}


def late(visit: Visit, deadline_s: float) -> None:
    """Say of a node that has not answered by now that it is late."""
    if not visit.login["reached"] and "kind" not in visit.login:
        visit.login |= {
            "kind": "deadline",
            "message": f"no answer within the run's deadline of {deadline_s:g} s",
            "hint": "",
        }


def exercise(one: Loaded, fleet: Fleet, want: Want) -> dict[str, Reply]:
    """Return an exercise's facts by node; one that crashes has a problem for every node."""
    if one.check.exercise is None:
        raise TypeError(f"{one.id} has no exercise")
    begun = time.monotonic()
    try:
        found = dict(one.check.exercise(fleet, want))
    except Exception as error:  # noqa: BLE001 - an exercise is foreign code: its bug is a row
        message = f"{type(error).__name__}: {error}"
        bug = {"kind": "bug", "message": message, "traceback": traceback.format_exc()}
        return dict.fromkeys(want.nodes, Reply(None, bug))
    seconds = round(time.monotonic() - begun, 4)
    return {node: Reply(value, None, seconds) for node, value in found.items()}


def close(visits: Iterable[Visit]) -> None:
    """End all agents, side by side, within a bound."""
    visits = [visit for visit in visits if visit.connection is not None]
    deadline = time.monotonic() + CLOSE_TIMEOUT_S
    for _ in fan_out(Visit.close, visits, max(1, len(visits)), deadline):
        pass
