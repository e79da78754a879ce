"""`Node` for real: the one door through which probes see the machine, with limits on all of it.

The only place that starts processes on a node. What comes back is JSON-able, so that a
recording of the answers can stand in for the machine (`replay.py`).
Sent to nodes: stdlib only, Python 3.8.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import errno
import fcntl
import functools
import grp
import json
import os
import pwd
import resource
import select
import signal
import socket
import subprocess
import sys
import time
from typing import Any, Callable, Mapping, Sequence

from preflight.api import NO_ANSWER, Absent, Account, Ran, Stat, StatVfs, Unobservable, Visit

CAP = 256 << 10
"""Bytes of one file or one command's output: facts are small, logs are not facts."""
TABLES, TABLE_CAP = "/proc/", 8 << 20
"""Of a table of the kernel: with 200 containers that of the mounts has more than 256 KiB."""
GONE = (errno.ENOENT, errno.ENOTDIR)
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Searched after PATH: an ordinary user's non-login PATH often lacks the sbin folders."""
NVML = "libnvidia-ml.so.1"
PRCTL = getattr(ctypes.CDLL(None), "prctl", None)
PR_SET_PDEATHSIG = 1
"""From linux/prctl.h."""
LIMITS = {
    "memlock": resource.RLIMIT_MEMLOCK,
    "nofile": resource.RLIMIT_NOFILE,
    "nproc": resource.RLIMIT_NPROC,
}


class Toolbox:
    """See `preflight.api.Node`."""

    def __init__(self) -> None:
        self._nvml: Any = None

    def run(
        self, argv: Sequence[str], timeout_s: float = 10, env: Mapping[str, str] | None = None
    ) -> Ran:
        """Run a command without a shell."""
        program = self.which(argv[0])
        if program is None:
            raise Absent(f"no program {argv[0]!r}")
        process = started([program, *argv[1:]], env or {})
        out, err = drain(process, timeout_s, argv[0])
        return Ran(process.returncode, text(out), text(err))

    def read(self, path: str) -> str | None:
        """Return a file's text, None if there is none."""
        try:
            with open(path, "rb") as file:
                data = piece = file.read(CAP)
                while path.startswith(TABLES) and len(piece) == CAP and len(data) < TABLE_CAP:
                    piece = file.read(CAP)
                    data += piece
                return text(data)
        except OSError as error:
            see(error, path)
            return None

    def listdir(self, path: str) -> list[str] | None:
        """Return the sorted names in a directory, None if there is none."""
        try:
            return sorted(os.listdir(path))
        except OSError as error:
            see(error, path)
            return None

    def readlink(self, path: str) -> str | None:
        """Return where a symbolic link points, None if there is none."""
        try:
            return os.readlink(path)
        except OSError as error:
            see(error, path)
            return None

    def realpath(self, path: str) -> str:
        """Return the path with all links resolved."""
        return os.path.realpath(path)

    def stat(self, path: str) -> Stat | None:
        """Return `stat(2)` of a path, None if there is none."""
        try:
            found = os.stat(path)
        except OSError as error:
            see(error, path)
            return None
        return Stat(found.st_mode, found.st_uid, found.st_gid, found.st_size, found.st_mtime)

    def access(self, path: str, mode: str) -> bool:
        """Whether the login user may use a path so."""
        bits = {"r": os.R_OK, "w": os.W_OK, "x": os.X_OK}
        return os.access(path, sum(bits[letter] for letter in mode))

    def statvfs(self, path: str) -> StatVfs | None:
        """Return the size of the file system that holds a path, None if there is no such path."""
        try:
            found = os.statvfs(path)
        except OSError as error:
            see(error, path)
            return None
        block = found.f_frsize
        return StatVfs(
            found.f_blocks * block, found.f_bavail * block, found.f_files, found.f_favail
        )

    def visit(self, paths: Sequence[str], limit_s: float = 2) -> Mapping[str, Visit]:
        """Go to several paths at once, each in a process of its own."""
        trips = {path: depart(functools.partial(gone_to, path)) for path in dict.fromkeys(paths)}
        deadline = time.monotonic() + limit_s
        told = {path: back(*trip, deadline) for path, trip in trips.items()}
        return {path: Visit(*words) for path, words in told.items()}

    def which(self, program: str) -> str | None:
        """Return the full path of a program."""
        folders = f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}".split(":")
        places = [program] if "/" in program else [f"{one}/{program}" for one in folders if one]
        runnable = (one for one in places if os.path.isfile(one) and os.access(one, os.X_OK))
        return next(runnable, None)

    def environ(self) -> Mapping[str, str]:
        """Return the environment of the shell that started the agent."""
        return dict(os.environ)

    def account(self, name: str | None = None) -> Account | None:
        """Return a user by name, or the login user."""
        try:
            user = pwd.getpwuid(os.getuid()) if name is None else pwd.getpwnam(name)
        except KeyError:
            return None
        groups = {group_name(gid): gid for gid in os.getgrouplist(user.pw_name, user.pw_gid)}
        return Account(user.pw_name, user.pw_uid, user.pw_gid, user.pw_dir, user.pw_shell, groups)

    def resolve(self, name: str) -> list[str]:
        """Return the addresses of a name in the resolver's order, empty if it has none."""
        try:
            # As bytes: as text it would go through the codec for foreign letters, which is slow to
            # import and raises for names that are merely bad.
            found = socket.getaddrinfo(name.encode(), None, type=socket.SOCK_STREAM)
        except socket.gaierror as error:
            if error.errno == socket.EAI_AGAIN:
                raise Unobservable(f"{name}: the resolver does not answer") from error
            return []
        return list(dict.fromkeys(str(entry[4][0]) for entry in found))

    def limits(self) -> Mapping[str, tuple[int, int]]:
        """Return soft and hard resource limits by name; -1: none."""
        return {name: resource.getrlimit(number) for name, number in LIMITS.items()}

    def uname(self) -> Mapping[str, str]:
        """Return node, release, version and machine."""
        found = os.uname()
        return {
            "node": found.nodename,
            "release": found.release,
            "version": found.version,
            "machine": found.machine,
        }

    def now(self) -> float:
        """Return this machine's clock, seconds since the epoch."""
        return time.time()

    def psutil(self, function: str, *args: Any) -> Any:
        """Return what a function of psutil returns, JSON-able."""
        psutil = loaded_psutil()
        try:
            return plain(getattr(psutil, function)(*args))
        except (psutil.Error, OSError) as error:
            raise Unobservable(f"psutil.{function}: {error}") from error

    def process(self, pid: int) -> Mapping[str, Any] | None:
        """Return what can be told of a process, None if it is gone."""
        psutil = loaded_psutil()
        wanted = ["pid", "name", "username", "cmdline", "create_time"]
        try:
            found: Mapping[str, Any] = psutil.Process(pid).as_dict(wanted)
        except psutil.NoSuchProcess:
            return None
        return found

    def nvml(self, function: str, *args: Any) -> Any:
        """Return what an NVML function returns, JSON-able."""
        nvml = self._nvml = self._nvml or initialised_nvml()
        try:
            if function.startswith("nvmlDevice") and args:
                args = (nvml.nvmlDeviceGetHandleByIndex(args[0]), *args[1:])
            return plain(getattr(nvml, function)(*args))
        except nvml.NVMLError as error:
            absent = (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_FUNCTION_NOT_FOUND)
            raise (Absent if error.value in absent else Unobservable)(f"NVML: {error}") from error


