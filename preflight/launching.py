"""The commands that start a job on the nodes of an inventory: torchrun's, or a script for sbatch.

The rendezvous is torchrun's static one: ranks are numbered as the inventory has the nodes, rank 0
is the master's, and all meet at its address, on the launch port. With c10d torchrun would choose
rank 0 itself, and tell the others the name of that node. Pure.
Source: torch/distributed/run.py; options are written with `_`, which torch before 2.0 knows too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import join, quote
from typing import NamedTuple

from pydantic import BaseModel

from preflight import measured
from preflight.api import PASS, WARN
from preflight.errors import ConfigError
from preflight.inventory import Cluster
from preflight.report.folding import folded, some
from preflight.report.model import Report

PROGRAM = ("TRAIN.PY",)
"""Stands for the user's script and its arguments."""
IFNAMES = {"NCCL_SOCKET_IFNAME": "={}", "GLOO_SOCKET_IFNAME": "{}"}
"""How an interface is named to those who choose one: NCCL takes what begins so, eth1.100 for eth1,
unless `=` stands before it."""
MASTER = "MASTER_ADDR"
PORT, INTERFACE = "network.port", "network.interface"
LOOPBACK = re.compile(r"localhost|127\..*|::1")
HOME = re.compile(r"~[A-Za-z0-9._-]*")
NODE_RANK, END = '"$SLURM_NODEID"', "END_OF_COMMAND"


class Ground(NamedTuple):
    """What a report has verified."""

    address: str
    """Of the master, where all nodes reach the launch port."""
    interface: str
    """That all nodes choose; empty where they choose different ones."""


@dataclass(frozen=True)
class Start:
    """How a job starts.

    Args:
        cluster: its nodes and its launch.
        program: the script and its arguments.
        ground: what was verified; None: nothing.
    """

    cluster: Cluster
    program: Sequence[str] = PROGRAM
    ground: Ground | None = None

    @property
    def nodes(self) -> list[str]:
        """The names of the nodes in the order of their ranks."""
        names = [node.name for node in self.cluster.nodes]
        return sorted(names, key=lambda name: name != self.cluster.master)

    @property
    def address(self) -> str:
        """Where all meet."""
        named = self.cluster.launch.env.get(MASTER)
        if named or self.ground:
            return named or str(self.ground and self.ground.address)
        by_name = {node.name: node.address or node.name for node in self.cluster.nodes}
        address = by_name[self.cluster.master]
        # of a tunnel, by which ssh gets there and nobody else
        return self.cluster.master if LOOPBACK.fullmatch(address) else address

    @property
    def env(self) -> dict[str, str]:
        """The variables that all ranks are given."""
        launch = self.cluster.launch
        interface = launch.interface or (self.ground.interface if self.ground else "")
        named = {name: form.format(interface) for name, form in IFNAMES.items() if interface}
        return named | launch.env

    def commands(self) -> dict[str, str]:
        """Return the command of each node, for its shell."""
        return {node: self.command(str(rank)) for rank, node in enumerate(self.nodes)}

    def command(self, rank: str) -> str:
        """Return the command of one node.

        Args:
            rank: its number, as a shell takes it.
        """
        launch, home = self.cluster.launch, not self.cluster.launch.container
        python = at_home(launch.python or "") if home else quote(launch.python or "")
        torchrun = f"{python} -m torch.distributed.run" if launch.python else "torchrun"
        words = [*self._around(), torchrun, *self._rendezvous(rank), join(self.program)]
        line = " ".join(words)
        return f"cd {at_home(launch.workdir)} && {line}" if launch.workdir and home else line

    def _rendezvous(self, rank: str) -> list[str]:
        launch, count = self.cluster.launch, len(self.cluster.nodes)
        each = f"--nproc_per_node={launch.gpus_per_node or 1}"
        if count == 1:
            return ["--standalone", each]  # on a port that is free
        return [
            *(f"--nnodes={count}", each, f"--node_rank={rank}"),
            *(f"--master_addr={quote(self.address)}", f"--master_port={launch.port}"),
        ]

    def _around(self) -> list[str]:
        """Return what stands before torchrun, quoted: the environment, and the container."""
        launch = self.cluster.launch
        given = [quote(f"{name}={value}") for name, value in self.env.items()]
        container = launch.container
        if not container:
            return ["env", *given] if given else []
        options = [word for one in given for word in ("--env", one)]
        name = quote(container.name or container.image or "")
        gpus = bool(launch.gpus_per_node)
        if container.engine == "enroot":
            inside = ["env", quote(f"--chdir={launch.workdir}")] if launch.workdir else []
            return ["enroot", "start", *options, name, *inside]
        if container.engine == "apptainer":
            where = ["--pwd", quote(launch.workdir)] if launch.workdir else []
            name = f"instance://{name}" if container.name else name
            return ["apptainer", "exec", *(["--nv"] if gpus else []), *where, *options, name]
        where = ["--workdir", quote(launch.workdir)] if launch.workdir else []
        if container.name:
            return [container.engine, "exec", *where, *options, name]
        devices = {"docker": "--gpus=all", "podman": "--device=nvidia.com/gpu=all"}
        start = ["run", "--rm", "--network=host", "--ipc=host"]
        start += [devices[container.engine]] if gpus else []
        return [container.engine, *start, *where, *options, name]

    def script(self) -> str:
        """Return the script for sbatch: one task a node, which starts torchrun there."""
        launch, count = self.cluster.launch, len(self.nodes)
        master = quote(self.cluster.master)
        lines = [
            "#!/bin/bash",
            f"#SBATCH --job-name={quote(self.cluster.name)}",
            f"#SBATCH --nodes={count}",
            f"#SBATCH --nodelist={folded(self.nodes)}",
            "#SBATCH --ntasks-per-node=1",
            *([f"#SBATCH --gpus-per-node={launch.gpus_per_node}"] if launch.gpus_per_node else []),
            "#SBATCH --exclusive",
            "",
        ]
        if count > 1:
            lines += [
                "# Slurm numbers the nodes in its own order, and rank 0 must be on the master.",
                'first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
                f'if [ "$first" != {master} ]; then',
                '  echo "node 0 of this job is $first: make it launch.master" >&2',
                "  exit 1",
                "fi",
                "",
            ]
        # cpu-bind: the task would else have the one CPU that is a task's due, for all its ranks
        lines += [
            f"command=$(cat <<'{END}'",
            *(self.command(NODE_RANK), END, ")"),
            'srun --cpu-bind=none bash -c "$command"',
        ]
        return "\n".join(lines)


