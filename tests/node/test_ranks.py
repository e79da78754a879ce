"""What is said of a rank that failed."""

from __future__ import annotations

from typing import Any

import pytest

from preflight.node.ranks import SENSELESS, digest, in_words, together, what_came


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            "[enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate",
            "in the all_reduce: DefaultCPUAllocator: can't allocate",
        ),
        (
            "[../third_party/gloo/device.cc:80] ifa != nullptr. Unable to find address for: eth9",
            "in the all_reduce: Unable to find address for: eth9",
        ),
        (
            "[/pytorch/third_party/gloo/gloo/transport/tcp/socket.cc:186] rv != -1. -1 vs -1. "
            "connect: Network is unreachable",
            "in the all_reduce: connect: Network is unreachable",
        ),
        (
            "Gloo connectFullMesh failed with [/pytorch/gloo/transport/tcp/pair.cc:152] timed out "
            "connecting: SO_ERROR: Connection refused, remote=[127.0.0.1]:4711",
            "in the all_reduce: timed out connecting: SO_ERROR: Connection refused, "
            "remote=[127.0.0.1]:4711",
        ),
        ("a == b. no place before it", "in the all_reduce: a == b. no place before it"),
        (
            "Resource temporarily unavailable",
            "in the all_reduce: Resource temporarily unavailable: no more threads can be started "
            "(see ulimit -u and -v)",
        ),
    ],
)
def test_an_error_of_torch_in_words(error: str, words: str) -> None:
    told = [{"stage": "error", "at": "all_reduce", "error": error}]
    assert in_words(digest(told, {0: "n1", 1: "n2"})) == words


def test_ranks_of_a_node_in_their_order() -> None:
    size = {"stage": "size", "bytes": 4096, "count": 3, "busy": 0.5}
    told = [
        {**size, "rank": 3, "ms": 2.0, "wrong": 0},
        {**size, "rank": 2, "ms": 1.0, "wrong": 5},
        {"stage": "done", "rank": 3},
        {"stage": "done", "rank": 2},
    ]
    run = digest(told, {0: "n1", 1: "n1", 2: "n2", 3: "n2"})
    assert (run["at"], run["rank"], run["world"]) == ("", 2, 4)
    (found,) = run["sizes"]
    assert (found["ranks"], found["ms"], found["wrong"]) == ([1.0, 2.0], 2.0, 5)


def test_the_rank_that_failed_by_itself_is_told_of() -> None:
    told = [
        {"stage": "error", "rank": 0, "at": "all_reduce", "error": "Connection reset by peer"},
        {"stage": "ended", "rank": 1, "signal": 11},
    ]
    run = digest(told, {0: "n1", 1: "n1"})
    assert (run["rank"], in_words(run)) == (1, "its rank was ended by SIGSEGV")


def test_what_comes_to_all_ranks_of_a_node_adds_up() -> None:
    seats = {0: "n1", 1: "n1", 2: "n2", 3: "n2"}
    told = [
        {"stage": "peer", "rank": 0, "other": 2, "gbps": 90.5, "receiving": 0.1, "sending": 0.4},
        {"stage": "peer", "rank": 1, "other": 3, "gbps": 80.25, "receiving": 0.3, "sending": 0.2},
        {"stage": "done", "rank": 1},
    ]
    assert together(told, seats) == {"n2": {"gbps": 170.75, "receiving": 0.3, "sending": 0.4}}


SEATS = {0: "n1", 1: "n2"}
DONE = {"stage": "done", "rank": 0}
SIZE = {"stage": "size", "rank": 0, "bytes": 4, "count": 1, "ms": 1.0, "busy": 0.1, "wrong": 0}
PEER = {"stage": "peer", "rank": 0, "other": 1, "gbps": 1.0, "receiving": 0.1, "sending": 0.1}


@pytest.mark.parametrize(
    "told",
    [
        [{}],
        [DONE],
        [{"stage": "size", "rank": 0}, DONE],
        [{**SIZE, "wrong": "x"}, DONE],
        [{"stage": "missing", "ranks": [7]}],
        [{"stage": "missing", "ranks": None}],
        [{**PEER, "other": 7}, DONE],
        [{**PEER, "gbps": "x"}, DONE],
        [{"stage": "error", "rank": 0, "at": "x", "error": "y"}],
        [{"stage": "error", "rank": 0, "at": "store", "error": None}],
        [{"stage": "ended", "rank": 0, "signal": 4711}],
        [{"stage": "ended", "rank": "x", "signal": 9}, DONE],
        [{"stage": "ended", "rank": [], "signal": 9}],
    ],
)
def test_what_makes_no_sense_is_told_as_that(told: list[dict[str, Any]]) -> None:
    found = what_came(told, SEATS)
    assert found.why == f"meeting at the master: {SENSELESS}"
    assert (found.run["at"], found.peers) == ("store", {})


def test_what_makes_sense() -> None:
    found = what_came([SIZE, PEER, DONE], SEATS)
    assert (found.run["at"], found.why) == ("", "")
    assert found.peers == {"n2": {"gbps": 1.0, "receiving": 0.1, "sending": 0.1}}
