"""How large packets pass to an echo, with real sockets on 127.0.0.1."""

from __future__ import annotations

import errno
import socket
import struct

import pytest

from preflight.node.icmp import ERROR, ICMP, ICMP6
from preflight.node.path import GREETINGS_S, LARGEST, Passage, Queued, error
from preflight.node.path import passages as all_passages
from preflight.node.toolbox import Toolbox
from tests.node.echoes import BACK, SAID, answering, echoing, reply


def passages(targets: dict[str, tuple[str, int, int]]) -> dict[str, Passage]:
    """Return what comes of it, without our own ports, which are never twice the same."""
    found = all_passages(Toolbox(), targets, SAID, BACK)
    for one in found.values():
        assert one.pop("own_port") > 0
    return found


def passage(port: int, full: int, address: str = "127.0.0.1") -> Passage:
    return passages({"a": (address, port, full)})["a"]


def well(full: int, passes: int | None = None) -> Passage:
    return Passage(result="ok", full=full, passes=passes or full, icmp="", by="")


@pytest.mark.parametrize("full", [0, 92, 93, 1500, 9000, LARGEST])
def test_all_that_passes(full: int) -> None:
    with echoing() as port:
        assert passage(port, full) == well(full, max(full, 92))


def test_ipv6() -> None:
    with echoing("::1") as port:
        assert passage(port, 9000, "::1") == well(9000)


def test_many_at_once() -> None:
    with echoing() as port:
        targets = {str(n): ("127.0.0.1", port, 1500) for n in range(100)}
        found = passages(targets)
    assert found == dict.fromkeys(targets, well(1500))


@pytest.mark.parametrize("passing", [1500, 1472, 93])
def test_a_black_hole(passing: int) -> None:
    def small(data: bytes, come: int) -> bytes | None:
        return reply(data, come) if len(data) + 28 <= passing else None

    with answering(small) as port:
        found = passage(port, 9000)
    assert found == Passage(result="black hole", full=9000, passes=passing, icmp="", by="")


def test_every_third_is_lost() -> None:
    with answering(lambda data, n: reply(data, n) if n % 3 else None) as port:
        assert passage(port, 1500) == well(1500)


def test_one_that_falls_silent() -> None:
    with answering(lambda data, n: reply(data, n) if not n else None) as port:
        found = passage(port, 1500)
    assert (found["result"], found["passes"]) == ("unfinished", 92)


def test_none_that_is_ours() -> None:
    with answering(lambda _, __: None) as silent, answering(lambda _, __: b"x") as rubbish:
        targets = {"a": ("127.0.0.1", silent, 1500), "b": ("127.0.0.1", rubbish, 1500)}
        found = passages(targets)
    told = [(found[name]["result"], found[name]["tries"]) for name in "ab"]
    assert told == [("filtered", 2), ("filtered", 2)]


def test_one_that_is_silent_at_first() -> None:
    first = len(GREETINGS_S)
    with answering(lambda data, n: reply(data, n) if n >= first else None) as port:
        assert passage(port, 1500) == {**well(1500), "tries": 2}


def test_nothing_there() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    found = passage(port, 1500)
    assert found == Passage(
        result="refused", full=1500, passes=0, icmp="port unreachable", by="127.0.0.1"
    )
    assert passages({}) == {}


def test_errors_of_the_queue() -> None:
    router = struct.pack("=H2x4s8x", socket.AF_INET, bytes([10, 0, 9, 1]))
    v4 = struct.pack(ERROR, errno.EMSGSIZE, ICMP, 3, 4, 0, 1400, 0) + router
    assert error(v4) == Queued(errno.EMSGSIZE, "fragmentation needed", "10.0.9.1", 1400)
    v6 = struct.pack(ERROR, errno.EMSGSIZE, ICMP6, 2, 0, 0, 1280, 0)
    assert error(v6) == Queued(errno.EMSGSIZE, "fragmentation needed", "", 1280)
    local = struct.pack(ERROR, errno.EMSGSIZE, 1, 0, 0, 0, 1300, 0)
    assert error(local) == Queued(errno.EMSGSIZE, "", "", 1300)
    odd = struct.pack(ERROR, errno.EPROTO, ICMP, 12, 1, 0, 0, 0)
    assert error(odd) == Queued(errno.EPROTO, "type 12 code 1", "", 0)