def started(
    argv: Sequence[str], env: Mapping[str, str], fed: bool = False, leads: bool = False
) -> Any:
    """Return a process that was started, its output as pipes; it ends with this one.

    Args:
        argv: the program's path, and its arguments.
        env: variables beside those of this process.
        fed: whether its input is a pipe too.
        leads: whether it leads a process group of its own, with which what it starts can be ended;
            if fed, the kernel does so (SIGIO) once its input ends, or brings something to a group
            that did not take O_ASYNC from it before.

    Raises:
        Unobservable: not permitted.
    """
    try:
        return subprocess.Popen(
            argv,
            stdin=subprocess.PIPE if fed else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "LC_ALL": "C", **env},
            start_new_session=leads,
            preexec_fn=functools.partial(begun, os.getpid(), fed and leads),
        )
    except OSError as error:
        raise Unobservable(f"{argv[0]}: {error.strerror}") from error


def begun(parent: int, with_input: bool) -> None:
    """Prepare a process that was just forked: it ends with its parent, or its group with its input.

    A program that waits for another one leaves that behind when it is killed.
    """
    die_with(parent)
    if with_input:
        fcntl.fcntl(0, fcntl.F_SETOWN, -os.getpid())
        fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | os.O_ASYNC)


def end(process: Any, limit_s: float) -> None:
    """End a process: by the end of its streams, or else, after a limit, by a signal."""
    for stream in (process.stdin, process.stdout, process.stderr):
        with contextlib.suppress(OSError):
            stream.close()
    awaited(process, limit_s)
    if process.returncode is None:
        process.kill()
    awaited(process, limit_s)  # it may be in D state


