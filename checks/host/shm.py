"""/dev/shm is a tmpfs that is large, open and free enough for NCCL and data loaders.

Why: ranks on one node exchange data through /dev/shm; when it is full, NCCL stops with "unhandled
    system error" and data loaders die of a bus error. Containers get 64 MiB unless told otherwise.
Facts: fstype and size_mib, free_mib of /dev/shm, mode (octal, 1777 is right), nccl: count and size
    of files named nccl-*, gpus: whether the node has an NVIDIA device.
Source: /proc/self/mountinfo, statvfs(3) and stat(2) of /dev/shm, /proc/driver/nvidia/version.
Fix: mount -o remount,size=50% /dev/shm; for a container --shm-size=16g, or --ipc=host.
"""

from __future__ import annotations

from typing import Mapping, TypedDict

from preflight.api import Check, Expect, Node, Verdict, Want, fail, ok, warn

DOCKER_DEFAULT_MIB = 64
"""What Docker gives a container without --shm-size; NCCL's own documentation calls it too small:
https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html#shared-memory"""
GPU_NODE_MIB = 8192
"""Primus and CVS fail a GPU node below 8 GiB; here it is a warning, since NCCL needs less."""
STALE_FREE_SHARE = 0.2
"""Left-over nccl-* files are told only where they leave less than this share free: a job that runs
has such files too."""
PATH = "/dev/shm"


class Shm(TypedDict):
    fstype: str | None
    size_mib: int
    free_mib: int
    mode: str
    nccl_files: int
    nccl_mib: int
    gpus: bool


def probe(node: Node) -> Shm:
    mounts = (node.read("/proc/self/mountinfo") or "").splitlines()
    types = [line.split(" - ")[1].split()[0] for line in mounts if line.split()[4] == PATH]
    found, space = node.stat(PATH), node.statvfs(PATH)
    names = [n for n in node.listdir(PATH) or () if n.startswith("nccl-")]
    sizes = [stat.size for stat in (node.stat(PATH + "/" + n) for n in names) if stat]
    return Shm(
        fstype=types[-1] if types else None,
        size_mib=space.size >> 20 if space else 0,
        free_mib=space.free >> 20 if space else 0,
        mode=f"{found.mode & 0o7777:o}" if found else "",
        nccl_files=len(names),
        nccl_mib=sum(sizes) >> 20,
        gpus=node.read("/proc/driver/nvidia/version") is not None,
    )


def gib(mib: float) -> str:
    return f"{round(mib / 1024, 1):g} GiB" if mib >= 1024 else f"{mib:g} MiB"


def judge(facts: Shm, want: Want) -> Verdict:
    size, see = facts["size_mib"], "df -h /dev/shm; ls -l /dev/shm"
    if not facts["mode"]:
        return fail("there is no /dev/shm", fix="mount -t tmpfs -o mode=1777 tmpfs /dev/shm")
    if facts["mode"] != "1777":
        return fail(
            "/dev/shm has mode {}, expected 1777".format(facts["mode"]),
            observed=facts["mode"],
            expected="1777",
            fix="chmod 1777 /dev/shm",
            reproduce="stat -c %a /dev/shm",
        )
    needed = want.get("expect.shm_gib")
    if needed is not None and size < needed * 1024:
        return fail(
            f"/dev/shm has {gib(size)}, expected {needed:g} GiB",
            observed=size,
            expected=needed * 1024,
            fix=f"mount -o remount,size={needed:g}g /dev/shm",
            reproduce=see,
        )
    if size <= DOCKER_DEFAULT_MIB:
        summary = f"/dev/shm has {gib(size)}, a container's default; NCCL needs more"
        return fail(summary, observed=size, expected=GPU_NODE_MIB, reproduce=see)
    return warned(facts, want, see) or ok(
        "/dev/shm has {}, {} free".format(gib(size), gib(facts["free_mib"]))
    )


def warned(facts: Shm, want: Want, see: str) -> Verdict | None:
    size, free = facts["size_mib"], facts["free_mib"]
    if facts["nccl_files"] and free < size * STALE_FREE_SHARE:
        return warn(
            "/dev/shm has {} of {} free; {} nccl-* files hold {}".format(
                gib(free), gib(size), facts["nccl_files"], gib(facts["nccl_mib"])
            ),
            observed=free,
            fix="when no job runs here: rm -f /dev/shm/nccl-*",
            reproduce=see,
        )
    with_gpus = facts["gpus"] or want.get("launch.gpus_per_node", 0) > 0
    promised: Mapping[str, object] = want.expect
    if with_gpus and size < GPU_NODE_MIB and "shm_gib" not in promised:
        summary = f"/dev/shm has {gib(size)}, a GPU node wants {gib(GPU_NODE_MIB)}"
        return warn(summary, observed=size, expected=GPU_NODE_MIB, reproduce=see)
    return None


CHECK = Check(
    probe=probe,
    judge=judge,
    expects=(Expect("shm_gib", float, "GiB", "least size of /dev/shm"),),
    explains=("collective.local", "collective.all_reduce"),
)
