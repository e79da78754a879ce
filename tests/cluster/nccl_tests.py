"""Nccl-tests on the nodes: a stand-in that prints what the real one would, and what starts it."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.hardware import Hardware, gpu_values
from tests.cluster.machine import execute

PROGRAM = "/opt/nccl-tests/build/all_reduce_perf"
PLAY = "/etc/testbed-nccl-tests"
LIBRARIES = {"MPI": "libmpi.so.40", "PMI2": "libpmi2.so.0", "": ""}
"""Open MPI's own, and that of Slurm by which MPICH meets under srun; each with its macro."""


class NcclTests(Hardware):
    """GPUs, and an all_reduce_perf, that are none."""

    def nccl_tests(self, node: str, by: str = "MPI", path: str = PROGRAM, gpus: int = 2) -> None:
        """Give the node GPUs and nccl-tests.

        Args:
            node: where.
            by: how its processes meet: a key of LIBRARIES.
            path: of the program.
            gpus: how many.
        """
        flags = []
        if by:
            library = f"/usr/lib/{execute('gcc', '-print-multiarch').strip()}/{LIBRARIES[by]}"
            flags = [f"-D{by}_SUPPORT", library]
        self.change_file(node, path, self._built("all_reduce_perf.c", *flags), 0o755)
        self.nvml(node, gpu_values(gpus))

    def play(self, node: str, **lines: str | int) -> None:
        """Tell the program of a node what to play, as in all_reduce_perf.c."""
        self.change_file(node, PLAY, "".join(f"{key}={value}\n" for key, value in lines.items()))

    def ssh_from(self, node: str, user: str = "root") -> None:
        """Let a user of a node log in to the others without a question."""
        folder = f"{self.machines[node].account(user)[5]}/.ssh"
        for name, file in (("id_ed25519", self.key), ("known_hosts", self.known_hosts)):
            self.change_file(node, f"{folder}/{name}", Path(file).read_bytes(), 0o600)
        self.run(node, "chown", "-R", user, folder)
