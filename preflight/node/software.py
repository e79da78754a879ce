"""The training environment of a node: what its interpreter has and would load.

That is another Python than the one the agent runs in, and may be in a container, so it is asked
as a process of its own (`interpreter.py`). Also how versions are judged, for all `software` checks.
Sent to nodes: stdlib only, Python 3.8.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import re
from dataclasses import replace
from typing import Any, Dict, Mapping, Sequence, TypedDict

from preflight.api import (
    FAIL,
    STATUSES,
    WARN,
    Absent,
    Node,
    Ran,
    Unobservable,
    Verdict,
    Want,
    fail,
    same_everywhere,
    skip,
)
from preflight.node.container import LIMIT_S, closed, entered, last_line, see_whose
from preflight.node.launch import DEFAULT, home
from preflight.node.launch import interpreter as named

MAIN, LINKER = "preflight.node.interpreter.main", "preflight.node.linker"
"""What runs there; imported here it would be compiled for nothing."""
MARK = "preflight:"
"""Begins the answer's line: whatever sitecustomize prints is told apart."""
BEGAN = "preflight began"
"""Said first: an interpreter that ends without it did not start, and nothing of ours ended it."""
START = (
    f"import sys;sys.stdout.write('{BEGAN}'+chr(10));sys.stdout.flush();"
    "sys.path[:]=[p for p in sys.path if p];import os;"
    "sys.version_info<(3,7) and sys.exit('Python '+sys.version.split()[0]+' is older than 3.7');"
    "exec(os.environ.pop('PREFLIGHT_PROBE'))"
)
"""Given to `python -c`; the current folder is no place to import from."""
PASSED = re.compile(r"PATH|HOME|CUDA_HOME|NCCL_NET_PLUGIN|LD_.*|PYTHON.*")
"""Variables of `launch.env` that decide what an interpreter and the dynamic linker find."""
NO_COMMAND = (126, 127)
"""Ends of env(1), docker exec and podman exec where the program could not be started."""
BY_SIGNAL = 128
"""A shell and an engine add this to the number of the signal that ended a program."""
LAST_SIGNAL = 64
"""SIGRTMAX of Linux, signal(7)."""
FATAL = "Fatal Python error"
"""Begins the line that says why an interpreter did not start; others follow it."""
GUESS = f"that the job uses {DEFAULT} is a guess: name its interpreter by launch.python"

UNSEEN = "packages may come from {} too: the login user may not look into it"


class Torch(TypedDict):
    """PyTorch, by torch/version.py; without that file by its metadata."""

    version: str
    cuda: str | None
    """The CUDA version it was built with, such as 12.4."""
    hip: str | None
    path: str | None
    archs: list[str]
    """The GPU architectures it has code for, such as sm_90 and compute_90; empty: not told."""


class Library(TypedDict):
    """The library that the dynamic linker would take, links resolved."""

    path: str
    by: str
    """LD_PRELOAD, RPATH, LD_LIBRARY_PATH, RUNPATH, ld.so.cache, default, wheel or built in."""


class Nccl(Library):
    """The NCCL that would be loaded."""

    version: str | None
    """By its own word, its file's name or its wheel; None where none of them tells."""


class Plugin(TypedDict):
    """A net plugin of NCCL."""

    path: str
    bytes: int


class Inside(TypedDict):
    """What a training interpreter says; see `interpreter.py` for how it is found."""

    python: str
    executable: str
    packages: dict[str, str]
    """Versions by normalised name, of the packages that matter here."""
    torch: Torch | None
    nccl: Nccl | None
    system_nccl: str | None
    net_plugin: Plugin | None
    driver_cuda: int | None
    """The newest CUDA that the driver supports, by libcuda: 12040 is 12.4."""
    toolkit: str | None


class Training(TypedDict):
    """The training environment, or why there is no word of it."""

    asked: str
    """The interpreter as it was called."""
    inside: Inside | None
    refusal: str
    """Why `inside` is None."""
    silence: str
    """`missing`: the interpreter cannot be started; `broken`: it ended as it started; `slow`: it
    gave no answer; empty: it answered, or was not asked."""
    hidden: str
    """A folder that the interpreter may take packages from, and that the login user may not see."""
    nvml_cuda: int | None
    """As `driver_cuda`, by NVML; None where libcuda told it, or there is no NVML."""
    nvml_problem: str
    capabilities: list[str]
    """Compute capability of each GPU, such as 9.0; asked only where torch tells `archs`."""


