"""What a running container tells of itself, by a real shell in place of one."""

from __future__ import annotations

import os
import resource
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from preflight.api import Unobservable
from preflight.node.container import LOOK, by_hand, look
from preflight.node.launch import Settings, settings
from preflight.node.replay import Replay
from preflight.node.toolbox import Toolbox

CONTAINER = {"engine": "docker", "name": "train"}
LAUNCH = {"container": CONTAINER}
SHELLS = [shell for shell in ("dash", "bash") if shutil.which(shell)]


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that comes first on PATH; docker there is a shell with an environment of its own."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


def engine(path: Path, environ: Mapping[str, str], shell: str = "sh", **limits: int) -> Path:
    """Install a docker that passes on, as the real one does, only what `--env` says."""
    home = path / "home"
    home.mkdir(exist_ok=True)
    own = {"HOME": str(home), "PATH": "/usr/bin:/bin", **environ}
    docker = path / "docker"
    docker.write_text(
        f"#!{sys.executable} -S\nimport os, resource, sys\n"
        f"words, own = sys.argv[2:], {own!r}\n"
        "while words[0] == '--env':\n"
        "    (name, given, value), words = words[1].partition('='), words[2:]\n"
        "    own[name] = value if given else os.environ[name]\n"
        f"for name, limit in {limits!r}.items():\n"
        "    resource.setrlimit(getattr(resource, 'RLIMIT_' + name.upper()), (limit, limit))\n"
        f"os.execve({shutil.which(shell)!r}, [{shell!r}, *words[2:]], own)\n"
    )
    docker.chmod(0o755)
    return home


@pytest.mark.parametrize("shell", SHELLS)
def test_all_is_seen_at_once(path: Path, shell: str) -> None:
    value = "two\nlines = \\n %s 'quoted' é"
    home = engine(
        path,
        {"NCCL_ALGO": value, "NCCL_EMPTY": "", "WANDB_API_KEY": "x", "NCCL_MY_TOKEN": "x"},
        shell,
        nofile=333,
    )
    (home / ".nccl.conf").write_text("NCCL_ALGO=Ring\n=/etc/passwd\n.\n-\nNCCL_DEBUG=INFO")
    found = look(Toolbox(), CONTAINER, {})
    assert found.environ() == {"HOME": str(home), "NCCL_ALGO": value, "NCCL_EMPTY": ""}
    own = {"memlock": resource.RLIMIT_MEMLOCK, "nproc": resource.RLIMIT_NPROC}
    limits = {name: resource.getrlimit(number) for name, number in own.items()}
    assert found.limits() == {**limits, "nofile": (333, 333)}
    text = "NCCL_ALGO=Ring\n=/etc/passwd\n.\n-\nNCCL_DEBUG=INFO\n"
    assert found.read(f"{home}/.nccl.conf") == text
    assert found.read("/etc/passwd") is None
    for name in ("cgroup", "uid_map"):
        assert found.read(f"/proc/self/{name}") == Path(f"/proc/self/{name}").read_text()
    assert found.read("/proc/self/status").startswith("Name:\t")  # type: ignore[union-attr]


@pytest.mark.parametrize("shell", SHELLS)
def test_proxies_come_without_their_logins(path: Path, shell: str) -> None:
    proxies = {"http_proxy": "http://bob:p@ss@proxy:3128/", "NO_PROXY": "a,b", "ALL_PROXY": "x:y@z"}
    home = engine(path, {**proxies, "my_http_proxy": "not one"}, shell)
    assert look(Toolbox(), CONTAINER, {}).environ() == {
        "HOME": str(home),
        "http_proxy": "(hidden)@proxy:3128/",
        "NO_PROXY": "a,b",
        "ALL_PROXY": "(hidden)@z",
    }


def test_the_containers_own_precedence(path: Path) -> None:
    home = engine(path, {"NCCL_ALGO": "container", "NCCL_CONF_FILE": "/of/the/container"})
    (home / "job.conf").write_text("NCCL_ALGO=file\nNCCL_DEBUG=file\nNCCL_PROTO=file\n")
    env = {"NCCL_DEBUG": "inventory", "NCCL_CONF_FILE": f"{home}/job.conf"}
    found = settings(Toolbox(), {**LAUNCH, "env": env, "user": "nobody"})
    assert found == Settings(
        found={
            "NCCL_ALGO": {"value": "container", "source": "docker container train"},
            "NCCL_CONF_FILE": {"value": f"{home}/job.conf", "source": "launch.env"},
            "NCCL_DEBUG": {"value": "inventory", "source": "launch.env"},
            "NCCL_PROTO": {
                "value": "file",
                "source": f"{home}/job.conf of docker container train",
            },
        },
        idle=[],
        unreadable=[],
        container="docker container train",
        unseen="",
    )


def test_a_file_that_the_containers_user_may_not_read() -> None:
    out = "noise\n=/proc/self/environ\n+HOME=/root\n=/root/.nccl.conf\n-\n=/etc/nccl.conf\n.\n"
    node = Replay({"run": {f"docker exec train sh -c {LOOK}": {"out": out}}})
    found = settings(node, LAUNCH)
    assert found["unreadable"] == ["/root/.nccl.conf of docker container train"]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"absent": "no program 'docker'"}, "no program 'docker'"),
        ({"unobservable": "docker: no answer in time"}, "docker: no answer in time"),
        (
            {"code": 1, "err": "Error response from daemon: container 4f2 is not running\n"},
            "Error response from daemon: container 4f2 is not running",
        ),
        ({"code": 1, "err": "there is no tr in it\n"}, "there is no tr in it"),
        ({"code": 127}, "ended with code 127 without a word"),
        (
            {
                "code": 1,
                "err": "permission denied while trying to connect to the docker API at"
                " unix:///var/run/docker.sock\n",
            },
            "the login user may not use docker: put it into the group docker, or log in as root",
        ),
        ({"out": "=/proc/self/limits\n+Limit\n"}, "ended with code 0 without a word"),
    ],
)
def test_why_it_cannot_be_looked_into(answer: dict[str, Any], words: str) -> None:
    node = Replay({"run": {f"docker exec train sh -c {LOOK}": answer}})
    why = f"docker container train cannot be looked into: {words}"
    with pytest.raises(Unobservable) as raised:
        look(node, CONTAINER, {})
    assert str(raised.value) == why
    env = {"NCCL_ALGO": "Ring"}
    assert settings(node, {**LAUNCH, "env": env}) == Settings(
        found={"NCCL_ALGO": {"value": "Ring", "source": "launch.env"}},
        idle=[],
        unreadable=[],
        container="docker container train",
        unseen=why,
    )


def test_limits_that_are_not_all_there() -> None:
    out = (
        "=/proc/self/limits\n+Max open files            1024                 4096        files\n.\n"
    )
    found = look(Replay({"run": {f"docker exec train sh -c {LOOK}": {"out": out}}}), CONTAINER, {})
    with pytest.raises(Unobservable) as raised:
        found.limits()
    words = "Max locked memory, Max processes is missing"
    assert str(raised.value) == f"/proc/self/limits of the container: {words}"


@pytest.mark.parametrize(
    ("container", "expected"),
    [
        (CONTAINER, "docker exec train sh -c 'ulimit -l'"),
        ({"engine": "podman", "image": "train"}, "ulimit -l"),
        ({"engine": "enroot", "image": "train"}, "ulimit -l"),
        ({}, "ulimit -l"),
    ],
)
def test_a_command_to_run_by_hand(container: dict[str, str], expected: str) -> None:
    assert by_hand(container, "ulimit -l") == expected
