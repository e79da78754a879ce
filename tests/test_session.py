"""A session with nodes that do not behave: scripts in the agent's place, through real pipes."""

from __future__ import annotations

import json
import math
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from preflight.api import Reply
from preflight.errors import ConfigError, TransportError
from preflight.no_agent import AgentError
from preflight.payload import Payload
from preflight.pending import reply
from preflight.session import Running, Session, life_s
from preflight.transport import Listener, LoginFacts, Stream
from preflight.transport.loopback import LocalConnection, LocalStream
from tests.messages.aloud import Aloud
from tests.pulled import Pulled

HELLO = {"hello": {"python": "3.11.2", "executable": "/usr/bin/python3", "system": "linux"}}


class Impostor:
    """A node where a Python script stands in for the agent.

    Args:
        script: has `say(frame)`, `hear()` for the next request, and `tag`; the first request,
            to load modules, is answered by `hear()` itself unless the script does `take()`.
    """

    facts: LoginFacts
    STAGE = """
import json, os, sys
tag, length = sys.argv[1], int(sys.argv[2])
left = length
while left:
    left -= len(os.read(0, left))
requests, taken = os.fdopen(0, "rb"), []
def out(text):
    sys.stdout.write(text)
    sys.stdout.flush()
def say(frame):
    out("\\n" + tag + json.dumps(frame) + "\\n")
def take():
    requests.read(int(requests.read(8)))
    taken.append(json.loads(requests.readline()))
    return taken[0]
def hear():
    if not taken:
        say({"id": take()["id"], "value": {"psutil": "not needed"}})
    return json.loads(requests.readline())
"""

    def __init__(self, script: str) -> None:
        self._script = self.STAGE + script
        self.stream: LocalStream | None = None

    def execute(self, command: str, listener: Listener) -> Stream:
        found = re.search(r"' '(\d+)' '(preflight-[0-9a-f]{16}:)' ", command)
        assert found
        words = [sys.executable, "-c", self._script, found[2], found[1]]
        self.stream = LocalStream("exec " + shlex.join(words), listener)
        return self.stream

    def close(self) -> None:
        """The stream's own close ends it."""


Start = Callable[[str], Session]


@pytest.fixture
def start() -> Iterator[Start]:
    sessions = []

    def started(script: str) -> Session:
        session = Session(Impostor(f"say({HELLO!r})\n{script}"), Payload({}), 20)
        sessions.append(session)
        return session

    yield started
    for session in sessions:
        session.close()


def is_ended(stream: Stream) -> bool:
    """Whether a command has been let go of."""
    with pytest.raises(TransportError, match="the agent on this machine has ended"):
        stream.send(b"x", 20)
    return True


def refused(script: str, timeout_s: float = 20, become: str | None = None) -> AgentError:
    node = Impostor(script)
    with pytest.raises(AgentError) as caught:
        Session(node, Payload({}), timeout_s, become=become)
    assert node.stream is not None
    assert is_ended(node.stream)
    return caught.value


def problem(found: Reply | Running) -> Mapping[str, Any]:
    assert isinstance(found, Reply)
    assert found.problem is not None
    return found.problem


def test_hello_and_answer(start: Start) -> None:
    session = start("f = hear(); say({'id': f['id'], 'value': f, 'seconds': 0.25})")
    answered = session.call("a.b", "c", [1, "ü"], 3)
    assert answered == Reply(
        {"id": 2, "module": "a.b", "function": "c", "args": [1, "ü"], "timeout_s": 3}, None, 0.25
    )
    assert session.psutil == "not needed"
    assert session.hello == HELLO["hello"]
    assert session.noise == ""


def test_answers_in_another_order(start: Start) -> None:
    session = start(
        "a, b = hear(), hear()\nfor f in (b, a): say({'id': f['id'], 'value': f['args']})"
    )
    calls = [session.ask("m", "f", [n]) for n in range(2)]
    assert [session.answer(call).value for call in calls] == [[0], [1]]


