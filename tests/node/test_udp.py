"""The echo and a talk with it, with real sockets on this machine."""

from __future__ import annotations

import os
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from preflight.api import Unobservable
from preflight.node.child import Opened
from preflight.node.toolbox import Toolbox
from preflight.node.udp import ASK, REPLY, SMALL, Echoed, Talk, arrival, echo, serve, stamped
from tests.node.echoes import BACK, SAID, answering, echoing, reply


@contextmanager
def talking(port: int, address: str = "127.0.0.1", said: str = SAID) -> Iterator[Talk]:
    with closing(Talk(address, port, (said, BACK), 7)) as talk:
        yield talk


def heard(talk: Talk, seconds: float = 5) -> list[Echoed]:
    """Return the first replies that come."""
    select.select([talk], [], [], seconds)
    return list(talk.hear())


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_each_datagram_is_counted_and_measured(address: str) -> None:
    with echoing(address) as port, talking(port, address) as talk:
        for number, size in enumerate((SMALL, 1400, 9000, 60000)):
            assert talk.say(size) == number
            (one,) = heard(talk)
            assert (one.number, one.size, one.come) == (number, size, number + 1)
            assert 0 < one.seconds < 5
        assert talk.sent == 4


def test_talks_are_counted_apart() -> None:
    with echoing() as port, talking(port) as one, talking(port) as other:
        one.say()
        heard(one)
        other.say()
        assert [reply.come for reply in heard(other)] == [1]


def test_a_talk_by_the_port_of_another_hears_none_of_its_late_replies() -> None:
    late: list[bytes] = []

    def answer(data: bytes, come: int) -> bytes:
        late.append(reply(data, come))
        return late[0]

    with answering(answer) as port:
        with talking(port) as one:
            one.say()
            assert len(heard(one)) == 1
            own = one.own_port
            with closing(Talk("127.0.0.1", port, (SAID, BACK), 8, own)) as other:
                assert other.own_port != own  # it is not free
        with closing(Talk("127.0.0.1", port, (SAID, BACK), 8, own)) as again:
            assert again.own_port == own
            again.say()
            assert heard(again) == []  # the reply of the first talk came once more
    assert len(late) == 2


def test_what_a_busy_echo_had_no_room_for_is_told() -> None:
    out, come = os.pipe()
    with stamped(socket.AF_INET) as one, os.fdopen(come), os.fdopen(out, "w") as stop:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 0)  # the least that there is
        one.bind(("127.0.0.1", 0))
        with talking(one.getsockname()[1]) as talk:
            for _ in range(100):
                talk.say()
            opened = Opened(1, stop.fileno(), come)
            said = (bytes.fromhex(word) for word in (SAID, BACK))
            thread = threading.Thread(target=serve, args=(one, opened, *said))
            thread.start()
            before = heard(talk)
            while talk.sent - 1 not in {reply.number for reply in before}:
                talk.say()
                before += heard(talk)
            stop.close()
            thread.join(10)
    last = before[-1]
    assert before[0].dropped == 0
    assert 0 < last.come < 100
    assert last.dropped + last.come == talk.sent


def test_who_does_not_say_the_secret_gets_no_answer() -> None:
    with echoing() as port:
        with talking(port, said="ee" * 16) as talk:
            talk.say()
            assert heard(talk, 0.1) == []
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
            one.connect(("127.0.0.1", port))
            for short in (b"", b"x", bytes.fromhex(SAID), bytes.fromhex(SAID) + bytes(47)):
                one.send(short)
            assert select.select([one], [], [], 0.1)[0] == []
        with talking(port) as talk:  # and it still answers
            talk.say()
            assert len(heard(talk)) == 1


def test_a_reply_is_no_longer_than_what_is_asked() -> None:
    assert struct.calcsize(ASK) <= struct.calcsize(REPLY) <= SMALL


def test_rubbish_is_no_reply() -> None:
    rubbish = [b"", b"x" * 40, b"x" * 5000]
    with answering(lambda _, n: rubbish[n]) as port, talking(port) as talk:
        for _ in rubbish:
            talk.say()
            assert heard(talk) == []
    with answering(lambda data, _: reply(data, 0, "00" * 16)) as port, talking(port) as talk:
        talk.say()
        assert heard(talk) == []

    def unasked(_: bytes, __: int) -> bytes:
        return struct.pack(REPLY, bytes.fromhex(BACK), 7, 99, 64, 1, 0, 0)

    with answering(unasked) as port, talking(port) as talk:
        talk.say()
        assert heard(talk) == []


def test_an_address_that_is_not_here() -> None:
    out, come = os.pipe()
    try:
        with pytest.raises(Unobservable, match=r"^no UDP port on 192.0.2.1: Cannot assign reques"):
            echo(Toolbox(), Opened(1, come, out), "192.0.2.1", SAID, BACK)
    finally:
        os.close(out)
        os.close(come)


def test_a_time_of_arrival() -> None:
    now = time.time_ns()
    kernel = struct.pack("@ll", *divmod(now, 1_000_000_000))
    assert arrival([(socket.SOL_SOCKET, 35, kernel)]) == now
    assert arrival([(socket.SOL_SOCKET, 40, b"")]) > now
    # of a clock that is 90 s behind, or ahead
    for off in (-90, 90):
        kernel = struct.pack("@ll", now // 1_000_000_000 + off, 34)
        assert now <= arrival([(socket.SOL_SOCKET, 35, kernel)]) <= time.time_ns()
