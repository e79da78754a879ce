"""What is recorded is what was asked, and no more; it answers as the machine did."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from preflight.api import Absent, Unobservable
from preflight.node.recorder import Answers, Recorder, record
from preflight.node.replay import Replay
from preflight.node.toolbox import Toolbox
from preflight.node.variables import HIDDEN
from tests.agent_made import Machine, agent, ask, python

CODE = """
from preflight.api import Absent, Unobservable
from preflight.node import recorder

def probe(node, path):
    try:
        node.run(["no-such-program"])
    except Absent as statement:
        absent = str(statement)
    return [node.environ()["SEEN"], node.read(path), node.run(["echo", "x"]).out, absent]

def blind(node):
    node.read("/etc/hostname")
    raise Unobservable("could not look")

def broken(node):
    node.read("/etc/hostname")
    return 1 / 0

def greedy(node):
    return dict(node.environ())

def recorded(node, function, args, known):
    return recorder.record(node, __name__, function, args, known)
"""


@pytest.fixture
def recorder() -> Recorder:
    return Recorder(Toolbox(), {})


def test_on_a_node_with_the_oldest_python() -> None:
    machine = Machine(env={"SEEN": "1", "UNSEEN": "2"})
    with agent(CODE, machine, python("3.8")) as session:
        taken = ask(session, "recorded", "probe", ["/proc/sys/kernel/ostype"], {}).value
        blind = ask(session, "recorded", "blind", [], {}).value
        broken = ask(session, "recorded", "broken", [], {})
    value = ["1", "Linux\n", "x\n", "no program 'no-such-program'"]
    assert taken["value"] == value
    assert taken["fresh"] == {
        "run": {
            "no-such-program": {"absent": "no program 'no-such-program'"},
            "echo x": {"code": 0, "out": "x\n", "err": ""},
        },
        "read": {"/proc/sys/kernel/ostype": "Linux\n"},
        "environ": {"": {"SEEN": "1"}},
    }
    assert (blind["problem"], list(blind["fresh"]["read"])) == ("could not look", ["/etc/hostname"])
    assert (broken.problem or {})["kind"] == "bug"


def test_what_is_known_is_not_asked_again() -> None:
    known: Answers = {"read": {"/proc/sys/kernel/ostype": "Plan 9\n"}}
    found = Recorder(Toolbox(), known)
    assert found.read("/proc/sys/kernel/ostype") == "Plan 9\n"
    assert found.fresh == {}


def test_each_kind_of_answer_replays(recorder: Recorder, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("target")
    calls: list[tuple[str, list[Any]]] = [
        ("run", [["uname", "-s"]]),
        ("read", ["/no/such"]),
        ("listdir", [str(tmp_path)]),
        ("readlink", [str(link)]),
        ("realpath", [str(link)]),
        ("stat", ["/etc/passwd"]),
        ("stat", ["/no/such"]),
        ("access", ["/etc/passwd", "rw"]),
        ("statvfs", ["/proc"]),
        ("which", ["sh"]),
        ("account", []),
        ("account", ["no-such"]),
        ("resolve", ["127.0.0.1"]),
        ("limits", []),
        ("uname", []),
        ("now", []),
    ]
    said = [getattr(recorder, method)(*args) for method, args in calls]
    replay = Replay(json.loads(json.dumps(recorder.fresh)))
    assert [getattr(replay, method)(*args) for method, args in calls] == said


def test_visits(recorder: Recorder, tmp_path: Path) -> None:
    first = recorder.visit([str(tmp_path), "/no/such"])
    assert (first[str(tmp_path)].error, first["/no/such"].error) == ("", "ENOENT")
    again = recorder.visit(["/no/such", "/"])
    assert again["/no/such"] == first["/no/such"]
    assert list(recorder.fresh["visit"]) == [str(tmp_path), "/no/such", "/"]
    assert Replay(recorder.fresh).visit([str(tmp_path), "/"]) == {
        str(tmp_path): first[str(tmp_path)],
        "/": again["/"],
    }


def test_what_could_not_be_seen_is_recorded(recorder: Recorder) -> None:
    with pytest.raises(Unobservable) as first:
        recorder.read("/proc/self/mem")
    with pytest.raises(Unobservable) as again:
        Replay(recorder.fresh).read("/proc/self/mem")
    assert str(first.value) == str(again.value) == "/proc/self/mem: Input/output error"
    with pytest.raises(Absent, match=r"^no program 'no-such'$"):
        recorder.run(["no-such"])
    assert recorder.fresh["run"] == {"no-such": {"absent": "no program 'no-such'"}}


def test_secrets_of_the_environment_stay_on_the_node() -> None:
    proxy = "http://bob:pw@proxy:3128"
    machine = Machine(env={"NCCL_DEBUG": "INFO", "HF_TOKEN": "abc", "http_proxy": proxy})
    with agent(CODE, machine) as session:
        taken = ask(session, "recorded", "greedy", [], {}).value
    environ = taken["fresh"]["environ"][""]
    assert environ == taken["value"]
    assert (environ["NCCL_DEBUG"], environ["HF_TOKEN"]) == ("INFO", HIDDEN)
    assert environ["http_proxy"] == "http://(hidden)@proxy:3128"


def test_what_is_not_in_the_environment(recorder: Recorder) -> None:
    environ = recorder.environ()
    assert set(environ) == set(os.environ)
    assert len(environ) == len(os.environ)
    assert environ.get("NO_SUCH_TOKEN", "unset") == "unset"
    assert "NO_SUCH" not in environ
    assert recorder.fresh == {"environ": {"": {}}}


def test_the_environment_of_two_probes() -> None:
    known: Answers = {}
    for name in ("PATH", "HOME"):
        fresh = record(Toolbox(), "tests.node.test_recorder", "looks_at", [name], known)["fresh"]
        assert fresh == {"environ": {"": {name: os.environ[name]}}}
    assert set(known["environ"][""]) == {"PATH", "HOME"}


def looks_at(node: Any, name: str) -> str:
    return str(node.environ()[name])
