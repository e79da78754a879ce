"""`preflight estimate` as a user meets it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import jsonschema
import pytest
from rich.cells import cell_len

from preflight.cli import group
from preflight.cli.usage import wording
from preflight.errors import ConfigError
from preflight.report import estimated, model
from tests.messages.aloud import Aloud
from tests.test_measured import case, made, streams

EXAMPLE = (
    *("--parameters", "50M", "--dtype", "fp32", "--nodes", 2),
    *("--bandwidth", 1, "--efficiency", 0.8, "--latency", 0),
    *("--step-time", 0.5, "--days", 5, "--cost", 30),
)
SCREEN = """\
50M parameters, 2 nodes

A synchronisation takes 2 s
   gradients 200 MB of fp32
   network   2 s, 2(n-1)/n of it in a ring of 2 nodes at 0.8 Gb/s
   latency   0, 2 steps of 0 us: --latency
   bandwidth 80 % of nominal 1 Gb/s a node

A step takes 2.5 s, 80 % of it communication
   500 ms computing; with overlap 77 % would be communication

   nodes  sync    step  comm.  efficiency  speed-up  days    cost
       1     0  500 ms    0 %       100 %      1.00   5.0   3,600
       2   2 s   2.5 s   80 %        20 %      0.40  12.5  18,000

2 nodes do less than one alone.
Node 3 would add 0.07 of what one does alone. None adds 0.5: more nodes do not
pay as things are.

More than 30 % is communication. What would help, each alone:
                                           step  comm.  as fast
   a network 16 x as fast                625 ms   20 %   4.00 x
   accumulation over 16 x as many steps  625 ms   20 %   4.00 x
   compression 4 x                          1 s   50 %   2.50 x
   compression 2 x                        1.5 s   67 %   1.67 x
   overlap with the backward pass        2.17 s   77 %   1.15 x
