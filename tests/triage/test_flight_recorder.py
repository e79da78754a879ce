"""Dumps of the flight recorder: real ones of torch 2.13 with Gloo, and NCCL's in the same shape."""

from __future__ import annotations

import json
import pickle
import random
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from preflight.triage import family, files, model, plain_pickle
from preflight.triage.model import Triage
from preflight.triage.plain_pickle import NotPlain
from preflight.triage.reading import Reader

HERE = Path(__file__).parent / "dumps"
FAMILIES = family.load()
RANKS = range(4)


def answer(paths: Sequence[Path]) -> Triage:
    reader = Reader(FAMILIES)
    logs = files.find([str(path) for path in paths])
    for log in logs:
        reader.read(log)
    return model.triage(reader.stories, FAMILIES, len(logs))


def entry(number: int, **other: Any) -> dict[str, Any]:
    """Return an entry as torch 2.4 and later write it."""
    return {
        "frames": [
            {"name": "all_reduce", "filename": "/x/torch/distributed/c10d.py", "line": 2800},
            {"name": "step", "filename": "/train/train.py", "line": 88},
        ],
        "record_id": number,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "op_id": number,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": 1_796_059_809_367_599_035,
        "input_sizes": [[32, 32]],
        "input_dtypes": ["Float"],
        "output_sizes": [[32, 32]],
        "output_dtypes": ["Float"],
        "state": "completed",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None,
        "retired": True,
        "timeout_ms": 600_000,
        "is_p2p": False,
        **other,
    }


def dump(entries: list[dict[str, Any]], completed: int, **other: Any) -> dict[str, Any]:
    return {
        "version": "2.4",
        "nccl_version": "2.21.5",
        "entries": entries,
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}},
        "pg_status": {
            "0": {
                "last_enqueued_collective": entries[-1]["collective_seq_id"],
                "last_started_collective": -1,
                "last_completed_collective": completed,
            }
        },
        **other,
    }


def write(folder: Path, dumps: dict[int, dict[str, Any]]) -> list[Path]:
    paths = []
    for rank, one in dumps.items():
        path = folder / f"nccl_trace_rank_{rank}"
        path.write_bytes(pickle.dumps(one, protocol=2))
        paths.append(path)
    return paths


def waiting(last: int, completed: int, **of_last: Any) -> dict[str, Any]:
    """Return a dump of a rank that waits for what it issued after `completed`."""
    entries = [entry(number) for number in range(1, last + 1)]
    for one in entries[completed:]:
        one["state"] = "scheduled"
    entries[-1] |= of_last
    return dump(entries, completed)


@pytest.mark.parametrize("suffix", ["", ".json"])
def test_a_rank_that_did_not_come(suffix: str) -> None:
    told = answer([HERE / f"missing_trace_rank_{rank}{suffix}" for rank in range(3)])
    first = told.hypotheses[0]
    assert first.cause == "job.mismatched_collective"
    assert first.check is None
    assert first.ranks == [2]
    assert first.summary == (
        "rank 2 did not come to collective 4 of default_pg (all_reduce of 1024 elements), in "
        "which 2 ranks waited"
    )
    assert [(one.rank, one.last_enqueued) for one in told.ranks] == [(0, 4), (1, 4), (2, 3)]


@pytest.mark.parametrize("suffix", ["", ".json"])
def test_a_rank_with_another_operation(suffix: str) -> None:
    told = answer([HERE / f"mismatch_trace_rank_{rank}{suffix}" for rank in range(3)])
    assert told.hypotheses[0].cause == "job.mismatched_collective"
    assert told.headline == (
        "rank 2 issued broadcast of 1024 elements as collective 4 of default_pg, the others "
        "all_reduce of 1024 elements"
    )


