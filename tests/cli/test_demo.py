"""`preflight demo` as a newcomer runs it: real servers, real logins, three faults."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from preflight import catalog
from preflight.api import Want
from preflight.cli.demo import see_found
from preflight.demo.answered import NO_TRAFFIC, unanswered
from preflight.demo.cluster import MARK
from preflight.demo.nodes import FAULTS, HEALTHY
from preflight.errors import PreflightError
from preflight.judge import REACH
from preflight.recording import load
from tests.agent_made import wait_until
from tests.messages.aloud import Aloud
from tests.report_made import report

FILES = {"id_ed25519", "inventory.yaml", "known_hosts"}
CAUSES = {
    ("gpu02", "software.driver", "NVIDIA driver 535.161.08, the 5 others have 550.54.15"),
    ("gpu04", "network.mtu", "eth0 has MTU 1500, the 5 others have 9000"),
    (
        "gpu05",
        "storage.mounts",
        "/data: not mounted, the 5 others have nfs4 nas01:/export/data",
    ),
}
NAMES = [f"gpu{number:02}" for number in range(1, 7)]


def environment(folder: Path) -> dict[str, str]:
    """Return the environment of a demo: the temporary folder tells its processes from others.

    Tests share the cache, since to fill it takes longer than all else.
    """
    (folder / "tmp").mkdir(exist_ok=True)
    (folder / "alice").mkdir(exist_ok=True)
    return {
        **os.environ,
        "HOME": str(folder / "alice"),
        "TMPDIR": str(folder / "tmp"),
        "XDG_CACHE_HOME": str(folder.parent / "cache"),
    }


def cli(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "preflight", *args],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        cwd=folder,
        env=environment(folder),
    )


def left_over(folder: Path) -> list[str]:
    """Return the processes that a demo has started, and the files it has left in /tmp."""
    mark = f"PREFLIGHT_DEMO_RECORDING={folder}".encode()
    found = [path.name for path in (folder / "tmp").iterdir()]
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_text())
    return found


def ports(folder: Path) -> list[int]:
    """Return the ports in an inventory that somebody listens on."""
    inventory = yaml.safe_load((folder / "inventory.yaml").read_text())
    found = []
    for node in inventory["nodes"]:
        with socket.socket() as connection:
            if connection.connect_ex((node["address"], node["ssh"]["port"])) == 0:
                found.append(node["ssh"]["port"])
    return found


@contextlib.contextmanager
def serving(folder: Path, *args: str, end: int = signal.SIGINT) -> Iterator[list[str]]:
    """Keep simulated nodes up; gives what was said when they are."""
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "preflight", "demo", "--serve", *args],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=environment(folder),
    )
    with process:
        assert process.stdout
        try:
            yield [process.stdout.readline() for _ in range(3)]
            process.send_signal(end)
            assert process.wait(30) == 0
        finally:
            process.kill()


def by_hand(folder: Path, *args: str) -> tuple[int, dict[str, Any]]:
    done = cli(folder, "run", "preflight-demo/inventory.yaml", "--json", "-", *args)
    assert done.stderr == ""
    return done.returncode, json.loads(done.stdout)


def test_the_demo_twice_in_one_folder(tmp_path: Path) -> None:
    for _ in range(2):
        done = cli(tmp_path, "demo")
        assert (done.returncode, done.stderr) == (0, "")
        before, header, *rest = done.stdout.partition("demo (simulated nodes), 6 nodes, standard")
        assert header
        assert before.startswith("The nodes gpu[01-06] are simulated. ")
        assert "nothing is\nsent between nodes" in before
        assert before.endswith("$ python -m preflight run preflight-demo/inventory.yaml\n\n")
        report, _, after = rest[0].partition("\nThe nodes above are simulated. ")
        assert "NOT READY  3 of 6 nodes are ready: gpu[01,03,06]\n" in report
        for node, fault in FAULTS.items():
            assert f"  {node}  {fault.words}\n" in after
        assert "  python -m preflight demo --serve\n" in after
        assert "  python -m preflight run preflight-demo/inventory.yaml\n" in after
        assert max(map(len, done.stdout.splitlines())) <= 80
        folder = tmp_path / "preflight-demo"
        assert {path.name for path in folder.iterdir()} == FILES
        assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
        assert (left_over(tmp_path), ports(folder)) == ([], [])


def test_by_hand(tmp_path: Path) -> None:
    with serving(tmp_path) as said:
        assert said == [
            "The simulated nodes gpu[01-06] are up on 127.0.0.1 until Ctrl-C.\n",
            "In another terminal:\n",
            "  python -m preflight run preflight-demo/inventory.yaml\n",
        ]
        inventory = tmp_path / "preflight-demo/inventory.yaml"
        code, report = by_hand(tmp_path)
        assert (code, report["run"]["cluster"]) == (1, "demo (simulated nodes)")
        assert {(*c["nodes"], c["check"], c["summary"]) for c in report["causes"]} == CAUSES
        assert [c["explains"] for c in report["causes"]] == [[]] * 3
        wrong = {(r["node"], r["check"]) for r in report["results"] if r["status"] != "pass"}
        left_out = {"software.container", *yaml.safe_load(inventory.read_text())["checks"]["skip"]}
        assert "network.port" not in left_out
        left_out &= {r["check"] for r in report["results"]}  # those of this level
        assert wrong == {(node, check) for node, check, _ in CAUSES} | {
            (name, check) for check in left_out for name in NAMES
        }
        assert {node["name"]: node["verdict"] for node in report["nodes"]} == {
            name: "not_ready" if name in FAULTS else "ready" for name in NAMES
        }
        code, report = by_hand(tmp_path, "--nodes", "gpu[01,03,06]")
        assert (code, report["verdict"]) == (0, "ready")
        assert ports(tmp_path / "preflight-demo")
    assert (left_over(tmp_path), ports(tmp_path / "preflight-demo")) == ([], [])


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGHUP])
def test_ended_in_the_middle(tmp_path: Path, end: int) -> None:
    """Whoever runs it by hand may still be connected when the servers go."""
    with serving(tmp_path, end=end):
        run = subprocess.Popen(
            [sys.executable, "-m", "preflight", "run", "preflight-demo/inventory.yaml"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=tmp_path,
            env=environment(tmp_path),
        )
        wait_until(lambda: [one for one in left_over(tmp_path) if "stand_in" in one])
    with run:
        assert run.wait(60) in {1, 3}
    wait_until(lambda: not left_over(tmp_path), lambda: f"still there: {left_over(tmp_path)}")


def test_no_ssh_settings_of_the_user_come_in_between(tmp_path: Path) -> None:
    config = environment(tmp_path)["HOME"] + "/.ssh/config"
    Path(config).parent.mkdir()
    Path(config).write_text(
        "Host *\n  User nobody\n  Port 1\n  ProxyJump nowhere.invalid\n"
        "  UserKnownHostsFile /dev/null\n  IdentityFile /no/such\n"
        "  HostKeyAlias other\n  HostName nowhere.invalid\n"
    )
    done = cli(tmp_path, "demo")
    assert (done.returncode, done.stderr) == (0, "")


def test_another_folder(tmp_path: Path) -> None:
    done = cli(tmp_path, "demo", "--folder", "a b/c")
    assert done.returncode == 0
    assert "  python -m preflight demo --serve --folder 'a b/c'\n" in done.stdout
    assert "  python -m preflight run 'a b/c/inventory.yaml'\n" in done.stdout
    assert {path.name for path in (tmp_path / "a b" / "c").iterdir()} == FILES


def refused(folder: Path, *args: str) -> str:
    done = cli(folder, "demo", *args)
    assert (done.returncode, done.stdout) == (2, "")
    return done.stderr


def test_a_foreign_folder_is_left_alone(tmp_path: Path, aloud: Aloud) -> None:
    folder = tmp_path / "preflight-demo"
    folder.mkdir()
    for text in ("nodes: [gpu01]\n", "\xff", f"{MARK[:-1]}\n"):
        (folder / "inventory.yaml").write_text(text, encoding="latin-1")
        aloud(refused(tmp_path))
        assert (folder / "inventory.yaml").read_text(encoding="latin-1") == text
    assert [path.name for path in folder.iterdir()] == ["inventory.yaml"]


def test_own_files_in_the_folder_stay(tmp_path: Path) -> None:
    folder = tmp_path / "preflight-demo"
    folder.mkdir()
    (folder / "inventory.yaml").write_text(f"{MARK}\n")
    (folder / "mine.yaml").write_text("nodes: [a]\n")
    assert cli(tmp_path, "demo").returncode == 0
    assert (folder / "mine.yaml").read_text() == "nodes: [a]\n"


def test_a_file_of_the_demo_that_is_a_folder(tmp_path: Path, aloud: Aloud) -> None:
    folder = tmp_path / "preflight-demo"
    (folder / "known_hosts").mkdir(parents=True)
    (folder / "inventory.yaml").write_text(f"{MARK}\n")
    aloud(refused(tmp_path))


def test_no_folder(tmp_path: Path, aloud: Aloud) -> None:
    (tmp_path / "preflight-demo").write_text("x")
    aloud(refused(tmp_path), refused(tmp_path, "--folder", "/proc/x"))


def test_a_folder_that_is_in_use(tmp_path: Path, aloud: Aloud) -> None:
    with serving(tmp_path):
        aloud(refused(tmp_path))


def test_recordings_of_ones_own(tmp_path: Path, aloud: Aloud) -> None:
    (tmp_path / "gpu01.json").write_bytes(HEALTHY.read_bytes())
    done = cli(tmp_path, "demo", "gpu01.json")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("The node gpu01 is simulated. ")
    assert "\nREADY  gpu01 is ready\n" in done.stdout
    assert done.stdout.endswith("\nThe node gpu01 is simulated.\n")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "gpu01.json").write_bytes(HEALTHY.read_bytes())
    (tmp_path / "a b.json").write_text("{}")
    aloud(refused(tmp_path, "gpu01.json", "other/gpu01.json"), refused(tmp_path, "a b.json"))


def test_this_machine_recorded(tmp_path: Path) -> None:
    """What was not recorded is left out, and said; all the rest is as on the machine."""
    assert cli(tmp_path, "record", "localhost", "-o", "mine.json").returncode == 0
    real = cli(tmp_path, "run", "--json", "-", "--skip", "network.port")
    with serving(tmp_path, "mine.json") as said:
        assert said[0] == "The simulated node mine is up on 127.0.0.1 until Ctrl-C.\n"
        code, report = by_hand(tmp_path)
    assert code == real.returncode
    was = {row["check"]: row["status"] for row in json.loads(real.stdout)["results"]}
    left_out = {row["check"] for row in report["results"] if row["summary"] == NO_TRAFFIC}
    assert "network.port" in left_out
    found = {row["check"]: row["status"] for row in report["results"]}
    assert {**found, **dict.fromkeys(left_out)} == {**was, **dict.fromkeys(left_out)}


def test_the_recording_answers_all_checks_of_today() -> None:
    """A check in a group of preflight's own has its answers in healthy.json, if it has a probe."""
    checks = [one for one in catalog.load().values() if one.group in catalog.GROUPS]
    probing = {one.id for one in checks if one.check.probe} | {"network.port"}
    healthy = load(HEALTHY)
    for launch in (healthy.want.launch, {}):
        want = Want({"port": 29500, "env": {}, "master": "gpu01", **launch}, {}, NAMES)
        left_out = unanswered(checks, [healthy], want)
        assert not probing & set(left_out)
        assert set(left_out.values()) <= {NO_TRAFFIC}


