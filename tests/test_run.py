"""The main job on this machine: nodes that fall silent, hang or cannot be started are rows."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from preflight import catalog
from preflight.api import Fleet, Reply, Want
from preflight.catalog import Loaded
from preflight.errors import ConfigError, TransportError
from preflight.fanout import fan_out
from preflight.inventory import Cluster, NodeSpec
from preflight.judge import judge
from preflight.node.kernel import identity
from preflight.pending import DEADLINE
from preflight.run import Exercising, NodeDone, Outcome, Plan, Visit, plan_errand, run
from preflight.transport import Connection, Transport
from preflight.transport.loopback import LocalTransport
from tests.checks_made import made, write
from tests.messages.aloud import Aloud

JUDGE = """
def judge(facts, want):
    return ok(str(facts))
"""
ECHO = (
    """
def probe(node):
    return "here"
"""
    + JUDGE
    + "CHECK = Check(probe=probe, judge=judge, timeout_s=60)"
)
STOPS_ONE = (
    """
import os, signal


def probe(node, folder):
    try:
        os.mkdir(folder + "/first")
    except OSError:
        return "spared"
    os.kill(os.getppid(), signal.SIGSTOP)
    return node.run(["sleep", "1000"], timeout_s=1000)
"""
    + JUDGE
    + "CHECK = Check(probe=probe, args=lambda _: (FOLDER,), judge=judge, timeout_s=600)"
)
HANGS = (
    """
def probe(node):
    return node.run(["sleep", "1000"], timeout_s=1000)
"""
    + JUDGE
    + "CHECK = Check(probe=probe, judge=judge, timeout_s=600)"
)
STAYS = (
    """
def wait(node):
    return node.run(["sleep", "1000"], timeout_s=1000)


def exercise(fleet, want):
    found = fleet.map(wait, dict.fromkeys(fleet.nodes, ()), 600)
    return {node: [reply.value, reply.problem] for node, reply in found.items()}
"""
    + JUDGE
    + "CHECK = Check(exercise=exercise, judge=judge)"
)
EXERCISE = (
    """
def exercise(fleet, want):
    return {body}