Accumulation makes the batch larger and compression loses precision: see that
the model still learns.
"""


def called(*args: object) -> None:
    code = group.main(["estimate", *map(str, args)], prog_name="preflight", standalone_mode=False)
    assert code == 0


def told(tmp_path: Path, *args: object) -> Any:
    path = tmp_path / "estimate.json"
    called(*args, "--json", path)
    return json.loads(path.read_text())


def refused(*args: object) -> str:
    with pytest.raises((click.ClickException, ConfigError)) as error:
        called(*args)
    if isinstance(error.value, click.ClickException):
        return wording(error.value)
    return f"preflight: {error.value}"


def saved(tmp_path: Path, report: model.Report) -> Path:
    tmp_path.mkdir(exist_ok=True)
    path = tmp_path / "report.json"
    path.write_text(report.to_json())
    return path


def test_the_screen(capsys: pytest.CaptureFixture[str]) -> None:
    called(*EXAMPLE)
    assert capsys.readouterr().out == SCREEN


def test_one_gpu_alone(capsys: pytest.CaptureFixture[str]) -> None:
    alone = ("--parameters", "7B", "--nodes", 1)
    begins = "7B parameters, 1 node\n\nOne GPU alone has nothing to synchronise\n"
    called(*alone)
    assert capsys.readouterr().out == begins
    called(*alone, "--step-time", 1)
    assert capsys.readouterr().out == (
        f"{begins}\nA step takes 1 s, 0 % of it communication\n   1 s computing\n\n"
        "   nodes  sync  step  comm.  efficiency  speed-up\n"
        "       1     0   1 s    0 %       100 %      1.00\n\n"
        "Node 2 would take away 0.30 of what one does alone. None adds 0.5: more nodes do\n"
        "not pay as things are.\n"
    )


def test_json_is_the_same_in_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = told(tmp_path, *EXAMPLE)
    assert found["schema"] == "preflight.estimate/1"
    assert found["synchronisation"]["bytes"] == 200e6
    assert found["synchronisation"]["seconds"] == pytest.approx(2.0)
    assert found["share"]["without_overlap"] == pytest.approx(0.8)
    assert [row["nodes"] for row in found["scaling"]] == [1, 2]
    assert found["scaling"][1]["cost"] == pytest.approx(2 * 12.5 * 24 * 30)
    assert found["remedies"][0]["step"]["seconds"] == pytest.approx(0.625)
    assert capsys.readouterr().out == SCREEN
    called(*EXAMPLE, "--json", "-")
    assert json.loads(capsys.readouterr().out) == found


@pytest.mark.parametrize(
    "given",
    [
        EXAMPLE,
        ("--parameters", "7B"),
        ("--parameters", "7B", "--gpus-per-node", "8", "--nvlink", "370", "--step-time", "1"),
    ],
)
def test_json_keeps_to_its_schema(
    tmp_path: Path, given: Sequence[object], capsys: pytest.CaptureFixture[str]
) -> None:
    shape = estimated.schema()
    done = group.main(["schema", "estimate"], prog_name="preflight", standalone_mode=False)
    assert (done, json.loads(capsys.readouterr().out)) == (0, shape)
    jsonschema.Draft202012Validator.check_schema(shape)
    jsonschema.Draft202012Validator(shape).validate(told(tmp_path, *given))


def test_7b_in_fp16_are_14_gb(capsys: pytest.CaptureFixture[str]) -> None:
    called("--parameters", "7B", "--dtype", "fp16")
    shown = capsys.readouterr().out
    assert "gradients 14 GB of fp16\n" in shown
    assert "Communication stays below 30 % of the time where a step computes for 4.36 s" in shown


def test_without_a_step_the_least_one_is_told(tmp_path: Path) -> None:
    asked = ("--parameters", "7B", "--latency", 0)
    alone = told(tmp_path, *asked)
    assert alone["least_step_s"] == pytest.approx(alone["synchronisation"]["seconds"] * 7 / 3)
    four = told(tmp_path, *asked, "--accumulation", 4)
    assert four["least_step_s"] == pytest.approx(alone["least_step_s"] / 4)
    assert told(tmp_path, *asked, "--overlap")["least_step_s"] < alone["least_step_s"]


@pytest.mark.parametrize(
    ("written", "count"),
    [("7e9", 7e9), ("7B", 7e9), ("70b", 70e9), ("350M", 350e6), ("1.5T", 1.5e12), ("8_000", 8e3)],
)
def test_ways_to_write_parameters(tmp_path: Path, written: str, count: float) -> None:
    assert told(tmp_path, "--parameters", written)["gradients"]["parameters"] == count


@pytest.mark.parametrize("more", [[], ["--overlap"], ["--gpus-per-node", "8"]])
@pytest.mark.parametrize("nodes", [1, 3, 16384])
def test_no_line_is_wider_than_80(
    nodes: int, more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    called(
        *("--parameters", "70B", "--nodes", nodes, "--step-time", 0.2, "--days", 9000),
        *("--cost", 98.32, *more),
    )
    assert max(map(cell_len, capsys.readouterr().out.splitlines())) <= 80


# ---- from a report -------------------------------------------------------------------------


def test_from_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = {
        "network.bandwidth": case("network.bandwidth", "sound"),
        "network.latency": case("network.latency", "well"),
    }
    report = made(facts)
    path = saved(tmp_path, report)
    found = told(tmp_path, "--parameters", "7B", "--from-report", path)
    rates = [d["gbps"] for f in facts["network.bandwidth"].values() for d in f["drawn"].values()]
    assert found["nodes"] == len(report.nodes)
    assert found["gradients"]["network"]["gbps"] == min(rates)
    assert found["sources"]["bandwidth"].endswith("(network.bandwidth)")
    assert found["sources"]["latency"].endswith("(network.latency)")
    assert "(network.bandwidth)" in " ".join(capsys.readouterr().out.split())


def test_what_is_given_goes_before_the_report(tmp_path: Path) -> None:
    path = saved(tmp_path, made({"network.bandwidth": streams(a=9.0, b=8.0)}))
    asked = ("--bandwidth", 40, "--latency", 5, "--nodes", 4)
    found = told(tmp_path, "--parameters", "7B", "--from-report", path, *asked)
    assert found["nodes"] == 4
    assert found["gradients"]["network"] == {"gbps": 24.0, "latency_us": 5.0}


def test_a_report_with_latency_only(tmp_path: Path) -> None:
    path = saved(tmp_path, made({"network.latency": case("network.latency", "well")}))
    found = told(tmp_path, "--parameters", "7B", "--from-report", path)
    assert found["sources"]["bandwidth"] == "60 % of nominal 100 Gb/s a node"
    assert found["sources"]["latency"].endswith("(network.latency)")


def test_reports_that_are_of_no_use(tmp_path: Path, aloud: Aloud) -> None:
    path = saved(tmp_path, made({"network.bandwidth": case("network.bandwidth", "alone")}))
    good = saved(tmp_path / "good", made({"network.bandwidth": streams(a=9.0, b=8.0)}))
    aloud(
        refused("--parameters", "7B", "--from-report", path),
        refused("--parameters", "7B", "--from-report", "none.json"),
        refused("--parameters", "7B", "--from-report", good, "--efficiency", 0.7),
    )


# ---- nonsense ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "", "--parameters nan", "--parameters -7e9", "--parameters 0", "--parameters 1e400",
        "--parameters 7X", "--parameters 7e9 --dtype int4", "--parameters 7B --nodes 0",
        "--parameters 7B --nodes -2", "--parameters 7B --nodes 2.5",
        "--parameters 7B --gpus-per-node 0", "--parameters 7B --step-time 0",
        "--parameters 7B --step-time nan", "--parameters 7B --accumulation 0",
        "--parameters 7B --compression 0.5", "--parameters 7B --bandwidth -100",
        "--parameters 7B --bandwidth 1e400", "--parameters 7B --efficiency 80",
        "--parameters 7B --latency nan", "--parameters 7B --nvlink 0",
        "--parameters 7B --days 5", "--parameters 7B --step-time 1 --cost 30",
        "--parameters 7B --step-time 1 --days -1", "--parameters 7B 8",
    ],
)  # fmt: skip
def test_nonsense(line: str, aloud: Aloud) -> None:
    said = refused(*line.split())
    assert "\n" not in said
    aloud(said, about=line or "nothing")


def test_nonsense_is_one_line_and_exit_code_2() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "preflight", "estimate", "--parameters", "7B", "--nodes", "0"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert "--nodes: 0 is not a whole number from 1 to 16384" in done.stderr
