"""Who sets a variable of the launch environment, as NCCL reads it."""

from __future__ import annotations

from typing import Any

import pytest

from preflight.node.launch import Settings, expanded, files, interpreter, misspelt, parsed, settings
from preflight.node.replay import Replay


def node(environ: dict[str, str], **read: Any) -> Replay:
    recording = {"/home/alice/.nccl.conf": None, "/etc/nccl.conf": None, **read}
    account = {"name": "bob", "uid": 7, "gid": 7, "home": "/nfs/bob", "shell": "", "groups": {}}
    return Replay(
        {
            "environ": {"": {"HOME": "/home/alice", **environ}},
            "read": recording,
            "account": {"bob": account, "gone": None},
        }
    )


def test_the_first_who_sets_a_variable_wins() -> None:
    files = {
        "/home/alice/.nccl.conf": "NCCL_A=user\nNCCL_B=user\nNCCL_C=user\n",
        "/etc/nccl.conf": "# NCCL_E=x\nNCCL_D=system\nNCCL_D=later\nno\nNCCL_C=x\r\nNCCL_F = x\n",
    }
    launch = {"env": {"NCCL_A": "inventory"}}
    found = settings(node({"NCCL_A": "shell", "NCCL_B": "shell"}, **files), launch)
    assert found == {
        "found": {
            "NCCL_A": {"value": "inventory", "source": "launch.env"},
            "NCCL_B": {"value": "shell", "source": "the shell"},
            "NCCL_C": {"value": "user", "source": "/home/alice/.nccl.conf"},
            "NCCL_D": {"value": "system", "source": "/etc/nccl.conf"},
        },
        "idle": [{"source": "/etc/nccl.conf", "text": "NCCL_F = x", "meant": "NCCL_F=x"}],
        "unreadable": [],
        "container": "",
        "unseen": "",
    }


def test_only_what_steers_communication_is_taken() -> None:
    taken = {
        "NCCL_DEBUG": "INFO",
        "GLOO_SOCKET_IFNAME": "eth0",
        "UCX_IB_PKEY": "0x1",
        "TORCH_NCCL_BLOCKING_WAIT": "1",
        "MASTER_ADDR": "a",
        "TP_SOCKET_IFNAME": "eth0",
        "FI_PROVIDER": "efa",
    }
    left = (
        "PATH",
        "MASTER_PASSWORD",
        "TORCH_HUB_TOKEN",
        "NCCL",
        "XNCCL_ALGO",
        "FI_KEY",
        "HF_TOKEN",
    )
    found = settings(node({**taken, **dict.fromkeys(left, "secret")}), {})["found"]
    assert {name: setting["value"] for name, setting in found.items()} == taken


def test_long_values_are_cut() -> None:
    found = settings(node({"NCCL_LONG": "x" * 10_000}), {})["found"]
    assert found["NCCL_LONG"]["value"] == "x" * 512


def test_a_file_that_may_not_be_read_is_told() -> None:
    closed = node({}, **{"/etc/nccl.conf": {"unobservable": "/etc/nccl.conf: Permission denied"}})
    assert settings(closed, {}) == Settings(
        found={}, idle=[], unreadable=["/etc/nccl.conf"], container="", unseen=""
    )


@pytest.mark.parametrize("engine", ["docker", "podman"])
def test_what_an_image_brings_is_not_seen(engine: str) -> None:
    launch = {"container": {"engine": engine, "image": "x"}, "env": {"NCCL_ALGO": "Ring"}}
    assert settings(Replay({}), launch) == Settings(
        found={"NCCL_ALGO": {"value": "Ring", "source": "launch.env"}},
        idle=[],
        unreadable=[],
        container="",
        unseen="the training environment is in an image, and preflight starts no containers",
    )


def test_a_container_of_enroot_sees_the_node() -> None:
    launch = {"container": {"engine": "enroot", "image": "x"}}
    found = settings(node({"NCCL_ALGO": "Ring"}), launch)["found"]
    assert found == {"NCCL_ALGO": {"value": "Ring", "source": "the shell"}}


@pytest.mark.parametrize(
    ("environ", "launch", "expected"),
    [
        ({}, {}, "/home/alice/.nccl.conf"),
        ({}, {"user": "bob"}, "/nfs/bob/.nccl.conf"),
        ({"NCCL_CONF_FILE": "/x.conf"}, {}, "/x.conf"),
        ({"NCCL_CONF_FILE": "/x.conf"}, {"env": {"NCCL_CONF_FILE": "/y.conf"}}, "/y.conf"),
        ({}, {"user": "gone"}, None),
    ],
)
def test_files(environ: dict[str, str], launch: dict[str, Any], expected: str | None) -> None:
    own = [expected] if expected else []
    assert files(node(environ), launch) == [*own, "/etc/nccl.conf"]


def test_lines_of_a_file_are_as_nccl_reads_them() -> None:
    text = "A = b\nQ='x'\n#C=d\nE=f=g\nD=e\r\n"
    assert parsed(text) == {"A ": " b", "Q": "'x'", "E": "f=g", "D": "e\r"}


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("NCCL_SOCKET_IFNAME = eth0", "NCCL_SOCKET_IFNAME=eth0"),
        (" NCCL_ALGO=Ring", "NCCL_ALGO=Ring"),
        ("export NCCL_IB_HCA=", "NCCL_IB_HCA="),
        ("setenv NCCL_DEBUG INFO", "NCCL_DEBUG=INFO"),
        ("NCCL_DEBUG: INFO", "NCCL_DEBUG=INFO"),
        ("NCCL_IB_HCA = mlx5_0, mlx5_1", "NCCL_IB_HCA=mlx5_0, mlx5_1"),
        ("NCCL_DEBUG=INFO", ""),
        ("NCCL_DEBUG=INFO ", ""),
        ("# NCCL_DEBUG = INFO", ""),
        (" # NCCL_DEBUG=INFO", ""),
        ("NCCL_DEBUG tells more if set to INFO", ""),
        ("export PATH=/opt", ""),
        ("export NCCL_SHARP_TOKEN=x", ""),
    ],
)
def test_lines_that_seem_to_set_a_variable(line: str, meant: str) -> None:
    assert misspelt(f"{line}\n") == ([(line.strip(), meant)] if meant else [])


@pytest.mark.parametrize(
    ("path", "user", "expected"),
    [
        ("~", None, "/home/alice"),
        ("~/a~/b", None, "/home/alice/a~/b"),
        ("~/a", "bob", "/nfs/bob/a"),
        ("~bob/a", None, "/nfs/bob/a"),
        ("~gone/a", None, "~gone/a"),
        ("/~/a", None, "/~/a"),
        ("python3", None, "python3"),
    ],
)
def test_home_is_that_of_the_jobs_user(path: str, user: str | None, expected: str) -> None:
    assert expanded(node({}), path, user) == expected


@pytest.mark.parametrize(
    ("launch", "expected"),
    [
        ({}, "python3"),
        ({"workdir": "~/job"}, "python3"),
        ({"python": "~/env/bin/python", "workdir": "/w"}, "/home/alice/env/bin/python"),
        ({"python": "env/bin/python", "workdir": "~/job"}, "/home/alice/job/env/bin/python"),
        ({"python": "env/bin/python"}, "env/bin/python"),
    ],
)
def test_the_interpreter_is_where_the_job_finds_it(launch: dict[str, Any], expected: str) -> None:
    assert interpreter(node({}), launch) == expected
