"""A simulated node: the agent that is sent to it sees the recording, and no machine."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

from preflight.api import Reply
from preflight.demo import stand_in
from preflight.node.mesh import dial
from preflight.node.toolbox import Toolbox
from preflight.payload import Payload
from preflight.session import Running, Session
from tests.agent_made import MODULE, Machine, ask, program_folder

CODE = """
import os, signal

def facts(node):
    return [node.read("/etc/hostname"), node.psutil("cpu_count"), node.uname()["node"]]

def other(node):
    return node.read("/etc/passwd")

def dies(node):
    os.kill(os.getpid(), signal.SIGKILL)

def leaves(node):
    os._exit(3)
"""
NODE = {
    "read": {"/etc/hostname": "gpu01\n"},
    "psutil": {"cpu_count": 224},
    "uname": {"": {"node": "gpu01"}},
}
DIAL = {"result": "ok", "source": "10.30.0.11", "interface": "eth1", "ms": 0.3}
EXERCISES = {
    "preflight.node.ports": {"listen": {"error": "", "holder": None}},
    "preflight.node.mesh": {"dial": DIAL},
}
MAC = """
import os, runpy, sys
for name in ("waitid", "P_ALL", "P_PID", "WEXITED", "WNOWAIT", "CLD_EXITED", "CLD_KILLED"):
    delattr(os, name)
del os.memfd_create
sys.platform = "darwin"
sys.argv[0] = {script!r}
runpy.run_path({script!r}, run_name="__main__")
"""
"""Takes away what a Mac's Python lacks."""


@contextlib.contextmanager
def node(folder: Path, exercises: Any = EXERCISES, before: str = "") -> Iterator[Session]:
    """Start an agent on a simulated node."""
    recording = folder / "node.json"
    recording.write_text(json.dumps({"node": NODE, "exercises": exercises}))
    script = before or stand_in.__file__
    python = folder / "python3"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -E -s -S -B {script} "$@"\n')
    python.chmod(0o755)
    path = program_folder(folder / "bin", {"python3": str(python)}, ["sh"])
    machine = Machine(env={"PATH": path, stand_in.RECORDING: str(recording)})
    payload = Payload({MODULE: dedent(CODE)}, ["preflight.node.ports", "preflight.node.mesh"])
    session = Session(machine, payload, 20)
    try:
        yield session
    finally:
        session.close()
        machine.wait_empty()


def test_the_recording_answers(tmp_path: Path) -> None:
    with node(tmp_path) as session:
        assert ask(session, "facts").value == ["gpu01\n", 224, "gpu01"]
        problem = ask(session, "other").problem or {}
    assert problem == {
        "kind": "unobservable",
        "message": "the recording has no answer to read '/etc/passwd'; record it again",
    }


def exercised(session: Session) -> tuple[Any, Reply]:
    """Open the launch port of a node, and dial it."""
    secrets = ["a" * 32, "b" * 32]
    opened = session.start("preflight.node.ports", "listen", [29500, *secrets], 10)
    dialled = session.call("preflight.node.mesh", "dial", ["127.0.0.1", 29500, *secrets], 10)
    return opened, dialled


def test_what_nodes_say_to_each_other_is_replayed(tmp_path: Path) -> None:
    with node(tmp_path) as session:
        opened, dialled = exercised(session)
        assert dialled.value == DIAL
        assert isinstance(opened, Running)
        # where a socket of ours were, this would find it
        assert dial(Toolbox(), "127.0.0.1", 29500, "a", "b")["result"] == "refused"
        assert opened.stop().value == {"error": "", "holder": None}


def test_what_was_not_recorded_reaches_no_network(tmp_path: Path) -> None:
    with node(tmp_path, exercises={}) as session:
        opened, dialled = exercised(session)
    assert isinstance(opened, Reply)
    said = {"kind": "unobservable"} | {
        "message": "this node is simulated, and its recording has nothing of traffic between nodes"
    }
    assert opened.problem == dialled.problem == said


def test_with_what_a_mac_has(tmp_path: Path) -> None:
    script = tmp_path / "mac.py"
    script.write_text(MAC.format(script=stand_in.__file__))
    with node(tmp_path, before=str(script)) as session:
        assert (session.hello["system"], session.psutil) == ("darwin", "not needed")
        for _ in range(2):
            assert ask(session, "facts").value == ["gpu01\n", 224, "gpu01"]
            assert (ask(session, "dies").problem or {})["message"] == (
                f"the probe's process died of {signal.Signals(signal.SIGKILL).name}"
            )
            assert (ask(session, "leaves").problem or {})["message"] == (
                "the probe's process ended without an answer"
            )
