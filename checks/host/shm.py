"""/dev/shm is a tmpfs that is large, open and free enough for NCCL and data loaders.

Why: ranks on one node exchange data through /dev/shm; when it is full, NCCL stops with "unhandled
    system error" and data loaders die of a bus error. Containers get 64 MiB unless told otherwise.
Facts: type of the file system, size and free (bytes), mode (octal, 1777 is right), all null where
    there is no /dev/shm; nccl: count, bytes and age_s (of the oldest) of files named nccl-*;
    gpus: device files of GPUs.
Source: /proc/self/mountinfo, statvfs(3) and stat(2), /dev/nvidia<N>.
Fix: `mount -o remount,size=50% /dev/shm`; for a container `--shm-size=16g` or `--ipc=host`.
"""

from __future__ import annotations

from typing import Any, Mapping, TypedDict

from preflight.api import STATUSES, Check, Expect, Node, Verdict, Want, fail, ok, warn
from preflight.node.mounts import holder, table
from preflight.node.nvml import device_files

PATH = "/dev/shm"
MIB, GIB = 1 << 20, 1 << 30
DOCKER_DEFAULT = 64 * MIB
"""What a container gets without --shm-size: too little for one NCCL connection of 9.6 MiB a
neighbour, and for data loaders (NVIDIA/nccl#342)."""
GPU_LEAST = 1 * GIB
"""With GPUs: NCCL's user guide asks for --shm-size=1g."""
GPU_ENOUGH = 8 * GIB
"""With GPUs: Primus and CVS want 8 GiB; here a warning, since NCCL alone needs less."""
FREE_PART = 2
"""Half of what must be there must be free."""
IN_MEMORY = ("tmpfs", "devtmpfs", "ramfs")
OLD_S = 86400
"""Files of NCCL that a job of today does not hold open; a running job has such files too."""
OLD_SHARE = 0.25
"""Of /dev/shm in such files: below it they are told, but are no warning."""
MOST_FILES = 2000
"""NCCL files that are looked at one by one."""


class Left(TypedDict):
    """Files named nccl-*."""

    count: int
    bytes: int
    age_s: float


class Shm(TypedDict):
    type: str | None
    size: int | None
    free: int | None
    mode: str | None
    nccl: Left
    gpus: int


def probe(node: Node) -> Shm:
    stat, space = node.stat(PATH), node.statvfs(PATH)
    mounts = {mount["path"]: mount for mount in table(node)}
    there = bool(stat and space)
    return Shm(
        type=mounts[holder(mounts, PATH)]["type"] if there else None,
        size=space.size if space else None,
        free=space.free if space else None,
        mode=f"{stat.mode & 0o7777:o}" if stat else None,
        nccl=left_over(node),
        gpus=device_files(node),
    )


def left_over(node: Node) -> Left:
    names = [name for name in node.listdir(PATH) or () if name.startswith("nccl-")]
    found = [stat for stat in (node.stat(f"{PATH}/{n}") for n in names[:MOST_FILES]) if stat]
    oldest = min((stat.mtime for stat in found), default=None)
    return Left(
        count=len(names),
        bytes=sum(stat.size for stat in found),
        age_s=round(node.now() - oldest) if oldest is not None else 0,
    )


def judge(facts: Shm, want: Want) -> Verdict:
    size, free, mode = facts["size"], facts["free"], facts["mode"]
    if size is None or free is None or mode is None:
        return fail(f"there is no {PATH}", fix=f"mount -t tmpfs -o mode=1777 tmpfs {PATH}")
    found = [closed(mode), on_disk(facts["type"])]
    if size:  # 0 is what a tmpfs without a limit says
        found[1:1] = [small(size, want, facts["gpus"]), full(size, free, facts, want)]
        found.append(stale(size, facts["nccl"]))
    wrong = [verdict for verdict in found if verdict]
    worst = max(wrong, key=lambda verdict: STATUSES.index(verdict.status), default=None)
    room = f"{written(size)}, {written(free)} free" if size else "no limit"
    return worst or ok(f"{PATH} has {room}", details=told(facts["nccl"], want))


