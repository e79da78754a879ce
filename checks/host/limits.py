"""The launch path's resource limits leave room for the job: memlock, nofile, nproc.

Why: RDMA pins memory, and with a small memlock NCCL stops with "Cannot allocate memory" in
    ibv_reg_mr; connections between all ranks take descriptors, and with few of them larger jobs
    stop with "Too many open files" in NCCL's bootstrap.
Facts: soft and hard limits as the non-login shell has them, -1 for none; pids_max: the least of the
    session's cgroup and those above it, -1 for none; rdma: active ports; tcp_only: the variable
    that keeps NCCL from RDMA; ipc_lock, no_nproc: whether it may pin memory, and start processes,
    without a limit, as root; gpus: device files. Where launch.container is one of docker or podman
    that runs, all but rdma and gpus are the container's. What one gets that is started of an image
    is not known: the facts are the node's, and are not judged.
Source: getrlimit(2) of the agent, which inherits what a launcher over SSH would; pids.max of
    cgroups(7); /sys/class/infiniband, CapEff in /proc/self/status, /proc/self/uid_map (outside of
    the first user namespace it lifts no limit), /dev/nvidia<N>; see launch.env. Of a container the
    same files of a shell in it, by `docker exec` or `podman exec`.
Fix: raise them in /etc/security/limits.conf, or with LimitMEMLOCK= and LimitNOFILE= of sshd's or
    the scheduler's service, and log in again; of a container with --ulimit and --pids-limit.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Mapping, TypedDict

from preflight.api import STATUSES, Check, Expect, Node, Verdict, Want, fail, ok, skip, warn
from preflight.node.container import Place, by_hand, called, closed, is_sealed
from preflight.node.launch import place_of, settings, settings_in, tcp_only, wanted
from preflight.node.nvml import device_files
from preflight.node.rdma import active, devices

GIB = 1 << 30
MEMLOCK_LEAST = 1 * GIB
"""NCCL's host buffers: 4 MiB (NCCL_BUFFSIZE) x 32 channels x 2 directions for each peer, so four
peers. The kernel's default of 8 MiB, and 64 KiB before Linux 5.16, stop the first ibv_reg_mr."""
MEMLOCK_ENOUGH = 16 * GIB
"""AWS's node check warns below 16 GiB; Primus and CVS ask for 32. NCCL's guide: unlimited."""
FILES_MANY = 1024
FILES_RANKS = 32
"""A job of 32 ranks on 4 nodes ran out of 1,024 descriptors (goodfire-ai/spd#957); how many a job
needs beyond that nobody has published. NCCL raises the soft limit to the hard one only in the
process that holds its bootstrap root (ncclOsSetFilesLimit in bootstrap.cc); PyTorch does not."""
FILES_LEAST = 1024
"""What POSIX systems have had as a soft limit for ever; a lower hard limit is a mistake."""
PROCESSES_LEAST = 4096
"""RHEL's own soft limit for users (20-nproc.conf): 8 ranks, their loaders and thread pools fit."""
CGROUPS = "/sys/fs/cgroup"
CAP_IPC_LOCK, CAP_SYS_ADMIN, CAP_SYS_RESOURCE = 14, 21, 24
FIRST_USERS = ["0", "0", str((1 << 32) - 1)]
"""/proc/self/uid_map of the first user namespace: capabilities of others lift no limit."""
RAISE = "`ulimit -n $(ulimit -Hn)` in the job script, or nofile in /etc/security/limits.conf"
LOCKED, OPEN, HARD_OPEN = "ulimit -l", "ulimit -n", "ulimit -Hn"
STARTED = "grep processes /proc/self/limits"
"""Commands that show a limit; dash knows no `ulimit -u`."""
OPTIONS = {
    LOCKED: "--ulimit memlock=-1",
    OPEN: "--ulimit nofile=1048576",
    HARD_OPEN: "--ulimit nofile=1048576",
    STARTED: "--ulimit nproc=-1",
}
"""Of `docker run` and `podman run`, for a limit by the command that shows it; -1 is none."""
PIDS_OPTION = "--pids-limit=-1"
MUCH_LESS = 2
"""Times less than most nodes. Defaults follow the amount of memory, so they differ a little."""


class Limits(TypedDict):
    limits: Mapping[str, tuple[int, int]]
    pids_max: int
    rdma: list[str]
    tcp_only: str
    ipc_lock: bool
    no_nproc: bool
    gpus: int