def test_what_the_recordings_do_not_answer() -> None:
    healthy = load(HEALTHY)
    no_name = healthy.model_copy(update={"node": healthy.node.model_copy(update={"uname": {}})})
    no_dial = healthy.model_copy(update={"exercises": {"preflight.node.ports": {"listen": {}}}})
    want = Want({"port": 29500, "env": {}, "master": "gpu01", **healthy.want.launch}, {}, NAMES)
    checks = [one for one in catalog.load().values() if one.group in catalog.GROUPS]
    before = unanswered(checks, [healthy], want)
    assert unanswered(checks, [healthy, no_name, no_dial], want) == before | {
        "access.identity": "the recording has no answer to uname",
        "network.firewall": "the recording has no answer to uname",
        "software.os": "the recording has no answer to uname",
        "storage.mounts": "the recording has no answer to uname",
        "network.ephemeral": NO_TRAFFIC,
        "network.interface": NO_TRAFFIC,
        "network.port": NO_TRAFFIC,
    }


def test_a_recording_that_is_cut_off(tmp_path: Path, aloud: Aloud) -> None:
    (tmp_path / "cut.json").write_text('{"source": "made up", "node": {"re')
    aloud(refused(tmp_path, "cut.json"))
    assert not (tmp_path / "preflight-demo").exists()


def test_nodes_that_were_not_reached(aloud: Aloud) -> None:
    """As where the user may start no more processes."""
    with pytest.raises(PreflightError) as caught:
        see_found(report([catalog.load()[REACH]], {}, lost=["gpu01"]))
    aloud(caught.value)


@pytest.mark.parametrize("command", ["demo", "record"])
def test_help(tmp_path: Path, command: str) -> None:
    done = cli(tmp_path, command, "--help")
    assert done.returncode == 0
    assert done.stdout.startswith(f"Usage: python -m preflight {command} [OPTIONS] ")
