"""Completion, asked for as the shells ask."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from preflight import catalog
from preflight.cli import COMMANDS
from preflight.cli.completion import LINES

PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
PROGRAM = str(Path(sys.executable).parent / "preflight")
OPTIONS = {"bash": ["--norc", "--noprofile"], "fish": ["--no-config"], "zsh": ["--no-rcs"]}
BASH = """
COMP_WORDS=({words})
COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_preflight_completion preflight "${{COMP_WORDS[COMP_CWORD]}}" "${{COMP_WORDS[COMP_CWORD-1]}}"
printf '%s\\n' "${{COMPREPLY[@]}}"
"""

ZSH = """
words=({words})
CURRENT=$#words
_preflight_completion
"""
BEFORE = {
    "zsh": "compdef() { true }; compadd() { print -l -- $completions };"
    " _describe() { print -l -- $completions_with_descriptions };\n"
}
"""What zsh has in its editor only."""


def shell(name: str, script: str, folder: Path, path: str = PATH) -> list[str]:
    """Run the line that `preflight completion` prints, then a script; return what it printed."""
    if shutil.which(name) is None:
        pytest.skip(f"no {name} on this machine")
    env = {"PATH": path, "HOME": str(folder), "TERM": "dumb"}
    line = subprocess.run(
        [PROGRAM, "completion", name], env=env, capture_output=True, text=True, check=True
    ).stdout
    assert line.endswith(f"{LINES[name]}\n")
    assert (line == f"{LINES[name]}\n") == (path == PATH)
    done = subprocess.run(
        [name, *OPTIONS[name], "-c", BEFORE.get(name, "") + line + script],
        env=env,
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.split()


def bash(folder: Path, *words: str) -> list[str]:
    quoted = " ".join(f"'{word}'" for word in ("preflight", *words))
    return shell("bash", BASH.format(words=quoted), folder)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "cluster.yaml").write_text("nodes:\n  - name: gpu[01-03]\n  - name: head\n")
    return tmp_path


def test_commands(folder: Path) -> None:
    assert bash(folder, "") == [*COMMANDS]
    assert bash(folder, "ex") == ["explain"]


def test_check_ids(folder: Path) -> None:
    ids = {*catalog.load(())}
    groups = {name.split(".")[0] for name in ids}
    assert {*bash(folder, "explain", "")} == ids | groups
    for option in ("--only", "--skip", "--require"):
        assert bash(folder, "run", option, "network.m") == ["network.mtu"]
    assert bash(folder, "run", "--only", "gpu,storage.m") == ["gpu,storage.mounts"]


def test_nodes_of_the_inventory_on_the_line(folder: Path) -> None:
    gpus = ["gpu01", "gpu02", "gpu03"]
    assert bash(folder, "run", "cluster.yaml", "--nodes", "") == [*gpus, "head"]
    assert bash(folder, "run", "cluster.yaml", "--exclude", "gpu") == gpus
    assert bash(folder, "run", "cluster.yaml", "--nodes", "head,gpu03") == ["head,gpu03"]


def test_nodes_without_an_inventory(folder: Path) -> None:
    (folder / "hosts.txt").write_text("h1\nh2\n")
    assert bash(folder, "run", "--hosts", "a[1-2],b", "--exclude", "") == ["a1", "a2", "b"]
    assert bash(folder, "run", "--hosts", "a[1-2],b", "--nodes", "a") == ["a1", "a2"]
    assert bash(folder, "run", "--hostfile-in", "hosts.txt", "--nodes", "") == ["h1", "h2"]
    assert bash(folder, "run", "--nodes", "") == ["localhost"]
    assert bash(folder, "record", "") == ["localhost"]
    assert bash(folder, "record", "-i", "cluster.yaml", "gpu") == ["gpu01", "gpu02", "gpu03"]


def test_no_node_is_offered_twice(folder: Path) -> None:
    typed = "gpu02,head,"
    assert bash(folder, "run", "cluster.yaml", "--nodes", typed) == [
        f"{typed}gpu01",
        f"{typed}gpu03",
    ]
    assert bash(folder, "run", "cluster.yaml", "--nodes", "gpu[01-03],") == ["gpu[01-03],head"]
    assert bash(folder, "run", "cluster.yaml", "--nodes", "gpu[01,") == []


def test_what_is_wrong_completes_nothing_and_says_nothing(folder: Path) -> None:
    (folder / "broken.yaml").write_text("nodes: {")
    assert bash(folder, "run", "broken.yaml", "--nodes", "") == []
    assert bash(folder, "run", "gone.yaml", "--nodes", "") == []
    assert bash(folder, "run", "--hosts", "a[1-", "--nodes", "") == []
    assert bash(folder, "run", "--checks", "gone", "--only", "") == []


@pytest.mark.parametrize(
    ("name", "script"),
    [
        ("bash", BASH.format(words="'preflight' 'run' '--only' 'network.m'")),
        ("fish", "\ncomplete -C 'preflight run --only network.m'\n"),
        ("zsh", ZSH.format(words="preflight run --only network.m")),
    ],
)
@pytest.mark.parametrize("path", [PATH, "/usr/bin:/bin"])
def test_shells_with_and_without_it_on_path(
    folder: Path, name: str, script: str, path: str
) -> None:
    assert "network.mtu" in shell(name, script, folder, path)
