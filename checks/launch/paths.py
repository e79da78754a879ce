"""The job's working directory and interpreter exist on every node, and may be used.

Why: a rank whose node lacks them ends before it says anything, and all the others wait for it at
    the rendezvous.
Facts: workdir and python (path as it stands in the inventory, or found on PATH; error of going
    there, in a process of its own; usable by the login user; target of a link that leads nowhere).
    Without launch.python it is the non-login shell's python3. In a container they are not looked
    at: see software.container.
Source: stat(2), access(2), readlink(2), $PATH.
Fix: mount or install it there as on the other nodes, or name another: launch.workdir,
    launch.python.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Mapping, TypedDict

from preflight.api import NO_ANSWER, Check, Node, Unobservable, Verdict, Want, fail, ok, skip

DEFAULT = "python3"


class Place(TypedDict):
    """What going to a path gave; `error` is empty, `no answer` or the name of an errno."""

    path: str
    error: str
    usable: bool
    target: str
    """Where a link leads that leads nowhere; else empty."""


class Paths(TypedDict):
    """None: not asked for, or no such program on PATH."""

    workdir: Place | None
    python: Place | None


def probe(node: Node, workdir: str | None, python: str | None, contained: bool) -> Paths:
    if contained:
        return Paths(workdir=None, python=None)
    where = expanded(node, workdir) if workdir else None
    what = expanded(node, python or DEFAULT)
    return Paths(
        workdir=place(node, where, "") if where else None,
        python=place(node, what, "x") if what else None,
    )


def expanded(node: Node, path: str) -> str | None:
    """Return a whole path: `~` is the login user's home, a bare name is looked for on PATH."""
    if path == "~" or path.startswith("~/"):
        return node.environ().get("HOME", "") + path[1:]
    return path if "/" in path else node.which(path)


def place(node: Node, path: str, mode: str) -> Place:
    """Return what a path gives; the visit guards what follows against a mount that hangs."""
    visit = node.visit([path])[path]
    usable = visit.readable
    if mode and not visit.error:
        usable = node.access(path, mode)
    target = dangling(node, path) if visit.error == "ENOENT" else ""
    return Place(path=path, error=visit.error, usable=usable, target=target)


def dangling(node: Node, path: str) -> str:
    """Return where a link leads, empty if it is none."""
    try:
        return node.readlink(path) or ""
    except Unobservable:  # EINVAL: no link
        return ""


def asked(want: Want) -> tuple[str | None, str | None, bool]:
    """Return the arguments of the probe."""
    return want.get("launch.workdir"), want.get("launch.python"), bool(want.get("launch.container"))


def compare(facts: Mapping[str, Paths], want: Want) -> dict[str, Verdict]:
    workdir, python, contained = asked(want)
    if contained:
        return dict.fromkeys(facts, skip("they are in the container, not on the node"))
    pythons = {node: fact["python"] for node, fact in facts.items()}
    workdirs = {node: fact["workdir"] for node, fact in facts.items()}
    if not (workdir or python or any(pythons.values())):
        return dict.fromkeys(facts, skip(f"neither is named, and no node has a {DEFAULT}"))
    found = judged(pythons, python or DEFAULT, "executed")
    if not workdir:
        return found
    first = judged(workdirs, workdir, "entered")
    return {node: both(first[node], found[node]) for node in facts}


def both(first: Verdict, second: Verdict) -> Verdict:
    """Return the verdict of two places: what fails goes first, the other is a detail."""
    if first.status == second.status == "pass":
        return replace(first, summary=f"{first.summary}; {second.summary}")
    if first.status == "pass":
        return second
    return first if second.status == "pass" else replace(first, details=(second.summary,))


def judged(places: Mapping[str, Place | None], name: str, done: str) -> dict[str, Verdict]:
    """Return the verdicts of one path on all nodes; `done` is what must be possible with it."""
    wrong = {node: trouble(place, name, done) for node, place in places.items()}
    good = [node for node, words in wrong.items() if not words]
    verdicts = {}
    for node, words in wrong.items():
        place = places[node]
        if place and not words:
            verdicts[node] = ok("{} can be {}".format(place["path"], done))
            continue
        verdicts[node] = fail(
            words + beside(len(good), len(places)),
            observed=(place["error"] or "no permission") if place else "not on PATH",
            scope="node" if good or len(places) == 1 else "cluster",
            reproduce="ls -ld {}".format(place["path"] if place else name),
        )
    return verdicts


def trouble(place: Place | None, name: str, done: str) -> str:
    """Say what is wrong with a path; nothing if it is all right."""
    if place is None:
        return f"{name} is not on the PATH of the non-login shell"
    path, error, target = place["path"], place["error"], place["target"]
    if target:
        return f"{path} is a link to {target}, which does not exist"
    words = {
        "": "" if place["usable"] else f"{path} may not be {done} by the login user",
        "ENOENT": f"{path} does not exist",
        "EACCES": f"{path} may not be seen by the login user",
        NO_ANSWER: f"{path} does not answer in 2 s: whatever touches it hangs",
    }
    return words.get(error, f"{path} cannot be used: {error}")


def beside(good: int, total: int) -> str:
    """Say how the other nodes fare."""
    if total == 1:
        return ""
    if not good:
        return "; so on every node"
    if good == total - 1:
        return f"; fine on the {good} others" if good > 1 else "; fine on the other one"
    return f"; fine on {good} of {total} nodes"


CHECK = Check(
    probe=probe,
    args=asked,
    compare=compare,
    explains=(
        *("software.python", "software.pytorch", "software.nccl", "software.cuda"),
        *("collective.local", "collective.all_reduce", "collective.pairs"),
    ),
)
