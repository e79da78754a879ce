"""The launch path's resource limits leave room for the job: memlock, nofile, nproc.

Why: RDMA pins memory, and with a small memlock NCCL stops with "Cannot allocate memory" in
    ibv_reg_mr; connections between all ranks take descriptors, and with few of them larger jobs
    stop with "Too many open files" in NCCL's bootstrap.
Facts: soft and hard limits as the non-login shell has them, -1 for none; rdma: active ports;
    ipc_lock: whether the login user may pin memory without a limit, as root; gpus: device files.
Source: getrlimit(2) of the agent, which inherits what a launcher over SSH would;
    /sys/class/infiniband, CapEff in /proc/self/status, /dev/nvidia<N>.
Fix: raise them in /etc/security/limits.conf, or with LimitMEMLOCK= and LimitNOFILE= of sshd's or
    the scheduler's service, and log in again.
"""

from __future__ import annotations

from typing import Mapping, TypedDict

from preflight.api import STATUSES, Check, Expect, Node, Verdict, Want, fail, ok, warn
from preflight.node.nvml import device_files
from preflight.node.rdma import active, devices

GIB = 1 << 30
MEMLOCK_LEAST = 1 * GIB
"""NCCL's host buffers: 4 MiB (NCCL_BUFFSIZE) x 32 channels x 2 directions for each peer, so four
peers. The kernel's default of 8 MiB, and 64 KiB before Linux 5.16, stop the first ibv_reg_mr."""
MEMLOCK_ENOUGH = 16 * GIB
"""AWS's node check warns below 16 GiB; Primus and CVS ask for 32. NCCL's guide: unlimited."""
FILES_PER_RANK = 32
"""1,024 descriptors were too few for 32 ranks on 4 nodes (goodfire-ai/spd#957), so a rank needs
more than 32 for each rank of the job. NCCL raises the soft limit to the hard one only in the
process that holds its bootstrap root (ncclOsSetFilesLimit in bootstrap.cc); PyTorch does not."""
FILES_LEAST = 1024
"""What POSIX systems have had as a soft limit for ever; a lower hard limit is a mistake."""
PROCESSES_LEAST = 4096
"""RHEL's own default for users (20-nproc.conf): 8 ranks, their loaders and thread pools fit."""
CAP_IPC_LOCK = 14
RAISE = "`ulimit -n $(ulimit -Hn)` in the job script, or nofile in /etc/security/limits.conf"
MUCH_LESS = 2
"""Times less than most nodes. Defaults follow the amount of memory, so they differ a little."""


class Limits(TypedDict):
    limits: Mapping[str, tuple[int, int]]
    rdma: list[str]
    ipc_lock: bool
    gpus: int


def probe(node: Node) -> Limits:
    return Limits(
        limits=node.limits(),
        rdma=active(devices(node)),
        ipc_lock=may_lock(node.read("/proc/self/status") or ""),
        gpus=device_files(node),
    )


def may_lock(status: str) -> bool:
    """Return whether a process with this /proc/self/status has CAP_IPC_LOCK."""
    effective = [line.split()[1] for line in status.splitlines() if line.startswith("CapEff:")]
    return bool(effective) and bool(int(effective[0], 16) >> CAP_IPC_LOCK & 1)


def compare(facts: Mapping[str, Limits], want: Want) -> dict[str, Verdict]:
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
        return max(wrong, key=lambda verdict: STATUSES.index(verdict.status))
    pinned = size(fact["limits"]["memlock"][0])
    return ok("memlock {}, nofile {} of {}".format(pinned, *map(count, fact["limits"]["nofile"])))


def memlock(fact: Limits, want: Want) -> Verdict | None:
    """Return the verdict of too little memory that may be pinned; it matters to RDMA alone."""
    soft = fact["limits"]["memlock"][0]
    asked = want.get("expect.memlock_gib")
    if asked is not None:
        if not below(soft, asked * GIB):
            return None
        summary = f"memlock is {size(soft)}, expected {asked:g} GiB"
        return fail(summary, observed=soft, expected=asked * GIB, reproduce="ulimit -l")
    off = str(want.get("launch.env", {}).get("NCCL_IB_DISABLE", "0")) == "1"
    if fact["ipc_lock"] or off or not fact["rdma"] or not below(soft, MEMLOCK_ENOUGH):
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
        reproduce="ulimit -l",
    )


def nofile(fact: Limits, want: Want) -> Verdict | None:
    """Return the verdict of too few descriptors for the job's ranks."""
    soft, hard = fact["limits"]["nofile"]
    asked = want.get("expect.nofile")
    if asked is not None:
        if not below(hard, asked):
            return None
        summary = f"hard nofile is {hard}, expected {asked}"
        return fail(summary, observed=hard, expected=asked, reproduce="ulimit -Hn")
    if below(hard, FILES_LEAST):
        summary = f"hard nofile is {hard}, less than the usual {FILES_LEAST}"
        return warn(summary, observed=hard, expected=FILES_LEAST, reproduce="ulimit -Hn")
    ranks = len(want.nodes) * want.get("launch.gpus_per_node", fact["gpus"])
    needed = ranks * FILES_PER_RANK + 1
    if len(want.nodes) == 1 or not below(soft, needed):
        return None
    say, which, limit = (fail, "hard", hard) if below(hard, needed) else (warn, "soft", soft)
    return say(
        f"{which} nofile is {limit}, too few for {ranks} ranks: they need more than {needed - 1}",
        observed=limit,
        expected=needed,
        fix=RAISE if which == "soft" else None,
        reproduce=f"ulimit -{which[0].upper()}n",
    )


def nproc(fact: Limits) -> Verdict | None:
    """Return the verdict of too few processes and threads for a user."""
    hard = fact["limits"]["nproc"][1]
    if not below(hard, PROCESSES_LEAST):
        return None
    summary = f"hard nproc is {hard}, ranks and loaders need {PROCESSES_LEAST} or more"
    return warn(summary, observed=hard, expected=PROCESSES_LEAST, reproduce="ulimit -Hu")


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
        reproduce="ulimit -Hn" if which else "ulimit -l",
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
    compare=compare,
    expects=(
        Expect("memlock_gib", float, "GiB", "least soft limit of locked memory"),
        Expect("nofile", int, "", "least hard limit of open files"),
    ),
    explains=("collective.local", "collective.all_reduce", "collective.pairs", "rdma.pairs"),
)
