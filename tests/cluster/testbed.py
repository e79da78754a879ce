"""A little cluster on one machine: nodes tb1, tb2, … on one bridge, and faults to put into them.

Every fault is undone by `restore`, in reverse order; the fixture `bed` calls it after each test.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.containers import Containers
from tests.cluster.host_faults import HostFaults
from tests.cluster.machine import ENVIRONMENT
from tests.cluster.nccl_tests import NcclTests
from tests.cluster.path_faults import PathFaults
from tests.cluster.slurm import Slurm
from tests.cluster.software import Software
from tests.cluster.walls import Walls

RUN_LIMIT_S = 150
"""Of a run that must end; below the limit of a test, so that it is told what hung."""


class Testbed(PathFaults, HostFaults, Containers, NcclTests, Software, Slurm, Walls):
    """The nodes, their faults, and the controller that looks at them."""

    __test__ = False  # pytest takes any class whose name begins so for tests

    def __enter__(self) -> Testbed:
        self.up()
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    def spec(self, node: str, **more: Any) -> dict[str, Any]:
        """Return the entry of a node in an inventory."""
        return {"name": node, "address": self.machines[node].address, **more}

    def inventory(self, **overrides: Any) -> Path:
        """Write an inventory of all nodes and return its path.

        `ssh` is merged with the default one; everything else given replaces the default.
        """
        content: dict[str, Any] = {
            "cluster": "testbed",
            "ssh": {"user": "alice", "key": str(self.key), "known_hosts": str(self.known_hosts)},
            "nodes": [self.spec(name) for name in self.names],
        }
        for key, value in overrides.items():
            old = content.get(key)
            content[key] = {**old, **value} if isinstance(old, dict) else value
        path = self.tmp_path / f"{next(self._numbers)}" / "inventory.yaml"
        path.parent.mkdir()
        path.write_text(yaml.safe_dump(content, sort_keys=False))
        return path

    def environment(self) -> dict[str, str]:
        """Return the environment in which the controller runs: a home of its own, no SSH agent.

        Its cache outlives a test, unlike the home: without it a run computes half as long again.
        """
        home = self.tmp_path / "home"
        home.mkdir(exist_ok=True)
        return {**ENVIRONMENT, "HOME": str(home), "XDG_CACHE_HOME": str(self.tmp_path / "cache")}

    def start(
        self, *args: str, env: Mapping[str, str] | None = None, under: Sequence[str] = ()
    ) -> subprocess.Popen[str]:
        """Start `preflight` on the controller, `under` another command; the caller ends it."""
        return subprocess.Popen(
            [*under, sys.executable, "-m", "preflight", *args],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.tmp_path,
            env={**self.environment(), **(env or {})},
        )

    def preflight(
        self,
        *args: str,
        timeout: float = RUN_LIMIT_S,
        env: Mapping[str, str] | None = None,
        under: Sequence[str] = (),
    ) -> subprocess.CompletedProcess[str]:
        """Run `preflight` on the controller, killed when it takes longer than `timeout`."""
        with self.start(*args, env=env, under=under) as process:
            try:
                out, err = process.communicate(timeout=timeout)
            except BaseException:
                process.kill()
                raise
        return subprocess.CompletedProcess(args, process.returncode, out, err)

    def report(
        self,
        *args: str,
        timeout: float = RUN_LIMIT_S,
        env: Mapping[str, str] | None = None,
        under: Sequence[str] = (),
    ) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
        """Run `preflight` with `--json`, and return how it ended and the report.

        Raises:
            FileNotFoundError: it wrote none; the message holds what it printed.
        """
        path = self.tmp_path / f"report-{next(self._numbers)}.json"
        done = self.preflight(*args, "--json", str(path), timeout=timeout, env=env, under=under)
        if not path.exists():
            raise FileNotFoundError(f"no report, exit code {done.returncode}: {done.stderr}")
        report: dict[str, Any] = json.loads(path.read_text())
        return done, report

    def ssh(
        self, node: str, command: str, user: str = "alice", timeout: float = 20
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a node through its SSH server, with OpenSSH's client."""
        options = [f"UserKnownHostsFile={self.known_hosts}", "BatchMode=yes", "LogLevel=ERROR"]
        options.append("KexAlgorithms=curve25519-sha256")  # the default one costs 0.15 s more
        argv = ["ssh", "-F", "none", "-i", str(self.key)]
        argv += [part for option in options for part in ("-o", option)]
        return subprocess.run(
            [*argv, f"{user}@{self.machines[node].address}", command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            env=self.environment(),
        )
