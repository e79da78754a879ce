"""The job's working directory and interpreter exist on every node, and may be used.

Why: a rank whose node lacks them ends before it says anything, and all the others wait for it at
    the rendezvous.
Facts: workdir and python (path as it stands in the inventory, or found on PATH; error of going
    there, in a process of its own; usable by the login user; target of a link that leads nowhere).
    `~` is the home of launch.user, else of the login user. Without launch.python it is python3,
    looked for on the PATH of launch.env, else of the non-login shell; only with the latter it is a
    guess, and what is wrong with it a warning. In a container they are not
    looked at: see software.container.
Source: stat(2), access(2), readlink(2), $PATH.
Fix: mount or install it there as on the other nodes, or name another: launch.workdir,
    launch.python.
"""

from __future__ import annotations

import stat
from dataclasses import replace
from typing import Any, Mapping, Sequence, TypedDict

from preflight.api import NO_ANSWER, Check, Node, Unobservable, Verdict, Want, fail, ok, skip
from preflight.node.launch import DEFAULT, expanded, interpreter

GUESS = "install it as on the other nodes, or name the job's interpreter by launch.python"
SOFTWARE = ("software.python", "software.pytorch", "software.nccl", "software.cuda")
COLLECTIVES = ("collective.local", "collective.all_reduce", "collective.pairs")
FOLLOWS = {"entered": COLLECTIVES, "executed": (*SOFTWARE, *COLLECTIVES)}
"""Checks whose failures can follow where a directory, or a program, may not be used."""
DENIED = ("no permission", "EACCES")
KEYS = ("workdir", "python", "user")
"""Of the inventory's launch, where what is looked at is named."""

FOLDER, NO_FOLDER = "a directory", "no directory"
"""The `error` of an interpreter or working directory that is of the wrong kind."""


class Place(TypedDict):
    """What going to a path gave; `error` is empty, of the wrong kind, or as of a visit."""

    path: str
    error: str
    usable: bool
    target: str
    """Where a link leads that leads nowhere; else empty."""


class Paths(TypedDict):
    """None: not asked for, or no such program on PATH."""

    workdir: Place | None
    python: Place | None


def probe(node: Node, launch: Mapping[str, Any]) -> Paths:
    if launch["contained"]:
        return Paths(workdir=None, python=None)
    workdir = launch.get("workdir")
    where = expanded(node, workdir, launch.get("user")) if workdir else None
    what = found(node, interpreter(node, launch), launch["path"])
    return Paths(
        workdir=place(node, where, True) if where else None,
        python=place(node, what, False) if what else None,
    )


def found(node: Node, program: str, path: str | None) -> str | None:
    """Return the path of a program; a bare name is looked for as env(1) does."""
    if "/" in program:
        return program
    if path is None:
        return node.which(program)
    places = [f"{folder}/{program}" for folder in path.split(":") if folder]
    return next((one for one in places if node.access(one, "x") and not is_folder(node, one)), None)


def place(node: Node, path: str, folder: bool) -> Place:
    """Return what a path gives; the visit guards what follows against a mount that hangs."""
    error = node.visit([path])[path].error
    usable = not error and node.access(path, "x")
    if not error and is_folder(node, path) != folder:
        error, usable = NO_FOLDER if folder else FOLDER, False
    target = dangling(node, path) if error == "ENOENT" else ""
    return Place(path=path, error=error, usable=usable, target=target)


def is_folder(node: Node, path: str) -> bool:
    """Whether a path that answers is a directory."""
    there = node.stat(path)
    return there is not None and stat.S_ISDIR(there.mode)


def dangling(node: Node, path: str) -> str:
    """Return where a link leads, empty if it is none."""
    try:
        return node.readlink(path) or ""
    except Unobservable:  # EINVAL: no link
        return ""


def asked(want: Want) -> tuple[dict[str, Any]]:
    """Return the arguments of the probe."""
    named = {key: want.launch[key] for key in KEYS if want.launch.get(key)}
    path, contained = want.get("launch.env.PATH"), bool(want.get("launch.container"))
    return ({**named, "path": path, "contained": contained},)


