"""Look-ups by this machine's resolver, within a bound in time."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import psutil  # noqa: F401 - as the agent loads it before it forks

from preflight.node.replay import Replay
from preflight.node.resolver import (
    AT_ONCE,
    MOST,
    SILENT,
    UNKNOWN,
    in_time,
    introduce,
    lines_of,
    look_up,
    looked,
)
from preflight.node.toolbox import Toolbox
from tests.agent_made import Machine, agent, ask, python

CODE = """
from preflight.node import resolver

def look_up(node):
    return resolver.look_up(node, ["localhost", "1234"], ["127.0.0.1"])
"""


def hangs() -> list[str]:
    threading.Event().wait()
    return []


def test_names_and_addresses() -> None:
    found = look_up(Toolbox(), ["localhost", "1234"], ["127.0.0.1"])
    assert found["names"]["localhost"]["found"][-1] in ("127.0.0.1", "::1")
    assert found["names"]["1234"]["found"] == ["0.0.4.210"]
    assert found["addresses"]["127.0.0.1"]["found"] == ["localhost"]
    assert set(found["lines"]) == {"localhost"}


def test_on_a_node_with_the_oldest_python() -> None:
    with agent(CODE, Machine(), python("3.8")) as session:
        found = ask(session, "look_up").value
    assert found["addresses"]["127.0.0.1"]["found"] == ["localhost"]


def test_what_a_node_calls_itself() -> None:
    found = introduce(Toolbox(), {"env": {"GLOO_SOCKET_IFNAME": "eth9", "MASTER_ADDR": "node1"}})
    assert found["host"] == os.uname().nodename
    assert "127.0.0.1" in found["addresses"]
    assert (found["gloo"], found["master"]) == ("eth9", "node1")


def test_one_that_hangs_keeps_no_other_from_its_answer() -> None:
    before = set(threading.enumerate())
    questions = {
        **{f"hangs {number}": hangs for number in range(2 * AT_ONCE)},
        "answers": lambda: ["10.0.0.1"],
        "nothing": lambda: [],
    }
    found = in_time(questions, 1.5)
    assert (found["answers"]["found"], found["answers"]["problem"]) == (["10.0.0.1"], "")
    assert found["nothing"]["problem"] == UNKNOWN
    assert {found[name]["problem"] for name in found if name.startswith("hangs")} == {SILENT}
    assert set(threading.enumerate()) == before


def test_a_wait_for_a_cpu_does_not_count() -> None:
    spins = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(3)]
    took: list[tuple[float, float]] = []

    def works() -> list[str]:
        until = time.thread_time() + 0.1
        while time.thread_time() < until:
            pass
        return ["10.0.0.1"]

    def beside() -> None:
        for pid in (0, *(one.pid for one in spins)):  # 0: this thread alone
            os.sched_setaffinity(pid, {0})
        begun = time.monotonic()
        look = looked(works)
        took.append((look["seconds"], time.monotonic() - begun))

    thread = threading.Thread(target=beside)
    thread.start()
    thread.join()
    for one in spins:
        one.kill()
        one.wait()
    ((told, elapsed),) = took
    assert 0.1 <= told < elapsed / 2


def test_what_is_not_tried_in_time_is_left_out() -> None:
    found = in_time({str(number): hangs for number in range(MOST + 1)}, 0.1)
    assert len(found) == AT_ONCE


def test_the_first_line_of_a_name() -> None:
    text = "127.0.0.1\tlocalhost\n10.0.0.1 a  a.lan # b\n#10.0.0.2 b\n10.0.0.3 a b\n\n"
    node = Replay({"read": {"/etc/hosts": text}})
    assert lines_of(node, ["a", "b", "c"]) == {"a": "10.0.0.1 a a.lan", "b": "10.0.0.3 a b"}
