"""The agent as it is sent, under every Python and shell of this machine."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import sys
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from textwrap import dedent
from typing import Any

import psutil
import pytest

from preflight import psutil_builds
from preflight.api import Reply
from preflight.errors import TransportError
from preflight.no_agent import AgentError
from preflight.node import boot
from preflight.payload import Payload, command, pack
from preflight.session import Running, Session
from tests.agent_made import (
    MODULE,
    VERSIONS,
    Machine,
    agent,
    ask,
    kill,
    program_folder,
    python,
    pythons,
    wait_until,
)
from tests.messages.aloud import Aloud
from tests.pulled import Pulled

ROOT = Path(__file__).parent.parent
LOOK = """
import os, sys

def look(node):
    import json
    return {
        "version": "%d.%d" % sys.version_info[:2],
        "flags": [getattr(sys.flags, n) for n in ("ignore_environment", "no_user_site", "no_site")],
        "bytecode": sys.dont_write_bytecode,
        "cwd": os.getcwd(),
        "relative": [p for p in sys.path if not os.path.isabs(p)],
        "json": json.__file__,
        "site": "site" in sys.modules,
        "streams": [os.readlink("/proc/self/fd/%d" % fd) for fd in (0, 1, 2)],
    }

def interfaces(node):
    return sorted(node.psutil("net_if_stats"))

def nvml(node):
    import pynvml
    return [pynvml.__spec__.origin, hasattr(pynvml, "nvmlDeviceGetName")]

def ask(node):
    return node.nvml("nvmlDeviceGetName", 0)
"""
DEEDS = """
import os, signal, subprocess, sys, time
from preflight.api import Absent, Unobservable

def echo(node, *args): return list(args)
def pid(node, number, *_): return [number, os.getpid()]
def count(node, number): return sum(range(number))
poisoned = False
def poison(node):
    global poisoned
    poisoned = True
    return "poisoned"
def taste(node): return os._exit(1) if poisoned else "well"
def blind(node): raise Unobservable("ethtool: permission denied")
def absent(node): node.run(["no-such-program"])
def bug(node): return {"a": 1}["b"]
def hang(node): time.sleep(1000)
def segv(node): os.kill(os.getpid(), signal.SIGSEGV)
def real_time_signal(node): os.kill(os.getpid(), signal.SIGRTMIN + 1)
def big(node): return "x" * (2 << 20)
def leave(node): os._exit(0)
def sys_exit(node): sys.exit("bye")
def interrupt(node): raise KeyboardInterrupt
def nan(node): return {"x": float("nan")}
def strange(node): return {"x": object()}
def tuple_key(node): return {(1, 2): 3}
def int_key(node): return {1: (2, 3)}
def ring(node):
    a = []
    a.append(a)
    return a
def undecodable(node): return {os.fsdecode(b"a\\xff"): os.fsdecode(b"b\\xfe\\xf0\\x9f\\x9a\\x80")}
def deep(node): return deep(node)
class Rude(Exception):
    def __str__(self): raise ValueError("no words")
def rude(node): raise Rude
def noise(node):
    print("to stdout")
    os.write(1, b"noise")
    os.write(2, b"noise")
    return sys.stdin.read()
def deaf(node):
    os.closerange(3, 100)
    return 1
def deaf_and_hanging(node):
    os.closerange(3, 100)
    time.sleep(1000)
def core_limit(node):
    import resource
    return resource.getrlimit(resource.RLIMIT_CORE)[0]
def file_kept(node):
    return os.fstat(0).st_ino == os.stat(os.devnull).st_ino
def descriptors(node): return len(os.listdir("/proc/self/fd"))
def session_of_its_own(node):
    return [os.getsid(0) == os.getpid(), os.getppid() != 1, signal.getsignal(signal.SIGTERM) == 0]

def spawn(detach, seconds=1000):
    come, tell = os.pipe()
    if os.fork() == 0:
        if detach:
            os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.write(tell, b"%d" % os.getpid())
        time.sleep(seconds)
        os._exit(0)
    return int(os.read(come, 99))
def left_behind(node, detach): return spawn(detach)
def dies_and_leaves(node):
    spawn(False)
    os.kill(os.getpid(), signal.SIGKILL)
def runs_and_hangs(node): node.run(["sleep", "1000"], 1000)
def orphaned(node, folder):
    spawn(True)
    with open(os.path.join(folder, "up"), "w"):
        pass
    runs_and_hangs(node)

