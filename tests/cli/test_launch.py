"""`preflight launch`: what it prints, and what it refuses."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from preflight.cli.launch import command
from preflight.errors import ConfigError
from preflight.report import model
from tests.messages.aloud import Aloud
from tests.report.made import Grid

NODES = ("gpu01", "gpu02")
COMMAND = (
    "torchrun --nnodes=2 --nproc_per_node={} --node_rank={} --master_addr={} --master_port=29500"
)
Cells = Mapping[tuple[str, str], Mapping[str, Any]]


def inventory(folder: Path, gpus: int | None = 8, **launch: Any) -> Path:
    path = folder / "pod.yaml"
    launch |= {} if gpus is None else {"gpus_per_node": gpus}
    path.write_text(yaml.safe_dump({"nodes": [*NODES], "launch": launch}))
    return path


def report(
    folder: Path,
    cells: Cells | None = None,
    interfaces: Sequence[str] = ("eth1", "eth1"),
    names: Sequence[str] = NODES,
    facts: Any = None,
    **launch: Any,
) -> Path:
    """Write a report in which all nodes reach the port of the master at 10.0.0.1."""
    grid = Grid(names)
    for (check, node), cell in (cells or {}).items():
        grid.say(check, [node], cell["status"], cell["summary"])
    made = grid.report()
    chosen = {
        node: {"value": {"network": {"data_plane": {"names": [name]}}}}
        for node, name in zip(names, interfaces, strict=False)
    }
    port = {node: {"value": {"address": "10.0.0.1"}} for node in names}
    found = {"network.port": port if facts is None else facts, "network.interface": chosen}
    told = {"master": "gpu01", "port": 29500, "env": {}} | launch
    want = made.want.model_copy(update={"launch": told})
    path = folder / "report.json"
    path.write_text(made.model_copy(update={"facts": found, "want": want}).to_json())
    return path


def call(*args: object) -> int:
    code = command.main([str(arg) for arg in args], standalone_mode=False)
    assert isinstance(code, int)
    return code


def cli(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "preflight", "launch", *args],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=folder,
    )


def test_the_commands_go_to_stdout_and_the_rest_to_stderr(tmp_path: Path, aloud: Aloud) -> None:
    done = cli(tmp_path, inventory(tmp_path, user="alice").name, "--", "train.py", "--", "-h")
    lines = [
        line
        for rank, node in enumerate(NODES)
        for line in (
            f"# {node}, as alice",
            COMMAND.format(8, rank, "gpu01") + " train.py -- -h",
            "",
        )
    ]
    assert (done.returncode, done.stdout) == (0, "\n".join(lines))
    aloud(done.stderr)


def test_a_report_says_where_ranks_meet(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    could_not = {"status": "warn", "summary": "could not be the master: port 29500 is in use"}
    path = report(tmp_path, {("network.port", "gpu02"): could_not})
    assert call(inventory(tmp_path), "--from-report", path) == 0
    out, err = capfd.readouterr()
    env = "env NCCL_SOCKET_IFNAME==eth1 GLOO_SOCKET_IFNAME=eth1 "
    assert out.splitlines()[1] == env + COMMAND.format(8, 0, "10.0.0.1") + " TRAIN.PY"
    assert err == ""


@pytest.mark.parametrize(
    ("interfaces", "status"),
    [(("eth1", "ib0"), "pass"), (("eth1",), "pass"), (("eth1", "eth1"), "fail")],
)
def test_interfaces_that_are_not_the_same(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    aloud: Aloud,
    interfaces: Sequence[str],
    status: str,
) -> None:
    cells = {("network.interface", node): {"status": status, "summary": "so"} for node in NODES}
    path = report(tmp_path, cells, interfaces)
    assert call(inventory(tmp_path), "--from-report", path) == 0
    out, err = capfd.readouterr()
    assert out.splitlines()[1] == COMMAND.format(8, 0, "10.0.0.1") + " TRAIN.PY"
    aloud(err)


def test_what_is_not_told_is_said(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], aloud: Aloud
) -> None:
    image = {"engine": "docker", "image": "pytorch:25.04"}
    source = inventory(tmp_path, None, container=image)
    assert call(source, "--from-report", report(tmp_path), "--sbatch", "--", "a.py") == 0
    out, err = capfd.readouterr()
    assert '--nproc_per_node=1 --node_rank="$SLURM_NODEID"' in out
    aloud(err)


def test_without_an_inventory(tmp_path: Path, aloud: Aloud) -> None:
    alone = cli(tmp_path, "--", "train.py")
    assert alone.stdout == "# localhost\ntorchrun --standalone --nproc_per_node=1 train.py\n"
    (tmp_path / "inventory.yaml").write_text("nodes: [gpu01]\n")
    aloud(cli(tmp_path).stderr)


def test_the_nodes_of_a_slurm_job(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"JOB_ID": "17", "JOB_NODELIST": "gpu[01-02]", "GPUS_PER_NODE": "8"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    monkeypatch.chdir(tmp_path)
    assert call() == 0
    out, err = capfd.readouterr()
    assert out.splitlines()[1] == COMMAND.format(8, 0, "gpu01") + " TRAIN.PY"
    assert err.startswith("preflight: port 29500 and gpu01 are not verified: preflight run --json")


def test_a_program_that_is_no_script(tmp_path: Path, aloud: Aloud) -> None:
    with pytest.raises(ConfigError) as caught:
        call(inventory(tmp_path), "--", "/usr/bin/python3.11", "train.py")
    aloud(caught.value)


def test_a_master_that_each_node_takes_for_itself(tmp_path: Path, aloud: Aloud) -> None:
    with pytest.raises(ConfigError) as caught:
        call(inventory(tmp_path, env={"MASTER_ADDR": "localhost"}))
    aloud(caught.value)


@pytest.mark.parametrize(
    ("about", "made"),
    [
        ("other nodes", {"names": ("gpu01",)}),
        ("another port", {"port": 29501}),
        ("an interface", {"interface": "eth1"}),
        (
            "a failure",
            {"cells": {("network.port", "gpu02"): {"status": "fail", "summary": "no way there"}}},
        ),
        ("no facts", {"facts": {}}),
        ("odd facts", {"facts": {"gpu01": {"value": {"address": 7}}}}),
    ],
)
def test_a_report_that_verifies_nothing(
    tmp_path: Path, aloud: Aloud, about: str, made: dict[str, Any]
) -> None:
    path = report(tmp_path, **made)
    with pytest.raises(ConfigError) as caught:
        call(inventory(tmp_path), "--from-report", path)
    aloud(caught.value, about=about)


def test_a_report_without_the_check(tmp_path: Path, aloud: Aloud) -> None:
    path = report(tmp_path)
    made = model.read(path)
    left = {
        "checks": [check for check in made.checks if check.id != "network.port"],
        "results": [row for row in made.results if row.check != "network.port"],
    }
    path.write_text(made.model_copy(update=left).to_json())
    with pytest.raises(ConfigError) as caught:
        call(inventory(tmp_path), "--from-report", path)
    aloud(caught.value)


def test_bad_input_is_one_line(tmp_path: Path) -> None:
    inventory(tmp_path)
    for args in (
        ("nix.yaml",),
        ("pod.yaml", "train.py"),
        ("pod.yaml", "--from-report", "nix.json"),
    ):
        done = cli(tmp_path, *args)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
