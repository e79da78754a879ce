"""`preflight triage`: bad input, what of a log reaches the terminal, and JSON by its schema."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest
import zstandard

from preflight.errors import ConfigError
from preflight.report.triage import render
from preflight.triage import files, model
from preflight.triage.model import Asked, Cause, Evidence, Moment, RankFacts, Shown, Triage
from preflight.triage.reading import Reader
from tests.messages.aloud import Aloud
from tests.ordinary import ordinary_user
from tests.triage import cases
from tests.triage.test_cases import FAMILIES

HERE = Path(__file__).parent.parent
REFUSED = (
    "node1:4002:5102 [2] misc/socket.cc:456 NCCL WARN socketStartConnect: Connect to "
    "10.0.0.1<34567> failed : Connection timed out\n"
)


def run(folder: Path, *args: str, stdin: bytes = b"") -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "preflight", "triage", *args],
        input=stdin,
        capture_output=True,
        timeout=60,
        cwd=folder,
        env={**os.environ, "HOME": str(folder), "COLUMNS": "80"},
    )
    out, err = done.stdout.decode(), done.stderr.decode()
    return subprocess.CompletedProcess(done.args, done.returncode, out, err)


@pytest.mark.parametrize(
    "args",
    [
        ("none.log",),
        ("logs/*.log",),
        ("empty",),
        ("pipe",),
        ("job.log", "--json", "none/answer.json"),
        ("job.log", "--save-case", "job.log"),
        ("-", "--save-case", "case.log"),
        ("job.log", "--save-case", "-", "--json", "-"),
        ("job.log", "-i", "none.yaml"),
        ("job.log", "-i", "wrong.yaml"),
        ("job.log", "-i", "other.yaml"),
    ],
    ids=" ".join,
)
def test_bad_input_is_one_line(args: tuple[str, ...], tmp_path: Path, aloud: Aloud) -> None:
    (tmp_path / "empty").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "job.log").write_text(REFUSED)
    (tmp_path / "wrong.yaml").write_text("nodes: [gpu01]\nlanch: {}\n")
    (tmp_path / "other.yaml").write_text("nodes: [gpu01, gpu02]\n")
    done = run(tmp_path, *args)
    assert (done.returncode, done.stdout) == (2, "")
    aloud(done.stderr, about=" ".join(args))


def test_a_log_that_is_closed_to_us(tmp_path: Path, aloud: Aloud) -> None:
    (tmp_path / "job.log").write_text(REFUSED)
    (tmp_path / "job.log").chmod(0)
    with ordinary_user():
        log = files.Log("job.log", tmp_path / "job.log")
        with pytest.raises(ConfigError) as caught:
            log.head()
    aloud(caught.value)


def test_nothing_is_known(tmp_path: Path) -> None:
    (tmp_path / "app.log").write_text("all is well\n")
    done = run(tmp_path, "app.log")
    assert done.returncode == 3
    assert "nothing in these logs is known" in done.stdout
    assert "looked for: what NCCL, torch.distributed, torchrun, Slurm, Ray" in done.stdout
    assert "give what the job's ranks wrote to stdout and stderr" in done.stdout


def test_what_cannot_be_read_to_its_end_is_told(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    packed = gzip.compress(REFUSED.encode() + os.urandom(1000).hex().encode())
    (tmp_path / "logs" / "a.log.gz").write_bytes(packed[:-500])
    (tmp_path / "logs" / "b.bin").write_bytes(b"\x7fELF\2\1\1\0\0\0\2\0" * 100)
    done = run(tmp_path, "logs", "--json", "answer.json")
    assert done.returncode == 0, done.stderr
    answer = json.loads((tmp_path / "answer.json").read_text())
    assert answer["hypotheses"][0]["cause"] == "network.ephemeral"
    assert answer["untold"][:2] == [
        "logs/a.log.gz is cut off or damaged: what comes after is not known",
        "logs/b.bin is no text: it was left out",
    ]


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstandard.ZstdCompressor().compress])
def test_standard_input(pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    done = run(tmp_path, "-", stdin=pack(REFUSED.encode()))
    assert done.returncode == 0
    assert "stdin:1: misc/socket.cc:456 NCCL WARN" in done.stdout


def test_a_dump_that_does_not_say_whose_it_is(tmp_path: Path) -> None:
    dump = HERE / "triage" / "dumps" / "mismatch_trace_rank_1"
    (tmp_path / "rank_2.bin").write_bytes(dump.read_bytes()[:-40])
    done = run(tmp_path, "-", "rank_2.bin", "--json", "-", stdin=dump.read_bytes())
    assert done.returncode == 3
    assert json.loads(done.stdout)["untold"][:2] == [
        "stdin is a dump of the flight recorder, and left out: of which rank, only the name of its "
        "file can tell: name it nccl_trace_rank_N",
        "rank_2.bin is damaged, or no dump of the flight recorder: it was left out",
    ]


def test_a_case_is_written(tmp_path: Path, aloud: Aloud) -> None:
    (tmp_path / "job.log").write_text(REFUSED)
    done = run(tmp_path, "job.log", "--save-case", "saved.log")
    assert done.returncode == 0, done.stderr
    aloud(done.stderr)
    case = cases.read(tmp_path / "saved.log")
    assert case.words("cause") == ["network.ephemeral"]
    assert "node1" not in (tmp_path / "saved.log").read_text()


def test_a_case_without_what_tells_it(tmp_path: Path, aloud: Aloud) -> None:
    for dump in (HERE / "triage" / "dumps").glob("mismatch_trace_rank_?"):
        shutil.copy(dump, tmp_path)
    done = run(tmp_path, "mismatch_trace_rank_*", "--save-case", "saved.log")
    assert done.returncode == 0, done.stderr
    aloud(done.stderr)


def test_answers_keep_to_the_schema(tmp_path: Path) -> None:
    schema = model.schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    for shape in (schema, *schema["$defs"].values()):
        assert shape["required"] == list(shape["properties"])
    for case in cases.found():
        reader = Reader(FAMILIES)
        logs = files.find(case.write(tmp_path / case.name, False))
        for log in logs:
            reader.read(log)
        answer = json.loads(model.triage(reader.stories, FAMILIES, len(logs)).to_json())
        validator.validate(answer)
        assert {*answer} > {"headline", "stage", "first_error", "hypotheses", "ranks"}
        for one in answer["hypotheses"]:
            assert one["check"] == (None if one["cause"].startswith("job.") else one["cause"])


EVIL = "\x1b[2J\x1b]0;owned\x07\r\x9b31m\u202e\u2028"


def test_nothing_of_a_log_moves_the_cursor() -> None:
    line = Evidence(file=EVIL, line=1, text=EVIL)
    shown = Shown(check=EVIL, nodes=[EVIL], status="fail", summary=EVIL, fix=EVIL)
    causes = [
        Cause(
            cause=EVIL,
            check=EVIL,
            summary=EVIL,
            nodes=[EVIL],
            ranks=[1],
            confidence=0.9,
            evidence=[line],
            fix=EVIL,
            confirm=EVIL,
            checks=[EVIL],
            peers=[EVIL],
            confirmed=word,
            shown=[shown],
        )
        for word in ("yes", "no", "unknown")
    ]
    moment = Moment(
        time=EVIL, rank=None, node=EVIL, stage=EVIL, fault=False, text=EVIL, file=EVIL, line=1
    )
    error = model.Error(rank=None, node=EVIL, file=EVIL, line=1, time=EVIL, text=EVIL)
    answer = Triage(
        headline=EVIL,
        stage=EVIL,
        first_error=error,
        hypotheses=causes,
        timeline=[moment],
        ranks=[RankFacts(rank=1, node=EVIL, facts={EVIL: EVIL})],
        untold=[EVIL],
        command=EVIL,
        asked=Asked(nodes=[EVIL], peers=[EVIL], mapped=[EVIL], unreached=[EVIL]),
        files=1,
        launches=1,
    )
    for verbose in (False, True):
        text = render(answer, 80, "utf-8", verbose).plain
        assert all(c.isprintable() for c in text if c != "\n")
        assert "owned" in text


def test_names_and_exceptions_of_a_log_are_escaped(tmp_path: Path) -> None:
    lines = [
        "[rank3]: Traceback (most recent call last):",
        f"[rank3]: ValueError: {EVIL}bad",
        f"no\x1b[5mde1:1:1 [0] {REFUSED.split('] ', 1)[1]}",
    ]
    (tmp_path / "job.log").write_text("\n".join(lines) + "\n", encoding="utf-8")
    done = run(tmp_path, "job.log")
    assert "ValueError" in done.stdout
    assert all(c.isprintable() for c in done.stdout if c != "\n")