def probe(node: Node, launch: Mapping[str, Any]) -> Limits:
    if closed(launch.get("container", {})):
        place: Place = node
        found = settings(node, launch)
    else:
        place = place_of(node, launch)
        found = settings_in(place, launch)
    limits, may = place.limits(), capabilities(place)
    return Limits(
        limits=limits,
        pids_max=pids_max(place),
        rdma=active(devices(node)),
        tcp_only=tcp_only(found["found"]),
        ipc_lock=CAP_IPC_LOCK in may,
        no_nproc=CAP_SYS_ADMIN in may or CAP_SYS_RESOURCE in may,
        gpus=device_files(node),
    )


def surroundings(want: Want) -> tuple[dict[str, Any]]:
    """Return the arguments of the probe: what decides on variables, and no interface."""
    return ({key: given for key, given in wanted(want)[0].items() if key != "interface"},)


def capabilities(place: Place) -> set[int]:
    """Return the effective capabilities of a process there, those that the kernel's limits heed."""
    if (place.read("/proc/self/uid_map") or "").split() != FIRST_USERS:
        return set()
    status = place.read("/proc/self/status") or ""
    effective = [line.split()[1] for line in status.splitlines() if line.startswith("CapEff:")]
    bits = int(effective[0], 16) if effective else 0
    return {number for number in range(bits.bit_length()) if bits >> number & 1}


def pids_max(place: Place) -> int:
    """Return how many processes and threads the cgroups allow together, -1 for no limit.

    Source: cgroups(7): `0::/path` of version 2, `N:pids:/path` of version 1; each level counts. The
    first has no such file, unless it is a container's own.
    """
    lines = [line.split(":", 2) for line in (place.read("/proc/self/cgroup") or "").splitlines()]
    folders = [f"{CGROUPS}/pids{path}" for _, name, path in lines if name == "pids"]
    folders = folders or [CGROUPS + path for number, name, path in lines if number == "0"]
    found = []
    folder = folders[0].rstrip("/") if folders else ""
    while len(folder) >= len(CGROUPS):
        found.append((place.read(folder + "/pids.max") or "max").strip())
        folder = folder.rpartition("/")[0]
    return min((int(limit) for limit in found if limit != "max"), default=-1)


def compare(facts: Mapping[str, Limits], want: Want) -> dict[str, Verdict]:
    container = want.get("launch.container", {})
    if is_sealed(container) and closed(container):  # the node's would be another process's
        words = f"the limits of {called(container)} are not known: preflight starts no containers"
        return dict.fromkeys(facts, skip(words))
    return {node: verdict(node, facts, want) for node in facts}


def verdict(node: str, facts: Mapping[str, Limits], want: Want) -> Verdict:
    """Return the worst of what is wrong with a node alone, else what sets it far apart."""
    fact = facts[node]
    found = (
        memlock(fact, want),
        nofile(fact, want),
        nproc(fact),
        lower(node, facts, "memlock", 0),
        lower(node, facts, "nofile", 1),
    )
    wrong = [verdict for verdict in found if verdict]
    if wrong:
        worst = max(wrong, key=lambda verdict: STATUSES.index(verdict.status))
        return within(worst, want.get("launch.container", {}))
    pinned = size(fact["limits"]["memlock"][0])
    return ok("memlock {}, nofile {} of {}".format(pinned, *map(count, fact["limits"]["nofile"])))


def within(verdict: Verdict, container: Mapping[str, Any]) -> Verdict:
    """Return a verdict whose fix and command are for where the limit is: a container, or here."""
    if not is_sealed(container):
        return verdict
    command = str(verdict.reproduce)
    fix = "start container {!r} again with `{}`".format(
        container["name"], OPTIONS.get(command, PIDS_OPTION)
    )
    return replace(verdict, fix=fix, reproduce=by_hand(container, command))


def memlock(fact: Limits, want: Want) -> Verdict | None:
    """Return the verdict of too little memory that may be pinned.

    It matters where NCCL uses RDMA: with GPUs, a port that is active, and no variable against it.
    """
    soft = fact["limits"]["memlock"][0]
    asked = want.get("expect.memlock_gib")
    if asked is not None:
        if not below(soft, asked * GIB):
            return None
        summary = f"memlock is {size(soft)}, expected {asked:g} GiB"
        return fail(summary, observed=soft, expected=asked * GIB, reproduce=LOCKED)
    used = fact["rdma"] and not fact["tcp_only"] and (fact["gpus"] or promised(want))
    if fact["ipc_lock"] or not used or not below(soft, MEMLOCK_ENOUGH):
        return None
    say, needed = (fail, MEMLOCK_LEAST) if below(soft, MEMLOCK_LEAST) else (warn, MEMLOCK_ENOUGH)
    return say(
        "memlock is {}, RDMA ({}) needs {} or more".format(
            size(soft), fact["rdma"][0], size(needed)
        ),
        observed=soft,
        expected=needed,
        fix="set `* - memlock unlimited` in /etc/security/limits.conf and log in again; for Slurm"
        " `LimitMEMLOCK=infinity` in slurmd.service",
        reproduce=LOCKED,
    )


