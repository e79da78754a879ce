"""Every command of README and docs is run as it stands there, against the demo's nodes."""

from __future__ import annotations

import html
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import yaml

from preflight import catalog, inventory
from preflight.api import FAIL, UNKNOWN, WARN
from preflight.demo.nodes import FAULTS
from preflight.report.model import read
from tests.documents import ROOT, blocks

DOCUMENTS = ["README.md", *(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md"))]
COMMANDS = [
    line.split("  #")[0].rstrip()
    for name in DOCUMENTS
    for block in blocks(name)
    if block.kind == "sh"
    for line in block.text.splitlines()
]
ELSEWHERE = {"make test", "make check"}
"""`.ci/run` calls them, and these tests are part of the first."""
CAUSES = {(node, fault.check) for node, fault in FAULTS.items()}
RUNS = {
    ".venv/bin/preflight run --hosts 'gpu[01-06]'": CAUSES,
    ".venv/bin/preflight run inventory.yaml": CAUSES,
    ".venv/bin/preflight run inventory.yaml --only network --json report.json": {
        ("gpu04", "network.mtu")
    },
}
"""What each run finds on the demo's nodes."""
NOT_READY = {*RUNS, ".venv/bin/preflight judge report.json"}
MADE_BY = {
    "inventory.yaml": ".venv/bin/preflight init --hosts 'gpu[01-06]' -o inventory.yaml",
    "report.json": ".venv/bin/preflight run inventory.yaml --only network --json report.json",
}
"""What later commands read, and which one writes it."""
JOB_LOG = """\
gpu04:4242:4300 [0] misc/socket.cc:456 NCCL WARN socketStartConnect: Connect to \
10.0.0.1<34567> failed : Connection timed out
"""
"""Of a job that died on the demo's nodes."""
SECONDS = re.compile(r"\d+(\.\d)? s\b")


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Mapping[str, str]]]:
    """A folder to work in, and an environment in which ssh's config leads to the demo's nodes."""
    folder = tmp_path_factory.mktemp("readme")
    ssh = folder / "home" / ".ssh"
    ssh.mkdir(parents=True)
    shutil.copy(ROOT / "Makefile", folder)
    (folder / "job.log").write_text(JOB_LOG)
    env = {**os.environ, "HOME": str(folder / "home")}
    with subprocess.Popen(
        [sys.executable, "-m", "preflight", "demo", "--serve"],
        cwd=folder,
        env=env,
        stdout=subprocess.PIPE,
        text=True,
    ) as serving:
        try:
            assert serving.stdout
            assert "are up" in serving.stdout.readline()
            made = inventory.load(
                folder / "preflight-demo" / "inventory.yaml", catalog.load().expects
            )
            (ssh / "config").write_text("".join(map(entry, made.nodes)))
            yield folder, env
        finally:
            serving.send_signal(signal.SIGINT)


def entry(node: inventory.NodeSpec) -> str:
    """Return what ~/.ssh/config says of a node."""
    return (
        f"Host {node.name}\n  HostName {node.address}\n  Port {node.ssh.port}\n"
        f"  User {node.ssh.user}\n  IdentityFile {node.ssh.key}\n"
        f"  UserKnownHostsFile {node.ssh.known_hosts}\n"
    )


def ready(demo: tuple[Path, Mapping[str, str]], command: str) -> None:
    """Have the files that a command reads: another worker may have the test that makes them."""
    for name, maker in MADE_BY.items():
        if command.startswith(maker):
            (demo[0] / name).unlink(missing_ok=True)
        elif name in command and not (demo[0] / name).exists():
            ready(demo, maker)
            ran(demo, maker)


def ran(demo: tuple[Path, Mapping[str, str]], command: str) -> subprocess.CompletedProcess[str]:
    """Run a line as it stands in a document."""
    folder, env = demo
    return subprocess.run(
        ["sh", "-ec", command.replace(".venv/bin/", f"{Path(sys.executable).parent}/")],
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize(
    "command", [c for c in COMMANDS if c not in ELSEWHERE and c != "make demo"]
)
def test_the_command_does_what_is_said(demo: tuple[Path, Mapping[str, str]], command: str) -> None:
    ready(demo, command)
    done = ran(demo, command)
    assert done.returncode == (1 if command in NOT_READY else 0), done.stdout + done.stderr
    assert done.stdout or (demo[0] / command.split()[-1]).exists()


@pytest.mark.parametrize("command", RUNS)
def test_the_run_finds_the_faults(demo: tuple[Path, Mapping[str, str]], command: str) -> None:
    ready(demo, command)
    assert ran(demo, f"{command} --json told.json").returncode == 1
    report = read(demo[0] / "told.json")
    assert {(*cause.nodes, cause.check) for cause in report.causes} == RUNS[command]
    results = [row for row in report.results if row.check.split(".")[0] in catalog.GROUPS]
    assert {(r.node, r.check) for r in results if r.status in {FAIL, WARN}} == RUNS[command]
    # without the inventory of the demo, which leaves out what was not recorded
    unknown = [r.summary for r in results if r.status == UNKNOWN]
    assert [said for said in unknown if "recording has no" not in said] == []


def test_every_command_is_known() -> None:
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {c.split()[1] for c in COMMANDS if c.startswith("make ")} <= set(targets)
    assert ELSEWHERE | {"make demo", *NOT_READY} <= set(COMMANDS)


def test_make_demo_in_a_fresh_folder(tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    for name in ("preflight", "checks"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "tests").mkdir()
    shutil.copy(ROOT / "tests" / "python.sh", tmp_path / "tests")
    env = {key: value for key, value in os.environ.items() if key not in {"MAKEFLAGS", "MFLAGS"}}
    done = subprocess.run(
        ["make", "demo"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=170
    )
    assert done.returncode == 0, done.stderr
    assert "NOT READY  3 of 6 nodes are ready: gpu[01,03,06]" in done.stdout


def test_the_inventory_shown_is_one(tmp_path: Path) -> None:
    text = next(block.text for block in blocks("README.md") if block.kind == "yaml")
    shown = yaml.safe_load(text)
    (tmp_path / "key").touch()
    shown["ssh"]["key"] = "key"
    path = tmp_path / "inventory.yaml"
    path.write_text(yaml.safe_dump(shown))
    assert len(inventory.load(path, catalog.load().expects).nodes) == 8


@pytest.mark.skipif(
    any(one.group not in catalog.GROUPS for one in catalog.load().values()),
    reason="the picture has no checks of other groups than preflight's own",
)
def test_the_picture_is_that_of_today() -> None:
    """`make picture` draws it; the times that a run takes are not compared."""
    picture = runpy.run_path(str(ROOT / "docs" / "picture.py"))
    assert words(picture["drawn"](picture["shown"]())) == words(
        (ROOT / "docs/demo.svg").read_text()
    )


def words(svg: str) -> list[str]:
    """Return what a picture says, line by line."""
    lines: dict[str, str] = {}
    for y, text in re.findall(r'<text [^>]* y="([\d.]+)"[^>]*>([^<]*)</text>', svg):
        lines[y] = lines.get(y, "") + html.unescape(text).replace("\xa0", " ")
    return [SECONDS.sub("N s", " ".join(line.split())) for line in lines.values()]
