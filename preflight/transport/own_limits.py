"""What this machine lets preflight have at the same time: files and threads, of its own.

Each node takes a socket, and shells give a program 1024 files unless it asks for more.
"""

from __future__ import annotations

import contextlib
import errno
import resource

from preflight.errors import TransportError

GIVEN = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
"""The limit as preflight was started, which an agent on this machine must see."""
MOST = 1 << 16
"""Files for 1024 logins and some thousands of sessions; macOS takes no `unlimited` here."""
USED_UP = frozenset({errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM, errno.ENOBUFS})


def raise_files() -> None:
    """Take as many files as this process may without asking anybody."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft != resource.RLIM_INFINITY and soft < most:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def used_up(error: BaseException) -> TransportError | None:
    """Return what to say of an error if it is this machine that has run out of something."""
    if isinstance(error, OSError) and error.errno in USED_UP:
        words = (error.strerror or str(error)).lower()
    elif isinstance(error, MemoryError) or "start new thread" in str(error):
        words = str(error) or "out of memory"
    else:
        return None
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    limit = f" (its limit is {files})" if getattr(error, "errno", 0) == errno.EMFILE else ""
    return TransportError(
        "resources",
        f"the machine that preflight runs on is at a limit of its own: {words}{limit}",
        "raise it there (ulimit -n, ulimit -u), or check fewer nodes at a time: --nodes",
    )