def compare(facts: Mapping[str, Paths], want: Want) -> dict[str, Verdict]:
    workdir, python = want.get("launch.workdir"), want.get("launch.python")
    if want.get("launch.container"):
        return dict.fromkeys(facts, skip("they are in the container, not on the node"))
    pythons = {node: fact["python"] for node, fact in facts.items()}
    workdirs = {node: fact["workdir"] for node, fact in facts.items()}
    if not (workdir or python or any(pythons.values())):
        return dict.fromkeys(facts, skip(f"neither is named, and no node has a {DEFAULT}"))
    whose = "launch.env" if want.get("launch.env.PATH") else "the non-login shell"
    missed = judged(pythons, f"{python or DEFAULT} is not on the PATH of {whose}", "executed")
    second = missed if python or want.get("launch.env.PATH") else doubted(missed)
    if not workdir:
        return second
    first = judged(workdirs, "", "entered")
    return {node: both(first[node], second[node]) for node in facts}


def doubted(verdicts: Mapping[str, Verdict]) -> dict[str, Verdict]:
    """Return failures as warnings: nobody said that the job uses this interpreter."""
    return {
        node: verdict if verdict.status == "pass" else replace(verdict, status="warn", fix=GUESS)
        for node, verdict in verdicts.items()
    }


def both(first: Verdict, second: Verdict) -> Verdict:
    """Return the verdict of two places: what is wrong goes first, the other is a detail."""
    if first.status == second.status == "pass":
        return replace(first, summary=f"{first.summary}; {second.summary}")
    if first.status == "pass":
        return second
    if second.status == "pass":
        return first
    first = replace(first, details=(second.summary,))
    if second.status == "warn":
        return first
    follows = second.explained_by if first.explained_by is None else first.explained_by
    return replace(first, explains=FOLLOWS["executed"], explained_by=follows)


def judged(places: Mapping[str, Place | None], lost: str, done: str) -> dict[str, Verdict]:
    """Return the verdicts of one path on all nodes; `done` is what must be possible with it."""
    wrong = {node: trouble(place, done) if place else lost for node, place in places.items()}
    verdicts = {}
    for node, words in wrong.items():
        place = places[node]
        if place and not words:
            verdicts[node] = ok("{} can be {}".format(place["path"], done))
            continue
        seen = (place["error"] or DENIED[0]) if place else "not on PATH"
        verdicts[node] = fail(
            words + beside(list(wrong.values())),
            observed=seen,
            reproduce="ls -ld {}".format(place["path"]) if place else "echo $PATH",
            explains=FOLLOWS[done],
            explained_by=None if seen in DENIED else ("storage.mounts",),
        )
    return verdicts


def trouble(place: Place, done: str) -> str:
    """Say what is wrong with a path; nothing if it is all right."""
    path, error, target = place["path"], place["error"], place["target"]
    if target:
        return f"{path} is a link to {target}, which does not exist"
    words = {
        "": "" if place["usable"] else f"{path} may not be {done} by the login user",
        "ENOENT": f"{path} does not exist",
        FOLDER: f"{path} is a directory",
        NO_FOLDER: f"{path} is no directory",
        "EACCES": f"{path} may not be seen by the login user",
        NO_ANSWER: f"{path} does not answer in 2 s: whatever touches it hangs",
    }
    return words.get(error, f"{path} cannot be used: {error}")


def beside(found: Sequence[str]) -> str:
    """Say how the other nodes fare, by what is wrong with each."""
    total, good = len(found), found.count("")
    if total == 1:
        return ""
    if not good:
        return "; so on every node" if len(set(found)) == 1 else "; it is right on no node"
    if good == total - 1:
        return f"; fine on the {good} others" if good > 1 else "; fine on the other one"
    return f"; fine on {good} of {total} nodes"


CHECK = Check(
    probe=probe,
    args=asked,
    compare=compare,
    explains=FOLLOWS["executed"],
)
