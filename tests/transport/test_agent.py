from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from preflight.transport.agent import Agent
from tests.messages.aloud import Aloud

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
    "reply",
    [
        b"",
        b"\0\0\0\1\x05",
        b"\xff\xff\xff\xff\x0c",
        b"\0\0\0\3\x0c\0\0",
        b"\0\0\0\x09\x0c\0\0\0\1\0\0\0\5",
    ],
)
def test_answers_that_are_of_no_use(answer: Answer, reply: bytes, aloud: Aloud) -> None:
    with pytest.raises(OSError, match="it") as caught:
        answer(reply).keys()
    aloud(caught.value, about=repr(reply))


def test_an_agent_without_keys(answer: Answer) -> None:
    assert answer(b"\0\0\0\5\x0c\0\0\0\0").keys() == []


def test_an_agent_that_will_not_sign(answer: Answer, aloud: Aloud) -> None:
    with pytest.raises(OSError, match="it refused") as caught:
        answer(b"\0\0\0\1\x05").sign(b"key", b"data", "ssh-ed25519")
    aloud(caught.value)
