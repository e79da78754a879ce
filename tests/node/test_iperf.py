"""iperf3 on 127.0.0.1: the real one, and programs of its name that are none."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from preflight.api import Absent, Unobservable
from preflight.node.child import Opened
from preflight.node.iperf import MISSING, measurement, send, serve, version
from preflight.node.toolbox import Toolbox
from tests.agent_made import wait_until

HERE = "127.0.0.1"
REAL = Toolbox().which("iperf3")
needs_it = pytest.mark.skipif(REAL is None, reason="no iperf3")


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program that goes before the real iperf3, to be written."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path / "iperf3"


def write(program: Path, *lines: str) -> None:
    program.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    program.chmod(0o755)


@contextmanager
def serving() -> Iterator[tuple[dict[str, Any], list[Any]]]:
    """Run `serve` in a thread; gives what it says first, and what once it has been stopped."""
    told, out = os.pipe()
    come, stop = os.pipe()
    said: list[Any] = []
    opened: Opened = Opened(1, out, come)
    thread = threading.Thread(target=lambda: said.append(serve(Toolbox(), opened, HERE)))
    thread.start()
    try:
        yield json.loads(os.read(told, 4096))["ready"], said
    finally:
        os.close(stop)
        thread.join(10)
        for fd in (told, out, come):
            os.close(fd)


def refused(deed: Any, *args: Any) -> str:
    with pytest.raises(Unobservable) as caught:
        deed(Toolbox(), *args)
    return str(caught.value)


class Silent:
    """An open call that is never stopped."""

    def __init__(self) -> None:
        self._come, self._stop = os.pipe()

    def __enter__(self) -> Opened:
        return Opened(1, self._stop, self._come)

    def __exit__(self, *_: object) -> None:
        os.close(self._come)
        os.close(self._stop)


@needs_it
def test_what_goes_through_is_measured() -> None:
    with serving() as (ready, said):
        sent = send(Toolbox(), HERE, ready["port"])
    found = sent["found"]
    assert found
    assert found["error"] == ""
    assert found["gbps"] > 0
    assert isinstance(found["retransmits"], int)
    assert 0 < sent["busy"] <= 1
    assert [one["came"] for one in said] == [True]
    assert 0 < said[0]["busy"] <= 1
    assert psutil.Process().children(recursive=True) == []


@needs_it
def test_it_listens_nowhere_else_and_ends_when_told() -> None:
    with serving() as (ready, said):
        (program,) = psutil.Process().children(recursive=True)
        listens = [one.laddr for one in program.net_connections("tcp")]
        assert listens == [(HERE, ready["port"])]
    assert said == [{"came": False, "busy": 0.0}]
    assert not program.is_running()


@needs_it
def test_nobody_listens() -> None:
    with socket.create_server((HERE, 0)) as server:
        port = server.getsockname()[1]
    found = send(Toolbox(), HERE, port)["found"]
    assert found
    assert found["error"].endswith("unable to connect to server: Connection refused")
    assert (found["gbps"], found["retransmits"]) == (0.0, None)


@needs_it
def test_which_one_it_is() -> None:
    assert version(Toolbox()).startswith("iperf3 3.")


def test_none() -> None:
    with pytest.raises(Absent, match=MISSING):
        version(Without())


class Without(Toolbox):
    """A node on which there are no programs."""

    def which(self, program: str) -> str | None:  # noqa: ARG002
        return None


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("echo iperf 3.16.1+ is here", "iperf3 3.16.1+"),
        ("echo 'iperf 2.1.9 (14 March 2023)'", "it says 'iperf 2.1.9 (14 March 2023)'"),
        ("echo cannot >&2; exit 1", "it says 'cannot'"),
        ("exit 0", "it says nothing"),
        ("yes | head -c 300000", f"it says {('y ' * 30)!r}"),
    ],
)
def test_what_it_says_of_itself(stand_in: Path, line: str, said: str) -> None:
    write(stand_in, line)
    if said.startswith("iperf3"):
        assert version(Toolbox()) == said
    else:
        assert refused(version) == f"iperf3 --version: {said}"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("exit 1", "it says nothing"),
        ("echo rubbish", "it says 'rubbish'"),
        ("echo iperf3: error - unable to start listener >&2; exit 1", "it says 'iperf3: error"),
        ("yes", f"it says {('y ' * 30)!r}"),
    ],
)
def test_what_is_no_server(stand_in: Path, line: str, said: str) -> None:
    write(stand_in, line)
    with Silent() as opened:
        assert refused(serve, opened, HERE).startswith(f"iperf3 -s does not listen: {said}")
    assert psutil.Process().children(recursive=True) == []


def test_all_that_a_hanging_one_has_started_is_ended(stand_in: Path, tmp_path: Path) -> None:
    write(stand_in, "sleep 1000 &", f"echo $! > {tmp_path}/pid", "wait")
    assert refused(version) == "iperf3: no answer in 3 s"
    pid = int((tmp_path / "pid").read_text())
    wait_until(lambda: not alive(pid))


def alive(pid: int) -> bool:
    """Whether a process runs; one that nobody has reaped yet does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def told(**end: Any) -> bytes:
    return json.dumps({"end": end}).encode()


GOOD = {"sum_received": {"bits_per_second": 2.5e9}, "sum_sent": {"retransmits": 7}}


def test_what_it_has_measured() -> None:
    assert measurement(told(**GOOD), b"") == {
        "gbps": 2.5,
        "busy": [],
        "error": "",
        "retransmits": 7,
    }
    untold = {**GOOD, "sum_sent": {}}
    assert measurement(told(**untold), b"")["retransmits"] is None
    assert measurement(b'{"end": {}, "error": "the server is busy"}', b"") == {
        "gbps": 0.0,
        "busy": [],
        "error": "the server is busy",
        "retransmits": None,
    }


@pytest.mark.parametrize(
    "out",
    [
        b"",
        b"rubbish",
        b"[]",
        b"7",
        b"null",
        b'{"end": 7}',
        b'{"end": {}}',
        told(**{**GOOD, "sum_received": {"bits_per_second": "fast"}}),
        told(**{**GOOD, "sum_received": {"bits_per_second": -1}}),
        told(**{**GOOD, "sum_received": {"bits_per_second": float("nan")}}),
        told(**{**GOOD, "sum_received": {"bits_per_second": float("inf")}}),
        told(**{**GOOD, "sum_sent": {"retransmits": "many"}}),
        told(**{**GOOD, "sum_sent": {"retransmits": [1]}}),
    ],
)
def test_what_is_no_measurement(out: bytes) -> None:
    with pytest.raises(Unobservable, match=r"^iperf3 -J gives no measurement: it says "):
        measurement(out, b"")
