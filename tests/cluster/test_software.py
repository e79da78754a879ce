"""Software that differs on one node: found, named, and explaining whatever follows from it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.cluster.blame import causes, results, summary
from tests.cluster.hardware import gpu_values
from tests.cluster.testbed import Testbed

PACKAGES = {
    "torch": "2.5.1+cu124",
    "nvidia-nccl-cu12": "2.21.5",
    "nvidia-cuda-runtime-cu12": "12.4.127",
    "ray": "2.38.0",
}
STUB = ("--skip", "collective")
"""The torch of these nodes has its files, and does nothing."""


def gpus(bed: Testbed, odd: Mapping[str, dict[str, str | int]] | None = None) -> None:
    for node in bed.names:
        bed.nvml(node, (odd or {}).get(node, gpu_values()))


def test_gpus_and_a_training_environment_in_order(bed: Testbed) -> None:
    gpus(bed)
    python = bed.training_python(PACKAGES)
    inventory = bed.inventory(launch={"gpus_per_node": 8, "python": python})
    done, report = bed.report("run", str(inventory), *STUB)
    assert results(report, "fail", "warn", "unknown") == []
    assert done.returncode == 0
    skipped = {check for check, _, _ in results(report, "skip")}
    others = {"software.container", "storage.mounts", "network.firewall"}
    assert {check for check in skipped if not check.startswith("collective.")} == others


def test_another_driver(bed: Testbed) -> None:
    gpus(bed, {"tb3": gpu_values(driver="535.161.08")})
    done, report = bed.report("run", str(bed.inventory(launch={"gpus_per_node": 8})))
    assert causes(report) == [("node", "software.driver", ["tb3"])]
    assert summary(report, "software.driver", "tb3").endswith(
        "535.161.08, the 3 others have 550.54.15"
    )
    assert done.returncode == 1


def test_a_driver_updated_under_a_loaded_module(bed: Testbed) -> None:
    gpus(bed)
    bed.nvml("tb2", gpu_values() | {"init_rc": 18}, kernel="550.54.15")
    _, report = bed.report("run", str(bed.inventory(launch={"gpus_per_node": 8})))
    assert causes(report) == [("node", "software.driver", ["tb2"])]


def test_two_nodes_that_differ_blame_nobody(bed: Testbed) -> None:
    gpus(bed, {"tb2": gpu_values(driver="535.161.08")})
    done, report = bed.report("run", str(bed.inventory()), "--nodes", "tb[1-2]")
    assert causes(report) == [("cluster", "software.driver", ["tb1", "tb2"])]
    assert done.returncode == 1


def test_a_missing_gpu(bed: Testbed) -> None:
    gpus(bed, {"tb4": gpu_values(count=7)})
    _, report = bed.report("run", str(bed.inventory(launch={"gpus_per_node": 8})))
    assert causes(report) == [("node", "gpu.inventory", ["tb4"])]


def test_a_lost_gpu(bed: Testbed) -> None:
    gpus(bed, {"tb1": gpu_values() | {"gpu3.handle_rc": 15}})
    _, report = bed.report("run", str(bed.inventory(launch={"gpus_per_node": 8})))
    assert causes(report) == [("node", "gpu.inventory", ["tb1"])]


def test_another_model(bed: Testbed) -> None:
    gpus(bed, {"tb1": gpu_values(model="NVIDIA A100-SXM4-80GB")})
    _, report = bed.report("run", str(bed.inventory()))
    assert causes(report) == [("node", "gpu.inventory", ["tb1"])]


@pytest.mark.parametrize(
    ("package", "version", "check"),
    [
        ("torch", "2.4.0+cu124", "software.pytorch"),
        ("nvidia-nccl-cu12", "2.20.5", "software.nccl"),
        ("ray", "2.37.0", "software.python"),
    ],
)
def test_another_package(bed: Testbed, package: str, version: str, check: str) -> None:
    gpus(bed)
    python = bed.training_python(PACKAGES, {"tb2": {package: version}})
    done, report = bed.report("run", str(bed.inventory(launch={"python": python})), *STUB)
    assert causes(report) == [("node", check, ["tb2"])]
    assert done.returncode == 1


def test_a_gpu_newer_than_the_build_of_torch(bed: Testbed) -> None:
    newer = {f"gpu{index}.capability": "10.0" for index in range(8)}
    gpus(bed, {"tb3": {**gpu_values(), **newer}})
    python = bed.training_python(PACKAGES)
    done, report = bed.report("run", str(bed.inventory(launch={"python": python})), *STUB)
    assert causes(report) == [("node", "software.pytorch", ["tb3"])]
    assert summary(report, "software.pytorch", "tb3") == (
        "PyTorch 2.5.1+cu124 (CUDA 12.4) has no code for the GPU's sm_100, only sm_80, sm_86, sm_90"
    )
    assert done.returncode == 1


def test_an_interpreter_that_one_node_lacks(bed: Testbed) -> None:
    python = bed.training_python(PACKAGES)
    bed.machines["tb3"].remove("/opt/train")
    done, report = bed.report("run", str(bed.inventory(launch={"python": python})), *STUB)
    assert causes(report) == [("node", "launch.paths", ["tb3"])]
    assert done.returncode == 1


def test_an_expected_version_that_no_node_has(bed: Testbed) -> None:
    gpus(bed)
    _, report = bed.report("run", str(bed.inventory(expect={"driver": "570.86.15"})))
    assert causes(report) == [("node", "software.driver", list(bed.names))]


def test_an_interpreter_that_does_not_start_on_one_node(bed: Testbed) -> None:
    python = "/opt/shim/python"
    for node in bed.names:
        broken = "PYTHONHOME=/nonexistent " if node == "tb3" else ""
        bed.change_file(node, python, f'#!/bin/sh\n{broken}exec /usr/bin/python3 "$@"\n', 0o755)
    done, report = bed.report("run", str(bed.inventory(launch={"python": python})), *STUB)
    assert causes(report) == [("node", "software.python", ["tb3"])]
    assert summary(report, "software.python", "tb3").startswith(
        f"training interpreter {python!r}: Fatal Python error: "
    )
    assert results(report, "unknown") == []
    assert done.returncode == 1


def test_packages_of_the_jobs_user_count(bed: Testbed) -> None:
    python = "/usr/bin/python3"
    where = "import sys; print('%d.%d' % sys.version_info[:2])"
    for node in bed.names:
        version = "2.4.0" if node == "tb2" else "2.5.1"
        bed.add_user(node, "bob", 2002)
        series = bed.run(node, python, "-c", where).strip()
        site = f"/home/bob/.local/lib/python{series}/site-packages"
        bed.change_file(
            node, f"{site}/torch/version.py", f"__version__ = '{version}'\ncuda = None\n"
        )
    launch = {"user": "bob", "python": python}
    _, report = bed.report("run", str(bed.inventory(launch=launch)), "--only", "software")
    assert causes(report) == [("node", "software.pytorch", ["tb2"])]
    bed.run("tb2", "chmod", "700", "/home/bob")
    _, report = bed.report("run", str(bed.inventory(launch=launch)), "--only", "software.python")
    details = {row["node"]: row["details"] for row in report["results"]}
    unseen = ["packages may come from /home/bob/.local too: the login user may not look into it"]
    assert details == {"tb1": [], "tb2": unseen, "tb3": [], "tb4": []}