def changes_directory(node): os.chdir("/proc")
def loses_directory(node, folder):
    os.mkdir(folder)
    os.chdir(folder)
    os.rmdir(folder)
def sets_variable(node): os.environ["LEFT_BEHIND"] = "1"
def drops_variable(node): del os.environ["PATH"]
def sets_mask(node): os.umask(0o777)
def leaves_descriptor(node):
    global kept
    kept = open(os.devnull)
def closes_descriptor(node): os.close(0)
def leaves_thread(node):
    import threading
    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
def leaves_process(node): spawn(False)
def leaves_zombie(node):
    if os.fork() == 0:
        os._exit(0)
def leaves_alarm(node): signal.alarm(1000)
def ignores_signal(node): signal.signal(signal.SIGTERM, signal.SIG_IGN)
def sets_timeout(node):
    import socket
    socket.setdefaulttimeout(1)
def sets_limit(node):
    import resource
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
def becomes_another(node):
    if os.getuid() == 0:
        os.seteuid(1)
    else:
        os.umask(0)
def forks_and_comes_back(node, how):
    if os.fork() == 0:
        if how == "raises":
            1 / 0
    else:
        time.sleep(0.05)
    return how
def seen(node):
    import resource, socket
    mask = os.umask(0)
    os.umask(mask)
    try:
        os.waitpid(-1, os.WNOHANG)
        children = True
    except ChildProcessError:
        children = False
    return [
        os.getcwd(), sorted(os.environ.items()), mask, len(os.listdir("/proc/self/fd")),
        len(os.listdir("/proc/self/task")), children, signal.alarm(0),
        str(signal.getsignal(signal.SIGTERM)), socket.getdefaulttimeout(),
        resource.getrlimit(resource.RLIMIT_NOFILE), os.geteuid(),
    ]

def stay(node, opened, port):
    opened.ready({"port": port})
    import select
    select.select([opened], [], [])
    return "stopped"
def deaf_to_stop(node, opened):
    opened.ready({})
    time.sleep(1000)
def bug_before(node, opened): return 1 / 0
def dies_before(node, opened): os._exit(0)
def never_ready(node, opened): time.sleep(1000)
def returns_at_once(node, opened):
    opened.ready({"a": 1})
    return 7
