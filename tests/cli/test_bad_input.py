"""Bad input is one line and exit code 2, and no node is connected to: a listener counts."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from preflight.cli import group
from preflight.errors import ConfigError
from tests.checks_made import probing, write
from tests.messages.aloud import Aloud
from tests.ordinary import ordinary_user

NODES = "nodes: [{name: gpu01, address: 127.0.0.1}]\n"
SSH = "ssh: {port: PORT, connect_timeout_s: 5, login_timeout_s: 1}\n"
GOOD = f"{SSH}{NODES}"
WAIVER = "waivers: [{check: %s, node: %s, until: 2999-01-01, owner: o, reason: r}]\n"

BAD: dict[str, tuple[str, ...]] = {
    "empty": ("",),
    "no nodes": (f"{SSH}nodes: []\n",),
    "unknown key": (f"{GOOD}lanch: {{port: 29500}}\n",),
    "unknown key of a check": (f"{GOOD}expect: {{mut: 9000}}\n",),
    "duplicate node": (f"{SSH}nodes: [127.0.0.1, 127.0.0.2, 127.0.0.1]\n",),
    "bad range": (f"{SSH}nodes: ['127.0.0.[1-']\n",),
    "port 99999": (f"ssh: {{port: 99999}}\n{NODES}",),
    "missing key file": (f"ssh: {{port: PORT, key: keys/none}}\n{NODES}",),
    "unreadable known_hosts": (f"ssh: {{port: PORT, known_hosts: site}}\n{NODES}",),
    "tabs": (f"ssh:\n\tport: PORT\n{NODES}",),
    "a check file that does not import": (GOOD, "--checks", "broken"),
    "two checks with one id": (GOOD, "--checks", "site", "--checks", "again"),
    "a check with the id of one of preflight's": (GOOD, "--checks", "ours"),
    "unknown id in --only": (GOOD, "--only", "network.mut"),
    "unknown node in --nodes": (GOOD, "--nodes", "gpu77"),
    "waiver of an unknown check": (GOOD + WAIVER % ("network.mut", "gpu01"),),
    "waiver of an unknown node": (GOOD + WAIVER % ("network.mtu", "gpu1"),),
    "a report that cannot be written": (GOOD, "--json", "none/report.json"),
}


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server


def connections(listener: socket.socket) -> int:
    count = 0
    with suppress(BlockingIOError):
        while True:
            listener.accept()[0].close()
            count += 1
    return count


def run(folder: Path, listener: socket.socket, text: str, *args: str) -> tuple[int, str, str]:
    """Run preflight on an inventory; return exit code, standard output and standard error."""
    port = listener.getsockname()[1]
    (folder / "inventory.yaml").write_text(text.replace("PORT", str(port)))
    done = subprocess.run(
        [sys.executable, "-m", "preflight", "run", "inventory.yaml", *args],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=folder,
        env={**os.environ, "HOME": str(folder)},
    )
    return done.returncode, done.stdout, done.stderr


def test_good_input_connects(tmp_path: Path, listener: socket.socket) -> None:
    code, _, _ = run(tmp_path, listener, GOOD, "--only", "access")
    assert (code, connections(listener)) == (1, 1)


@pytest.mark.parametrize("kind", BAD)
def test_bad_input(kind: str, tmp_path: Path, listener: socket.socket, aloud: Aloud) -> None:
    write(tmp_path / "broken", "site.fans", "import nosuch\n")
    for folder, check_id in (("site", "site.fans"), ("again", "site.fans"), ("ours", "host.shm")):
        write(tmp_path / folder, check_id, probing("return 1"))
    code, out, err = run(tmp_path, listener, *BAD[kind])
    assert (code, out, err.count("\n"), connections(listener)) == (2, "", 1, 0)
    aloud(err.replace("python -m ", ""), about=kind)


CLOSED = {
    "an inventory": "run closed/i.yaml",
    "a report to judge": "judge closed/r.json",
    "a report to write": "run --json closed/r.json",
    "a folder of checks": "run --checks closed/checks",
    "a host file": "run --hostfile-in closed/hosts",
    "of Ansible": "init --ansible closed/hosts",
    "a new inventory": "init --hosts gpu01 -o closed/i.yaml",
    "an inventory to record from": "record -i closed/i.yaml gpu01",
    "a recording": "demo closed/gpu01.json",
}


@pytest.mark.parametrize("kind", CLOSED)
def test_a_folder_that_is_closed_to_us(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, aloud: Aloud
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/nonexistent")
    line = CLOSED[kind].split()
    with pytest.raises(ConfigError):  # it is not there; and all modules are loaded by now
        group.main(line, standalone_mode=False)
    (tmp_path / "closed").mkdir(mode=0o000)
    with pytest.raises(ConfigError) as caught, ordinary_user():
        group.main(line, standalone_mode=False)
    aloud(caught.value, about=kind)
