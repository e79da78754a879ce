"""The commands that start a job: their words, and what a shell makes of them."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.inventory import Cluster, Container, Launch, NodeSpec
from preflight.launching import Ground, Start

STAND_IN = """#!/bin/sh
exec python3 - "$0" "$@" <<'END'
import json, os, sys
own = {k: v for k, v in os.environ.items() if k.startswith(("NCCL_", "GLOO_", "X"))}
with open(os.environ["RECORD"], "a") as file:
    print(json.dumps([sys.argv[1].rsplit("/", 1)[-1], sys.argv[2:], own, os.getcwd()]), file=file)
END
"""
SRUN = """#!/bin/sh
[ "$1" = --cpu-bind=none ] || exit 1
shift
for id in 0 1; do SLURM_NODEID=$id "$@" || exit; done
"""
SCONTROL = "#!/bin/sh\nprintf '%s\\n' $FIRST gpu09\n"


def cluster(*names: str, **launch: Any) -> Cluster:
    nodes = tuple(NodeSpec(name=name) for name in names)
    return Cluster(name="pod", source="pod.yaml", nodes=nodes, launch=Launch(**launch))


def words(start: Start, node: str = "gpu01") -> list[str]:
    return shlex.split(start.commands()[node])


def run(folder: Path, shell: str, text: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Have a shell run a text, with stand-ins for the programs that it may call."""
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    stand_ins = dict.fromkeys(("torchrun", "docker", "podman", "apptainer", "enroot"), STAND_IN)
    for name, script in {**stand_ins, "srun": SRUN, "scontrol": SCONTROL}.items():
        (programs / name).write_text(script)
        (programs / name).chmod(0o755)
    path = f"{programs}:{os.environ['PATH']}"
    return subprocess.run(
        [shell, "-c", text],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=folder,
        env={"PATH": path, "HOME": str(folder), "RECORD": str(folder / "record"), **env},
    )


def ran(folder: Path, shell: str, text: str, **env: str) -> list[tuple[str, list[str], Any, str]]:
    """Return what the stand-ins were called with: program, arguments, own variables, folder."""
    done = run(folder, shell, text, **env)
    assert (done.returncode, done.stderr) == (0, "")
    return [(*json.loads(line),) for line in (folder / "record").read_text().splitlines()]


def test_each_node_has_its_command() -> None:
    start = Start(cluster("gpu01", "gpu02", "gpu03", master="gpu02", gpus_per_node=8, port=29555))
    common = "--master_addr=gpu02 --master_port=29555 TRAIN.PY"
    assert start.commands() == {
        node: f"torchrun --nnodes=3 --nproc_per_node=8 --node_rank={rank} {common}"
        for rank, node in enumerate(["gpu02", "gpu01", "gpu03"])
    }


def test_one_node_meets_itself() -> None:
    assert Start(cluster("gpu01", gpus_per_node=4), ["a.py", "-x"]).commands() == {
        "gpu01": "torchrun --standalone --nproc_per_node=4 a.py -x"
    }


def test_ranks_meet_at_what_is_known_best() -> None:
    nodes = (NodeSpec(name="gpu01", address="10.0.0.1"), NodeSpec(name="gpu02"))
    plain = Cluster(name="pod", source=None, nodes=nodes)
    tunnel = plain.model_copy(update={"nodes": (NodeSpec(name="a", address="127.0.0.1"), *nodes)})
    named = plain.model_copy(update={"launch": Launch(env={"MASTER_ADDR": "10.1.0.1"})})
    ground = Ground("10.2.0.1", "")
    assert Start(plain).address == "10.0.0.1"
    assert Start(plain, ground=ground).address == "10.2.0.1"
    assert Start(named, ground=ground).address == "10.1.0.1"
    assert Start(tunnel).address == "a"


def test_an_interface_is_named_to_nccl_and_gloo() -> None:
    env = {"NCCL_DEBUG": "INFO"}
    two = cluster("gpu01", "gpu02", interface="eth1", env=env)
    named = {"NCCL_SOCKET_IFNAME": "=eth1", "GLOO_SOCKET_IFNAME": "eth1"}
    assert Start(two).env == named | env
    other = cluster("gpu01", "gpu02", env={"NCCL_SOCKET_IFNAME": "ib0"})
    assert Start(other, ground=Ground("10.0.0.1", "eth1")).env == {
        "NCCL_SOCKET_IFNAME": "ib0",
        "GLOO_SOCKET_IFNAME": "eth1",
    }
    assert Start(cluster("gpu01")).env == {}