def ready_with_nan(node, opened): opened.ready({"x": float("inf")})
"""


@pytest.fixture(scope="module")
def deeds() -> Iterator[Session]:
    with agent(DEEDS, python=sys.executable) as session:
        yield session


def problem(reply: Reply) -> tuple[str, str]:
    assert reply.problem is not None, reply
    return reply.problem["kind"], reply.problem["message"]


def refusal(machine: Machine, named: str | None = None) -> AgentError:
    with pytest.raises(AgentError) as caught:
        Session(machine, Payload({}), 20, named)
    machine.wait_empty()
    return caught.value


def test_there_is_a_python() -> None:
    assert set(pythons()) & set(VERSIONS)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_python(version: str, tmp_path: Path) -> None:
    trap = 'raise SystemExit("hostile")'
    for name in ("json.py", "preflight.py", "psutil.py", "zlib.py", "start.py", "typing.py"):
        (tmp_path / name).write_text(trap)
    hostile = {
        "PYTHONPATH": str(tmp_path),
        "PYTHONHOME": "/nonexistent",
        "PYTHONSTARTUP": str(tmp_path / "start.py"),
        "PYTHONINSPECT": "1",
        "PYTHONDONTWRITEBYTECODE": "",
        "HOME": "/nonexistent",
        "LC_ALL": "xx_XX.nonsense",
    }
    named = python(version)
    with agent(LOOK, Machine(env=hostile, cwd=tmp_path), named) as session:
        seen = ask(session, "look").value
        assert Path(seen.pop("json")).parent.parent.name == f"python{version}"
        assert seen == {
            "version": version,
            "flags": [1, 1, 1],
            "bytecode": True,
            "cwd": "/",
            "relative": [],
            "site": False,
            "streams": ["/dev/null"] * 3,
        }
        assert session.hello["python"].startswith(version + ".")
        assert session.hello["executable"] == named
        assert session.hello["uid"] == os.getuid()
        assert session.psutil == "sent"
        assert ask(session, "interfaces").value == sorted(psutil.net_if_stats())
        assert ask(session, "nvml").value == ["pynvml.py", True]
        reply = ask(session, "ask")
        assert reply.problem is not None
        assert reply.problem["kind"] == "unobservable"
        assert reply.problem["message"] == "no NVML library"


@pytest.mark.parametrize("version", ["3.7", "3.6", "2.7"])
def test_old_python(version: str, tmp_path: Path, aloud: Aloud) -> None:
    old = python(version)
    path = program_folder(tmp_path / "bin", {"python3": old}, ["sh"])
    error = refusal(Machine(env={"PATH": path}))
    full = subprocess.run([old, "--version"], capture_output=True, text=True, check=True)
    assert f"is Python {(full.stdout + full.stderr).split()[-1]}," in error.message
    aloud(error)


@pytest.mark.parametrize("version", ["3.7", "3.6", "2.7"])
def test_old_python_that_was_named(version: str, aloud: Aloud) -> None:
    old = python(version)
    error = refusal(Machine(), old)
    assert f"{old} is Python {version}." in error.message
    error.message = error.message.replace(old, "OLD")
    aloud(error)


@pytest.mark.parametrize("version", ["3.7", "3.6", "2.7"])
def test_old_python_hands_over(version: str, tmp_path: Path) -> None:
    names = {"python3": python(version), "python3.9": python("3.9"), "python3.10": python(version)}
    path = program_folder(tmp_path / "bin", names, ["sh"])
    shim = tmp_path / "bin" / "python3.13"
    shim.write_text("#!/bin/sh\necho command not found\nexit 127\n")
    broken = tmp_path / "bin" / "python3.12"
    broken.write_text("#!/nonexistent/python\n")
    for file in (shim, broken):
        file.chmod(0o755)
    with agent(LOOK, Machine(env={"PATH": f"/nonexistent::{path}"})) as session:
        assert session.hello["executable"] == f"{path}/python3.9"
        assert ask(session, "look").value["version"] == "3.9"


def test_no_python(tmp_path: Path, aloud: Aloud) -> None:
    path = program_folder(tmp_path / "bin", {}, ["sh"])
    aloud(refusal(Machine(env={"PATH": path})), refusal(Machine(), "/opt/no such/python3"))


def test_python_that_does_not_start(tmp_path: Path, aloud: Aloud) -> None:
    said = "python3: error while loading shared libraries: libz.so.1: no such file"
    programs = {"lacks": f"echo '{said}' >&2; exit 127", "crashes": "kill -SEGV $$"}
    for name, code in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{code}\n")
        (tmp_path / name).chmod(0o755)
    path = program_folder(tmp_path / "bin", {"python3": str(tmp_path / "lacks")}, ["sh"])
    aloud(refusal(Machine(env={"PATH": path})), refusal(Machine(), str(tmp_path / "crashes")))


@pytest.mark.parametrize("shell", ["sh", "bash", "dash", "tcsh", "csh", "fish", "zsh", "ksh"])
def test_login_shells(shell: str, tmp_path: Path) -> None:
    found = shutil.which(shell)
    if found is None:
        pytest.skip(f"no {shell} on this machine")
    spaced = tmp_path / "a folder $HOME"
    spaced.mkdir()
    (spaced / "python3").symlink_to(sys.executable)
    env = {"HOME": str(tmp_path)}
    with agent(LOOK, Machine(found, env), str(spaced / "python3")) as session:
        assert session.hello["executable"] == str(spaced / "python3")
        assert ask(session, "look").value["cwd"] == "/"


def test_noise_of_start_files() -> None:
    noisy = Machine(before="echo Welcome; printf 'no newline: '; echo trouble >&2")
    with agent(DEEDS, noisy, sys.executable) as session:
        assert ask(session, "echo", 1).value == [1]
        assert session.noise == "Welcome; no newline:"


def preload(folder: Path) -> str:
    """Return a library without which memory files cannot be had."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler on this machine")
    code = folder / "no_memfd.c"
    code.write_text(
        "#include <errno.h>\n"
        "int memfd_create(const char *n, unsigned f) { errno = ENOSYS; return -1; }\n"
    )
    library = folder / "no_memfd.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, code], check=True)
    return str(library)


def made_prefix(folder: Path) -> tuple[str, Path]:
    """Return a Python that finds its packages in a folder of its own, and that folder."""
    (folder / "bin").mkdir(parents=True)
    real = os.path.realpath(sys.executable)
    (folder / "bin" / "python3").symlink_to(real)
    (folder / "pyvenv.cfg").write_text(f"home = {Path(real).parent}\n")
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    packages = folder / "lib" / version / "site-packages"
    packages.mkdir(parents=True)
    return str(folder / "bin" / "python3"), packages


