"""A job in a container that runs: its limits and environment count, and not the node's."""

from __future__ import annotations

from typing import Any

from tests.cluster.blame import causes, results, summary
from tests.cluster.testbed import Testbed

ENV = {"NCCL_ALGO": "Ring", "NCCL_DEBUG": "WARN", "WANDB_API_KEY": "of nobody's business"}
ROOMY = {"memlock": 131072, "nofile": 4096}
EXPECTED = {"memlock_gib": 0.0001, "nofile": 4096}
ONLY = "host,launch.env"
OWN = ("host.limits", "launch.env")


def launch(bed: Testbed) -> dict[str, Any]:
    """Return an inventory's launch, having started the same container on all nodes.

    The soft limits of a login are lower than those of the container.
    """
    for node in bed.names:
        bed.limits(node, memlock="32768:", nofile="1024:")
        bed.podman(node, ENV, **ROOMY)
    return {"gpus_per_node": 8, "container": {"engine": "podman", "name": "train"}}


def test_nothing_of_the_node_counts(bed: Testbed) -> None:
    job = {"container": launch(bed)["container"]}
    bed.change_file("tb3", "/etc/nccl.conf", "NCCL_ALGO=Tree\n")
    bed.change_file("tb3", "/home/alice/.nccl.conf", "NCCL_PROTO=LL\n")
    inventory = bed.inventory(launch=job, expect=EXPECTED)
    done, report = bed.report("run", str(inventory))
    assert results(report, "fail", "warn", "unknown") == []
    assert (report["verdict"], done.returncode) == ("ready", 0)


def test_what_is_seen_and_that_no_secret_is(bed: Testbed) -> None:
    _, report = bed.report("run", str(bed.inventory(launch=launch(bed))), "--only", "launch.env")
    (tb1,) = [r for r in report["results"] if (r["check"], r["node"]) == ("launch.env", "tb1")]
    assert tb1["details"] == [
        "NCCL_ALGO=Ring (podman container train)",
        "NCCL_DEBUG=WARN (podman container train)",
    ]
    assert "nobody's business" not in str(report)


def test_a_container_with_lower_limits(bed: Testbed) -> None:
    job = launch(bed)
    bed.podman("tb4", ENV, memlock=65536, nofile=512)
    done, report = bed.report("run", str(bed.inventory(launch=job)), "--only", ONLY)
    words = "hard nofile is 512, less than the usual 1024"
    assert results(report, "fail", "warn", "unknown") == [("host.limits", "tb4", words)]
    assert done.returncode == 0
    inventory = bed.inventory(launch=job, expect=EXPECTED)
    done, report = bed.report("run", str(inventory), "--only", ONLY)
    assert causes(report) == [("node", "host.limits", ["tb4"])]
    assert summary(report, "host.limits", "tb4") == "memlock is 64 KiB, expected 0.0001 GiB"
    fix = "start container 'train' again with `--ulimit memlock=-1`"
    assert report["causes"][0]["fix"] == fix
    assert done.returncode == 1


def test_little_memlock_in_all_containers_where_rdma_is_used(bed: Testbed) -> None:
    job = launch(bed)
    for node in bed.names:
        bed.infiniband(node)
    _, report = bed.report("run", str(bed.inventory(launch=job)), "--only", ONLY)
    assert causes(report) == [("node", "host.limits", list(bed.names))]
    words = "memlock is 128 KiB, RDMA (mlx5_0:1) needs 1 GiB or more"
    assert report["causes"][0]["summary"] == words
    for node in bed.names:
        bed.podman(node, {**ENV, "NCCL_NET": "Socket"}, **ROOMY)
    _, report = bed.report("run", str(bed.inventory(launch=job)), "--only", "host.limits")
    assert results(report, "fail", "warn", "unknown") == []


def test_a_variable_that_differs_in_one_container(bed: Testbed) -> None:
    job = launch(bed)
    bed.podman("tb3", {**ENV, "NCCL_ALGO": "Tree"}, **ROOMY)
    done, report = bed.report("run", str(bed.inventory(launch=job)), "--only", ONLY)
    assert causes(report) == [("node", "launch.env", ["tb3"])]
    assert summary(report, "launch.env", "tb3") == "NCCL_ALGO Tree, the 3 others have Ring"
    assert done.returncode == 1


def test_a_file_within_one_container(bed: Testbed) -> None:
    job = launch(bed)
    bed.change_file("tb2", "/opt/container/.nccl.conf", "NCCL_PROTO=LL\n")
    _, report = bed.report("run", str(bed.inventory(launch=job)), "--only", ONLY)
    assert causes(report) == [("node", "launch.env", ["tb2"])]
    place = "/opt/container/.nccl.conf of podman container train"
    assert report["causes"][0]["fix"] == f"remove NCCL_PROTO from {place}"


def test_a_container_that_one_node_lacks(bed: Testbed) -> None:
    job = {"container": launch(bed)["container"]}
    words = 'Error: no container with name or ID "train" found: no such container'
    refuse = f"#!/bin/sh\necho '{words}' >&2\nexit 125\n"
    bed.change_file("tb2", "/usr/local/bin/podman", refuse, 0o755)
    done, report = bed.report("run", str(bed.inventory(launch=job)))
    assert causes(report) == [("node", "software.container", ["tb2"])]
    why = f"podman container train cannot be looked into: {words}"
    assert {row for row in results(report, "warn", "unknown") if row[0] in OWN} == {
        (check, "tb2", why) for check in OWN
    }
    assert {node for _, node, _ in results(report, "fail", "warn", "unknown")} == {"tb2"}
    assert done.returncode == 1
