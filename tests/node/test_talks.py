"""What looks late or lossy is measured again: agents of this machine, and echoes of the test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Event

from preflight.api import Fleet, Want
from preflight.node.talks import AGAIN, PAUSES_S, Mesh, Talks, lagging, shaky
from preflight.node.trips import TRIPS, Trips
from tests.checks_made import made
from tests.node.echoes import BACK, SAID, answering, echoing, reply
from tests.test_run import EXERCISE, outcome

HERE = "127.0.0.1"
SLOW_S = 0.006
CODE = "from preflight.node.talks import all_pairs\n" + EXERCISE.format(
    body="all_pairs(fleet, want)"
)
"""What the exercise here does is another thing; what this needs is sent to the nodes."""


def talked(folder: Path, ports: Sequence[int]) -> dict[str, Mesh]:
    """Return what comes of talks of nodes, all this machine, each with the echo on a port."""
    names = [chr(ord("a") + number) for number in range(len(ports))]
    kept: dict[str, Mesh] = {}

    def exercise(fleet: Fleet, want: Want) -> dict[str, object]:
        for node in want.nodes:
            kept[node] = Mesh(address=HERE, trips={}, losses={}, problem="", subnet="")
        doors = {node: (HERE, port) for node, port in zip(names, ports, strict=True)}
        talks = Talks(fleet, kept, doors, (SAID, BACK))
        talks.first("a")
        talks.again()
        return dict.fromkeys(want.nodes, "done")

    one = made(folder, "made.talks", CODE)
    outcome([replace(one, check=replace(one.check, exercise=exercise))], names)
    assert [fact["problem"] for fact in kept.values()] == [""] * len(names)
    return kept


def slow_at_first(count: int, all_: list[bytes]) -> Callable[[bytes, int], bytes]:
    """Return an echo that is late to answer so many datagrams, and keeps all that come."""

    def answer(data: bytes, come: int) -> bytes:
        all_.append(data)
        if come < count:
            Event().wait(SLOW_S)
        return reply(data, come)

    return answer


def test_what_was_late_for_a_moment(tmp_path: Path) -> None:
    come: list[bytes] = []
    # a greeting and the first talk
    with answering(slow_at_first(TRIPS + 2, come)) as late, echoing() as one, echoing() as other:
        facts = talked(tmp_path, (late, one, other))
    assert lagging(facts, "udp") == {}
    (trips,) = [fact["trips"]["a"] for fact in facts.values() if "a" in fact["trips"]]
    assert trips["times_us"][0] < 1e6 * SLOW_S
    assert len(come) >= 1 + trips["sent"] + AGAIN


def test_what_stays_late(tmp_path: Path) -> None:
    tries = TRIPS + 2 + AGAIN * len(PAUSES_S)
    come: list[bytes] = []
    with answering(slow_at_first(tries, come)) as late, echoing() as one, echoing() as other:
        facts = talked(tmp_path, (late, one, other))
    assert list(lagging(facts, "udp").values()) == [["a"]]
    (trips,) = [fact["trips"]["a"] for fact in facts.values() if "a" in fact["trips"]]
    assert len(come) == 1 + trips["sent"] + AGAIN * len(PAUSES_S)


def test_losses_are_not_counted_where_datagrams_are_filtered() -> None:
    lost = Trips(by="udp", times_us=[30, 40, 90], sent=21, arrived=20, heard=20, missing=1)
    filtered = Trips(by="tcp", times_us=[30, 40, 90], sent=0, arrived=0, heard=0, missing=0)
    trips = {"b": lost, "c": lost, "d": filtered}
    fact = Mesh(address=HERE, trips=trips, losses={}, problem="", subnet="")
    assert shaky({"a": fact}) == {"a": ["b", "c"]}