def test_without_memory_files(tmp_path: Path) -> None:
    env = {"LD_PRELOAD": preload(tmp_path), "HOME": str(tmp_path)}
    reason = "none: sent psutil: [Errno 38] Function not implemented; installed psutil: "
    bare, _ = made_prefix(tmp_path / "bare")
    with agent(LOOK, Machine(env=env), bare) as session:
        assert session.psutil == reason + "No module named 'psutil'"
        assert problem(ask(session, "interfaces")) == (
            "unobservable",
            "psutil: no build of it loads on this node",
        )
    old, packages = made_prefix(tmp_path / "old")
    (packages / "psutil.py").write_text("version_info, __version__ = (5, 8, 0), '5.8.0'")
    with agent(LOOK, Machine(env=env), old) as session:
        assert session.psutil == reason + "version 5.8.0 is older than 5.9"
        assert problem(ask(session, "interfaces"))[0] == "unobservable"
    broken, packages = made_prefix(tmp_path / "broken")
    (packages / "psutil.py").write_text("this is no Python")
    with agent(LOOK, Machine(env=env), broken) as session:
        assert session.psutil.startswith(reason + "invalid syntax")
    good, packages = made_prefix(tmp_path / "good")
    shutil.copytree(psutil_builds.own_folder(), packages / "psutil")
    with agent(LOOK, Machine(env=env), good) as session:
        assert session.psutil == "site-packages"
        assert ask(session, "interfaces").value == sorted(psutil.net_if_stats())


class Faulty(Payload):
    """What is sent with another library in the place of psutil's."""

    library = b""

    def modules(self, hello: Mapping[str, Any]) -> tuple[bytes, str | None]:
        return super().modules(hello)[0], pack(self.library)


@pytest.mark.parametrize("fault", ["garbage", "truncated", "foreign"])
def test_psutil_that_cannot_load(fault: str, tmp_path: Path) -> None:
    own = (psutil_builds.own_folder() / psutil_builds.LIBRARY).read_bytes()
    foreign = bytearray(own)
    foreign[18] ^= 0xFF  # e_machine of the ELF header
    library = {"garbage": b"garbage", "truncated": own[:1000], "foreign": bytes(foreign)}[fault]
    bare, _ = made_prefix(tmp_path / "bare")
    payload = Faulty({MODULE: "def psu(node): return node.psutil('cpu_count')"})
    payload.library = library
    with agent(payload, Machine(), bare) as session:
        why = "loading it crashes" if fault == "truncated" else "/proc/self/fd/"
        assert session.psutil.startswith(f"none: sent psutil: {why}")
        assert session.psutil.endswith("; installed psutil: No module named 'psutil'")
        assert problem(ask(session, "psu"))[0] == "unobservable"


def test_values(deeds: Session) -> None:
    args = [1, "ü\u2028\n\0\U0001f680", None, True, {"a": [0.5]}, [], {}]
    reply = ask(deeds, "echo", *args)
    assert reply.value == args
    assert reply.problem is None
    assert 0 < reply.seconds < 10
    assert ask(deeds, "int_key").value == {"1": [2, 3]}
    assert ask(deeds, "undecodable").value == {"a?": "b?\U0001f680"}


@pytest.mark.parametrize(
    ("function", "kind", "message"),
    [
        ("blind", "unobservable", "ethtool: permission denied"),
        ("absent", "unobservable", "no program 'no-such-program'"),
        ("bug", "bug", "KeyError: 'b'"),
        ("no_such", "bug", f"AttributeError: module '{MODULE}' has no attribute 'no_such'"),
        ("nan", "bug", "ValueError: Out of range float values are not JSON compliant"),
        ("strange", "bug", "TypeError: Object of type object is not JSON serializable"),
        ("tuple_key", "bug", "TypeError: keys must be str, int, float, bool or None, not tuple"),
        ("ring", "bug", "ValueError: Circular reference detected"),
        ("deep", "bug", "RecursionError: maximum recursion depth exceeded"),
        ("segv", "died", "the probe's process died of SIGSEGV"),
        ("real_time_signal", "died", f"the probe's process died of signal {signal.SIGRTMIN + 1}"),
        ("leave", "died", "the probe's process ended without an answer"),
        ("sys_exit", "died", "the probe's process ended without an answer"),
        ("interrupt", "died", "the probe's process ended without an answer"),
        ("rude", "died", "the probe's process ended without an answer"),
        ("deaf", "died", "the probe's process ended without an answer"),
    ],
)  # fmt: skip
def test_problems(deeds: Session, function: str, kind: str, message: str) -> None:
    found = problem(ask(deeds, function))
    assert (found[0], found[1][: len(message)]) == (kind, message)
    assert ask(deeds, "echo", 1).value == [1]


