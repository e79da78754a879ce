"""The main job: connect, probe, exercise. Yields events and prints nothing."""

from __future__ import annotations

import datetime as dt
import time
import traceback
import uuid
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from preflight.api import Reply, Verdict, Want
from preflight.catalog import Loaded
from preflight.errors import ConfigError, TransportError
from preflight.exercises import attempt, batches, exercised
from preflight.fanout import fan_out
from preflight.fleet import LATE, Fleet
from preflight.inventory import Cluster, NodeSpec
from preflight.judge import asked
from preflight.no_agent import AgentError
from preflight.payload import Payload
from preflight.pending import Pending
from preflight.session import Session
from preflight.transport import Connection, Transport
from preflight.transport.own_limits import used_up

CLOSE_S = (1.2, 5.0)
"""For all agents together to end, beyond the run's deadline and at most; they need milliseconds."""
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
    """These exercises go on, or wait for another of their lane."""

    checks: tuple[str, ...]


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
    asked: dict[str, Pending] = field(default_factory=dict)
    """By evidence key: what is or was on its way."""
    seconds: float = 0.0
    connection: Connection | None = None
    sessions: list[Session] = field(default_factory=list)

    def seen(self, deadline_s: float) -> Visit:
        """Return it as it is at the deadline; whoever is late may go on with the original."""
        seen = replace(self, login=dict(self.login), replies=dict(self.replies))
        for key, pending in dict(self.asked).items():
            seen.replies.setdefault(key, pending.reply)
        if not (seen.login["reached"] or "kind" in seen.login):
            late = f"no answer within the run's deadline of {deadline_s:g} s"
            hint = "give the run more time (--deadline), or see what hangs: ssh NODE true"
            seen.fail(TransportError("deadline", late, hint))
        return seen

    def fail(self, error: TransportError | AgentError) -> None:
        """Take note that the node is not there, or no longer."""
        self.login["reached"] = False
        self.login |= {"kind": error.kind, "message": error.message, "hint": error.hint}

    def see_lost(self) -> None:
        """Take note if the node was lost after it had been reached."""
        if self.login["reached"] and (lost := self.sessions[0].lost):
            self.fail(lost)

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
        seen = {name: visits[name].seen(plan.deadline_s) for name in names}
        replies: dict[str, dict[str, Reply]] = {
            key: {n: seen[n].replies.get(key, LATE) for n in names if seen[n].login["reached"]}
            for key in [*errand.calls, *errand.rooted]
        }
        fleet = Fleet(
            {n: seen[n].sessions[0] for n in names if seen[n].login["reached"]},
            {n: seen[n].login for n in names},
            errand.deadline,
            plan.level,
        )
        for batch in batches(plan.running):
            going = [check.id for check in batch]
            replies |= {check.evidence: dict.fromkeys(names, LATE) for check in batch}
            yield Exercising(tuple(going))
            for visit in seen.values():
                visit.see_lost()
            for check, found in exercised(batch, fleet, want, errand.deadline):
                replies[check.evidence] = found
                going.remove(check.id)
                if going:
                    yield Exercising(tuple(going))
    finally:
        close(list(visits.values()), errand.deadline)
    yield Outcome(
        run_id=uuid.uuid4().hex,
        started_at=started_at,
        seconds=round(time.monotonic() - begun, 3),
        facts={k: {n: fact(r) for n, r in by.items()} for k, by in replies.items()},
        fact_seconds={k: {n: r.seconds for n, r in by.items()} for k, by in replies.items()},
        logins={name: seen[name].login for name in names},
        node_seconds={name: round(seen[name].seconds, 3) for name in names},
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
        args = asked(one, want)
        if isinstance(args, Verdict):
            continue  # that it crashes is told when it is judged
        call = one.call(args)
        known = calls[one.check.needs_root].setdefault(one.evidence, call)
        if known != call:
            raise ConfigError(
                f"{one.path}: args= must be those of the other checks with {one.evidence}"
            )
        limits[one.evidence] = max(limits.get(one.evidence, 0.0), one.check.timeout_s)
    payload = Payload({one.module: one.text for one in checks})
    return Errand(payload, calls[False], calls[True], limits, deadline)


def go(visit: Visit, transport: Transport, errand: Errand) -> None:
    """Log in to one node, start the agent and ask it everything; never raises."""
    begun = time.monotonic()
    error = attempt(lambda: talk(visit, transport, errand))
    if isinstance(error, (TransportError, AgentError)):
        visit.fail(error)
    elif error is not None:
        words = f"internal error: {type(error).__name__}: {error}"
        bug = TransportError("bug", words, "please report it with the traceback that -v shows")
        visit.login["traceback"] = "".join(traceback.format_exception(error))
        visit.fail(used_up(error) or bug)
    visit.seconds = time.monotonic() - begun


def talk(visit: Visit, transport: Transport, errand: Errand) -> None:
    """Do what `go` says.

    Raises:
        AgentError: no agent started.
        TransportError: not reached, or lost.
    """
    visit.connection = transport.connect(visit.spec)
    visit.login |= visit.connection.facts
    session = start(visit, errand, None)
    is_root = session.hello.get("uid") == 0
    calls = {**errand.calls, **errand.rooted} if is_root else errand.calls
    asked = ask(visit, session, calls, errand)
    visit.login |= {"reached": True, "hello": session.hello, "psutil": session.psutil}
    visit.login["noise"] = session.noise
    hear(visit, session, asked)
    if not is_root:
        as_root(visit, errand)
    if any(other.lost for other in visit.sessions[1:]):  # see whether the node is lost with it
        session.clock()
    visit.see_lost()


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
    python = visit.spec.ssh.python
    session = Session(visit.connection, errand.payload, limit, python, become, errand.deadline)
    visit.sessions.append(session)
    return session


def ask(
    visit: Visit, session: Session, calls: Mapping[str, Call], errand: Errand
) -> dict[str, Pending]:
    """Ask everything of a node; it sees to it that what hangs holds up nothing else."""
    limits_s = [errand.limits[key] for key in calls]
    asked = dict(zip(calls, session.ask_all(list(calls.values()), limits_s), strict=True))
    visit.asked |= asked
    return asked


def hear(visit: Visit, session: Session, asked: Mapping[str, Pending]) -> None:
    """Wait for the answers."""
    visit.replies |= {key: session.answer(pending) for key, pending in asked.items()}


def as_root(visit: Visit, errand: Errand) -> None:
    """Get the answers of probes that need root, by a second agent under sudo if allowed."""
    why = NEEDS_ROOT
    if errand.rooted and visit.spec.ssh.become:
        try:
            session = start(visit, errand, visit.spec.ssh.become)
        except (TransportError, AgentError) as error:
            why = f"{NEEDS_ROOT}: {error.message}"
        else:
            if session.hello.get("uid") == 0:
                hear(visit, session, ask(visit, session, errand.rooted, errand))
                return
    problem = Reply(None, {"kind": "needs_root", "message": why})
    visit.replies |= dict.fromkeys(errand.rooted, problem)


def fact(reply: Reply) -> dict[str, Any]:
    """Return a reply as the report keeps it."""
    return {"value": reply.value} if reply.problem is None else {"problem": dict(reply.problem)}


def close(visits: Iterable[Visit], deadline: float) -> None:
    """End all agents, side by side, within a bound."""
    visits = [visit for visit in visits if visit.connection is not None]
    now = time.monotonic()
    shortest, longest = CLOSE_S
    until = max(now + shortest, min(deadline, now + longest))
    for _ in fan_out(Visit.close, visits, max(1, len(visits)), until):
        pass