def test_what_is_not_ours_is_ignored(start: Start) -> None:
    session = start(
        """
f = hear()
out("banner without newline")
out('preflight-0000000000000000:{"id": 2, "value": "forged"}\\n')
out('{"id": 2, "value": "forged"}\\n')
out(tag + "{garbage\\n")
out(tag + "[1]\\n")
for number in (99, "2", 2.5, None, [2], {}, -1, 0):
    say({"id": number, "value": "not asked for"})
say({})
say({"hello": {"python": "again"}})
say({"id": 2, "value": "true"})
"""
    )
    assert session.call("m", "f").value == "true"


@pytest.mark.parametrize(
    "frame",
    [{}, {"problem": 7}, {"problem": {"kind": "bug"}}, {"problem": {"message": "x"}}, {"stop": 1}],
)
def test_an_answer_of_another_shape(frame: dict[str, Any]) -> None:
    assert reply(frame).problem == {"kind": "bug", "message": "the agent's answer has no value"}


def test_seconds_of_another_shape() -> None:
    odd: list[Any] = ["1", None, [], 10**400, True]
    for strange in odd:
        assert reply({"value": 1, "seconds": strange}) == Reply(1, None, 0.0)
    said = {"kind": "bug", "message": 5}
    assert reply({"problem": said}) == Reply(None, {"kind": "bug", "message": "5"}, 0.0)


def test_flood(start: Start, aloud: Aloud) -> None:
    session = start("hear()\nfor _ in range(6): out('x' * (1 << 20))\nhear()")
    why = problem(session.call("m", "f"))
    assert why["kind"] == "lost"
    assert problem(session.call("m", "f")) == why
    assert session.lost is not None
    aloud(session.lost)


def test_lost_with_calls_under_way(start: Start, aloud: Aloud) -> None:
    session = start("hear(); hear(); sys.exit('Killed by\\x1b[31m the OOM')")
    first, second = session.ask("m", "f"), session.ask("m", "f")
    lost = {"kind": "lost", "message": "the agent has ended: Killed by\\x1b[31m the OOM"}
    for call in (first, second):
        assert problem(session.answer(call)) == lost
    assert problem(session.call("m", "f")) == lost
    assert problem(session.start("m", "f", [], 10)) == lost
    assert session.clock() == {}
    assert session.lost is not None
    aloud(session.lost)


def test_lost_while_an_open_call_stays(start: Start) -> None:
    session = start("say({'id': hear()['id'], 'ready': {'port': 7}}); hear()")
    running = session.start("m", "f", [], 10)
    assert isinstance(running, Running)
    assert running.ready == {"port": 7}
    assert problem(running.stop()) == {"kind": "lost", "message": "the agent has ended"}


def test_ready_of_another_shape(start: Start) -> None:
    session = start("say({'id': hear()['id'], 'ready': 7})")
    assert problem(session.start("m", "f", [], 10)) == {
        "kind": "bug",
        "message": "the agent's answer has no value",
    }


def test_an_agent_that_falls_silent(start: Start) -> None:
    session = start("hear(); hear()")
    assert problem(session.call("m", "f", [], -4.9)) == {
        "kind": "timeout",
        "message": "no answer in -4.9 s",
    }


def test_silent_at_start(aloud: Aloud) -> None:
    aloud(refused("hear()", 0.2))


def test_no_python_is_told_at_once() -> None:
    assert refused("say({}); hear()", 600).kind == "no python"


def test_flood_at_start(aloud: Aloud) -> None:
    node = Impostor("out('bye\\n' + 'x' * (5 << 20)); hear()")
    with pytest.raises(TransportError) as caught:
        Session(node, Payload({}), 20)
    aloud(caught.value)


def test_long_words_at_start() -> None:
    said = refused("out('begins ' + 'x' * 5000); sys.exit('y' * 1000 + ' ends')").message
    assert "the node said: ...yyy" in said
    assert "yyy ends; begins xxx" in said
    assert said.endswith("xxx...")
    assert len(said) < 600