"""
    + JUDGE
    + "CHECK = Check(exercise=exercise, judge=judge)"
)
REACH = catalog.load()["access.ssh"]


def planned(
    checks: Sequence[Loaded], names: Sequence[str] = ("a", "b"), deadline_s: float = 120
) -> Plan:
    """Return what is to be done on nodes that are all this machine."""
    nodes = tuple(NodeSpec(name=name, transport="local") for name in names)
    cluster = Cluster(name="made", source=None, nodes=nodes)
    return Plan(cluster, [REACH, *checks], "quick", {}, deadline_s)


def outcome(
    checks: Sequence[Loaded],
    names: Sequence[str] = ("a", "b"),
    deadline_s: float = 120,
    transport: Transport | None = None,
) -> tuple[Outcome, list[NodeDone]]:
    """Run checks on nodes that are all this machine."""
    plan = planned(checks, names, deadline_s)
    events = list(run(plan, {"local": transport or LocalTransport()}))
    assert isinstance(events[-1], Outcome)
    return events[-1], [event for event in events if isinstance(event, NodeDone)]


def statuses(found: Outcome, checks: Sequence[Loaded]) -> dict[str, dict[str, tuple[str, str]]]:
    names = list(found.logins)
    plan = Plan(
        Cluster(name="made", source=None, nodes=tuple(NodeSpec(name=name) for name in names)),
        checks,
        "quick",
        {},
        1,
    )
    grid: dict[str, dict[str, tuple[str, str]]] = {}
    for cell in judge([REACH, *checks], found.facts, plan.want, {}):
        told = (cell.verdict.status, cell.verdict.summary)
        grid.setdefault(cell.node, {})[cell.check.id] = told
    return grid


def test_an_agent_that_is_stopped_is_one_row(tmp_path: Path) -> None:
    checks = [
        made(tmp_path, "site.echo", ECHO),
        made(tmp_path, "site.stop", STOPS_ONE.replace("FOLDER", repr(str(tmp_path)))),
    ]
    found, done = outcome(checks)
    (stopped,) = [event.node for event in done if not event.reached]
    (other,) = [event.node for event in done if event.reached]
    grid = statuses(found, checks)
    status, summary = grid[stopped].pop("access.ssh")
    assert status == "fail"
    assert summary.startswith("stopped answering: silent for ")
    assert grid[stopped] == dict.fromkeys(["site.echo", "site.stop"], ("skip", "not reached"))
    assert found.logins[stopped]["kind"] == "silent"
    assert found.logins[stopped]["hint"] == (
        "the machine hangs, or its network is gone: see its console, and ping it"
    )
    user = found.logins[other]["user"]
    assert grid[other] == {
        "access.ssh": ("pass", f"logged in as {user} to local"),
        "site.echo": ("pass", "here"),
        "site.stop": ("pass", "spared"),
    }


def test_a_probe_without_end_loses_its_own_answer_only(tmp_path: Path) -> None:
    late = Reply(None, {"kind": "timeout", "message": DEADLINE})
    checks = [
        made(tmp_path, "site.a", HANGS),  # asked first
        made(tmp_path, "site.b", ECHO),
        made(tmp_path, "site.stays", STAYS),
    ]
    found, done = outcome(checks, deadline_s=15)
    assert [event.reached for event in done] == [True] * len(done)
    for node in ("a", "b"):
        assert found.facts["preflight.checks.site.a:probe"][node] == {"problem": late.problem}
        assert found.facts["preflight.checks.site.b:probe"][node] == {"value": "here"}
        # not begun: nothing that an exercise finds after the deadline is evidence
        assert found.facts["site.stays"][node] == {"problem": late.problem}
        assert found.facts["access.ssh"][node]["value"]["reached"] is True


class Broken:
    """A way to log in that raises for one node what no transport should."""

    def __init__(self, node: str, error: Exception) -> None:
        self._node, self._error = node, error

    def connect(self, spec: NodeSpec) -> Connection:
        if spec.name == self._node:
            raise self._error
        return LocalTransport().connect(spec)


def error_of(found: Outcome, node: str) -> TransportError:
    """Return why a node was not reached."""
    login = found.logins[node]
    return TransportError(login["kind"], login["message"], login["hint"])


def test_an_error_that_nobody_expects_is_a_row(tmp_path: Path, aloud: Aloud) -> None:
    checks = [made(tmp_path, "site.echo", ECHO)]
    found, _ = outcome(checks, transport=Broken("b", KeyError("uid 54321")))
    grid = statuses(found, checks)
    assert grid["a"]["site.echo"] == ("pass", "here")
    assert grid["b"] == {
        "access.ssh": ("unknown", "internal error: KeyError: 'uid 54321'"),
        "site.echo": ("skip", "not reached"),
    }
    assert "Traceback" in found.logins["b"]["traceback"]
    aloud(error_of(found, "b"))


def test_this_machines_own_limit_is_no_nodes_fault(tmp_path: Path, aloud: Aloud) -> None:
    checks = [made(tmp_path, "site.echo", ECHO)]
    threads = Broken("b", RuntimeError("can't start new thread"))
    found, _ = outcome(checks, transport=threads)
    assert statuses(found, checks)["b"]["access.ssh"][0] == "unknown"
    aloud(error_of(found, "b"))


def test_a_login_that_the_deadline_cuts_short(aloud: Aloud) -> None:
    login = Visit(NodeSpec(name="a")).seen(60).login
    aloud(TransportError(login["kind"], login["message"], login["hint"]))


def test_two_checks_that_tell_one_probe_different_things(tmp_path: Path, aloud: Aloud) -> None:
    code = """
        from preflight.node.kernel import identity

        CHECK = Check(probe=identity, args=lambda want: ({},), judge=lambda facts, want: ok("fine"))
        """
    checks = [made(tmp_path, f"site.x{number}", code.format(number)) for number in range(2)]
    with pytest.raises(ConfigError) as caught:
        plan_errand(checks, Want({}, {}, ["a"]), 0)
    aloud(caught.value)


def test_fan_out_of_nothing() -> None:
    assert list(fan_out(len, [], 4, float("inf"))) == []


THREADLESS = """
import resource
import threading
import time
from preflight.fanout import fan_out
resource.setrlimit(resource.RLIMIT_AS, (1 << 20, resource.RLIM_INFINITY))
done = fan_out(lambda word: (word, threading.active_count()), ["a", "b"], 2, time.monotonic() + 60)
print([one.result for one in done])
"""


def test_fan_out_without_threads() -> None:
    done = subprocess.run(
        [sys.executable, "-c", THREADLESS], capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("[('a', 1), ('b', 1)]\n", "")


LIMITS = (
    """
