"""The network that the controller of one testbed sees, and nobody else: a network namespace.

So every testbed has the same names and addresses, whatever else is on the machine, and nothing of
it is left when the last process in it has ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator

from tests.cluster.machine import execute

CLONE_NEWNET = 0x40000000
"""linux/sched.h"""
LIBC = ctypes.CDLL(None, use_errno=True)  # the module `os` has these two since Python 3.12


class Network:
    """A network namespace, with a loopback device alone at first."""

    def __init__(self) -> None:
        with back():
            checked(LIBC.unshare(CLONE_NEWNET))
            execute("ip", "link", "set", "lo", "up")
            self._descriptor = current()

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Let this thread see it, and whatever the thread starts."""
        with back():
            checked(LIBC.setns(self._descriptor, CLONE_NEWNET))
            yield

    def close(self) -> None:
        """Let it go with its last process."""
        os.close(self._descriptor)


@contextlib.contextmanager
def back() -> Iterator[None]:
    """Bring this thread back to the network that it sees now."""
    before = current()
    try:
        yield
    finally:
        checked(LIBC.setns(before, CLONE_NEWNET))
        os.close(before)


def current() -> int:
    """Return a descriptor of the network namespace that this thread sees."""
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY)


def checked(result: int) -> None:
    """Raise what made a call of the C library fail."""
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