@pytest.mark.parametrize("version", ["3.8", "3.13", "{}.{}".format(*sys.version_info)])
def test_a_bug_names_file_and_line(version: str) -> None:
    with agent(DEEDS, python=python(version)) as session:
        reply = ask(session, "bug")
        came_as_text = session.hello["code"] != boot.code()
    assert reply.problem is not None
    trace = reply.problem["traceback"]
    assert f'File "{MODULE.replace(".", "/")}.py", line 16, in bug\n' in trace
    assert ('    def bug(node): return {"a": 1}["b"]\n' in trace) == came_as_text


def test_too_large(deeds: Session) -> None:
    kind, message = problem(ask(deeds, "big"))
    assert kind == "too_large"
    assert message.startswith("the facts take 2097")


@pytest.mark.parametrize("function", ["hang", "deaf_and_hanging", "runs_and_hangs"])
def test_hang(deeds: Session, function: str) -> None:
    assert problem(ask(deeds, function, timeout_s=2)) == ("timeout", "no answer in 2 s")


def test_children_are_apart(deeds: Session) -> None:
    assert ask(deeds, "noise").value == ""
    assert ask(deeds, "session_of_its_own").value == [True, True, True]
    assert ask(deeds, "file_kept").value is True
    # 0, 1, 2, two pipes, /dev/null and the listing itself
    assert ask(deeds, "descriptors").value == 7


def test_many_at_once(deeds: Session) -> None:
    hanging = [deeds.ask(MODULE, "hang", timeout_s=1) for _ in range(10)]
    echoing = [deeds.ask(MODULE, "echo", [n], 30) for n in range(190)]
    assert [deeds.answer(call).value for call in echoing] == [[n] for n in range(190)]
    assert {problem(deeds.answer(call)) for call in hanging} == {("timeout", "no answer in 1 s")}


def test_calls_that_come_together_share_children(deeds: Session) -> None:
    calls: list[tuple[str, str, list[Any]]]
    calls = [(MODULE, "pid", [n, "x" * 5000 * (n % 10 == 9)]) for n in range(60)]
    asked = deeds.ask_all(calls, [30] * 60)
    found = [deeds.answer(call).value for call in asked]
    assert [n for n, _ in found] == [*range(60)]
    assert len({pid for _, pid in found}) < 60
    wait_until(lambda: not usage(deeds)["pids"])


def test_a_child_that_hangs_keeps_no_other_call_waiting(deeds: Session) -> None:
    calls: list[tuple[str, str, list[Any]]]
    calls = [(MODULE, name, []) for name in ("hang", "echo", "deaf_and_hanging", "echo", "deaf")]
    asked = deeds.ask_all(calls, [3, 60, 3, 60, 60])
    assert [deeds.answer(asked[n]).value for n in (1, 3)] == [[], []]
    assert problem(deeds.answer(asked[4]))[0] == "died"
    for n in (0, 2):
        assert problem(deeds.answer(asked[n])) == ("timeout", "no answer in 3 s")


def test_a_probe_does_not_die_of_what_another_did(deeds: Session) -> None:
    calls: list[tuple[str, str, list[Any]]]
    for _ in range(5):
        calls = [(MODULE, name, []) for name in ("poison", "taste", "segv", "taste", "leave")]
        asked = deeds.ask_all(calls, [30] * 5)
        replies = [deeds.answer(call) for call in asked]
        assert [replies[n].value for n in (0, 1, 3)] == ["poisoned", "well", "well"]
        assert problem(replies[2]) == ("died", "the probe's process died of SIGSEGV")
        assert problem(replies[4]) == ("died", "the probe's process ended without an answer")


CHANGES = (
    "changes_directory",
    "sets_variable",
    "drops_variable",
    "sets_mask",
    "leaves_descriptor",
    "closes_descriptor",
    "leaves_thread",
    "leaves_process",
    "leaves_zombie",
    "leaves_alarm",
    "ignores_signal",
    "sets_timeout",
    "sets_limit",
    "becomes_another",
)


