"""What is said of a rank that failed."""

from __future__ import annotations

import pytest

from preflight.node.ranks import digest, in_words


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
