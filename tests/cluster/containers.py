"""Containers on a node: a real podman with crun runs them, of an image that is made here."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Collection, Mapping

from tests.cluster.machine import wait_until
from tests.cluster.mount_faults import MountFaults

STORE, ENGINE = "/var/lib/containers", ("/run/crun", "/run/libpod", "/dev/shm/libpod_lock")
CGROUPS = "/sys/fs/cgroup"
CONFIG = {
    "containers": """\
[containers]
cgroups = "disabled"
netns = "host"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "none"
runtime = "crun"
[network]
network_config_dir = "/var/lib/containers/networks"
""",
    "storage": """\
[storage]
driver = "vfs"
graphroot = "/var/lib/containers/storage"
runroot = "/var/lib/containers/run"
""",
}
"""Files of /etc/containers: root's podman writes to STORE and ENGINE, and has no cgroup."""
MERGED = {name: f"usr/{name}" for name in ("bin", "sbin", "lib", "lib64")}
FOLDERS = ("etc", "root", "usr")
PASSWD = {"/etc/passwd": "root:x:0:0::/root:/bin/sh\n"}
LIMITS = {"memlock": "65536:65536", "nofile": "1024:4096", "nproc": "4096:4096"}
"""All below what a root without CAP_SYS_RESOURCE has; podman's own defaults are not."""


class Containers(MountFaults):
    """What runs in containers."""

    def container(
        self,
        node: str,
        env: Mapping[str, str] | None = None,
        files: Mapping[str, str] | None = None,
        shared: Collection[str] = ("/usr",),
        **limits: str,
    ) -> None:
        """Start a container `train` of an image `train`; one that runs already is replaced.

        Args:
            node: where; podman is root's there.
            env: what its programs find in their environment.
            files: what its image has, by path.
            shared: files and folders of the node that it sees.
            limits: soft and hard, such as `nofile="1024:4096"`, up to those of the tests.
        """
        if not self._mounted(node, STORE):
            self._podman(node)
        options = [f"--env={name}={value}" for name, value in (env or {}).items()]
        options += [f"--ulimit={name}={value}" for name, value in {**LIMITS, **limits}.items()]
        options += [f"--volume={path}:{path}:ro" for path in shared]
        archive = f"{STORE}/train.tar"
        self.machines[node].write(archive, image(files or {}))
        self.run(node, "podman", "load", "--quiet", "--input", archive)
        self.run(
            node,
            *("podman", "run", "--detach", "--replace", "--name=train", "--stop-signal=KILL"),
            *(*options, "localhost/train", "sleep", "infinity"),
        )

    def _podman(self, node: str) -> None:
        """Prepare podman; no container is left of it."""
        for name, text in CONFIG.items():
            self.change_file(node, f"/etc/containers/{name}.conf", text)
        self.mount_tmpfs(node, CGROUPS)  # crun wants one, and then nothing of it
        self.mount_tmpfs(node, STORE)
        for folder in ENGINE:
            self._undo(self.machines[node].remove, folder)
        self._undo(self._end_podman, node)

    def _end_podman(self, node: str) -> None:
        """End all containers, and wait for podman itself, which conmon starts to tidy up."""
        self.run(node, "podman", "rm", "--all", "--force")
        own = ("/usr/bin/conmon", "/usr/bin/podman")
        wait_until(
            lambda: not any(line.startswith(own) for line in self.survivors(node)),
            f"{node}: end of podman",
        )


def image(files: Mapping[str, str]) -> bytes:
    """Return an image as `docker save` writes it, the same one of the same files."""
    layer = archive({**PASSWD, **files}, FOLDERS, MERGED)
    digest = hashlib.sha256(layer).hexdigest()
    config = {
        "architecture": platform.machine(),
        "os": "linux",
        "config": {},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": ["train:latest"], "Layers": ["layer.tar"]}]
    return archive(
        {
            "manifest.json": json.dumps(manifest),
            "config.json": json.dumps(config),
            "layer.tar": layer,
        }
    )


def archive(
    files: Mapping[str, str | bytes],
    folders: Collection[str] = (),
    links: Mapping[str, str] | None = None,
) -> bytes:
    """Return files, folders and symbolic links as tar(1) packs them."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name in folders:
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(folder)
        for name, target in (links or {}).items():
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, target
            tar.addfile(link)
        for path, content in files.items():
            data = content.encode() if isinstance(content, str) else content
            file = tarfile.TarInfo(path.lstrip("/"))
            file.size = len(data)
            tar.addfile(file, io.BytesIO(data))
    return packed.getvalue()
