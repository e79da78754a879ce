"""`preflight record`: one node's answers in a file that replays."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from preflight.node.replay import Replay
from preflight.recording import load
from tests.checks_made import write
from tests.messages.aloud import Aloud

TOLD = r"preflight: \d+ answers{}, names replaced; still, read it before you share it\n"


def record(folder: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "preflight", "record", *args],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=folder,
        env={**os.environ, "HOME": str(folder), "XDG_DATA_HOME": str(folder / "data"), **env},
    )


def test_this_machine(tmp_path: Path) -> None:
    done = record(tmp_path, "localhost")
    assert (done.returncode, done.stdout) == (0, "")
    assert re.fullmatch(TOLD.format(" in localhost.json"), done.stderr)
    found = load(tmp_path / "localhost.json")
    assert re.fullmatch(r"linux \w+, recorded 20\d\d-\d\d-\d\d by preflight [\d.]+", found.source)
    assert found.want.launch["port"] == 29500
    node = Replay(found.node.model_dump())
    assert node.read("/proc/sys/kernel/random/boot_id") != Path(
        "/proc/sys/kernel/random/boot_id"
    ).read_text("utf-8")
    assert node.uname()["node"] != os.uname().nodename
    key = tmp_path / "data" / "preflight" / "anonymise.key"
    assert (key.stat().st_mode & 0o777, key.stat().st_size) == (0o600, 32)


def test_the_same_names_in_all_recordings_of_one_user(tmp_path: Path, aloud: Aloud) -> None:
    one, two = (record(tmp_path, "localhost", "--only", "access", "-o", "-") for _ in range(2))
    assert one.returncode == two.returncode == 0
    assert re.fullmatch(TOLD.format(""), one.stderr)
    assert one.stdout == two.stdout
    other = record(tmp_path, "localhost", "--only", "access", "-o", "-", XDG_DATA_HOME="/proc/no")
    assert other.stdout != one.stdout
    aloud(re.sub(r"\d+(?= answers)", "MANY", other.stderr))
    assert list(json.loads(one.stdout)["node"]) == ["read", "readlink", "environ", "uname"]


def test_nothing_is_overwritten(tmp_path: Path, aloud: Aloud) -> None:
    for name, args in (("localhost.json", ()), ("mine.json", ("-o", "mine.json"))):
        (tmp_path / name).write_text("mine")
        done = record(tmp_path, "localhost", *args)
        assert (done.returncode, done.stdout) == (2, "")
        aloud(done.stderr, about=name)
        assert (tmp_path / name).read_text() == "mine"


def test_a_node_that_there_is_not(tmp_path: Path, aloud: Aloud) -> None:
    (tmp_path / "c.yaml").write_text("nodes: ['gpu[01-08]']\n")
    for args in (("gpu01",), ("gpu9", "-i", "c.yaml"), ("localhost", "-o", "no/x")):
        done = record(tmp_path, *args, "--only", "access")
        assert (done.returncode, done.stdout) == (2, "")
        aloud(done.stderr, about=f"record {' '.join(args)}")


def test_a_node_that_is_not_reached(tmp_path: Path, aloud: Aloud) -> None:
    (tmp_path / "c.yaml").write_text(
        "nodes: [{name: gpu01, address: 127.0.0.1, ssh: {port: 1, jump: none}}]\n"
    )
    done = record(tmp_path, "gpu01", "-i", "c.yaml")
    assert (done.returncode, done.stdout) == (3, "")
    aloud(done.stderr)
    assert not (tmp_path / "gpu01.json").exists()


def test_what_could_not_be_recorded_is_said(tmp_path: Path, aloud: Aloud) -> None:
    code = "CHECK = Check(probe=probe, judge=lambda facts, want: ok(''){})\n"
    bug = "def probe(node):\n    return 1 / 0\n\n" + code.format("")
    root = "def probe(node):\n    return 1\n\n" + code.format(", needs_root=True")
    write(tmp_path / "checks", "site.bug", bug)
    write(tmp_path / "checks", "site.root", root)
    done = record(tmp_path, "localhost", "--checks", "checks", "--only", "site")
    assert done.returncode == 3
    first, *others = done.stderr.splitlines()
    aloud(first)
    needs = "preflight: not recorded: what site.root asks: needs root"
    assert (needs in others) == (os.geteuid() != 0)
    assert load(tmp_path / "localhost.json").source


@pytest.mark.parametrize("text", ["nodes:\n", "nodes: [a\n", "node: [a]\n"])
def test_a_bad_inventory(tmp_path: Path, text: str) -> None:
    (tmp_path / "c.yaml").write_text(text)
    done = record(tmp_path, "a", "-i", "c.yaml")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("preflight: c.yaml")


def test_a_file_that_cannot_be_written_is_said_before_any_contact(tmp_path: Path) -> None:
    done = record(tmp_path, "localhost", "-o", "no/r.json")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "preflight: no/r.json: cannot write: there is no folder 'no'\n"