STARTS = {
    "nologin": "out('This account is currently not available.\\n'); sys.exit(1)",
    "false": "sys.exit(1)",
    "rbash": "sys.exit('rbash: line 1: exec: restricted')",
    "other": "out('hi\\n'); sys.exit('bye')",
}


@pytest.mark.parametrize("name", STARTS)
def test_ended_at_start(name: str, aloud: Aloud) -> None:
    aloud(refused(STARTS[name]), about=name)


SUDO = {
    "refused": "sys.exit('sudo: a password is required')",
    "refused, noisy login": "out('Welcome\\n'); sys.exit('sudo: a password is required')",
    "missing": "sys.exit('/bin/sh: 1: sudo: not found')",
    "silent": "sys.exit(1)",
    "hanging": "sys.stderr.write('sudo: unable to resolve host gpu01\\n'); hear()",
}


@pytest.mark.parametrize("name", SUDO)
def test_sudo(name: str, aloud: Aloud) -> None:
    aloud(refused(SUDO[name], 2 if name == "hanging" else 20, become="sudo"), about=name)


class Deaf:
    """A node where what is started reads nothing, as an interpreter on a dead file system."""

    facts: LoginFacts

    stream: Stream

    def execute(self, command: str, listener: Listener) -> Stream:
        assert command
        self.stream = LocalStream("exec sleep 1000", listener)
        return self.stream

    def close(self) -> None:
        """The stream's own close ends it."""


def test_an_interpreter_that_takes_no_input() -> None:
    node = Deaf()
    with pytest.raises(AgentError) as caught:
        Session(node, Payload({}), 0.3)
    assert caught.value.message == (
        "the login worked, but the agent did not start: no answer 0.3 s after the command was sent"
    )
    assert is_ended(node.stream)


def test_a_local_command_that_takes_no_input(aloud: Aloud) -> None:
    stream = Pulled(LocalConnection(), "exec sleep 1000")
    with pytest.raises(TransportError) as caught:
        stream.send(bytes(1 << 20), 0.2)
    stream.close()
    with pytest.raises(TransportError) as ended:
        stream.send(b"x", 1)
    aloud(caught.value, ended.value)


def test_closing_while_somebody_sends() -> None:
    stream = Pulled(LocalConnection(), "echo up; exec sleep 1000")
    assert stream.recv(3) == b"up\n"
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(stream.send, bytes(1 << 20), 60)
        stream.close()
        with pytest.raises(TransportError, match="the agent on this machine has ended"):
            sending.result()


def test_last_words_while_it_is_closed() -> None:
    streams = [Pulled(LocalConnection(), "echo words >&2") for _ in range(20)]
    for stream in streams:
        assert stream.recv(1) == b""
    with ThreadPoolExecutor(2) as pool:
        for stream in streams:
            asked = [pool.submit(stream.stderr_tail) for _ in range(20)]
            stream.close()
            assert {one.result() for one in asked} == {"words\n"}


def test_one_deadline_for_all_that_is_asked() -> None:
    node = Impostor(f"say({HELLO!r})\nwhile hear(): pass")
    session = Session(node, Payload({}), 20, deadline=time.monotonic() + 10)
    calls = [session.ask("m", "f", timeout_s=1000) for _ in range(2)]
    cut = {"kind": "timeout", "message": "the run's deadline came first"}
    # of two waits of 1000 s none is left
    said = [problem(session.answer(call)) for call in calls]
    silent = r"the run's deadline came first, and the node was silent for 1\d s"
    assert all(re.fullmatch(silent, one["message"]) for one in said)
    assert problem(session.call("m", "f")) == cut
    assert problem(session.start("m", "f", [], 10)) == cut
    session.close()


def test_a_node_that_falls_silent_is_lost_for_all_its_calls(start: Start, aloud: Aloud) -> None:
    session = start("while hear(): pass")
    # The second is late before it is known that the node is gone.
    first, second = session.ask("m", "f", timeout_s=500), session.ask("m", "g", timeout_s=10)
    why = problem(session.answer(second))
    assert why["kind"] == "lost"
    assert why["message"].startswith("stopped answering: silent for 2")
    assert problem(session.answer(first)) == why
    assert problem(session.call("m", "f")) == why
    assert session.lost is not None
    aloud(session.lost)


