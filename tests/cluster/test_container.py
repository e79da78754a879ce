"""A job in a container that runs: its limits and environment count, and not the node's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.cluster.blame import causes, results, summary
from tests.cluster.testbed import Testbed

ENV = {"NCCL_ALGO": "Ring", "NCCL_DEBUG": "WARN", "WANDB_API_KEY": "of nobody's business"}
EXPECTED = {"memlock_gib": 0.00006, "nofile": 4096}
ONLY = "host.limits,launch.env,software.container,software.python"
JOB = {"engine": "podman", "name": "train"}
WHOSE = "podman container train"
TORCH = {"torch": "2.5.1"}


def inventory(bed: Testbed, login: str = "root", **more: Any) -> str:
    """Return the path of an inventory for a job in the container."""
    launch = {"container": JOB, **more.pop("launch", {})}
    return str(bed.inventory(ssh={"user": login}, launch=launch, **more))


def launch(bed: Testbed) -> None:
    """Start the same container on all nodes."""
    for node in bed.names:
        bed.container(node, ENV)


def test_nothing_of_the_node_counts(bed: Testbed) -> None:
    launch(bed)
    for node in bed.names:
        bed.limits(node, memlock="32768:", nofile="512:")
    bed.change_file("tb3", "/etc/nccl.conf", "NCCL_ALGO=Tree\n")
    bed.change_file("tb3", "/root/.nccl.conf", "NCCL_PROTO=LL\n")
    done, report = bed.report("run", inventory(bed, expect=EXPECTED))
    assert results(report, "fail", "warn", "unknown") == []
    assert (report["verdict"], done.returncode) == ("ready", 0)


def test_what_is_seen_and_that_no_secret_is(bed: Testbed) -> None:
    launch(bed)
    path = inventory(bed)
    _, report = bed.report("run", path, "--only", ONLY)
    (tb1,) = [r for r in report["results"] if (r["check"], r["node"]) == ("launch.env", "tb1")]
    assert tb1["details"] == [f"NCCL_ALGO=Ring ({WHOSE})", f"NCCL_DEBUG=WARN ({WHOSE})"]
    assert "nobody's business" not in str(report)


def test_lower_limits_in_one_container(bed: Testbed) -> None:
    launch(bed)
    bed.container("tb4", ENV, memlock="16384:16384", nofile="512:512")
    done, report = bed.report("run", inventory(bed), "--only", ONLY)
    assert results(report, "fail", "warn", "unknown") == [
        ("host.limits", "tb4", "hard nofile is 512, less than the usual 1024")
    ]
    assert done.returncode == 0
    done, report = bed.report("run", inventory(bed, expect=EXPECTED), "--only", ONLY)
    assert causes(report) == [("node", "host.limits", ["tb4"])]
    assert summary(report, "host.limits", "tb4") == "memlock is 16 KiB, expected 6e-05 GiB"
    fix = "start container 'train' again with `--ulimit memlock=-1`"
    assert report["causes"][0]["fix"] == fix
    assert done.returncode == 1


def test_little_memlock_in_all_containers_where_rdma_is_used(bed: Testbed) -> None:
    job = {"gpus_per_node": 8}
    launch(bed)
    for node in bed.names:
        bed.infiniband(node)
    _, report = bed.report("run", inventory(bed, launch=job), "--only", "host.limits")
    assert causes(report) == [("node", "host.limits", list(bed.names))]
    words = "memlock is 64 KiB, RDMA (mlx5_0:1) needs 1 GiB or more"
    assert report["causes"][0]["summary"] == words
    for node in bed.names:
        bed.container(node, {"NCCL_NET": "Socket"}, nofile="2048:4096")
    _, report = bed.report("run", inventory(bed, launch=job), "--only", "host.limits")
    assert results(report, "fail", "warn", "unknown") == []


def test_a_variable_that_differs_and_one_misspelt(bed: Testbed) -> None:
    launch(bed)
    bed.container("tb2", {**ENV, "NCCL_DEBUGG": "INFO"})
    bed.container("tb3", {**ENV, "NCCL_ALGO": "Tree"})
    done, report = bed.report("run", inventory(bed), "--only", ONLY)
    assert causes(report) == [("node", "launch.env", ["tb3"])]
    assert summary(report, "launch.env", "tb3") == "NCCL_ALGO Tree, the 3 others have Ring"
    words = "no NCCL up to 2.30 reads NCCL_DEBUGG, did you mean NCCL_DEBUG?"
    assert results(report, "warn", "unknown") == [("launch.env", "tb2", words)]
    assert done.returncode == 1


def test_a_file_within_one_container(bed: Testbed) -> None:
    launch(bed)
    bed.container("tb2", ENV, {"/root/.nccl.conf": "NCCL_PROTO=LL\n"})
    _, report = bed.report("run", inventory(bed), "--only", "launch.env")
    assert causes(report) == [("node", "launch.env", ["tb2"])]
    assert report["causes"][0]["fix"] == f"remove NCCL_PROTO from /root/.nccl.conf of {WHOSE}"


def test_another_image_on_one_node(bed: Testbed) -> None:
    launch(bed)
    bed.container("tb2", ENV, {"/etc/motd": "of another day\n"})
    for wanted in (JOB, {"engine": "podman", "image": "localhost/train"}):
        path = inventory(bed, launch={"container": wanted})
        done, report = bed.report("run", path, "--only", ONLY)
        assert causes(report) == [("node", "software.container", ["tb2"])]
        assert results(report, "warn", "unknown") == []
        assert done.returncode == 1


def test_containers_that_are_not_there_or_do_not_run(bed: Testbed) -> None:
    launch(bed)
    bed.run("tb2", "podman", "rm", "--force", "train")
    bed.run("tb4", "podman", "kill", "train")
    done, report = bed.report("run", inventory(bed), "--only", ONLY)
    assert causes(report) == [
        ("node", "software.container", ["tb2"]),
        ("node", "software.container", ["tb4"]),
    ]
    assert [cause["summary"] for cause in report["causes"]] == [
        "no container 'train'",
        "container 'train' does not run",
    ]
    gone = 'Error: no container with name or ID "train" found: no such container'
    ended = "Error: can only create exec sessions on running containers: container state improper"
    for check in ("host.limits", "launch.env"):
        why = f"{WHOSE} cannot be looked into: "
        assert summary(report, check, "tb2") == why + gone
        assert summary(report, check, "tb4") == why + ended
    assert {node for _, node, _ in results(report, "fail", "warn", "unknown")} == {"tb2", "tb4"}
    assert done.returncode == 1


def test_containers_of_another_user(bed: Testbed) -> None:
    launch(bed)
    path = inventory(bed, "alice", launch={"user": "root"})
    done, report = bed.report("run", path, "--only", ONLY)
    words = "podman shows alice no containers of root: log in as root"
    about = f"{WHOSE} cannot be looked into: "
    assert {(check, said.removeprefix(about)) for check, _, said in results(report, "unknown")} == {
        (check, words) for check in ONLY.split(",")
    }
    assert causes(report) == []
    assert done.returncode == 3


def test_another_torch_in_one_container(bed: Testbed) -> None:
    job = {"python": bed.training_python(TORCH, {"tb3": {"torch": "2.4.0"}})}
    for node in bed.names:
        bed.container(node, shared=("/usr", "/opt/train"))
    done, report = bed.report("run", inventory(bed, launch=job), "--only", "software")
    assert causes(report) == [("node", "software.pytorch", ["tb3"])]
    assert summary(report, "software.pytorch", "tb3") == (
        "PyTorch 2.4.0 (CPU only), the 3 others have 2.5.1 (CPU only)"
    )
    assert results(report, "warn", "unknown") == []
    assert done.returncode == 1


def test_a_container_without_the_interpreter_or_even_a_shell(bed: Testbed) -> None:
    job = {"python": bed.training_python(TORCH)}
    shared = ("/usr", "/opt/train")
    for node in bed.names:
        bed.container(node, shared=shared)
    bed.container("tb2")
    bed.container("tb4", shared=("/usr/lib", "/usr/lib64", "/usr/bin/sleep"))
    _, report = bed.report("run", inventory(bed, launch=job), "--only", ONLY)
    assert causes(report) == [("node", "software.python", ["tb2", "tb4"])]
    words = "Error: crun: executable file `sh` not found in $PATH: No such file or directory"
    for check in ("host.limits", "launch.env"):
        assert summary(report, check, "tb4").startswith(f"{WHOSE} cannot be looked into: {words}")
    assert {row[1] for row in results(report, "warn", "unknown")} == {"tb4"}


def test_no_secret_of_a_container_is_recorded(bed: Testbed, tmp_path: Path) -> None:
    bed.container("tb1", ENV)
    target = tmp_path / "tb1.json"
    done = bed.preflight("record", "tb1", "-i", inventory(bed), "-o", str(target))
    assert (done.returncode, done.stdout) == (0, "")
    assert "NCCL_ALGO=Ring" in target.read_text()
    assert "nobody's business" not in target.read_text()


def test_nothing_is_left_of_podman(bed: Testbed) -> None:
    before = bed.files("tb1")
    bed.container("tb1", ENV)
    assert "/usr/bin/conmon" in " ".join(bed.survivors("tb1"))
    bed.restore()
    assert bed.files("tb1") == before
    assert bed.survivors("tb1") == []
    assert "containers" not in bed.run("tb1", "cat", "/proc/self/mountinfo")
