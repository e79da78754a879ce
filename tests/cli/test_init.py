"""`preflight init`, and `preflight run` without an inventory, as a user meets them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from preflight import catalog
from preflight.cli.init import say_what_is_missing
from preflight.inventory import load, this_machine
from preflight.sources.learnt import Learnt, Seen
from tests.messages.aloud import Aloud

CLOSED = "127.0.0.1:1"
"""Nothing listens there."""
REFUSED = (
    "preflight: 127.0.0.1 did not answer: 127.0.0.1:1: connection refused; "
    "see that sshd runs there and listens on this port; another one goes under ssh.port\n"
)
UNLEARNT = (
    "preflight: launch.gpus_per_node was not learnt: no node answered\n"
    "preflight: launch.interface was not learnt: no node answered\n"
)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def preflight(*args: str, **more: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    return subprocess.run(
        [sys.executable, "-m", "preflight", *args],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        env=env | {"PYTHONPATH": str(Path(__file__).parents[2])} | more,
    )


def test_an_inventory_of_this_machine(here: Path) -> None:
    done = preflight("init")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.endswith(
        "preflight: wrote inventory.yaml: 1 node, 1 answered; next: preflight run inventory.yaml\n"
    )
    cluster = load(here / "inventory.yaml", catalog.load().expects)
    assert [(node.name, node.transport) for node in cluster.nodes] == [("localhost", "local")]
    alone, again = (
        preflight("run", "--json", "-"),
        preflight("run", "inventory.yaml", "--json", "-"),
    )
    assert again.returncode == alone.returncode
    assert json.loads(again.stdout)["verdict"] == json.loads(alone.stdout)["verdict"]


def test_nobody_answers_and_it_is_written_all_the_same(here: Path, aloud: Aloud) -> None:
    done = preflight("init", "--hosts", CLOSED, "-o", "new.yaml")
    assert done.returncode == 0
    aloud(done.stderr)
    cluster = load(here / "new.yaml")
    assert [(node.name, node.ssh.port) for node in cluster.nodes] == [("127.0.0.1", 1)]
    assert cluster.launch.gpus_per_node is None


@pytest.mark.usefixtures("here")
def test_many_that_are_silent_are_counted(aloud: Aloud) -> None:
    aloud(preflight("init", "--hosts", "127.0.0.[1-9]:1", "-o", "-").stderr)


@pytest.mark.usefixtures("here")
def test_it_may_go_to_standard_output() -> None:
    done = preflight("init", "--hosts", CLOSED, "-o", "-")
    assert (done.returncode, done.stderr) == (0, REFUSED + UNLEARNT)
    assert "  - {name: 127.0.0.1, ssh: {port: 1}}\n" not in done.stdout
    assert "\nssh:\n  # user: ubuntu\n" in done.stdout
    assert "\n  port: 1\n" in done.stdout
    assert "\nnodes:\n  - 127.0.0.1\n" in done.stdout


def test_an_interface_that_is_not_sure_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    pick = Seen("eth0", "NCCL would pick eth0; eth1 is there too", is_sure=False)
    say_what_is_missing(this_machine(), Learnt(Seen(8, ""), pick, Seen(1500, ""), Seen([], "")))
    assert capsys.readouterr().err == (
        "preflight: launch.interface was not learnt: NCCL would pick eth0; eth1 is there too\n"
    )


def test_a_file_is_not_replaced_unasked(here: Path, aloud: Aloud) -> None:
    path = here / "inventory.yaml"
    path.write_text("mine")
    done = preflight("init", "--hosts", CLOSED)
    assert (done.returncode, done.stdout, path.read_text()) == (2, "", "mine")
    aloud(done.stderr)
    assert preflight("init", "--hosts", CLOSED, "--force").returncode == 0
    assert [node.name for node in load(path).nodes] == ["127.0.0.1"]


def test_not_even_through_a_link_that_leads_nowhere(here: Path) -> None:
    (here / "inventory.yaml").symlink_to("elsewhere.yaml")
    assert preflight("init", "--hosts", CLOSED).returncode == 2
    assert not (here / "elsewhere.yaml").exists()


def test_an_ansible_inventory_with_secrets(here: Path) -> None:
    (here / "hosts").write_text(
        "[gpus]\nn[1:2] ansible_host=127.0.0.1 ansible_port=1 ansible_password=hunter2\n[x]\ny\n"
    )
    done = preflight("init", "--ansible", "hosts", "--group", "gpus")
    assert done.returncode == 0
    assert done.stderr.startswith(
        "preflight: n1 and 1 more: ansible_password: passwords are not copied, "
        "preflight logs in with keys\n"
        "preflight: n1 did not answer: 127.0.0.1:1: connection refused; "
    )
    text = (here / "inventory.yaml").read_text()
    assert "hunter2" not in text + done.stderr
    assert "# n1 and 1 more: ansible_password: passwords are not copied" in text
    assert [(n.name, n.address, n.ssh.port) for n in load(here / "inventory.yaml").nodes] == [
        ("n1", "127.0.0.1", 1),
        ("n2", "127.0.0.1", 1),
    ]


def test_an_inventory_that_was_not_asked_for_is_mentioned(here: Path, aloud: Aloud) -> None:
    (here / "inventory.yaml").write_text("nodes: [a]")
    quick = ("--only", "access.ssh")
    aloud(preflight("run", *quick).stderr)
    for done in (preflight("run", "--hosts", CLOSED, *quick), preflight("init", "-o", "-")):
        assert "not asked for" not in done.stderr


BAD = [
    ("run", "i.yaml", "--hosts", "a"),
    ("run", "i.yaml", "--hostfile-in", "h"),
    ("run", "--hosts", "a", "--hostfile-in", "h"),
    ("run", "--hosts", "gpu[1-"),
    ("run", "--hosts", "a", "--exclude", "b"),
    ("run", "--hosts", "a", "--exclude", "a"),
    ("run", "--hostfile-in", "none"),
    ("run", "--hostfile-in", "."),
    ("run", "--hostfile-in", "/dev/null"),
    ("init", "--hosts", "a", "--ansible", "h"),
    ("init", "--hosts", "a", "--group", "g"),
    ("init", "--ansible", "none"),
    ("init", "--hosts", CLOSED, "-o", "."),
    ("init", "--hosts", CLOSED, "-o", "no/i.yaml"),
]


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("args", BAD)
def test_what_is_wrong_is_one_line_and_nothing_is_done(args: tuple[str, ...], aloud: Aloud) -> None:
    done = preflight(*args)
    assert (done.returncode, done.stdout) == (2, "")
    aloud(done.stderr, about=" ".join(args))
    assert list(Path().iterdir()) == []


@pytest.mark.usefixtures("here")
def test_a_slurm_job_is_found_and_a_bad_one_is_said(aloud: Aloud) -> None:
    job = {"SLURM_JOB_NODELIST": "127.0.0.[1-2]", "SLURM_JOB_ID": "4711"}
    done = preflight("init", "-o", "-", **job)
    assert "# Written by preflight init, from Slurm job 4711.\n" in done.stdout
    assert '\n  - "127.0.0.[1-2]"\n' in done.stdout
    bad = preflight("run", SLURM_JOB_NODELIST="gpu[1-")
    assert (bad.returncode, bad.stdout) == (2, "")
    aloud(bad.stderr)