def test_what_a_shell_makes_of_it(tmp_path: Path) -> None:
    (tmp_path / "my train").mkdir()
    nasty = 'it\'s "$HOME" `id` \\ *\nand more'
    one = cluster("gpu01", "gpu02", workdir="~/my train", env={"X_NASTY": nasty}, interface="eth1")
    start = Start(one, ["train it.py", "--name", nasty, "*"])
    ((program, argv, env, folder),) = ran(tmp_path, "sh", start.commands()["gpu02"])
    assert (program, folder) == ("torchrun", str(tmp_path / "my train"))
    assert argv[-4:] == ["train it.py", "--name", nasty, "*"]
    assert "--node_rank=1" in argv
    named = {"NCCL_SOCKET_IFNAME": "=eth1", "GLOO_SOCKET_IFNAME": "eth1"}
    assert env == {"X_NASTY": nasty, **named}


@given(
    st.dictionaries(st.from_regex(r"\A[A-Z_]{1,9}\Z"), st.text("ab '\"$`\\!*\n~#;&|<>", max_size=9))
)
def test_the_environment_comes_through_quoted(env: dict[str, str]) -> None:
    found = words(Start(cluster("gpu01", env=env)))
    given = [f"{name}={value}" for name, value in env.items()]
    assert found == [*(["env", *given] if env else []), "torchrun", *found[-3:]]


def test_an_interpreter_runs_the_module() -> None:
    at_home = Start(cluster("gpu01", python="~bob/my env/bin/python")).commands()["gpu01"]
    assert at_home == (
        "~bob/'my env/bin/python' -m torch.distributed.run --standalone --nproc_per_node=1 TRAIN.PY"
    )
    inside = Container(name="train")
    assert (
        "docker exec train /opt/python -m torch.distributed.run"
        in (Start(cluster("gpu01", python="/opt/python", container=inside)).commands()["gpu01"])
    )


@pytest.mark.parametrize(
    ("container", "before"),
    [
        (
            {"engine": "docker", "name": "train"},
            "docker exec --workdir '/my train' --env 'X=a b' train",
        ),
        (
            {"engine": "podman", "name": "train"},
            "podman exec --workdir '/my train' --env 'X=a b' train",
        ),
        (
            {"engine": "docker", "image": "pytorch:25.04"},
            "docker run --rm --network=host --ipc=host --gpus=all"
            " --workdir '/my train' --env 'X=a b' pytorch:25.04",
        ),
        (
            {"engine": "podman", "image": "pytorch:25.04"},
            "podman run --rm --network=host --ipc=host --device=nvidia.com/gpu=all"
            " --workdir '/my train' --env 'X=a b' pytorch:25.04",
        ),
        (
            {"engine": "apptainer", "image": "train.sif"},
            "apptainer exec --nv --pwd '/my train' --env 'X=a b' train.sif",
        ),
        (
            {"engine": "apptainer", "name": "train"},
            "apptainer exec --nv --pwd '/my train' --env 'X=a b' instance://train",
        ),
        (
            {"engine": "enroot", "name": "train"},
            "enroot start --env 'X=a b' train env '--chdir=/my train'",
        ),
    ],
    ids=lambda given: f"{given['engine']}-{[*given][1]}" if isinstance(given, dict) else "",
)
def test_a_container(container: dict[str, str], before: str, tmp_path: Path) -> None:
    inside = Container.model_validate(container)
    one = cluster("gpu01", gpus_per_node=2, container=inside, workdir="/my train", env={"X": "a b"})
    line = Start(one).commands()["gpu01"]
    assert line == f"{before} torchrun --standalone --nproc_per_node=2 TRAIN.PY"
    ((program, argv, env, _),) = ran(tmp_path, "sh", line)
    assert ([program, *argv], env) == (shlex.split(line), {})


def test_a_script_for_sbatch(tmp_path: Path) -> None:
    two = cluster("gpu02", "gpu01", master="gpu01", gpus_per_node=8, env={"X_ENV": "it's $HOME"})
    script = Start(two, ["train.py", "'"]).script()
    assert [line for line in script.splitlines() if line.startswith("#")] == [
        "#!/bin/bash",
        "#SBATCH --job-name=pod",
        "#SBATCH --nodes=2",
        "#SBATCH --nodelist=gpu[01-02]",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --gpus-per-node=8",
        "#SBATCH --exclusive",
        "# Slurm numbers the nodes in its own order, and rank 0 must be on the master.",
    ]
    found = ran(tmp_path, "bash", script, FIRST="gpu01", SLURM_JOB_NODELIST="gpu[01-02]")
    assert [(argv[2], argv[-2:], env) for _, argv, env, _ in found] == [
        (f"--node_rank={rank}", ["train.py", "'"], {"X_ENV": "it's $HOME"}) for rank in (0, 1)
    ]
    other = run(tmp_path, "bash", script, FIRST="gpu07", SLURM_JOB_NODELIST="gpu[01-02]")
    words = "node 0 of this job is gpu07: make it launch.master\n"
    assert (other.returncode, other.stdout, other.stderr) == (1, "", words)


def test_a_script_for_one_node() -> None:
    script = Start(cluster("gpu01")).script()
    assert "scontrol" not in script
    assert "gpus-per-node" not in script
    assert "\ntorchrun --standalone --nproc_per_node=1 TRAIN.PY\n" in script