def nofile(fact: Limits, want: Want) -> Verdict | None:
    """Return the verdict of too few descriptors for the job's ranks."""
    soft, hard = fact["limits"]["nofile"]
    asked = want.get("expect.nofile")
    if asked is not None:
        if not below(hard, asked):
            return None
        summary = f"hard nofile is {hard}, expected {asked}"
        return fail(summary, observed=hard, expected=asked, reproduce=HARD_OPEN)
    if below(hard, FILES_LEAST):
        summary = f"hard nofile is {hard}, less than the usual {FILES_LEAST}"
        return warn(summary, observed=hard, expected=FILES_LEAST, reproduce=HARD_OPEN)
    ranks = len(want.nodes) * (promised(want) or fact["gpus"])
    if len(want.nodes) == 1 or ranks < FILES_RANKS or not below(soft, FILES_MANY + 1):
        return None
    return warn(
        f"soft nofile is {soft}, few for {ranks} ranks: {FILES_MANY} were too few for"
        f" {FILES_RANKS} ranks on 4 nodes",
        observed=soft,
        expected=FILES_MANY + 1,
        fix=RAISE,
        reproduce=OPEN,
    )


def promised(want: Want) -> int:
    """Return how many GPUs, and so ranks, the inventory promises on each node."""
    return int(want.get("launch.gpus_per_node", 0))


def nproc(fact: Limits) -> Verdict | None:
    """Return the verdict of too few processes and threads, for a user or in its cgroup.

    The soft limit counts: nothing raises it. No limit of users holds for root.
    """
    soft, most = fact["limits"]["nproc"][0], fact["pids_max"]
    words = f"ranks and loaders need {PROCESSES_LEAST} or more"
    more = {"expected": PROCESSES_LEAST}
    if below(most, PROCESSES_LEAST):
        fix = "raise TasksMax= of the service or slice, or the container's --pids-limit"
        summary = f"the cgroup allows {most} processes and threads, {words}"
        see = f"cat /proc/self/cgroup; cat {CGROUPS}/PATH/pids.max"
        return warn(summary, observed=most, fix=fix, reproduce=see, **more)
    if fact["no_nproc"] or not below(soft, PROCESSES_LEAST):
        return None
    summary = f"soft nproc is {soft}, {words}"
    fix = f"set `* - nproc {PROCESSES_LEAST}` or more in /etc/security/limits.conf and log in again"
    return warn(summary, observed=soft, fix=fix, reproduce=STARTED, **more)


def lower(node: str, facts: Mapping[str, Limits], name: str, which: int) -> Verdict | None:
    """Return a warning where more than half of the nodes have far more of something."""
    mine = facts[node]["limits"][name][which]
    more = [
        limit
        for limit in (fact["limits"][name][which] for fact in facts.values())
        if below(mine, limit / MUCH_LESS) or (limit < 0 <= mine)
    ]
    if 2 * len(more) <= len(facts):
        return None
    show, usual = size if name == "memlock" else count, min(more, key=lambda n: (n < 0, n))
    what = "hard nofile" if which else name
    theirs = show(usual) + (" or more" if usual >= 0 else "")
    return warn(
        f"{what} is {show(mine)}, {len(more)} of {len(facts)} nodes have {theirs}",
        observed=mine,
        expected=usual,
        reproduce=HARD_OPEN if which else LOCKED,
    )


def below(limit: float, needed: float) -> bool:
    return 0 <= limit < needed


def size(limit: float) -> str:
    if limit < 0:
        return "unlimited"
    for unit, name in ((GIB, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if limit >= unit:
            return f"{round(limit / unit, 1):g} {name}"
    return f"{limit:g} bytes"


def count(limit: int) -> str:
    return "unlimited" if limit < 0 else str(limit)


CHECK = Check(
    probe=probe,
    args=surroundings,
    compare=compare,
    expects=(
        Expect("memlock_gib", float, "GiB", "least soft limit of locked memory"),
        Expect("nofile", int, "", "least hard limit of open files"),
    ),
    explains=("collective.local", "collective.all_reduce", "collective.pairs", "rdma.pairs"),
)