def probe(node):
    return node.limits()["nofile"][0]
"""
    + JUDGE
    + "CHECK = Check(probe=probe, judge=judge, timeout_s=60)"
)


def under_limits(folder: Path, limits: str, count: int) -> Mapping[str, Any]:
    """Run a check on as many local nodes, with ulimit set before; return the report."""
    write(folder, "site.limits", LIMITS)
    inventory = folder / "inventory.yaml"
    nodes = "".join(f"- {{name: n{number}, transport: local}}\n" for number in range(count))
    inventory.write_text(f"nodes:\n{nodes}")
    words = [sys.executable, "-m", "preflight", "run", str(inventory), "--checks", str(folder)]
    words += ["--only", "site", "--skip", "access.identity", "--json", "-"]
    done = subprocess.run(
        ["/bin/sh", "-c", f'{limits}; exec "$@"', "sh", *words],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stderr == ""
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def test_files_are_raised_to_what_may_be_had_and_a_local_agent_sees_none_of_it(
    tmp_path: Path,
) -> None:
    report = under_limits(tmp_path, "ulimit -Sn 40", 16)
    told = {r["summary"] for r in report["results"] if r["check"] == "site.limits"}
    assert (told, report["verdict"]) == ({"40"}, "ready")


def test_too_few_files_of_our_own_are_said_to_be_ours(tmp_path: Path) -> None:
    report = under_limits(tmp_path, "ulimit -n 40", 16)
    rows = [r for r in report["results"] if r["check"] == "access.ssh" and r["status"] != "pass"]
    assert {(r["status"], r["summary"]) for r in rows} == {
        (
            "unknown",
            "the machine that preflight runs on is at a limit of its own: "
            "too many open files (its limit is 40)",
        )
    }
    assert (report["verdict"], report["causes"]) == ("undetermined", [])


NAMELESS = """
import os
import preflight.transport.ssh
from preflight.transport.loopback import LocalConnection
os.environ.clear()
os.setgid(54321)
os.setuid(54321)
preflight.transport.ssh.SshTransport(print)
print(LocalConnection().facts["user"])
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become somebody without a name")
def test_a_user_whom_the_machine_knows_no_name_of() -> None:
    done = subprocess.run(
        [sys.executable, "-c", NAMELESS], capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("54321\n", "")


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("exit(0)", "SystemExit: 0"),
        ("[5]", "TypeError: cannot convert dictionary update sequence element #0 to a sequence"),
        ("{5: 1}", "KeyError: 'it has facts of 5, which is no node'"),
        ("{n: {1, 2} for n in fleet.nodes}", "TypeError: Object of type set is not JSON"),
        ("{n: float('nan') for n in fleet.nodes}", "ValueError: Out of range float values"),
        ("{n: '\\udcff' for n in fleet.nodes}", "UnicodeEncodeError: 'utf-8' codec"),
    ],
)
def test_an_exercise_that_crashes_is_a_row(tmp_path: Path, body: str, why: str) -> None:
    checks = [made(tmp_path, "made.echo", ECHO)]
    checks.append(made(tmp_path, "made.one", EXERCISE.replace("{body}", body)))
    found, _ = outcome(checks)
    for grid in statuses(found, checks).values():
        assert grid["made.echo"] == ("pass", "here")
        assert grid["made.one"][0] == "unknown"
        assert grid["made.one"][1].startswith(f"bug in check made.one: {why}")


