"""Brings psutil to a node that has none: its compiled part is loaded from memory.

Sent to nodes: stdlib only, Python 3.8.
"""

from __future__ import annotations

import errno
import importlib.machinery
import importlib.util
import os
import sys
from typing import Any

from preflight.node import toolbox

OLDEST = (5, 9)
"""psutil 5.9 has all that probes call, in the shape they expect."""
MFD_NOEXEC_SEAL = 0x8
"""From linux/memfd.h: no program is started from it. A library is mapped all the same."""
EXTENSION = "psutil._psutil_linux"
BROKEN = (ImportError, OSError, AttributeError, SyntaxError)
"""What an import of a psutil raises that does not fit this machine, or this Python."""


def load(library: bytes | None) -> str:
    """Import psutil and say from where: `sent`, `site-packages`, or `none: reason`.

    Args:
        library: the compiled part; None where the controller has none that fits.
    """
    reasons: list[str] = []
    if library:
        try:
            from_memory(library)
            return "sent"
        except BROKEN as error:
            reasons.append(f"sent psutil: {error}")
            forget()
    else:
        reasons.append("no psutil build for this machine was sent")
    try:
        return from_site_packages()
    except BROKEN as error:
        forget()
        reasons.append(f"installed psutil: {error}")
    return "none: " + "; ".join(reasons)


def from_memory(library: bytes) -> None:
    """Import psutil's modules that were sent, with the compiled part in a memory file.

    Raises:
        OSError: no memory files here, or they may not be executed.
        ImportError: the build does not fit this machine.
    """
    with os.fdopen(memory_file(), "wb") as file:
        file.write(library)
        file.flush()
        path = f"/proc/self/fd/{file.fileno()}"
        if not toolbox.survives(lambda: extension(path)):
            raise ImportError("loading it crashes")
        module = extension(path)
    sys.modules[EXTENSION] = module
    import psutil

    psutil._psutil_linux = module


def memory_file() -> int:
    """Return the descriptor of an empty memory file.

    Linux 6.3 wants it said that no program is started from it: else it logs a warning, and refuses
    where sysctl vm.memfd_noexec is 2. Older kernels refuse to be told.

    Raises:
        OSError: no memory files here.
    """
    try:
        return os.memfd_create("psutil", os.MFD_CLOEXEC | MFD_NOEXEC_SEAL)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.memfd_create("psutil")


def extension(path: str) -> Any:
    """Load psutil's compiled part from a file.

    Raises:
        ImportError: it does not fit this machine.
    """
    loader = importlib.machinery.ExtensionFileLoader(EXTENSION, path)
    spec = importlib.util.spec_from_file_location(EXTENSION, path, loader=loader)
    if spec is None:
        raise ImportError(f"no spec for {path}")
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def from_site_packages() -> str:
    """Import the psutil that is installed beside this interpreter.

    Raises:
        ImportError: none, or too old.
    """
    import site

    ours = [finder for finder in sys.meta_path if type(finder).__name__ == "Importer"]
    # Without `site` a virtual environment's Python has the prefix of the one it was made from,
    # and Debian's names no site-packages outside of an environment.
    own = os.path.dirname(os.path.dirname(sys.executable))
    version = "python{}.{}".format(*sys.version_info)
    places = [
        os.path.join(own, "lib", version, "site-packages"),
        *site.getsitepackages([own, sys.prefix, sys.exec_prefix]),
        site.getusersitepackages(),
    ]
    sys.path.extend(places)
    for finder in ours:
        sys.meta_path.remove(finder)
    try:
        import psutil
    finally:
        sys.meta_path[:0] = ours
        del sys.path[-len(places) :]
    if psutil.version_info[:2] < OLDEST:
        oldest = ".".join(str(number) for number in OLDEST)
        raise ImportError(f"version {psutil.__version__} is older than {oldest}")
    return "site-packages"


def forget() -> None:
    """Drop half-imported modules."""
    for name in [n for n in sys.modules if n.split(".")[0] == "psutil"]:
        del sys.modules[name]
