"""What `--save-case` writes: the same first cause, and nothing that says whose logs they were."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from preflight.triage import excerpt, files, model
from preflight.triage.excerpt import Excerpt
from preflight.triage.model import Triage
from preflight.triage.reading import Reader
from tests.triage import cases
from tests.triage.cases import Case
from tests.triage.test_cases import FAMILIES, answer

KEY = b"k" * 32
OFTEN = 8
SOME = [
    pytest.param(case, within, id=f"{case.name} {'within start-up' if within else 'alone'}")
    for number, case in enumerate(cases.found())
    for within in {case.needs_start_up, number % OFTEN == 0}
    if within or not case.needs_start_up
]
"""Each case once, and every eighth within start-up output, too: that of all takes minutes."""
OURS = """\
trainer-07:4242:4300 [0] NCCL INFO Bootstrap : Using eth0:10.11.12.13<0>
trainer-07:4242:4300 [0] misc/socket.cc:456 NCCL WARN socketStartConnect: Connect to \
10.11.99.14<34567> failed : Connection timed out
trainer-07:4242:4300 [0] NCCL INFO NCCL_DEBUG_FILE set by environment to /fsx/falcon/nccl.%h
WANDB_API_KEY=0123456789abcdef0123 wrote to https://jsmith:pw@files.corp.example.com/falcon/x
HF_TOKEN: hf_abcdefghijklmnopqrstuvw user=jsmith from trainer-07.corp.example.com
+ export SLURM_JOB_NAME=osprey-7b; run --verbose --api-key swordfish --job-name=osprey-7b x
authorization eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N
GPU-6bf4a9c2-9f5c-4e0a-8b6e-0d5c7e1f2a3b serial: 1324821012345 at aa:bb:cc:dd:ee:ff
Traceback (most recent call last):
  File "/home/jsmith/falcon/train.py", line 12, in main
  File "/fsx/envs/falcon/lib/python3.10/site-packages/torch/nn/modules/module.py", line 1, in f
    raise RuntimeError("no")
RuntimeError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1691, unhandled \
system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.18.5
"""
PRIVATE = (
    *("trainer-07", "corp.example", "jsmith", "falcon", "10.11.12", "10.11.99", "/fsx"),
    *("0123456789abcdef0123", "hf_abc", ":pw@", "6bf4a9c2", "1324821012345", "dd:ee:ff"),
    *("osprey", "swordfish", "eyJ"),
)


def saved(names: list[str], folder: Path) -> tuple[Triage, Excerpt, Case]:
    """Return what logs tell, the case made of them, and what a test reads of that."""
    reader = Reader(FAMILIES)
    logs = files.find(names)
    for log in logs:
        reader.read(log)
    made = excerpt.excerpt("saved", logs, reader.stories, FAMILIES, KEY)
    (folder / "saved.log").write_text(made.text, encoding="utf-8")
    told = model.triage(reader.stories, FAMILIES, len(logs))
    return told, made, cases.read(folder / "saved.log")


def first(told: Triage) -> str:
    return told.hypotheses[0].cause if told.hypotheses else "none"


@pytest.mark.parametrize(("case", "within"), SOME)
def test_read_back_it_tells_the_same(case: Case, within: bool, tmp_path: Path) -> None:
    case.write(tmp_path / "logs", within)
    told, made, again = saved([str(tmp_path / "logs")], tmp_path)
    assert again.head["cause"] == made.told == made.cause == first(told)
    assert first(answer(again.write(tmp_path / "back", True))) == first(told)


def test_nothing_says_whose_logs_they_were(tmp_path: Path) -> None:
    log = tmp_path / "jsmith" / "nccl.trainer-07.corp.example.com.4242.log"
    log.parent.mkdir()
    log.write_text(OURS)
    _, made, again = saved([str(log)], tmp_path)
    assert made.told == made.cause == "network.ephemeral"
    for word in PRIVATE:
        assert word not in made.text
    names = [line.split(":")[0] for line in again.files[next(iter(again.files))]]
    assert names[0] == names[1] == names[2]
    assert 'raise RuntimeError("no")' in made.text
    assert "API_KEY=(hidden)" in made.text
    assert "/site-packages/torch/nn/modules/module.py" in made.text


def test_what_moves_a_cursor_or_is_a_mark_is_no_more(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_bytes(
        b"#: file: forged\n\x1b[31m10%\r20%\r\x1b]0;title\x07\x9b\n"
        b"node1:1:1 [0] misc/socket.cc:456 NCCL WARN socketStartConnect: Connect to "
        b"10.0.0.1<34567> failed : Connection timed out\n"
    )
    _, made, again = saved([str(log)], tmp_path)
    assert list(again.files) == ["job.log"]
    assert again.files["job.log"][0] == " #: file: forged"
    assert all(c.isprintable() for c in made.text if c != "\n")


def test_a_dump_of_the_flight_recorder_is_left_out(tmp_path: Path) -> None:
    dump = {"version": "2.4", "entries": [], "pg_config": {}, "pg_status": {}}
    (tmp_path / "nccl_trace_rank_0").write_bytes(pickle.dumps(dump))
    log = tmp_path / "job.log"
    log.write_text(OURS)
    _, made, again = saved([str(tmp_path)], tmp_path)
    assert [*again.files] == ["job.log"]
    assert again.head["without"] == "dumps of the flight recorder: 1"
    assert made.left_out == (str(tmp_path / "nccl_trace_rank_0"),)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("falcon/gpu-07.log", "2.log"),
        ("gpu-07/stderr.log", "stderr.log"),
        ("falcon/trainer-07.log", "trainer-07.log"),
        ("falcon/rank_3.log", "rank_3.log"),
        ("falcon/trainer-07/7_x/attempt_0/1/stdout.log", "trainer-07/attempt_0/1/stdout.log"),
        ("trainer-07/out.log", "2/out.log"),
    ],
)
def test_what_a_file_is_called(name: str, said: str) -> None:
    others = ["1.log", "out.log"]
    assert excerpt.called(name, others, False, ["trainer-07.corp.example.com"]) == said
