"""CONTRIBUTING's walk through a check, done as it stands there, in a copy of the project."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from preflight.demo.nodes import FAULTS
from tests.documents import ROOT, Block, blocks

WALK = list(blocks("CONTRIBUTING.md"))
FILES = {block.path: block.text for block in WALK if block.path}
COMMANDS = [line for block in WALK if block.kind == "sh" for line in block.text.splitlines()]
SET_UP = "make .venv/ready"


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project in which the files are written."""
    folder = tmp_path_factory.mktemp("clone")
    for name in ("preflight", "checks", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    for path, text in FILES.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


def test_the_walk_is_whole() -> None:
    assert [block for block in WALK if not block.path and block.kind != "sh"] == []
    assert COMMANDS[0] == SET_UP
    assert len(FILES) == 4
    assert Block("sh", f"{SET_UP}\n", None) == WALK[0]


@pytest.mark.parametrize("command", COMMANDS[1:])
def test_the_command_does_it(clone: Path, command: str) -> None:
    done = ran(clone, command)
    assert done.returncode == 0, done.stdout + done.stderr
    said = {"pytest": "5 passed", "explain": "site.hugepages\n", "run": "READY"}
    for word, words in said.items():
        if word in command.split():
            assert words in done.stdout


def test_then_the_demo_is_as_before(clone: Path) -> None:
    done = ran(clone, ".venv/bin/preflight demo")
    assert (done.returncode, done.stderr) == (0, "")
    for number, (node, fault) in enumerate(FAULTS.items(), 1):
        assert re.search(rf"^{number}  {node} .* {re.escape(fault.check)}$", done.stdout, re.M)
    assert "site.hugepages skipped: the recording has no answer to read" in done.stdout


def ran(clone: Path, command: str) -> subprocess.CompletedProcess[str]:
    """Run a line as it stands there."""
    return subprocess.run(
        ["sh", "-ec", command.replace(".venv/bin/", f"{Path(sys.executable).parent}/")],
        cwd=clone,
        env={**os.environ, "PYTHONPATH": str(clone)},
        capture_output=True,
        text=True,
        timeout=120,
        stdin=subprocess.DEVNULL,
    )