def closed(mode: str) -> Verdict | None:
    """Return the verdict of a mode that keeps users out, or lets them remove others' files."""
    if mode == "1777":
        return None
    return (warn if mode.endswith("777") else fail)(
        f"{PATH} has mode {mode}, expected 1777",
        observed=mode,
        expected="1777",
        fix=f"chmod 1777 {PATH}",
        reproduce=f"stat -c %a {PATH}",
    )


def least(want: Want, gpus: int) -> tuple[int, int]:
    """Return how much must be there, and how much should, on such a node."""
    if gpus or want.get("launch.gpus_per_node", 0):
        return GPU_LEAST, GPU_ENOUGH
    return DOCKER_DEFAULT + 1, DOCKER_DEFAULT + 1


def small(size: int, want: Want, gpus: int) -> Verdict | None:
    """Return the verdict of a /dev/shm that is too small, by promise or for such a node."""
    asked = want.get("expect.shm_gib")
    if asked is not None:
        if size >= asked * GIB:
            return None
        return fail(
            f"{PATH} has {written(size)}, expected {asked:g} GiB",
            observed=size,
            expected=asked * GIB,
            fix=f"mount -o remount,size={asked * GIB / MIB:.0f}m {PATH}",
            reproduce=f"df -h {PATH}",
        )
    must, should = least(want, gpus)
    if size >= should:
        return None
    why = "what a container gets by default" if size <= DOCKER_DEFAULT else "too little with GPUs"
    return (fail if size < must else warn)(
        f"{PATH} has {written(size)}, {why}", observed=size, reproduce=f"df -h {PATH}"
    )


def full(size: int, free: int, facts: Shm, want: Want) -> Verdict | None:
    """Return the verdict of too little that is free, where the size would do."""
    must = min(least(want, facts["gpus"])[0], size) // FREE_PART
    if free >= must:
        return None
    left = facts["nccl"]
    return fail(
        f"{PATH} is full: {written(free)} of {written(size)} free" + held(left),
        observed=free,
        expected=must,
        fix=f"see who uses it: `fuser -v {PATH}/*`; when no job runs here, `rm -f {PATH}/nccl-*`",
        reproduce=f"df -h {PATH}; ls -l {PATH}",
    )


def stale(size: int, left: Left) -> Verdict | None:
    """Return a warning of many NCCL files that no job of today can have left."""
    if left["age_s"] < OLD_S or left["bytes"] < size * OLD_SHARE:
        return None
    return warn(
        f"{PATH} holds what jobs left behind{held(left)}",
        observed=left["count"],
        fix=f"when no job runs here, `rm -f {PATH}/nccl-*`",
        reproduce=f"ls -l {PATH}",
    )


def on_disk(kind: str | None) -> Verdict | None:
    """Return a warning of a /dev/shm that is not in memory."""
    if kind in IN_MEMORY:
        return None
    summary = f"{PATH} is not in memory, it lies on {kind}"
    fix = f"mount -t tmpfs -o mode=1777 tmpfs {PATH}"
    return warn(summary, observed=kind, expected="tmpfs", fix=fix, reproduce=f"df -T {PATH}")


def held(left: Left) -> str:
    """Return in words what NCCL's files hold, nothing where there are none."""
    if not left["count"]:
        return ""
    age = "{:.0f} days".format(left["age_s"] / 86400)
    if left["age_s"] < 2 * 86400:
        age = "{:.0f} h".format(left["age_s"] / 3600)
    return "; {} nccl-* files hold {}, the oldest for {}".format(
        left["count"], written(left["bytes"]), age
    )


def told(left: Left, want: Want) -> tuple[str, ...]:
    """Return what is worth knowing and no fault."""
    container: Mapping[str, Any] = want.get("launch.container", {})
    notes = [held(left)[2:]] if left["count"] else []
    if container.get("engine") in {"docker", "podman"}:
        notes.append("the job's container has one of its own: start it with --ipc=host")
    return tuple(notes)


def written(size: float) -> str:
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{round(size / unit, 1):g} {name}"
    return f"{size:g} bytes"


CHECK = Check(
    probe=probe,
    judge=judge,
    expects=(Expect("shm_gib", float, "GiB", "least size of /dev/shm"),),
    explains=("collective.local", "collective.all_reduce", "collective.pairs"),
)
