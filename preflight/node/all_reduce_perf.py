"""The all_reduce_perf of nccl-tests on a node: where it is, and whether it starts.

What it prints is read in `nccl_tests.py`; it is run in `mpi.py`.
Sent to nodes: stdlib only, Python 3.8.
"""

from __future__ import annotations

import re
from typing import Any, Mapping, Sequence, TypedDict

from preflight.api import Node, Unobservable
from preflight.node.container import closed, ended, entered, last_line
from preflight.node.launch import expanded
from preflight.node.planned import CUDA, meant, seen
from preflight.node.software import PASSED

NAMES = ("all_reduce_perf_mpi", "all_reduce_perf")
"""The first is that of NAME_SUFFIX=_mpi, by which builds with MPI are told from others."""
PLACES = ("/opt/nccl-tests/build", "/opt/nccl_tests/build")
"""Where images of clouds and of Kubernetes operators have it, which put it on no PATH."""
LAUNCHERS = ("mpirun", "srun")
LOOK_S = 8.0
LOOK = """
for name; do
  path=$(command -v "$name") && [ -f "$path" ] && [ -x "$path" ] || continue
  echo "=$path"
  case $(head -c 2 "$path") in '#!') echo +mpi ;; esac
  LC_ALL=C grep -q MPI_Init "$path" && echo +mpi
  "$path" --help </dev/null 2>&1
  echo "-$?"
  break
done
for name in mpirun srun; do command -v $name >/dev/null && echo "+$name"; done
:
"""
"""Whether a script leads to a build with MPI is not seen: then it is taken to."""


class Found(TypedDict):
    """What a node has for nccl-tests."""

    host: str
    """Its own name, up to the first dot, as nccl-tests has it."""
    gpus: int
    program: str
    why: str
    """Why it cannot be used."""
    lack: str
    """Of what kind that is: `none` (it is not there), `broken`, `closed` (in a container that is
    not looked into), `unknown`; empty: it can."""
    mpi: bool
    """Whether processes on several nodes can be one program."""
    each: bool
    """Whether it tells the time of each process."""
    launchers: list[str]


def find(node: Node, launch: Mapping[str, Any]) -> Found:
    """Return what a node has for nccl-tests; without a GPU nothing is looked for."""
    env, container = launch["env"], launch["container"] or {}
    found = Found(
        host=node.uname()["node"].split(".")[0],
        gpus=visible(node, env),
        program="",
        why="",
        lack="",
        mpi=False,
        each=False,
        launchers=[],
    )
    found["why"], found["lack"] = closed(container), "closed" if closed(container) else ""
    if found["why"] or not found["gpus"]:
        return found
    names = [*NAMES, *(f"{place}/{name}" for place in PLACES for name in NAMES)]
    if launch["program"]:
        names = [expanded(node, launch["program"], launch["user"])]
    given = {name: env[name] for name in env if not container or PASSED.fullmatch(name)}
    argv = [*entered(container, given), "sh", "-c", LOOK, "sh", *names]
    try:
        ran = node.run(argv, timeout_s=LOOK_S, env={} if container else given)
    except Unobservable as problem:
        found["why"], found["lack"] = str(problem), "unknown"
        return found
    lines = ran.out.splitlines()
    found["launchers"] = [name for name in ("mpirun", "srun") if f"+{name}" in lines]
    if ran.code:
        found["why"], found["lack"] = last_line(ran, "sh"), "unknown"
    elif not lines or not lines[0].startswith("="):
        words = f"no {launch['program']}" if launch["program"] else f"no {NAMES[1]} on PATH"
        found["why"], found["lack"] = words, "none"
    else:
        found["program"] = lines[0][1:]
        found["mpi"] = "+mpi" in lines
        found["each"] = "--output_file" in ran.out and "--per_iter_timing" in ran.out
        if "-0" not in lines:
            found["why"], found["lack"] = broken(found["program"], lines), "broken"
    return found


def visible(node: Node, env: Mapping[str, str]) -> int:
    """Return how many GPUs a job sees."""
    uuids = seen(node)["uuids"]
    return len(meant(env[CUDA], uuids) if CUDA in env else uuids)


def broken(program: str, lines: Sequence[str]) -> str:
    """Return why a program does not even say how it is used."""
    code = next((line[1:] for line in reversed(lines) if re.fullmatch(r"-\d+", line)), "")
    words = [line for line in lines[1:] if line not in {"+mpi", f"-{code}"} and line[:1] != "+"]
    said = words[-1].rpartition(f"{program}: ")[2] if words else f"it {ended(int(code or 1))}"
    return f"{program} does not start: {said}"
