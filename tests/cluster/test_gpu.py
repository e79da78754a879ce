"""GPUs of real nodes, by pynvml and a stand-in for the driver's library."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cluster.blame import causes, results
from tests.cluster.hardware import gpu_values
from tests.cluster.testbed import Testbed

OTHERS = "the 3 others have 8 x NVIDIA H100 80GB HBM3"
MIG = {f"gpu{index}.mig": 1 for index in range(8)}
SMALL = {f"gpu{index}.memory_total": 40 << 30 for index in range(8)}
LOST = {"gpu3.handle_rc": 15}


def with_gpus(bed: Testbed, odd: dict[str, Any] | None = None) -> None:
    """Give all nodes GPUs, tb2 others; None: none."""
    for node in bed.names:
        if node != "tb2":
            bed.nvml(node)
        elif odd is not None:
            bed.nvml(node, odd)


def test_gpus_that_are_as_promised_pass(bed: Testbed) -> None:
    with_gpus(bed, gpu_values())
    inventory = bed.inventory(launch={"gpus_per_node": 8}, expect={"gpu_model": "H100"})
    done, found = bed.report("run", str(inventory), "--only", "gpu.inventory")
    assert results(found, "fail", "warn", "unknown") == []
    words = "8 x NVIDIA H100 80GB HBM3, 80 GiB"
    said = [r["summary"] for r in found["results"] if r["check"] == "gpu.inventory"]
    assert said == [words] * 4
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        (None, f"GPUs: none, {OTHERS}"),
        (gpu_values(7), f"GPUs: 7 x NVIDIA H100 80GB HBM3, {OTHERS}"),
        (
            gpu_values(model="NVIDIA A100-SXM4-80GB"),
            f"GPUs: 8 x NVIDIA A100-SXM4-80GB, {OTHERS}",
        ),
        (gpu_values() | LOST, "GPU 3 does not answer: GPU is lost"),
        (gpu_values() | MIG, "MIG on, the 3 others have off"),
        (gpu_values() | SMALL, "GPUs with 40 GiB, the others' have 80 GiB"),
        (
            gpu_values() | {"init_rc": 18},
            "NVML does not start: the loaded kernel module is of another driver than the library:"
            " a reboot was left out",
        ),
    ],
    ids=["none", "one_less", "other_model", "lost", "mig", "less_memory", "mismatch"],
)
def test_the_odd_node_is_named(bed: Testbed, odd: dict[str, Any] | None, words: str) -> None:
    with_gpus(bed, odd)
    done, found = bed.report("run", str(bed.inventory()), "--only", "gpu.inventory")
    assert done.returncode == 1
    assert causes(found) == [("node", "gpu.inventory", ["tb2"])]
    assert found["causes"][0]["summary"] == words
    assert found["causes"][0]["fix"]


def test_fewer_gpus_than_promised(bed: Testbed) -> None:
    with_gpus(bed, gpu_values(7))
    inventory = bed.inventory(launch={"gpus_per_node": 8})
    done, found = bed.report("run", str(inventory), "--only", "gpu.inventory")
    assert done.returncode == 1
    assert causes(found) == [("node", "gpu.inventory", ["tb2"])]
    assert found["causes"][0]["summary"] == "7 of 8 GPUs"