def at_home(path: str) -> str:
    """Return a path quoted for a shell that is to expand the `~` it begins with."""
    head, slash, rest = path.partition("/")
    if not HOME.fullmatch(head):
        return quote(path)
    return head + slash + (quote(rest) if rest else "")


# ---- what a report has verified ------------------------------------------------------------


class Reach(BaseModel):
    """Of the facts of network.port."""

    address: str


class DataPlane(BaseModel):
    """Of the interfaces of a node."""

    names: list[str]


class Network(BaseModel):
    """Of what a node shows of its network."""

    data_plane: DataPlane


class Chosen(BaseModel):
    """Of the facts of network.interface."""

    network: Network | None


def verified(report: Report, path: Path, cluster: Cluster) -> Ground:
    """Return what a report has verified of a launch.

    Raises:
        ConfigError: it is of another launch, or has not verified the port.
    """
    names = [node.name for node in cluster.nodes]
    lost = sorted({*names} - {node.name for node in report.nodes})
    if lost:
        raise ConfigError(f"{path}: is of a run without {some(lost)}; run preflight on all nodes")
    for key in ("master", "port", "interface"):
        then, now = report.want.launch.get(key), cluster.wanted_launch.get(key)
        if then != now:
            raise ConfigError(
                f"{path}: is of another launch: {key} was {then or 'not given'}, "
                f"it is {now or 'not given'} now; run preflight once more"
            )
    rows = {(row.check, row.node): row for row in report.results}
    for node in names:
        row = rows.get((PORT, node))
        if row is None or row.status not in {PASS, WARN}:  # a warning is about other masters
            why = f"{row.status}: {row.summary}" if row else "it was not run"
            raise ConfigError(
                f"{path}: {PORT} does not pass on {node} ({why}); mend that, and run once more"
            )
    reached = dict(measured.facts(report, path, PORT, Reach))
    if cluster.master not in reached:
        raise ConfigError(f"{path}: has no facts of {PORT} of the master {cluster.master!r}")
    return Ground(reached[cluster.master].address, chosen(report, path, names))


def chosen(report: Report, path: Path, names: Sequence[str]) -> str:
    """Return the interfaces that all nodes choose, with commas, empty where they differ.

    Raises:
        ConfigError: the facts are not what network.interface gives.
    """
    well = {row.node for row in report.results if row.check == INTERFACE and row.status == PASS}
    found = dict(measured.facts(report, path, INTERFACE, Chosen))
    kinds = {
        ",".join(network.data_plane.names) if node in well and network else ""
        for node in names
        for network in [found[node].network if node in found else None]
    }
    return kinds.pop() if len(kinds) == 1 else ""