def test_a_node_that_is_busy_but_there_is_not_lost(start: Start) -> None:
    session = start(
        """
first = hear()
ping = hear()
say({"id": ping["id"], "value": 1.5})
say({"id": first["id"], "value": [ping["module"], ping["function"]]})
hear()
"""
    )
    assert session.call("m", "f", timeout_s=500).value == ["preflight.node.agent", "ping"]
    assert session.lost is None


def test_a_node_that_reads_slowly_is_not_lost(start: Start) -> None:
    session = start(
        """
first = hear()
import time
time.sleep(21)
hear()
say({"id": first["id"], "value": "here"})
hear()
"""
    )
    first = session.ask("m", "f", timeout_s=500)
    with ThreadPoolExecutor(1) as pool:
        large = pool.submit(session.ask, "m", "g", ["x" * (1 << 20)], 500)
        assert session.answer(first).value == "here"
        assert session.lost is None
        large.result()


def test_how_long_an_agent_lives_without_a_controller() -> None:
    assert life_s(math.inf) == 3600
    assert life_s(0) == 60
    assert life_s(time.monotonic() + 86400) in {86460, 86461}


def test_hostile_refusal(aloud: Aloud) -> None:
    aloud(refused("say({'old': '2.6\\x1b[2J', 'executable': ['/bin/\\u202epython']})"))


def test_modules_not_taken(aloud: Aloud) -> None:
    said = "say({'id': take()['id'], 'problem': {'kind': 'x', 'message': 'full'}})"
    node = Impostor(f"say({HELLO!r}); {said}")
    session = Session(node, Payload({}), 20)
    with pytest.raises(AgentError) as caught:
        session.psutil  # noqa: B018 - a property that waits
    session.close()
    aloud(caught.value)


class Refusing:
    """A login whose commands cannot be started."""

    facts: LoginFacts

    def execute(self, command: str, listener: Listener) -> Stream:
        del listener
        raise TransportError("refused", f"no exec of {len(command) > 0}")

    def close(self) -> None:
        """Nothing to do."""


def test_exec_refused() -> None:
    with pytest.raises(TransportError, match="no exec of True"):
        Session(Refusing(), Payload({}), 20)


def test_a_path_no_shell_can_be_given(aloud: Aloud) -> None:
    connection = LocalConnection()
    with pytest.raises(ConfigError) as caught:
        Session(connection, Payload({}), 20, python="/opt/it's/python3")
    aloud(caught.value)
    connection.close()


def test_local_connection_ends_what_it_started() -> None:
    connection = LocalConnection()
    session = Session(connection, Payload({}), 20, sys.executable)
    pid = session.hello["pid"]
    connection.close()
    connection.close()
    assert not Path(f"/proc/{pid}").exists()
    assert problem(session.call("m", "f")) == {"kind": "lost", "message": "the agent has ended"}
    session.close()


def test_a_command_that_ignores_its_end() -> None:
    stream = Pulled(LocalConnection(), "trap '' TERM HUP; echo up; while :; do sleep 1000; done")
    assert stream.recv(10) == b"up\n"
    stream.close()
    assert stream.recv(10) == b""
    with pytest.raises(TransportError, match="the agent on this machine has ended"):
        stream.send(b"x", 20)


def test_stderr_tail() -> None:
    stream = Pulled(LocalConnection(), "printf '%5000s' end >&2; printf 'caf\\351' >&2")
    assert stream.recv(10) == b""
    said = stream.stderr_tail()
    assert said.endswith("endcaf\ufffd")
    assert len(said) == 2048
    stream.close()
    assert stream.stderr_tail() == said


def test_json_of_the_hello_is_small() -> None:
    assert len(json.dumps(HELLO)) < 4096