@pytest.mark.parametrize("version", ["3.8", "3.13"])
def test_what_a_probe_changes_of_its_process_reaches_no_other_call(version: str) -> None:
    with agent(DEEDS, python=python(version)) as session:
        untouched = ask(session, "seen").value
        names = [name for change in CHANGES for name in (change, "seen")] * 3
        asked = session.ask_all([(MODULE, name, []) for name in names], [30] * len(names))
        replies = [session.answer(call) for call in asked]
    assert untouched
    for name, reply in zip(names, replies, strict=True):
        assert (name, reply.problem) == (name, None)
        if name == "seen":
            assert reply.value == untouched


def test_a_probe_that_loses_its_directory_is_answered(deeds: Session, tmp_path: Path) -> None:
    calls: list[tuple[str, str, list[Any]]]
    calls = [(MODULE, "loses_directory", [str(tmp_path / "gone")]), (MODULE, "seen", [])] * 5
    replies = [deeds.answer(call) for call in deeds.ask_all(calls, [30] * 10)]
    assert [reply.problem for reply in replies] == [None] * 10
    assert {reply.value[0] for reply in replies[1::2]} == {"/"}


@pytest.mark.parametrize("how", ["raises", "returns"])
def test_a_fork_of_a_probe_answers_nothing(deeds: Session, how: str) -> None:
    calls: list[tuple[str, str, list[Any]]]
    for _ in range(5):
        calls = [
            (MODULE, "forks_and_comes_back", [how]),
            *[(MODULE, "echo", [n]) for n in range(4)],
        ]
        replies = [deeds.answer(call) for call in deeds.ask_all(calls, [3] * 5)]
        assert [reply.value for reply in replies] == [how, [0], [1], [2], [3]]


def test_calls_from_many_threads(deeds: Session) -> None:
    with ThreadPoolExecutor(16) as pool:
        replies = list(pool.map(lambda n: ask(deeds, "echo", n, "x" * 50_000), range(64)))
    assert [reply.value for reply in replies] == [[n, "x" * 50_000] for n in range(64)]


def test_too_few_descriptors() -> None:
    with agent(DEEDS, Machine(before="ulimit -n 20"), sys.executable) as session:
        asked = [session.ask(MODULE, "hang", timeout_s=2) for _ in range(12)]
        found = {problem(session.answer(call)) for call in asked}
        assert found == {
            ("timeout", "no answer in 2 s"),
            ("unobservable", "cannot start a process: Too many open files"),
        }
        assert ask(session, "echo", 1).value == [1]


def test_what_a_probe_leaves_in_its_group_ends_with_it() -> None:
    machine = Machine()
    with agent(DEEDS, machine, sys.executable) as session:
        pid = ask(session, "left_behind", False).value
        wait_until(lambda: pid not in machine.processes())
        assert problem(ask(session, "dies_and_leaves")) == (
            "died",
            "the probe's process died of SIGKILL",
        )
        wait_until(lambda: set(machine.processes()) == {session.hello["pid"]})
        pid = ask(session, "left_behind", True).value
        assert pid in machine.processes()  # it has made itself independent: see to it at the end


def test_no_zombies() -> None:
    with agent(DEEDS, python=sys.executable) as session:
        ask(session, "hang", timeout_s=0.1)
        ask(session, "echo")
        ask(session, "left_behind", False)
        process = psutil.Process(session.hello["pid"])
        wait_until(lambda: not process.children())


def test_open_call(deeds: Session) -> None:
    running = deeds.start(MODULE, "stay", [4711], 10)
    assert isinstance(running, Running)
    assert running.ready == {"port": 4711}
    assert ask(deeds, "echo", 1).value == [1]
    assert running.stop().value == "stopped"
    assert running.stop().value == "stopped"


def test_open_call_that_outlives_its_limit(deeds: Session) -> None:
    running = deeds.start(MODULE, "stay", [1], 2)
    assert isinstance(running, Running)
    ask(deeds, "hang", timeout_s=3)
    assert running.stop().value == "stopped"


def test_open_call_deaf_to_stop(deeds: Session) -> None:
    running = deeds.start(MODULE, "deaf_to_stop", [], 2)
    assert isinstance(running, Running)
    assert problem(running.stop()) == ("timeout", "no answer in 2 s")


