from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from preflight.transport.agent import Agent

Answer = Callable[[bytes], Agent]


@pytest.fixture
def answer(tmp_path: Path) -> Iterator[Answer]:
    """A function that starts an agent whose only answer is these bytes."""
    path = str(tmp_path / "agent")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        threads: list[threading.Thread] = []

        def start(reply: bytes) -> Agent:
            def serve() -> None:
                taken, _ = listener.accept()
                with taken:
                    taken.recv(4096)
                    taken.sendall(reply)

            threads.append(threading.Thread(target=serve))
            threads[-1].start()
            return Agent(path)

        yield start
        for thread in threads:
            thread.join(20)


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (b"", "the agent answers b''"),
        (b"\0\0\0\1\x05", "the agent answers b'\\x05'"),
        (b"\xff\xff\xff\xff\x0c", "the agent answers b''"),
        (b"\0\0\0\3\x0c\0\0", "the agent's answer is cut short"),
        (b"\0\0\0\x09\x0c\0\0\0\1\0\0\0\5", "the agent's answer is cut short"),
    ],
)
def test_answers_that_are_of_no_use(answer: Answer, reply: bytes, message: str) -> None:
    with pytest.raises(OSError, match="the agent") as caught:
        answer(reply).keys()
    assert str(caught.value) == message


def test_an_agent_without_keys(answer: Answer) -> None:
    assert answer(b"\0\0\0\5\x0c\0\0\0\0").keys() == []


def test_an_agent_that_will_not_sign(answer: Answer) -> None:
    with pytest.raises(OSError, match="the agent answers") as caught:
        answer(b"\0\0\0\1\x05").sign(b"key", b"data", "ssh-ed25519")
    assert str(caught.value) == "the agent answers b'\\x05'"
