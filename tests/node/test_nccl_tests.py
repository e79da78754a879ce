"""What all_reduce_perf prints, by the formats of its sources, whole and cut off anywhere."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from preflight.node.nccl_tests import NO_ROW, UNCHECKED, Told, parsed, refined

OLD, COUNTED, NEW = (
    (Path(__file__).with_name("nccl_tests") / f"{version}.txt").read_text()
    for version in ("2.9.0", "2.14.0", "2.19.6")
)
"""Synthetic, by the printf of the sources of these versions."""
STAMPED = re.sub(r"(i_cv%) \n|(\.[29]0)\n", r"\1\2  2026-11-30 17:00:00\n", NEW).replace(
    "i_cv%  2026-11-30 17:00:00", "i_cv%           timestamp"
)
INFO = "node2:14159:14170 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0\n"


def document(**more: Any) -> dict[str, Any]:
    """Return the JSON that belongs to NEW."""
    body = {"time": 29.041, "alg_bw": 1.12833, "bus_bw": 1.12833, "nwrong": 0.0}
    times = {"per_process_max_times_us": [[29.0, 31.0, 30.0], [12.0, 10.0, 11.0]]}
    one = {"size": 32768, "count": 8192, "out_of_place": body, "out_of_place_per_iter": times}
    two = {**one, "size": 1073741824}
    return {"version": 3, "env": ["SITE_TOKEN=sesame"], "results": [one, two], **more}


def words(told: Told) -> list[tuple[str, str]]:
    return [(one["host"], one["words"]) for one in told["failures"]]


def test_before_2_13() -> None:
    told = parsed(OLD)
    assert (told["version"], told["at"], told["outputs"], told["failures"]) == ("", "", 1, [])
    assert [(one["rank"], one["host"], one["gpu"]) for one in told["places"]] == [
        (0, "node1", 0),
        (1, "node1", 1),
    ]
    assert told["sizes"][1] == {
        "bytes": 33554432,
        "count": 20,
        "ms": 1.3184,
        "algbw": 25.45,
        "busbw": 25.45,
        "wrong": 0,
        "ranks": [],
    }


@pytest.mark.parametrize("error", ["1e-03", "  nan", " -nan", "  inf"])
def test_an_error_that_is_too_large(error: str) -> None:
    told = parsed(OLD.replace("5e-07\n", f"{error}\n"))
    assert [size["wrong"] for size in told["sizes"]] == [0, 1]


def test_since_2_13() -> None:
    told = parsed(COUNTED)
    assert (told["nccl"], told["at"], told["failures"]) == ("2.18.5", "", [])
    assert [place["host"] for place in told["places"]] == ["node2", "node3"]
    assert [(size["bytes"], size["busbw"]) for size in told["sizes"]] == [(8388608, 47.58)]


@pytest.mark.parametrize("text", [NEW, STAMPED])
def test_since_2_19(text: str) -> None:
    told = parsed(text)
    assert (told["version"], told["nccl"], told["at"]) == ("2.19.6", "2.27.6", "")
    assert [(one["ms"], one["count"]) for one in told["sizes"]] == [(0.02904, 10), (1200.0, 10)]


def test_its_json_has_the_times_of_each_process() -> None:
    told = refined(parsed(NEW), json.dumps(document()))
    assert [size["ranks"] for size in told["sizes"]] == [[0.03, 0.011]] * 2
    assert told["sizes"][0]["busbw"] == 1.12833
    assert "sesame" not in str(told)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[" * 100_000,
        json.dumps(document())[:-1],
        json.dumps(document(results=[])),
        json.dumps(document(results=None)),
        json.dumps(document()).replace("29.041", "inf"),
        json.dumps(document()).replace("29.041", '"nan"'),
        json.dumps([]),
    ],
)
def test_a_json_that_is_none(text: str) -> None:
    assert refined(parsed(NEW), text) == parsed(NEW)


@pytest.mark.parametrize("text", [OLD, COUNTED, NEW, STAMPED])
def test_cut_off_anywhere(text: str) -> None:
    whole = parsed(text)
    for length in range(len(text)):
        told = parsed(text[:length])
        assert told["sizes"] == whole["sizes"][: len(told["sizes"])]
        assert told["places"] == whole["places"][: len(told["places"])]
        assert told["failures"] == []
        assert bool(told["at"]) == (
            "\n# Avg bus bandwidth" not in text[:length].rpartition("\n")[0]
        )


def test_where_it_was_cut_off() -> None:
    stages: dict[str, int] = {}
    for line in range(COUNTED.count("\n")):
        stages.setdefault(parsed("".join(COUNTED.splitlines(keepends=True)[:line]))["at"], line)
    assert stages == {"store": 0, "group": 4, "all_reduce": 9, "": 13}


def test_the_log_of_nccl_in_the_middle_of_everything() -> None:
    whole = parsed(COUNTED)
    for place in range(COUNTED.index("NCCL version"), len(COUNTED)):
        if COUNTED[place - 1 : place + 1].isspace() or COUNTED[place - 1] == "\n":
            assert parsed(COUNTED[:place] + INFO + COUNTED[place:]) == whole, place


@pytest.mark.parametrize("cell", ["-1", "     0", "47.58"])
def test_the_log_of_nccl_behind_a_cell(cell: str) -> None:
    place = COUNTED.rindex(cell) + len(cell)
    assert parsed(COUNTED[:place] + INFO + COUNTED[place:]) == parsed(COUNTED)


@pytest.mark.parametrize("label", ["0: ", " 0: ", "[1,0]<stdout>:", "[1,0]<stdout>: "])
def test_the_labels_of_a_launcher(label: str) -> None:
    lines = COUNTED.splitlines(keepends=True)
    assert parsed("".join(label + line for line in lines)) == parsed(COUNTED)


def test_wrong_values() -> None:
    told = parsed(COUNTED.replace("  0\n", "  7\n").replace(": 0 OK", ": 1 FAILED"))
    assert [size["wrong"] for size in told["sizes"]] == [7]
    assert (told["at"], told["failures"]) == ("", [])
    told = parsed(COUNTED.replace(": 0 OK", ": 3 FAILED"))
    assert words(told) == [("", "3 values out of bounds")]


def test_values_that_nobody_looked_at() -> None:
    told = parsed(COUNTED.replace("  0\n", "N/A\n"))
    assert (words(told), told["sizes"]) == ([("", UNCHECKED)], [])


@pytest.mark.parametrize("cell", ["  nan", " -nan", "  inf", "*****"])
def test_numbers_that_are_none(cell: str) -> None:
    told = parsed(COUNTED.replace("176.3", cell))
    assert told["sizes"] == []
    assert words(told) == [("", "a time or bandwidth that is no number, of 8388608 bytes")]


def test_no_row_that_is_understood() -> None:
    lines = [line for line in COUNTED.splitlines(keepends=True) if " float " not in line]
    told = parsed("".join(lines))
    assert (told["at"], words(told)) == ("all_reduce", [("", NO_ROW)])


def test_each_process_is_alone() -> None:
    assert parsed(COUNTED + COUNTED)["outputs"] == 2


FAILED = """\
node1: Test NCCL failure common.cu:958 'internal error - please report this issue to the NCCL \
developers / '
 .. node1 pid 54340: Test failure common.cu:891
