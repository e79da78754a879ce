"""Slurm on the testbed: a controller and a daemon on each node, and commands that talk to them.

Slurm 22.05 and munge, as Debian has them. The controller of the testbed is the login node.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.cluster.machine import ENVIRONMENT, execute, wait_until
from tests.cluster.nodes import Nodes

GPUS = 8
"""Of each node, by Slurm's count: an empty file stands for each device.

slurmd says that they are none, and counts them all the same."""
PORT = 6817
"""Of slurmctld, by default."""
UP_LIMIT_S = 20
END_LIMIT_S = 10
JOB_LIMIT_S = 60
ENDED = re.compile(r"JobState=(?:COMPLETED|FAILED|TIMEOUT|CANCELLED) .* ExitCode=([0-9]+):")
MUNGE_FILES = ("socket", "key-file", "log-file", "pid-file", "seed-file")

# One file for all machines, at the same path on each. Without a plugin named in cgroup.conf slurmd
# looks for a mounted /sys/fs/cgroup, and ends.
CONFIG = """\
ClusterName=testbed
SlurmctldHost={name}({address})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SwitchType=switch/none
MpiDefault=none
ReturnToService=1
SchedulerParameters=sched_interval=1,batch_sched_delay=0,bf_interval=1
SlurmdParameters=config_overrides
GresTypes=gpu
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=10 State=UP
"""


class Slurm(Nodes):
    """A batch system over all nodes, there until `restore`."""

    def slurm(self) -> dict[str, str]:
        """Raise it; return what its commands on the login node need in their environment."""
        folder = self.tmp_path / f"slurm-{next(self._numbers)}"
        config, munged = f"{folder}/slurm.conf", munge(folder)
        files = self._slurm_files(folder)
        self._login_node(folder, files, munged)
        for name, machine in self.machines.items():
            self._make_directory(name, str(folder.parent))
            self._undo(machine.remove, str(folder))
            for file, content in files.items():
                machine.write(f"{folder}/{file}", content, 0o600)
            self._daemon(name, folder, *munged)
            wait_until(machine.path(f"{folder}/munge.socket").exists, f"{name}: munged")
        control = self.machines[self.names[-1]]
        self._daemon(control.name, folder, "slurmctld", "-D", "-f", config)
        # a slurmd that finds none waits for a second
        wait_until(lambda: listens(control.address), "slurmctld", UP_LIMIT_S)
        for name in self.names:
            self._daemon(name, folder, "slurmd", "-D", "-N", name, "-f", config)
        wait_until(lambda: idle(config) == set(self.names), "idle nodes", UP_LIMIT_S)
        return {"SLURM_CONF": config}

    def batch(self, environment: Mapping[str, str], script: str, *nodes: str) -> tuple[int, str]:
        """Run a script as a job of some nodes; return its exit code and what it printed."""
        config = Path(environment["SLURM_CONF"])
        file, out = config.with_name("job.sh"), config.with_name("job.out")
        file.write_text(f"#!/bin/sh\n{script}\n")
        env = ("env", *(f"{name}={value}" for name, value in environment.items()))
        options = [f"--nodelist={','.join(nodes)}", f"--output={out}", "--chdir=/tmp"]
        job = execute(*env, "sbatch", "--parsable", *options, str(file)).strip()
        ended: list[str] = []

        def over() -> bool:  # `sbatch --wait` asks every two seconds
            ended[:] = ENDED.findall(execute(*env, "scontrol", "--oneliner", "show", "job", job))
            return bool(ended)

        wait_until(over, f"end of job {job}", JOB_LIMIT_S)
        return int(ended[0]), self.run(nodes[0], "cat", str(out))

    def _slurm_files(self, folder: Path) -> dict[str, str | bytes]:
        nodes = "\n".join(
            f"NodeName={name} NodeAddr={machine.address} CPUs=2 Gres=gpu:{GPUS}"
            for name, machine in self.machines.items()
        )
        control = self.machines[self.names[-1]]
        config = CONFIG.format(
            name=control.name, address=control.address, folder=folder, nodes=nodes
        )
        return {
            "slurm.conf": config,
            "cgroup.conf": "CgroupPlugin=cgroup/v1\n",
            "gres.conf": f"Name=gpu File={folder}/gpu[0-{GPUS - 1}]\n",
            **{f"gpu{number}": "" for number in range(GPUS)},
            "munge.key": os.urandom(1024),
        }

    def _login_node(
        self, folder: Path, files: Mapping[str, str | bytes], munged: Sequence[str]
    ) -> None:
        """Let the controller of the testbed talk to Slurm."""
        self._undo(shutil.rmtree, folder)
        folder.mkdir()
        for name, content in files.items():
            file = Path(folder, name)
            file.write_bytes(content.encode() if isinstance(content, str) else content)
            file.chmod(0o600)
        with Path(folder, "munged.out").open("wb") as out:
            daemon = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *munged],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=ENVIRONMENT,
            )
        self._undo(daemon.wait, END_LIMIT_S)
        self._undo(daemon.terminate)
        wait_until(Path(folder, "munge.socket").exists, "munged")

    def _daemon(self, node: str, folder: Path, *argv: str) -> None:
        machine = self.machines[node]
        # nobody reads what it says
        quiet = ("sh", "-c", f'exec "$@" >{folder}/{argv[0]}.out 2>&1', "sh")
        self._undo(machine.end, machine.start(*quiet, *argv))


def munge(folder: Path) -> list[str]:
    """Return the command that serves credentials, with all its files in a folder."""
    argv = ["munged", "--foreground", "--force"]
    return [*argv, *(f"--{name}={folder}/munge.{name.split('-')[0]}" for name in MUNGE_FILES)]


def allocation(*options: str) -> tuple[str, ...]:
    """Return what runs a command on the login node inside of a new job."""
    return ("salloc", "--quiet", *options, "setpriv", "--pdeathsig", "KILL")


def listens(address: str) -> bool:
    """Whether the daemon that gives out jobs takes connections."""
    try:
        socket.create_connection((address, PORT), timeout=1).close()
    except OSError:
        return False
    return True


def idle(config: str) -> set[str]:
    """Return the nodes that wait for jobs, none as long as the controller does not answer."""
    ask = ("sinfo", "--noheader", "--Node", "--states=idle", "--format=%N")
    try:
        return set(execute("env", f"SLURM_CONF={config}", *ask).split())
    except ChildProcessError:
        return set()
