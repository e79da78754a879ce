"""The training environment of a node: an interpreter with packages of chosen versions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from tests.cluster.machine import execute
from tests.cluster.network_faults import PYTHON
from tests.cluster.nodes import Nodes

ENVIRONMENT = "/opt/train"
SITE_PACKAGES = 'import sysconfig; print(sysconfig.get_path("purelib"))'


class Software(Nodes):
    """What can be installed on a node."""

    def training_python(
        self,
        packages: Mapping[str, str],
        odd: Mapping[str, Mapping[str, str]] | None = None,
        archs: str = "sm_80 sm_86 sm_90",
    ) -> str:
        """Make a virtual environment on all nodes, with the metadata and a stub of each package.

        Args:
            packages: version by name, such as `torch: 2.5.1+cu124`.
            odd: for some nodes, the packages that have another version there.
            archs: the GPU architectures that torch is built for.

        Returns:
            The interpreter's path, the same on all nodes.
        """
        for node in self.names:
            wanted = {**packages, **(odd or {}).get(node, {})}
            self._undo(self.machines[node].remove, ENVIRONMENT)
            self.run(node, PYTHON, "-m", "venv", "--without-pip", ENVIRONMENT)
            site = self.run(node, f"{ENVIRONMENT}/bin/python", "-c", SITE_PACKAGES).strip()
            for name, version in wanted.items():
                for path, content in self._package(name, version, archs):
                    self.machines[node].write(f"{site}/{path}", content)
        return f"{ENVIRONMENT}/bin/python"

    def _package(self, name: str, version: str, archs: str) -> Iterator[tuple[str, str | bytes]]:
        """Yield the files of a package, as far as its version can be read from them."""
        info = f"{name.replace('-', '_')}-{version}.dist-info"
        yield f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        yield f"{info}/INSTALLER", "pip\n"
        yield f"{info}/RECORD", ""
        if name == "torch":
            yield "torch/__init__.py", "from torch.version import __version__ as __version__\n"
            yield "torch/version.py", torch_version(version)
            yield "torch/lib/libtorch_python.so", self._torch_python(archs)
        elif name.startswith("nvidia-nccl"):
            yield "nvidia/nccl/lib/libnccl.so.2", self._nccl(version)
        else:
            yield f"{name.replace('-', '_')}/__init__.py", f"__version__ = {version!r}\n"

    def _nccl(self, version: str) -> bytes:
        major, minor, patch = map(int, version.split("."))
        code = major * 10000 + minor * 100 + patch
        flags = ["-shared", "-fPIC", "-Wl,-soname,libnccl.so.2"]
        return self._built("nccl.c", *flags, f"-DCODE={code}", f'-DVERSION="{version}"')

    def _torch_python(self, archs: str) -> bytes:
        return self._built("torch_python.c", "-shared", "-fPIC", f'-DCUDA_ARCH_FLAGS="{archs}"')

    def system_nccl(self, node: str, version: str) -> None:
        """Install libnccl.so.2 among the node's own libraries, and tell the linker of it."""
        folder = f"/usr/lib/{execute('gcc', '-print-multiarch').strip()}"
        self._undo(self.run, node, "ldconfig")
        self.change_file(node, f"{folder}/libnccl.so.{version}", self._nccl(version))
        link = self.machines[node].path(f"{folder}/libnccl.so.2")
        self._undo(link.unlink)
        link.symlink_to(f"libnccl.so.{version}")
        self.run(node, "ldconfig")


def torch_version(version: str) -> str:
    """Return the text of torch/version.py; the build's CUDA version is read off `+cu124`."""
    built = re.search(r"\+cu(\d+)(\d)$", version)
    cuda = f"{built[1]}.{built[2]}" if built else None
    return f"""\
from typing import Optional
__version__ = {version!r}
debug = False
cuda: Optional[str] = {cuda!r}
git_version = '0123456789abcdef0123456789abcdef01234567'
hip: Optional[str] = None
"""
