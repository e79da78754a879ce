"""A recorded node answers as the machine did, and refuses what was not recorded."""

from __future__ import annotations

import inspect
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from preflight.api import Absent, Node, Unobservable
from preflight.node.replay import Replay, key
from preflight.node.toolbox import Toolbox
from tests.agent_made import agent, ask

CALLS: list[tuple[str, list[Any]]] = [
    ("run", [["uname", "-s"]]),
    ("run", [["sh", "-c", "echo x >&2; exit 2"]]),
    ("read", ["/proc/sys/kernel/ostype"]),
    ("read", ["/no/such"]),
    ("listdir", ["/proc/self/attr"]),
    ("listdir", ["/no/such"]),
    ("readlink", ["/proc/self/cwd"]),
    ("readlink", ["/no/such"]),
    ("realpath", ["/proc/self/cwd/.."]),
    ("stat", ["/etc/passwd"]),
    ("stat", ["/no/such"]),
    ("access", ["/etc/passwd", "r"]),
    ("access", ["/no/such", "rwx"]),
    ("statvfs", ["/proc"]),
    ("statvfs", ["/no/such"]),
    ("which", ["sh"]),
    ("which", ["no-such"]),
    ("account", []),
    ("account", ["daemon"]),
    ("account", ["no-such"]),
    ("resolve", ["127.0.0.1"]),
    ("limits", []),
    ("uname", []),
]


def recorded(method: str, value: Any) -> Any:
    """Return an answer as a recording writes it."""
    return value._asdict() if method in {"run", "account"} and value is not None else value


def recording_of(calls: list[tuple[str, list[Any]]]) -> Any:
    found: dict[str, dict[str, Any]] = {}
    for method, args in calls:
        value = getattr(Toolbox(), method)(*args)
        found.setdefault(method, {})[key(*args)] = recorded(method, value)
    return json.loads(json.dumps(found))


def test_as_the_machine() -> None:
    replay, machine = Replay(recording_of(CALLS)), Toolbox()
    for method, args in CALLS:
        answered = getattr(replay, method)(*args)
        assert answered == getattr(machine, method)(*args), (method, args)
        assert type(answered) is type(getattr(machine, method)(*args))


def test_psutil_as_the_machine() -> None:
    code = (
        "def f(node): return node.psutil('cpu_count')\ndef g(node, pid): return node.process(pid)"
    )
    with agent(code, python=sys.executable) as session:
        count, process = ask(session, "f").value, ask(session, "g", os.getpid()).value
    replay = Replay({"psutil": {"cpu_count": count}, "process": {str(os.getpid()): process}})
    assert replay.psutil("cpu_count") == os.cpu_count()
    assert (replay.process(os.getpid()) or {})["pid"] == os.getpid()


def test_all_of_the_door() -> None:
    door = {name for name, _ in inspect.getmembers(Node, inspect.isfunction) if name[0] != "_"}
    for kind in (Replay, Toolbox):
        for name in door:
            mine = inspect.signature(getattr(kind, name))
            assert list(mine.parameters) == list(
                inspect.signature(getattr(Node, name)).parameters
            ), (kind, name)


def test_the_rest() -> None:
    visit = {"error": "", "real": "/data", "readable": True, "size": 10, "free": 5}
    replay = Replay(
        {
            "environ": {"": {"HOME": "/root"}},
            "now": {"": 7},
            "nvml": {"nvmlDeviceGetName 0": "H100"},
            "visit": {"/data": visit, "/dead": {"error": "no answer"}},
            "run": {"quiet": {}},
        }
    )
    assert replay.environ() == {"HOME": "/root"}
    assert replay.now() == 7.0
    assert replay.nvml("nvmlDeviceGetName", 0) == "H100"
    visits = replay.visit(["/data", "/dead"])
    assert (visits["/data"].free, visits["/data"].writable) == (5, False)
    assert visits["/dead"].error == "no answer"
    assert replay.run(["quiet"]) == (0, "", "")


def test_what_could_not_be_seen() -> None:
    replay = Replay(
        {
            "read": {"/etc/shadow": {"unobservable": "/etc/shadow: Permission denied"}},
            "run": {"ethtool eth0": {"absent": "no program 'ethtool'"}},
        }
    )
    with pytest.raises(Unobservable, match=r"^/etc/shadow: Permission denied$"):
        replay.read("/etc/shadow")
    with pytest.raises(Absent, match=r"^no program 'ethtool'$"):
        replay.run(["ethtool", "eth0"])


@pytest.mark.parametrize(
    ("method", "args", "said"),
    [
        ("read", ["/etc/hosts"], "read '/etc/hosts'"),
        ("run", [["ip", "link"]], "run 'ip link'"),
        ("run", [["python3", "-c", "import sys; sys.exit()"]], "run 'python3'"),
        ("account", [], "account"),
        ("nvml", ["nvmlDeviceGetName", 1], "nvml 'nvmlDeviceGetName 1'"),
        ("visit", [["/data"]], "visit '/data'"),
        ("environ", [], "environ"),
    ],
)
def test_what_was_not_recorded(method: str, args: list[Any], said: str) -> None:
    with pytest.raises(LookupError) as caught:
        getattr(Replay({"read": {"/etc/passwd": ""}}), method)(*args)
    assert str(caught.value) == f"the recording has no answer to {said}; record it again"


def test_recordings_are_files(tmp_path: Path) -> None:
    file = tmp_path / "recording.json"
    file.write_text(json.dumps({"limits": {"": {"nofile": [1024, -1]}}}))
    assert Replay(json.loads(file.read_text())).limits() == {"nofile": (1024, -1)}
