"""The one door to the machine, opened on real things from inside an agent."""

from __future__ import annotations

import grp
import json
import os
import pwd
import resource
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from preflight.node.toolbox import CAP, plain
from preflight.session import Session
from tests.agent_made import Machine, agent, ask, wait_until

CODE = """
import os

def do(node, method, *args):
    return getattr(node, method)(*args)

def as_nobody(node, method, *args):
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    return do(node, method, *args)

def run(node, argv, timeout_s=10, env=None):
    return node.run(argv, timeout_s, env)

def psutil(node, function): return node.psutil(function)
"""
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="needs root to become another user")


@pytest.fixture(scope="module")
def machine() -> Machine:
    return Machine()


@pytest.fixture(scope="module")
def session(machine: Machine) -> Iterator[Session]:
    with agent(CODE, machine, sys.executable) as started:
        yield started


def value(session: Session, *args: Any, function: str = "do") -> Any:
    reply = ask(session, function, *args)
    assert reply.problem is None, reply.problem
    return reply.value


def unobservable(session: Session, *args: Any, function: str = "do") -> str:
    reply = ask(session, function, *args)
    assert reply.problem is not None, reply.value
    assert reply.problem["kind"] == "unobservable", reply.problem
    return str(reply.problem["message"])


def test_run(session: Session) -> None:
    script = 'echo "$0 $1"; echo oops >&2; cat; exit 3'
    assert value(session, ["sh", "-c", script, "a b", "$HOME"], function="run") == [
        3,
        "a b $HOME\n",
        "oops\n",
    ]
    assert value(session, ["sh", "-c", "kill -9 $$"], function="run") == [-9, "", ""]


def test_run_environment(session: Session) -> None:
    argv = ["sh", "-c", 'echo "$MINE $LC_ALL"']
    assert value(session, argv, 10, {"MINE": "x"}, function="run")[1] == "x C\n"
    assert value(session, argv, 10, {"LC_ALL": "C.UTF-8"}, function="run")[1] == " C.UTF-8\n"


def test_run_bytes_that_are_no_text(session: Session) -> None:
    assert value(session, ["printf", r"caf\351"], function="run")[1] == "caf\ufffd"


def test_run_much_output(session: Session) -> None:
    script = "head -c 1000000 /dev/zero | tr '\\0' x | tee /dev/stderr"
    code, out, err = value(session, ["sh", "-c", script], function="run")
    assert (code, len(out), len(err)) == (0, CAP, CAP)
    assert set(out) == {"x"}


def test_run_what_is_not_there(session: Session, tmp_path: Path) -> None:
    assert unobservable(session, ["no-such"], function="run") == "no program 'no-such'"
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter\n")
    assert unobservable(session, [str(script)], function="run") == f"no program {str(script)!r}"
    script.chmod(0o755)
    assert unobservable(session, [str(script)], function="run") == (
        f"{script}: No such file or directory"
    )
    script.write_bytes(b"\x7fELF")
    assert unobservable(session, [str(script)], function="run") == f"{script}: Exec format error"


@pytest.mark.parametrize(
    "script", ["sleep 1001", "exec >&- 2>&-; sleep 1001", "trap '' TERM; echo x; sleep 1001; :"]
)
def test_run_past_its_time(session: Session, machine: Machine, script: str) -> None:
    assert unobservable(session, ["sh", "-c", script], 0.2, function="run") == (
        "sh: no answer in 0.2 s"
    )
    wait_until(lambda: not any("1001" in words for words in machine.processes().values()))


def test_run_that_leaves_its_output_to_another(session: Session) -> None:
    script = "sleep 1002 >/dev/null 2>&1 & echo done"
    assert value(session, ["sh", "-c", script], function="run") == [0, "done\n", ""]


def test_read(session: Session, tmp_path: Path) -> None:
    file = tmp_path / "file"
    assert value(session, "read", str(file)) is None
    file.write_bytes(b"a\xff\0\r\n")
    assert value(session, "read", str(file)) == "a\ufffd\0\r\n"
    assert value(session, "read", str(file / "below")) is None
    file.write_bytes(b"x" * (CAP + 1))
    assert value(session, "read", str(file)) == "x" * CAP
    assert value(session, "read", "/proc/sys/kernel/ostype") == "Linux\n"
    assert unobservable(session, "read", str(tmp_path)) == f"{tmp_path}: Is a directory"


