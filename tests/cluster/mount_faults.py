"""Mounts of a node, and what becomes of them: absent, other, read-only, hung, stale, slow."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from tests.cluster.machine import execute, wait_until
from tests.cluster.nodes import Nodes

EXPORT = "10.78.0.4:/export"
PROGRAM = "/usr/lib/testbed-sharefs"
WORD = 32
"""Bytes of the mode word that `sharefs.c` reads at once."""


class MountFaults(Nodes):
    """What can be mounted on a node, and taken away."""

    def mount_tmpfs(self, node: str, path: str, options: str = "rw") -> None:
        """Mount an empty tmpfs, such as one with `size=64k` or `ro`."""
        self._mount(node, path, "-t", "tmpfs", "-o", options, "tmpfs")

    def bind(self, node: str, source: str, path: str) -> None:
        """Mount one of the node's own files or directories somewhere else too."""
        self._mount(node, path, "--bind", source)

    def load(self, node: str, tasks: int) -> None:
        """Let the node's kernel tell that so many tasks want a CPU."""
        real = Path("/proc/stat").read_text()
        told = re.sub(r"(?m)^procs_running \d+$", f"procs_running {tasks + 1}", real)
        self.change_file(node, "/run/stat", told)
        self.bind(node, "/run/stat", "/proc/stat")

    def _mount(self, node: str, path: str, *options: str) -> None:
        if not self.machines[node].path(path).exists():
            self._make_directory(node, path)
        self.run(node, "mount", *options, path)
        self._undo(self._detach, node, path)

    def unmount(self, node: str, path: str) -> None:
        """Take away a mount that another fault made, for the rest of the test."""
        self.run(node, "umount", "-l", path)

    def share(self, path: str, source: str = EXPORT, options: str = "rw") -> Path:
        """Mount one shared directory on all nodes; return where the controller sees it."""
        places = {self.fuse_mount(node, path, source, options) for node in self.names}
        return places.pop()

    def fuse_mount(
        self, node: str, path: str, source: str = EXPORT, options: str = "rw", kind: str = "nfs4"
    ) -> Path:
        """Mount a network file system's stand-in, `fuse.nfs4` in the mount table.

        Nodes that mount one source share its files.

        Returns:
            Where the controller sees them.
        """
        shared = self.tmp_path / "exports" / source.replace("/", "_")
        shared.mkdir(parents=True, exist_ok=True)
        shared.chmod(0o777)
        self._undo(shutil.rmtree, shared, True)
        if not self.machines[node].path(PROGRAM).exists():  # a running program cannot be written
            flags = execute("pkg-config", "--cflags", "--libs", "fuse3").split()
            self.change_file(node, PROGRAM, self._built("sharefs.c", *flags), 0o755)
        self._make_directory(node, path)
        self._mode_file(node, path).write_text("ok".ljust(WORD))
        names = f"fsname={source},subtype={kind}"
        fresh = "attr_timeout=0,entry_timeout=0,negative_timeout=0"
        with self._mode_file(node, path).open() as mode:
            directory = os.open(shared, os.O_RDONLY | os.O_DIRECTORY)
            fds = [directory, mode.fileno()]
            pid = self.machines[node].start(
                *(PROGRAM, *map(str, fds), "-f", "-o"),
                *(f"{names},{fresh},allow_other,default_permissions,{options}", path),
                pass_fds=fds,
            )
            os.close(directory)
        self._undo(self.machines[node].end, pid)
        self._undo(self._detach, node, path)
        self._undo(self.fuse_mode, node, "ok", path)
        wait_until(lambda: self._mounted(node, path), f"{node}: mount of {path}")
        return shared

    def fuse_mode(self, node: str, mode: str, path: str = "/data") -> None:
        """Let a mount be `ok`, `hang` until the next mode, `stale`, `eio`, or `slow 700` (ms)."""
        with self._mode_file(node, path).open("r+") as file:
            os.pwrite(file.fileno(), mode.ljust(WORD).encode(), 0)

    def _mode_file(self, node: str, path: str) -> Path:
        return self.tmp_path / f"mode-{node}{path.replace('/', '-')}"
