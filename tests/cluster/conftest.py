"""The testbed as a fixture; every test in this folder is marked `cluster`."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.testbed import Testbed

PROGRAMS = (
    *("ip", "nft", "iptables-nft", "iptables-legacy", "ethtool"),
    *("nsenter", "unshare", "setpriv", "gcc", "pkg-config"),
    *("/usr/sbin/sshd", "ssh", "ssh-keygen", "sudo", "/usr/bin/python3"),
    *("munged", "slurmctld", "slurmd", "salloc", "mpirun"),
    *("podman", "crun", "iperf3"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker("cluster")


def missing() -> str:
    """Say what this machine lacks to raise a testbed, or nothing."""
    if os.geteuid():
        return "not root"
    absent = [program for program in PROGRAMS if not shutil.which(program)]
    if absent:
        return f"no {', '.join(absent)}"
    for what, argv in (
        ("network namespaces with nftables", "unshare --net nft add table ip trial"),
        ("mount, PID, UTS and IPC namespaces", "unshare --mount --pid --fork --uts --ipc true"),
        ("libfuse3-dev", "pkg-config --exists fuse3"),
    ):
        tried = subprocess.run(argv.split(), capture_output=True, text=True)
        if tried.returncode:
            return f"no {what}: {tried.stderr.strip()}"
    return ""


@pytest.fixture(scope="session")
def testbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Testbed]:
    """Four nodes, up for the whole session."""
    reason = missing()
    if reason and os.environ.get("PREFLIGHT_REQUIRE_CLUSTER") == "1":
        pytest.fail(f"the testbed is required but cannot be raised: {reason}")
    if reason:
        pytest.skip(f"the testbed cannot be raised: {reason}")
    with Testbed(tmp_path_factory.mktemp("testbed")) as testbed:
        yield testbed


@pytest.fixture
def bed(testbed: Testbed) -> Iterator[Testbed]:
    """The testbed without a fault, seen by the test; those of the test are undone after it."""
    with testbed.inside():
        yield testbed
        testbed.restore()


@pytest.fixture
def configured(bed: Testbed) -> Testbed:
    """The testbed, and how to log in to it in the home's ssh_config."""
    lines = [f"Host {name}\n  HostName {m.address}\n" for name, m in bed.machines.items()]
    lines.append(
        f"Host *\n  User alice\n  IdentityFile {bed.key}\n  UserKnownHostsFile {bed.known_hosts}\n"
    )
    folder = Path(bed.environment()["HOME"], ".ssh")
    folder.mkdir()
    (folder / "config").write_text("".join(lines))
    return bed