def asked(want: Want) -> tuple[dict[str, Any]]:
    """Return the arguments of `training`; all checks that share it use this."""
    env = {
        name: text for name, text in want.get("launch.env", {}).items() if PASSED.fullmatch(name)
    }
    keys = ("python", "container", "user", "workdir")
    return ({**{key: want.get("launch." + key) for key in keys}, "env": env},)


def training(node: Node, launch: Mapping[str, Any]) -> Training:
    """Return what the training interpreter has.

    Args:
        node: the node.
        launch: of the inventory: python (None: `python3` on PATH), container, env, user, workdir.

    Raises:
        Unobservable: it gave no answer, or its engine did not.
    """
    container = launch["container"] or {}
    python = (launch["python"] or DEFAULT) if container else named(node, launch)
    found = Training(
        asked=f"{python} in {container.get('name') or container.get('image')}"
        if container
        else python,
        inside=None,
        refusal=closed(container),
        silence="",
        hidden="",
        nvml_cuda=None,
        nvml_problem="",
        capabilities=[],
    )
    if found["refusal"]:
        return found
    see_whose(node, container, launch["user"])
    env, ours = dict(launch["env"]), {"PREFLIGHT_PROBE": source(), "PYTHONDONTWRITEBYTECODE": "1"}
    own = home(node, launch["user"]) if launch["user"] and not container else None
    if own and "HOME" not in env:
        env["HOME"], found["hidden"] = own, hidden(node, f"{own}/.local")
    try:
        ran = node.run(
            [*entered(container, env, ours), python, "-c", START],
            timeout_s=LIMIT_S,
            env=ours if container else {**env, **ours},
        )
    except Absent:
        raise
    except Unobservable as problem:
        found["silence"], found["refusal"] = "slow", re.sub("^env: ", "", str(problem))
        return found
    found["silence"] = silence(ran, bool(container))
    if found["silence"]:
        fatal = (line for line in ran.err.splitlines() if line.startswith(FATAL))
        found["refusal"] = next(fatal, last_line(ran, python))
        return found
    inside = found["inside"] = answer(ran, python)
    if inside["driver_cuda"] is None:
        found["nvml_cuda"], found["nvml_problem"] = by_nvml(node)
    if inside["torch"] and inside["torch"]["archs"]:
        found["capabilities"] = capabilities(node)
    return found


def hidden(node: Node, folder: str) -> str:
    """Return a folder if the login user may not look into it, else nothing."""
    there = node.visit([folder])[folder]
    closed_to = there.error == "EACCES" or not (there.error or there.readable)
    return folder if closed_to else ""


def silence(ran: Ran, contained: bool) -> str:
    """Return why an interpreter that ended never began; nothing if it did, or who knows.

    What an engine has to say, such as that there is no such container, is no word about Python.
    """
    if ran.code in NO_COMMAND:
        return "missing"
    if BEGAN in ran.out:
        return ""
    signalled = (
        BY_SIGNAL < ran.code <= BY_SIGNAL + LAST_SIGNAL
    )  # podman's own troubles end with 255
    own = not contained or signalled or FATAL in ran.err
    return "broken" if own else ""


def source() -> str:
    """Return the program that says what it has.

    It ends by itself: what runs in a container outlives `docker exec`. `signal` imports `enum`,
    which takes longer than the rest; what it wraps does not.
    """
    return text_for(MAIN, MARK, f"import _signal\n_signal.alarm({LIMIT_S + 2})\n", [LINKER])


def text_for(main: str, mark: str, before: str = "", needs: Sequence[str] = ()) -> str:
    """Return a program for the training interpreter; on a node it is in no file.

    Args:
        main: the function that is called, with its module.
        mark: what it puts before its answers.
        before: statements that come before that.
        needs: the modules of ours that its module imports from, each behind those it needs itself.
    """
    module, _, function = main.rpartition(".")
    lines = ["import os, sys"]
    for name in (*needs, module):
        spec: Any = importlib.util.find_spec(name)
        text = spec.loader.get_source(name)
        lines.append(f"ours=sys.modules[{name!r}]=type(sys)({name!r});exec({text!r},vars(ours))")
    return "\n".join([*lines, f"{before}ours.{function}({mark!r})"])


def answer(ran: Ran, python: str) -> Inside:
    """Return what the interpreter printed, noise around it ignored.

    Raises:
        Unobservable: there is no answer.
    """
    for line in reversed(ran.out.splitlines()):
        if line.startswith(MARK):
            inside: Inside = json.loads(line[len(MARK) :])
            return inside
    raise Unobservable(f"training interpreter {python!r}: {last_line(ran, python)}")