def awaited(process: Any, limit_s: float) -> None:
    """Wait for a process to end, no longer than to a limit."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(limit_s)


def depart(errand: Callable[[], Any]) -> tuple[int, int]:
    """Start a process that does something; return its pid and where it will tell what came of it.

    Raises:
        Unobservable: it cannot be started.
    """
    parent = os.getpid()
    come, tell = os.pipe()
    try:
        pid = os.fork()
    except OSError as error:
        os.close(come)
        os.close(tell)
        raise Unobservable(f"cannot start a process: {error.strerror}") from error
    if pid == 0:
        try:
            die_with(parent)
            os.write(tell, json.dumps(errand()).encode())
        finally:
            os._exit(0)
    os.close(tell)
    return pid, come


def gone_to(path: str) -> Visit:
    """Go to a path; this is what may hang."""
    begun = time.monotonic()
    try:
        os.stat(path)
        found = os.statvfs(path)
        real = os.path.realpath(path)
        readable, writable = os.access(path, os.R_OK | os.X_OK), os.access(path, os.W_OK)
    except OSError as error:
        return Visit(errno.errorcode.get(error.errno or 0, str(error.errno)))
    size, free = found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
    return Visit("", real, readable, writable, size, free, round(time.monotonic() - begun, 4))


def back(pid: int, come: int, deadline: float) -> Any:
    """Return what a process tells; as of a visit, that it died or does not come back.

    It is killed, and not waited for: in D state it stays until its mount answers.
    """
    told, poller = b"", select.poll()
    poller.register(come, select.POLLIN | select.POLLHUP)
    try:
        while poller.poll(max(0.0, deadline - time.monotonic()) * 1000):
            data = os.read(come, 1 << 16)
            if not data:
                os.waitpid(pid, 0)
                return json.loads(told) if told else ("died",)
            told += data
    finally:
        os.close(come)
    os.kill(pid, signal.SIGKILL)
    return (NO_ANSWER,)


def group_name(gid: int) -> str:
    """Return a group's name; a gid without one is a fact of its own."""
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return f"gid {gid}"


def loaded_psutil() -> Any:
    """Return psutil, which the agent loaded before it forked.

    Raises:
        Unobservable: it could not be loaded on this node.
    """
    if "psutil" not in sys.modules:
        raise Unobservable("psutil: no build of it loads on this node")
    return sys.modules["psutil"]


def initialised_nvml() -> Any:
    """Return pynvml, initialised.

    Raises:
        Absent: there is no NVML library.
        Unobservable: there is one, and it does not work; the message is NVML's own.
    """
    why = linker_words(NVML)
    if "No such file" in why:
        raise Absent("no NVML library")
    if why:
        raise Unobservable(f"NVML: {why}")
    import pynvml  # not before: it takes 3 ms

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise Unobservable(f"NVML: {error}") from error
    return pynvml


def linker_words(library: str) -> str:
    """Return why a library cannot be loaded: it may be there, and broken."""
    try:
        ctypes.CDLL(library)
    except OSError as error:
        return str(error)
    return ""


def see(error: OSError, path: str) -> None:
    """See that a path is only missing.

    Raises:
        Unobservable: any other reason.
    """
    if error.errno not in GONE:
        raise Unobservable(f"{path}: {error.strerror}") from error


def text(data: bytes) -> str:
    """Return bytes of a file or a command as text."""
    return data.decode("utf-8", "replace")


def prctl(option: int, value: int) -> None:
    """Tell the kernel something about this process; no matter where there is no such call."""
    if PRCTL:
        PRCTL(option, value, 0, 0, 0)


def die_with(parent: int) -> None:
    """End this process when its parent ends, even if it is killed; called right after a fork."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has ended already
        os._exit(0)


def survives(deed: Callable[[], object]) -> bool:
    """Whether this process would live on after a deed, tried in a child; never raises for it."""
    pid = os.fork()
    if pid == 0:
        try:
            deed()
        finally:
            os._exit(0)
    return os.WIFEXITED(os.waitpid(pid, 0)[1])


def drain(process: Any, timeout_s: float, name: str) -> tuple[bytes, bytes]:
    """Return what a command wrote, the first `CAP` bytes of each stream; wait for its end.

    Raises:
        Unobservable: it is past its time. It is killed, and not waited for: it may be in D state.
    """
    deadline = time.monotonic() + timeout_s
    kept = {process.stdout: b"", process.stderr: b""}
    poller = select.poll()
    by_fd = {stream.fileno(): stream for stream in kept}
    for fd in by_fd:
        poller.register(fd, select.POLLIN | select.POLLHUP)
    while by_fd or process.poll() is None:
        left = deadline - time.monotonic()
        if left <= 0:
            process.kill()
            raise Unobservable(f"{name}: no answer in {timeout_s:g} s")
        for fd, _ in poller.poll(min(left, 0.01 if not by_fd else left) * 1000):
            data = os.read(fd, 1 << 16)
            stream = by_fd[fd]
            kept[stream] = (kept[stream] + data)[:CAP]  # the rest is read and dropped
            if not data:
                poller.unregister(fd)
                by_fd.pop(fd).close()
    return kept[process.stdout], kept[process.stderr]


def plain(value: Any) -> Any:
    """Return a value of psutil or NVML as JSON would have it."""
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, bytes):
        return text(value)
    if isinstance(value, ctypes.Structure):
        return {name: plain(getattr(value, name)) for name, *_ in value._fields_}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return plain(value._asdict())
    if type(value).__name__ == "nvmlFriendlyObject":  # a copy of a structure, of pynvml's own
        return plain(vars(value))
    if isinstance(value, dict):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple, ctypes.Array)):
        return [plain(part) for part in value]
    return value