GARBLES = """
from typing import TypedDict


class Door(TypedDict):
    port: PortNumber


def told(node, door) -> list[Door]:
    return [{"port": door}]


def stays(node, opened: Opened[Door], door, last) -> Door:
    opened.ready({"port": door})
    return {"port": last}


def exercise(fleet, want):
    first, *others = fleet.nodes
    doors = {first: 70000, **dict.fromkeys(others, 22)}
    found = {n: [r] for n, r in fleet.map(told, {n: (p,) for n, p in doors.items()}).items()}
    with fleet.start_all(stays, {n: (p, 22) for n, p in doors.items()}) as running:
        for node, one in running.items():
            found[node].append(one if isinstance(one, Reply) else one.stop())
    for node, door in doors.items():
        with fleet.start(node, stays, 22, door) as one:
            found[node].append(one.stop())
    return {n: [r.value or r.problem for r in replies] for n, replies in found.items()}
"""


def test_answers_to_an_exercise_that_make_no_sense(tmp_path: Path) -> None:
    code = GARBLES + JUDGE + "CHECK = Check(exercise=exercise, judge=judge)"
    found, _ = outcome([made(tmp_path, "made.one", code)])
    message = "its answer cannot be understood: port is 70000, not a port"
    wrong = {"kind": "garbled", "message": message}
    listed = {"kind": "garbled", "message": message.replace("port is", "[0].port is")}
    assert found.facts["made.one"] == {
        "a": {"value": [listed, wrong, wrong]},
        "b": {"value": [[{"port": 22}], {"port": 22}, {"port": 22}]},
    }


def test_an_exercise_is_judged_by_what_the_report_keeps(tmp_path: Path) -> None:
    one = made(tmp_path, "made.one", EXERCISE.replace("{body}", "{'b': {5: ('x',)}}"))
    found, _ = outcome([one])
    assert found.facts["made.one"] == {"b": {"value": {"5": ["x"]}}}


def test_arguments_that_crash_are_a_row(tmp_path: Path) -> None:
    code = ECHO.replace("timeout_s=60", "args=lambda want: exit()")
    checks = [made(tmp_path, "made.echo", ECHO), made(tmp_path, "made.one", code)]
    found, _ = outcome(checks, ["a"])
    assert statuses(found, checks)["a"]["made.echo"] == ("pass", "here")
    wrong = ("unknown", "bug in check made.one: SystemExit: None")
    assert statuses(found, checks)["a"]["made.one"] == wrong


# ---- exercises side by side ----------------------------------------------------------------


def laned(folder: Path, check_id: str, lane: str, body: Callable[[Fleet], object]) -> Loaded:
    """Return an exercise that does something, and finds the same on all nodes."""
    one = made(folder, check_id, EXERCISE.format(body="{}"))

    def exercise(fleet: Fleet, want: Want) -> dict[str, object]:
        return dict.fromkeys(want.nodes, body(fleet))

    return replace(one, check=replace(one.check, exercise=exercise, lane=lane))