def test_open_call_that_does_not_stay(deeds: Session) -> None:
    running = deeds.start(MODULE, "returns_at_once", [], 10)
    assert isinstance(running, Running)
    assert running.stop().value == 7


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        ("bug_before", ("bug", "ZeroDivisionError: division by zero")),
        ("dies_before", ("died", "the probe's process ended without an answer")),
        ("never_ready", ("timeout", "no answer in 2 s")),
        ("ready_with_nan", ("bug", "ValueError: Out of range float values are not JSON compliant")),
    ],
)
def test_open_call_that_never_opens(
    deeds: Session, function: str, expected: tuple[str, str]
) -> None:
    reply = deeds.start(MODULE, function, [], 2 if function == "never_ready" else 10)
    assert isinstance(reply, Reply)
    assert problem(reply)[0] == expected[0]
    assert problem(reply)[1].startswith(expected[1])


def test_clock_and_usage(deeds: Session) -> None:
    clock = deeds.clock()
    assert abs(clock["offset_s"]) <= clock["error_s"] + 0.001
    before = usage(deeds)["children_s"]
    call = deeds.ask(MODULE, "count", [100_000])
    deeds.answer(call)
    assert call.frame is not None
    wait_until(lambda: not usage(deeds)["pids"])
    found = usage(deeds)
    assert set(found) == {"agent_s", "children_s", "pids"}
    assert 0 < found["agent_s"] < 10
    assert 0 < call.frame["cpu_s"] <= found["children_s"] - before < 10


def usage(session: Session) -> dict[str, Any]:
    found: dict[str, Any] = session.call("preflight.node.agent", "usage").value
    return found


def busy(session: Session) -> None:
    """Have all sorts of processes under way."""
    for function in ("hang", "runs_and_hangs", "deaf_and_hanging"):
        session.ask(MODULE, function, timeout_s=1000)
    ask(session, "left_behind", True)
    session.start(MODULE, "stay", [1], 1000)


def test_end_of_stdin_ends_everything() -> None:
    machine = Machine()
    session = Session(machine, Payload({MODULE: DEEDS}), 20, sys.executable)
    busy(session)
    wait_until(lambda: any("sleep 1000" in words for words in machine.processes().values()))
    wait_until(lambda: len(machine.processes()) == 7)
    session.close()
    machine.wait_empty()
    assert problem(ask(session, "echo")) == ("lost", "the agent has ended")
    session.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGALRM])
def test_a_signal_ends_everything(number: int) -> None:
    machine = Machine()
    session = Session(machine, Payload({MODULE: DEEDS}), 20, sys.executable)
    busy(session)
    kill(session.hello["pid"], number)
    machine.wait_empty()
    assert problem(ask(session, "echo")) == ("lost", "the agent has ended")
    session.close()


@pytest.mark.parametrize("version", ["3.8", "3.13"])
def test_signals_that_come_together_end_everything(version: str) -> None:
    """As systemd sends them to a login session that it ends."""
    machine = Machine()
    session = Session(machine, Payload({MODULE: DEEDS}), 20, python(version))
    busy(session)
    for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGHUP, signal.SIGCONT):
        kill(session.hello["pid"], number)
    machine.wait_empty()
    session.close()


def test_agent_killed() -> None:
    """Nobody can tidy up then: children die by themselves, and their commands with them."""
    machine = Machine()
    session = Session(machine, Payload({MODULE: DEEDS}), 20, sys.executable)
    call = session.ask(MODULE, "runs_and_hangs", [], 1000)
    wait_until(lambda: any("sleep 1000" in words for words in machine.processes().values()))
    kill(session.hello["pid"], signal.SIGKILL)
    machine.wait_empty()
    assert problem(session.answer(call)) == ("lost", "the agent has ended")
    session.close()


CONTROLLER = """
import sys
from preflight.payload import Payload
from preflight.session import Session
from tests.agent_made import MODULE, Machine
from tests.test_agent import DEEDS

machine = Machine()
print(machine.mark, flush=True)
session = Session(machine, Payload({MODULE: DEEDS}), 20, sys.executable)
for function, args in [("orphaned", [sys.argv[1]]), ("hang", [])]:
    session.ask(MODULE, function, args, 1000)
session.start(MODULE, "stay", [1], 1000)
session.answer(session.ask(MODULE, "hang", [], 1000))
"""


def test_controller_killed(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CONTROLLER, str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    ) as controller:
        assert controller.stdout
        machine = Machine()
        machine.mark = controller.stdout.readline().strip()
        wait_until((tmp_path / "up").exists)
        wait_until(lambda: len(machine.processes()) >= 6)
        controller.kill()
    machine.wait_empty()