def test_nccl_a_rank_that_did_not_come(tmp_path: Path) -> None:
    dumps = {rank: waiting(7, 5) for rank in (0, 1, 3)} | {2: waiting(5, 5)}
    told = answer(write(tmp_path, dumps))
    first = told.hypotheses[0]
    assert (first.cause, first.ranks) == ("job.mismatched_collective", [2])
    assert first.summary.startswith("rank 2 did not come to collective 6 of default_pg")
    assert first.fix.endswith("its last collective was issued at /train/train.py:88")
    assert [(one.last_enqueued, one.last_completed) for one in told.ranks] == [
        (7, 5),
        (7, 5),
        (5, 5),
        (7, 5),
    ]


@pytest.mark.parametrize(
    ("odd", "says"),
    [
        (
            {"profiling_name": "nccl:broadcast"},
            "rank 1 issued broadcast of 1024 elements as collective 6 of default_pg, the others "
            "all_reduce of 1024 elements",
        ),
        (
            {"input_sizes": [[512]]},
            "rank 1 issued all_reduce of 512 elements as collective 6 of default_pg, the others "
            "all_reduce of 1024 elements",
        ),
        (
            {"input_dtypes": ["Half"]},
            "rank 1 issued all_reduce of 1024 elements of type Half as collective 6 of "
            "default_pg, the others all_reduce of 1024 elements of type Float",
        ),
    ],
)
def test_nccl_a_rank_with_another_call(odd: dict[str, Any], says: str, tmp_path: Path) -> None:
    dumps = {rank: waiting(6, 5, **(odd if rank == 1 else {})) for rank in RANKS}
    told = answer(write(tmp_path, dumps))
    assert told.headline == says
    assert told.hypotheses[0].ranks == [1]


def test_another_shape_of_the_same_size_is_no_mismatch(tmp_path: Path) -> None:
    dumps = {rank: waiting(6, 6, input_sizes=[[1024] if rank else [32, 32]]) for rank in RANKS}
    assert not answer(write(tmp_path, dumps)).hypotheses


def test_uneven_all_to_all_is_no_mismatch(tmp_path: Path) -> None:
    uneven = {"profiling_name": "nccl:all_to_all"}
    dumps = {rank: waiting(6, 6, input_sizes=[[rank + 1]], **uneven) for rank in RANKS}
    assert not answer(write(tmp_path, dumps)).hypotheses


def test_all_came_and_it_did_not_end(tmp_path: Path) -> None:
    told = answer(write(tmp_path, {rank: waiting(6, 5) for rank in RANKS}))
    first = told.hypotheses[0]
    assert first.cause == first.check == "collective.all_reduce"
    assert first.summary == (
        "all 4 ranks came to collective 6 of default_pg (all_reduce of 1024 elements), and it did "
        "not end: the network or a GPU stalled within it"
    )
    assert first.confidence <= 0.5


def test_a_rank_without_a_dump(tmp_path: Path) -> None:
    told = answer(write(tmp_path, {rank: waiting(6, 5) for rank in (0, 1, 2)}))
    assert told.hypotheses[0].ranks == [3]
    assert told.headline == (
        "3 ranks waited in collective 6 of default_pg (all_reduce of 1024 elements); of rank 3 "
        "there is no dump"
    )


def test_dumps_of_a_job_that_runs_tell_of_no_fault(tmp_path: Path) -> None:
    assert not answer(write(tmp_path, {rank: waiting(6, 6) for rank in RANKS})).hypotheses


def test_who_waits_elsewhere_is_not_blamed(tmp_path: Path) -> None:
    """Rank 1 waits for rank 0 in their own group, and so is late for the group of all."""
    pair = {"pg_id": 1, "process_group": ("1", "tp")}
    status = {"last_enqueued_collective": 6, "last_completed_collective": 5}
    config = {
        "0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"},
        "1": {"name": "1", "desc": "tp", "ranks": "[0, 1]"},
    }
    dumps = {rank: waiting(6, 5) for rank in (2, 3)}
    for rank, last in ((0, 5), (1, 6)):
        own = [entry(number, **pair) for number in range(1, last + 1)]
        for one in own[5:]:
            one["state"] = "started"
        dumps[rank] = waiting(5, 5) | {"pg_config": config}
        dumps[rank]["entries"] += own
        dumps[rank]["pg_status"]["1"] = status | {"last_enqueued_collective": last}
    told = answer(write(tmp_path, dumps))
    assert told.hypotheses[0].ranks == [0]