def test_tables_of_the_kernel_may_be_larger(session: Session) -> None:
    much = {f"V{number}": "x" * 100_000 for number in range(4)}
    with subprocess.Popen(["sleep", "60"], env={**os.environ, **much}) as process:
        try:
            said = value(session, "read", f"/proc/{process.pid}/environ")
        finally:
            process.kill()
    assert len(said) > 400_000 > CAP


def test_listdir(session: Session, tmp_path: Path) -> None:
    for name in ("b", "a", "c"):
        (tmp_path / name).touch()
    assert value(session, "listdir", str(tmp_path)) == ["a", "b", "c"]
    assert value(session, "listdir", str(tmp_path / "none")) is None
    assert value(session, "listdir", str(tmp_path / "a")) is None
    (Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))).touch()
    assert value(session, "listdir", str(tmp_path))[-1] == "?"


def test_links(session: Session, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("target")
    assert value(session, "readlink", str(tmp_path / "link")) == "target"
    assert value(session, "readlink", str(tmp_path / "none")) is None
    assert value(session, "realpath", str(tmp_path / "link")) == str(tmp_path / "target")
    (tmp_path / "target").touch()
    assert unobservable(session, "readlink", str(tmp_path / "target")) == (
        f"{tmp_path / 'target'}: Invalid argument"
    )


def test_stat_and_access(session: Session, tmp_path: Path) -> None:
    file = tmp_path / "file"
    assert value(session, "stat", str(file)) is None
    file.write_bytes(b"12345")
    file.chmod(0o640)
    os.utime(file, (1, 7.5))
    mode = stat.S_IFREG | 0o640
    assert value(session, "stat", str(file)) == [mode, os.getuid(), os.getgid(), 5, 7.5]
    assert value(session, "access", str(file), "rw") is True
    assert value(session, "access", str(file), "x") is False
    assert value(session, "access", str(tmp_path / "none"), "r") is False


def test_statvfs(session: Session, tmp_path: Path) -> None:
    found = os.statvfs("/proc")
    assert value(session, "statvfs", "/proc") == [
        found.f_blocks * found.f_frsize,
        found.f_bavail * found.f_frsize,
        found.f_files,
        found.f_favail,
    ]
    size, free, _, _ = value(session, "statvfs", str(tmp_path))
    assert size >= free > 0
    assert value(session, "statvfs", str(tmp_path / "none")) is None


def test_visit(session: Session, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    here, none = str(tmp_path / "link"), str(tmp_path / "none")
    found = value(session, "visit", [here, none, here])
    assert set(found) == {here, none}
    assert found[here][:4] == ["", str(tmp_path), True, True]
    assert found[none] == ["ENOENT", "", False, False, 0, 0, 0.0]
    assert value(session, "visit", [here], 0)[here][0] in {"", "no answer"}


@needs_root
def test_without_permission(session: Session, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    (closed / "file").touch()
    for method, path in [
        ("read", closed / "file"),
        ("stat", closed / "file"),
        ("readlink", closed / "file"),
        ("statvfs", closed / "file"),
        ("listdir", closed),
    ]:
        said = unobservable(session, method, str(path), function="as_nobody")
        assert said == f"{path}: Permission denied"
    visits = value(session, "visit", [str(closed / "file")], function="as_nobody")
    assert visits[str(closed / "file")][0] == "EACCES"
    assert value(session, "access", str(closed), "r", function="as_nobody") is False


def test_which(session: Session, tmp_path: Path) -> None:
    assert value(session, "which", "sh") in {"/usr/bin/sh", "/bin/sh"}
    assert value(session, "which", "no-such") is None
    assert value(session, "which", str(tmp_path)) is None
    with agent(CODE, Machine(env={"PATH": "/usr/bin:/bin"}), sys.executable) as poor:
        assert value(poor, "which", "ldconfig") in {"/usr/sbin/ldconfig", "/sbin/ldconfig"}


def test_environ(session: Session, machine: Machine) -> None:
    assert value(session, "environ")["PREFLIGHT_TEST_MARK"] == machine.mark


def test_account(session: Session) -> None:
    me = pwd.getpwuid(os.getuid())
    mine = value(session, "account")
    assert mine[:5] == [me.pw_name, me.pw_uid, me.pw_gid, me.pw_dir, me.pw_shell]
    groups = os.getgrouplist(me.pw_name, me.pw_gid)
    assert sorted(mine[5].values()) == sorted(set(groups))
    assert mine[5][grp.getgrgid(me.pw_gid).gr_name] == me.pw_gid
    assert value(session, "account", "daemon")[0] == "daemon"
    assert value(session, "account", "no-such-user") is None


@needs_root
def test_account_without_a_name() -> None:
    code = CODE + "\ndef stranger(node):\n    os.setuid(54321)\n    return node.account()\n"
    with agent(code, Machine(), sys.executable) as other:
        assert value(other, function="stranger") is None


def test_resolve(session: Session) -> None:
    assert set(value(session, "resolve", "localhost")) <= {"127.0.0.1", "::1"}
    assert value(session, "resolve", "127.0.0.7") == ["127.0.0.7"]
    for bad in ("a..b", "x" * 300, "bad name", ""):
        reply = ask(session, "do", "resolve", bad)
        assert reply.problem is None or reply.problem["kind"] == "unobservable", bad
    reply = ask(session, "do", "resolve", "nonexistent.invalid")
    if reply.problem is None:
        assert reply.value == []
    else:  # there is no name server to say so
        assert reply.problem["message"] == "nonexistent.invalid: the resolver does not answer"


def test_limits_are_those_of_the_login() -> None:
    with agent(CODE, Machine(before="ulimit -Sn 333; ulimit -l 64"), sys.executable) as limited:
        found = value(limited, "limits")
    assert set(found) == {"memlock", "nofile", "nproc"}
    assert found["nofile"] == [333, resource.getrlimit(resource.RLIMIT_NOFILE)[1]]
    assert found["memlock"] == [65536, 65536]


def test_uname_and_now(session: Session) -> None:
    uname = os.uname()
    assert value(session, "uname") == {
        "node": uname.nodename,
        "release": uname.release,
        "version": uname.version,
        "machine": uname.machine,
    }
    assert value(session, "now") > 1_700_000_000


def test_psutil(session: Session) -> None:
    found = value(session, "psutil", "net_if_stats")
    assert found["lo"]["isup"] is True
    assert found["lo"]["duplex"] == plain(psutil.net_if_stats()["lo"].duplex)
    family = value(session, "psutil", "net_if_addrs")["lo"][0]["family"]
    assert family in {"AF_INET", "AF_INET6", "AF_PACKET"}
    assert value(session, "psutil", "cpu_count") == os.cpu_count()
    assert unobservable(session, "psutil", "disk_usage", "/no/such") == (
        "psutil.disk_usage: [Errno 2] No such file or directory: '/no/such'"
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        listening = value(session, "psutil", "net_connections", "tcp4")
        (mine,) = [one for one in listening if (one["laddr"] or {}).get("port") == port]
        assert mine["status"] == "LISTEN"
        assert mine["laddr"] == {"ip": "127.0.0.1", "port": port}


def test_process(session: Session) -> None:
    found = value(session, "process", os.getpid())
    assert found["pid"] == os.getpid()
    assert found["cmdline"] == psutil.Process().cmdline()
    assert found["username"] == pwd.getpwuid(os.getuid()).pw_name
    assert value(session, "process", 2**22 + 1) is None


@needs_root
def test_process_of_another(session: Session) -> None:
    found = value(session, "process", os.getpid(), function="as_nobody")
    assert found["username"] == "root"
    assert found["cmdline"] == psutil.Process().cmdline()


def test_no_nvml(session: Session) -> None:
    assert unobservable(session, "nvml", "nvmlInit") == "no NVML library"


NVML = "\ndef name(node): return node.nvml('nvmlDeviceGetName', 0)\n"


def test_no_nvml_library(tmp_path: Path) -> None:
    empty = Machine(env={"LD_LIBRARY_PATH": str(tmp_path)})
    with agent(CODE + NVML, empty, sys.executable) as other:
        reply = ask(other, "name")
        if reply.value is not None:
            pytest.skip("this machine has a GPU")
        assert unobservable(other, function="name") == "no NVML library"


def test_broken_nvml_library(tmp_path: Path) -> None:
    library = tmp_path / "libnvidia-ml.so.1"
    library.write_bytes(b"no library")
    broken = Machine(env={"LD_LIBRARY_PATH": str(tmp_path)})
    with agent(CODE + NVML, broken, sys.executable) as other:
        assert unobservable(other, function="name") == f"NVML: {library}: file too short"


def test_plain_is_json() -> None:
    times = plain({"a": psutil.cpu_times(), "b": (1, b"\xff"), 3: [socket.AF_INET]})
    assert json.loads(json.dumps(times)) == times
    assert times["b"] == [1, "\ufffd"]
    assert times["3"] == ["AF_INET"]