def test_life_limit() -> None:
    machine = Machine()
    payload = Payload({MODULE: DEEDS})
    stream = Pulled(machine, command(sys.executable, len(payload.blob), "tag:", 1, None))
    stream.send(payload.blob, 20)
    heard = b""
    while data := stream.recv(1 << 16):
        heard += data
    hello = json.loads(heard.split(b"tag:")[1])
    assert hello["hello"]["executable"] == sys.executable
    machine.wait_empty()
    stream.close()


@pytest.mark.parametrize("version", ["3.8", "3.13"])
def test_life_limit_before_the_blob_is_there(version: str) -> None:
    machine = Machine()
    payload = Payload({})
    stream = Pulled(machine, command(python(version), len(payload.blob), "tag:", 1, None))
    stream.send(payload.blob[:100], 20)
    assert stream.recv(100) == b""
    machine.wait_empty()
    stream.close()


def test_end_before_the_blob_is_there() -> None:
    machine = Machine()
    payload = Payload({})
    stream = Pulled(machine, command(sys.executable, len(payload.blob), "tag:", 60, None))
    stream.send(payload.blob[:100], 20)
    stream.close_stdin()
    assert stream.recv(100) == b""
    machine.wait_empty()
    stream.close()
    assert "zlib.error" in stream.stderr_tail()


def listing(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_nothing_on_disk(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path / "tmp")}
    for folder in ("home", "tmp", "cwd"):
        (tmp_path / folder).mkdir()
    private = tmp_path / "python"
    home = Path(os.path.realpath(sys.executable)).parent.parent
    named, packages = made_prefix(private)
    (packages / "left_alone.py").write_text("")
    before = listing(tmp_path)
    library = home / "lib"
    stamps = {path: path.stat().st_mtime_ns for path in library.glob("python3*/__pycache__/*")}
    with agent(LOOK + DEEDS, Machine(env=env, cwd=tmp_path / "cwd"), named) as session:
        assert session.psutil == "sent"
        for function in ("look", "interfaces", "nvml", "bug", "segv"):
            ask(session, function)
    assert listing(tmp_path) == before
    assert {p: p.stat().st_mtime_ns for p in library.glob("python3*/__pycache__/*")} == stamps


def test_a_probe_that_crashes_leaves_no_core_file() -> None:
    with agent(DEEDS, Machine(before="ulimit -c unlimited"), sys.executable) as session:
        assert ask(session, "core_limit").value == 0


def test_an_agent_that_crashes() -> None:
    with agent("") as session:
        assert problem(session.call("preflight.node.agent", "no_such")) == (
            "lost",
            "the agent has ended: AttributeError: 'Agent' object has no attribute 'do_no_such'",
        )


@pytest.mark.skipif(sys.version_info < (3, 11), reason="3.8 would read our code, and run nonsense")
def test_a_node_that_cannot_read_the_code_that_it_asks_for() -> None:
    made = Payload({MODULE: "def f(node): return [one for one in range(3)]"})
    truth, lie = '"code": code()', f'"code": "{boot.code()}"'
    said = zlib.decompress(made.blob).decode()
    assert truth in said
    made.blob = zlib.compress(said.replace(truth, lie).encode())
    with agent(made, python=python("3.8")) as session:
        kind, message = problem(ask(session, "f"))
        assert kind == "lost"
        assert message.startswith("the agent has ended: ValueError: bad marshal data")
        with pytest.raises(TransportError, match="the agent has ended"):
            session.psutil  # noqa: B018 - a property that waits


def test_shared_modules_are_imported_once() -> None:
    code = """
    import sys

    def seen(node):
        import preflight.node.kernel
        return sorted(n for n in sys.modules if n.startswith("preflight."))
    def broken(node):
        import preflight.node.broken
    """
    sources = {MODULE: dedent(code), "preflight.node.broken": "import no_such_module"}
    machine = Machine()
    session = Session(machine, Payload(sources), 20, sys.executable)
    seen = ask(session, "seen").value
    assert MODULE in seen
    assert "preflight.node.kernel" in seen
    assert "preflight.node.broken" not in seen
    assert problem(ask(session, "broken")) == (
        "bug",
        "ModuleNotFoundError: No module named 'no_such_module'",
    )
    session.close()
    machine.wait_empty()


def test_packed_library_is_compressed() -> None:
    assert len(pack(bytes(100_000))) < 1000
    assert zlib.decompress(base64.b64decode(pack(b"x"))) == b"x"