def test_torch_2_2_has_a_list(tmp_path: Path) -> None:
    def old(one: dict[str, Any]) -> dict[str, Any]:
        names = {"collective_seq_id": "seq_id", "process_group": "pg_name"}
        return {names.get(key, key): value for key, value in one.items()} | {"pg_name": "0"}

    dumps = {rank: waiting(7, 5) for rank in (0, 1, 3)} | {2: waiting(5, 5)}
    for rank, one in dumps.items():
        path = tmp_path / f"nccl_trace_rank_{rank}"
        path.write_bytes(pickle.dumps([old(each) for each in one["entries"]], protocol=2))
    told = answer(sorted(tmp_path.iterdir()))
    assert told.hypotheses[0].ranks == [2]


class Evil:
    """What a pickle can do that is no plain data."""

    def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
        return Path.touch, (Path("was-run"),)


def test_no_class_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(pickle.dumps({"entries": [Evil()]}, protocol=2))
    with pytest.raises(NotPlain):
        plain_pickle.loads(path.read_bytes())
    assert not answer([path]).hypotheses
    assert not (tmp_path / "was-run").exists()


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_data_is_read_as_python_reads_it(protocol: int) -> None:
    data: dict[str, Any] = {
        "a": [1, 2.5, None, True, False, (1, 2), ("x",), (), (1, 2, 3), (1, 2, 3, 4)]
    }
    data["b"] = [{"c": -5, "d": 2**40, "e": "é" * 300, "f": 70_000}, data["a"]]
    assert plain_pickle.loads(pickle.dumps(data, protocol)) == data


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80\x02",
        b"\x80\x02]r\xff\xff\xff\x7f.",  # a place in the memo that Python makes room for
        b"\x80\x02X\xff\xff\xff\xffx.",
        b"\x80\x02}K\x01\x85K\x01s.",
        b"\x80\x02e.",
        b"\x80\x02Ke.",
        b"\x80\x02h\x05.",
        b"\x80\x02" + b"(" * 100_000,
        b"\x80\x02K\x00" + b"\x85" * 100_000 + b".",
    ],
)
def test_what_is_damaged_ends(data: bytes) -> None:
    try:
        plain_pickle.loads(data)
    except NotPlain:
        return
    assert data[-1:] == b".", "what is read to its end has one"


def test_damaged_dumps_are_never_a_crash(tmp_path: Path) -> None:
    some = random.Random(7)
    whole = (HERE / "mismatch_trace_rank_0").read_bytes()
    text = (HERE / "mismatch_trace_rank_0.json").read_bytes()
    odd = [b"{", json.dumps({"entries": [1, {"profiling_name": 5}, None]}).encode()]
    odd += [b'{"entries":' + b"[" * 100_000, struct.pack("<I", 0x80)]
    huge = waiting(6, 5, input_sizes=[[2**2000] * 100_000], collective_seq_id=2**2000)
    odd += [pickle.dumps(huge, protocol=2), json.dumps(huge | {"entries": [[]]}).encode()]
    for number in range(200):
        data = bytearray(some.choice((whole, text)))
        for _ in range(some.randrange(1, 6)):
            data[some.randrange(len(data))] = some.randrange(256)
        odd.append(bytes(data[: some.randrange(1, len(data))] if number % 3 == 0 else data))
    for number, content in enumerate(odd):
        (tmp_path / f"trace_rank_{number}").write_bytes(content)
    assert answer([tmp_path]).files == len(odd)