node2: Test CUDA failure common.cu:941 'system not yet initialized'
node3: Cuda failure common.cu:891 'out of memory'
node4: Test NCCL failure common.cu:958 'remote process exited / socket closed'
"""


def test_what_processes_say_is_wrong() -> None:
    told = parsed(COUNTED[: COUNTED.index("NCCL version")] + FAILED)
    assert told["at"] == "group"
    assert words(told) == [
        ("node1", "internal error - please report this issue to the NCCL developers"),
        ("node2", "system not yet initialized"),
        ("node3", "out of memory"),
        ("node4", "remote process exited: socket closed"),
    ]


@pytest.mark.parametrize(
    "line",
    [
        "node3:99:101 [0] misc/socket.cc:484 NCCL WARN socketStartConnect: Connect failed\n",
        "[2026-11-30 17:00:00] node3:99:101 [3] misc/socket.cc:484 (connect) NCCL WARN "
        "socketStartConnect: Connect failed\n",
    ],
)
def test_warnings_of_nccl(line: str) -> None:
    told = parsed(COUNTED[: COUNTED.index("#\n#  ")] + "\n" + line)
    assert words(told) == [("node3", "socketStartConnect: Connect failed")]


def test_numbers_that_are_too_long() -> None:
    long = "9" * 5000
    assert parsed(COUNTED.replace("8388608", long))["sizes"] == []
    assert parsed(COUNTED.replace("agg iters: 1", f"agg iters: {long}")) == parsed(COUNTED)
    assert parsed(f"{'9' * 300_000}\n" + COUNTED) == parsed(COUNTED)