def by_nvml(node: Node) -> tuple[int | None, str]:
    """Return the CUDA version that the driver supports by NVML, or what NVML says instead."""
    try:
        return node.nvml("nvmlSystemGetCudaDriverVersion_v2"), ""
    except Absent:
        return None, ""
    except Unobservable as problem:
        return None, str(problem)


def capabilities(node: Node) -> list[str]:
    """Return the compute capability of each GPU that answers; gpu.inventory tells of others."""
    try:
        gpus = range(node.nvml("nvmlDeviceGetCount"))
    except (Absent, Unobservable):
        return []
    found = []
    for index in gpus:
        with contextlib.suppress(Absent, Unobservable):
            found.append("{}.{}".format(*node.nvml("nvmlDeviceGetCudaComputeCapability", index)))
    return found


Verdicts = Dict[str, Verdict]


def opened(facts: Mapping[str, Training]) -> tuple[dict[str, Inside], Verdicts]:
    """Return what the interpreters said, and the verdicts of the nodes where none did."""
    said = {node: fact["inside"] for node, fact in facts.items() if fact["inside"]}
    silent = {
        node: skip(
            "training interpreter {!r}: {}".format(fact["asked"], fact["refusal"])
            if fact["silence"]
            else fact["refusal"]
        )
        for node, fact in facts.items()
        if not fact["inside"]
    }
    return said, silent


def believed(facts: Mapping[str, Training], verdicts: Verdicts, want: Want, key: str) -> Verdicts:
    """Return the verdicts as `guessed`, with a word of what may not be seen."""
    verdicts = {
        node: replace(verdict, details=(*verdict.details, UNSEEN.format(facts[node]["hidden"])))
        if facts[node]["hidden"] and facts[node]["inside"]
        else verdict
        for node, verdict in verdicts.items()
    }
    return guessed(verdicts, want, key)


def guessed(verdicts: Mapping[str, Verdict], want: Want, key: str) -> Verdicts:
    """Return the verdicts, failures as warnings where nobody said which interpreter trains.

    What the inventory expects, under `expect:` by that key, was said of it all the same.
    """
    said = ("launch.python", "launch.container", "launch.env.PATH", "expect." + key)
    if any(want.get(name) for name in said):
        return dict(verdicts)
    return {
        node: replace(verdict, status=WARN, details=(*verdict.details, GUESS))
        if verdict.status == FAIL
        else verdict
        for node, verdict in verdicts.items()
    }


def by_hand(want: Want, words: str) -> str:
    """Return the command that asks a training interpreter by hand."""
    container = want.get("launch.container", {})
    python = f"{want.get('launch.python', 'python3')} {words}"
    name = container.get("name")
    return f"{container['engine']} exec {name} {python}" if name else python


def versions(
    values: Mapping[str, str | None], what: str, expected: str | None = None, **more: Any
) -> Verdicts:
    """Return `same_everywhere` of versions; an expected 2.4 is met by 2.4.0+cu124.

    Nodes that meet what is expected must still have the same. Of `2.4 or 2.5`, either meets it.
    """
    met = {
        node: value
        for node, value in values.items()
        if expected is None
        or any(re.match(re.escape(expected) + r"(?![\w])", v) for v in (value or "").split(" or "))
    }
    rest = {node: value for node, value in values.items() if node not in met}
    return {
        **same_everywhere(met, what, **more),
        **same_everywhere(rest, what, expected, **dict(more, say=fail)),
    }


def together(*parts: Mapping[str, Verdict]) -> Verdicts:
    """Return for each node the gravest of several verdicts; what else is wrong is a detail."""
    nodes = dict.fromkeys(node for part in parts for node in part)
    return {node: gravest([part[node] for part in parts if node in part]) for node in nodes}


def gravest(verdicts: list[Verdict]) -> Verdict:
    """Return one verdict of several; a skip counts only where there is nothing else."""
    real = [verdict for verdict in verdicts if verdict.status != "skip"] or verdicts[:1]
    worst = max(real, key=lambda verdict: STATUSES.index(verdict.status))
    if worst.status in {"pass", "skip"}:
        details = tuple(detail for verdict in real for detail in verdict.details)
        if len(real) > 1:
            worst = replace(worst, observed=None)
        return replace(worst, summary=", ".join(v.summary for v in real), details=details)
    wrong = [v.summary for v in real if v is not worst and v.status != "pass"]
    return replace(worst, details=(*worst.details, *wrong))