class Track:
    """Who ran beside whom, and in which order they began."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.beside: set[frozenset[str]] = set()
        self._lock = threading.Lock()
        self._running: set[str] = set()

    def run(self, name: str) -> Callable[[Fleet], object]:
        """Return what an exercise does that takes some round trips."""

        def body(fleet: Fleet) -> object:
            with self._lock:
                self.beside |= {frozenset((name, other)) for other in self._running}
                self._running.add(name)
                self.order.append(name)
            fleet.clocks()
            with self._lock:
                self._running.remove(name)
            return name

        return body


def test_exercises_of_different_lanes_run_side_by_side(tmp_path: Path) -> None:
    met, left_over = threading.Barrier(2, timeout=60), threading.Event()

    def ends_last(_: Fleet) -> object:
        met.wait()
        return left_over.wait(60)

    checks = [
        laned(tmp_path, "made.a", "left", lambda _: met.wait() >= 0),
        laned(tmp_path, "made.b", "right", ends_last),
    ]
    told = []
    for event in run(planned(checks), {"local": LocalTransport()}):
        if isinstance(event, Exercising):
            told.append(event.checks)
            if event.checks == ("made.b",):
                left_over.set()
    assert told == [("made.a", "made.b"), ("made.b",), ("access.ssh",)]
    assert isinstance(event, Outcome)
    for check in checks:
        assert [event.facts[check.id][node] for node in ("a", "b")] == [{"value": True}] * 2


def test_an_exercise_of_two_checks_goes_once(tmp_path: Path) -> None:
    track = Track()
    first = laned(tmp_path, "made.a", "", track.run("both"))
    check = replace(first.check, facts_of="made.a")
    second = replace(made(tmp_path, "made.b", EXERCISE.format(body="{}")), check=check)
    for checks in ([first, second], [second]):
        track.order.clear()
        found, _ = outcome(checks)
        assert track.order == ["both"]
        assert found.facts["made.a"] == {n: {"value": "both"} for n in "ab"}
        assert "made.b" not in found.facts


def test_exercises_of_one_lane_never_overlap(tmp_path: Path) -> None:
    track = Track()
    names = [f"made.n{number}" for number in range(4)]
    found, _ = outcome([laned(tmp_path, name, "port", track.run(name)) for name in names])
    assert (sorted(track.order), track.beside) == (names, set())
    assert [found.facts[name]["a"]["value"] for name in names] == names


def test_an_exercise_without_a_lane_is_alone_and_comes_later(tmp_path: Path) -> None:
    track = Track()
    lanes = {"made.a": "", "made.b": "left", "made.c": "", "made.d": "right"}
    outcome([laned(tmp_path, name, lane, track.run(name)) for name, lane in lanes.items()])
    assert {*track.order[:2]} == {"made.b", "made.d"}
    assert track.order[2:] == ["made.a", "made.c"]
    assert track.beside <= {frozenset(("made.b", "made.d"))}


def test_an_exercise_that_crashes_leaves_the_others(tmp_path: Path) -> None:
    met = threading.Barrier(2, timeout=60)

    def crash(_: Fleet) -> object:
        met.wait()
        raise SystemExit("enough")

    checks = [
        laned(tmp_path, "made.crash", "left", crash),
        laned(tmp_path, "made.behind", "left", lambda _: "done"),
        laned(tmp_path, "made.beside", "right", lambda _: met.wait() >= 0),
    ]
    found, _ = outcome(checks)
    for grid in statuses(found, checks).values():
        assert grid.pop("access.ssh")[0] == "pass"
        assert grid == {
            "made.crash": ("unknown", "bug in check made.crash: SystemExit: enough"),
            "made.behind": ("pass", "done"),
            "made.beside": ("pass", "True"),
        }


def test_the_deadline_cuts_exercises_short_and_waits_for_none(tmp_path: Path) -> None:
    released, late = threading.Event(), Reply(None, {"kind": "timeout", "message": DEADLINE})
    stays = made(tmp_path, "made.stays", STAYS)
    checks = [
        laned(tmp_path, "made.never", "left", lambda _: released.wait()),
        laned(tmp_path, "made.well", "middle", lambda _: "done"),
        replace(stays, check=replace(stays.check, lane="right")),
    ]
    try:
        found, _ = outcome(checks, deadline_s=12)
    finally:
        released.set()
    for node in ("a", "b"):
        assert found.facts["made.never"][node] == {"problem": late.problem}
        assert found.facts["made.well"][node] == {"value": "done"}
        assert found.facts["access.ssh"][node]["value"]["reached"] is True
        assert found.facts["made.stays"][node] == {"value": [None, late.problem]}


def test_whoever_ends_the_run_waits_for_no_exercise(tmp_path: Path) -> None:
    closed = threading.Event()
    replies: queue.SimpleQueue[Reply] = queue.SimpleQueue()

    def body(fleet: Fleet) -> None:
        closed.wait(60)
        replies.put(fleet.call("a", identity))

    checks = [
        laned(tmp_path, "made.first", "left", lambda _: "done"),
        laned(tmp_path, "made.stays", "right", body),
    ]
    events = run(planned(checks), {"local": LocalTransport()})
    while next(events) != Exercising(("made.stays",)):
        pass
    events.close()
    closed.set()
    problem = replies.get(timeout=60).problem
    assert problem is not None
    assert problem["kind"] == "lost"
