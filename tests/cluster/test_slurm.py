"""Preflight in jobs of a real Slurm: their nodes and no others, and its exit code as a gate."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from tests.cluster.blame import causes, results
from tests.cluster.slurm import GPUS, allocation
from tests.cluster.testbed import Testbed


@pytest.fixture
def slurm(configured: Testbed) -> dict[str, str]:
    """The environment of Slurm's commands on the login node."""
    return configured.slurm()


def nodes(report: dict[str, Any]) -> list[str]:
    return [node["name"] for node in report["nodes"]]


def test_a_job_has_its_own_nodes(configured: Testbed, slurm: dict[str, str]) -> None:
    job = allocation("--nodelist=tb[1-3]")
    done, report = configured.report("run", env=slurm, under=job)
    assert (report["run"]["cluster"], nodes(report)) == ("Slurm job 1", ["tb1", "tb2", "tb3"])
    assert results(report, "fail", "warn", "unknown") == []
    assert (report["verdict"], done.returncode, done.stderr) == ("ready", 0, "")
    configured.mtu("tb2", 1400)
    configured.mtu("tb4", 1300)  # not in the job
    done, report = configured.report("run", env=slurm, under=job)
    assert (done.returncode, causes(report)) == (1, [("node", "network.mtu", ["tb2"])])
    assert nodes(report) == ["tb1", "tb2", "tb3"]
    done, report = configured.report("run", "--exclude", "tb2", env=slurm, under=job)
    assert (done.returncode, nodes(report)) == (0, ["tb1", "tb3"])


def test_a_heterogeneous_job(configured: Testbed, slurm: dict[str, str]) -> None:
    job = allocation("--nodelist=tb4", ":", "--nodelist=tb[1-2]")
    done, report = configured.report("run", env=slurm, under=job)
    assert (report["run"]["cluster"], nodes(report)) == ("Slurm job 1", ["tb4", "tb1", "tb2"])
    assert (report["verdict"], done.returncode, done.stderr) == ("ready", 0, "")


def test_gpus_that_the_job_asked_for(configured: Testbed, slurm: dict[str, str]) -> None:
    job = allocation("--nodelist=tb[1-2]", f"--gpus-per-node={GPUS}")
    done, report = configured.report("run", "--only", "gpu.inventory", env=slurm, under=job)
    assert report["want"]["launch"]["gpus_per_node"] == GPUS
    assert (done.returncode, causes(report)) == (1, [("node", "gpu.inventory", ["tb1", "tb2"])])


def test_init_in_a_job(configured: Testbed, slurm: dict[str, str]) -> None:
    job = allocation("--nodelist=tb[2-3]", f"--gpus-per-node={GPUS}")
    done = configured.preflight("init", "-o", "-", env=slurm, under=job)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Slurm job 1" in done.stdout
    assert yaml.safe_load(done.stdout) == {
        "ssh": None,
        "nodes": ["tb[2-3]"],
        "launch": {"gpus_per_node": GPUS, "interface": "eth0"},
        "expect": None,
    }


def test_a_gate_in_a_batch_script(configured: Testbed, slurm: dict[str, str]) -> None:
    preflight = f"{sys.executable} -m preflight"
    home = Path(configured.environment()["HOME"])
    for path in (home / ".ssh" / "config", configured.key, configured.known_hosts):
        configured.change_file("tb1", str(path), path.read_bytes(), 0o600)
    environment = {**configured.environment(), **slurm}
    script = f"{preflight} run && srun hostname"
    code, printed = configured.batch(environment, script, "tb1", "tb2", "tb3")
    assert (code, sorted(printed.splitlines()[-3:])) == (0, ["tb1", "tb2", "tb3"])
    configured.mtu("tb2", 1400)
    code, printed = configured.batch(environment, script, "tb1", "tb2", "tb3")
    assert code == 1
    assert "tb2" in printed
    assert "tb2" not in printed.splitlines()


def test_nothing_is_left_of_slurm(bed: Testbed) -> None:
    before = {node: bed.files(node) for node in bed.names}
    config = Path(bed.slurm()["SLURM_CONF"])
    munged = psutil.Process(int(config.with_name("munge.pid").read_text()))
    bed.restore()
    assert not munged.is_running()
    assert not config.parent.exists()
    assert [bed.survivors(node) for node in bed.names] == [[], [], [], []]
    assert {node: bed.files(node) for node in bed.names} == before
