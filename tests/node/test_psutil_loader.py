from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.agent_made import Machine, agent, ask

INTERFACES = """
def interfaces(node):
    return sorted(node.psutil("net_if_stats"))
"""
OLD_KERNEL = """
#define _GNU_SOURCE
#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

int memfd_create(const char *name, unsigned flags) {
    if (flags & 8) {
        errno = EINVAL;
        return -1;
    }
    return syscall(SYS_memfd_create, name, flags);
}
"""
NAMESPACE = """#!/bin/sh
exec unshare --pid --fork --kill-child \\
    sh -c 'echo 2 >/proc/sys/vm/memfd_noexec; exec sh "$@"' sh "$@"
"""


def test_a_kernel_that_knows_no_noexec(tmp_path: Path) -> None:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler on this machine")
    code, library = tmp_path / "old.c", tmp_path / "old.so"
    code.write_text(OLD_KERNEL)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, code], check=True)
    machine = Machine(env={"LD_PRELOAD": str(library)})
    with agent(INTERFACES, machine, sys.executable) as session:
        assert session.psutil == "sent"
        assert ask(session, "interfaces").value == sorted(psutil.net_if_stats())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may have a PID namespace of its own")
def test_a_kernel_that_insists_on_noexec(tmp_path: Path) -> None:
    if not Path("/proc/sys/vm/memfd_noexec").exists():
        pytest.skip("a kernel before 6.3")
    shell = tmp_path / "shell"
    shell.write_text(NAMESPACE)  # the setting is a PID namespace's own
    shell.chmod(0o755)
    # with MFD_EXEC: a program is to be started from it
    refused = 'import os\ntry: os.memfd_create("x", 16)\nexcept OSError as e: print(e.errno)'
    done = subprocess.run(
        [shell, "-c", f"exec '{sys.executable}' -c '{refused}'"], capture_output=True, text=True
    )
    if done.stdout != "13\n":
        pytest.skip(f"the setting does not take here: {done.stdout}{done.stderr}")
    with agent(INTERFACES, Machine(shell=str(shell)), sys.executable) as session:
        assert session.psutil == "sent"
        assert ask(session, "interfaces").value == sorted(psutil.net_if_stats())
