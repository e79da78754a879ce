"""Which ranks there are, and whom they meet."""

from __future__ import annotations

import pytest

from preflight.node.trials import devices, meetings, met_by


@pytest.mark.parametrize(
    ("gpus", "most", "found"),
    [
        (0, None, ["cpu"]),
        (0, 8, ["cpu"]),
        (2, None, ["cuda:0", "cuda:1"]),
        (2, 8, ["cuda:0", "cuda:1"]),
        (8, 2, ["cuda:0", "cuda:1"]),
    ],
)
def test_devices_of_a_node(gpus: int, most: int | None, found: list[str]) -> None:
    assert devices(gpus, most) == found


def test_a_rank_meets_that_in_its_place_on_other_nodes() -> None:
    seats = {0: "n1", 1: "n1", 2: "n2", 3: "n2", 4: "n3"}
    assert meetings(["n1", "n2"]) == {"n1": ["n2"], "n2": ["n1"]}
    assert met_by("n1", ["n2"], seats) == [[2], [3]]
    assert met_by("n2", ["n1", None], seats) == [[0, None], [1, None]]
    assert met_by("n1", ["n3", "n2"], seats) == [[4, 2], [None, 3]]
