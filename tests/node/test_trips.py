"""Round trips and losses, with real sockets on 127.0.0.1."""

from __future__ import annotations

import struct

from preflight.node.path import GREETINGS_S
from preflight.node.toolbox import Toolbox
from preflight.node.trips import CONNECTS, FEWEST, TRIPS, Trips, connects, round_trips, series
from preflight.node.udp import ASK
from tests.node.echoes import BACK, SAID, answering, echoing, reply
from tests.node.test_mesh import ANSWER, holding
from tests.node.test_mesh import ASK as SECRET

HERE = "127.0.0.1"


def talk_of(data: bytes) -> tuple[int, int]:
    """Return the talk and number of a datagram."""
    _, talk, number = struct.unpack_from(ASK, data)
    return talk, number


def trips(*ports: int) -> dict[str, Trips]:
    targets = {str(n): (HERE, port) for n, port in enumerate(ports)}
    return round_trips(Toolbox(), targets, SAID, BACK)


def test_nothing_is_lost() -> None:
    with echoing() as one, echoing() as other:
        found = trips(one, other)
    assert list(found) == ["0", "1"]
    for each in found.values():
        assert (each["by"], each["arrived"], each["heard"]) == ("udp", each["sent"], each["sent"])
        assert FEWEST < each["sent"] <= TRIPS + 1
        least, middle, most = each["times_us"]
        assert 0 < least <= middle <= most


def test_what_is_lost_there_and_on_the_way_back_is_told_apart() -> None:
    come: dict[int, int] = {}

    def lossy(data: bytes, _: int) -> bytes | None:
        talk, number = talk_of(data)
        if talk and number in (3, 5):  # never came
            return None
        come[talk] = come.get(talk, 0) + 1
        return None if talk and number == 6 else reply(data, come[talk] - 1)

    with answering(lossy) as port:
        found = trips(port)["0"]
        counted = series(Toolbox(), {"a": (HERE, port, 0)}, SAID, BACK, 50, 2)["a"]
    for one in (found, counted):
        assert (one["sent"] - one["arrived"], one["arrived"] - one["heard"]) == (2, 1)
    assert found["sent"] > FEWEST
    assert counted["sent"] == 50


def test_what_a_busy_node_had_no_room_for_is_not_lost() -> None:
    come: list[int] = []

    def busy(data: bytes, _: int) -> bytes | None:
        number = talk_of(data)[1]
        if 10 <= number < 30 or number == 40:  # twenty for which it had no room, and one lost
            return None
        come.append(number)
        return reply(data, len(come) - 1, dropped=20 if number >= 30 else 0)

    with answering(busy) as port:
        found = series(Toolbox(), {"a": (HERE, port, 0)}, SAID, BACK, 50, 2)["a"]
    assert (found["sent"], found["arrived"], found["heard"]) == (30, 29, 29)
    assert found["missing"] == 21


def test_only_greetings_are_answered() -> None:
    with answering(lambda data, n: None if talk_of(data)[0] else reply(data, n)) as port:
        found = trips(port)["0"]
    assert (found["times_us"], found["arrived"], found["heard"]) == ([], 0, 0)
    assert found["sent"] > 1


def test_silence_is_left_out() -> None:
    greeted = []
    with answering(lambda data, _: greeted.append(data)) as silent, echoing() as port:
        assert list(trips(silent, port)) == ["1"]
    assert len(greeted) == 2 * len(GREETINGS_S)


def test_a_series_to_none() -> None:
    assert series(Toolbox(), {}, SAID, BACK, 1, 2) == {}


def test_all_goes_by_the_port_that_greeted() -> None:
    with echoing() as port:
        found = trips(port)["0"]
        counted = series(Toolbox(), {"a": (HERE, port, found["own_port"])}, SAID, BACK, 5, 2)["a"]
    assert counted["own_port"] == found["own_port"] > 0
    assert (counted["sent"], counted["arrived"], counted["heard"]) == (5, 5, 5)


def test_connections_are_timed_to_our_own_listeners() -> None:
    with holding(0) as ((port,), said):
        targets = {"a": (HERE, port), "b": (HERE, 1)}
        found = connects(Toolbox(), targets, SECRET, ANSWER)
        wrong = connects(Toolbox(), {"a": (HERE, port)}, SECRET, "c" * 32)
    assert said[0]["strangers"] == []
    least, middle, most = found["a"]["times_us"]
    assert 0 < least <= middle <= most
    assert (found["a"]["by"], CONNECTS) == ("tcp", 5)
    assert found["b"]["times_us"] == wrong["a"]["times_us"] == []
