"""The launch path's resource limits leave room for the job: memlock, nofile, nproc.

Why: RDMA pins memory, and with a small memlock NCCL stops with "Cannot allocate memory" in
    ibv_reg_mr; NCCL's bootstrap opens sockets between all ranks, and with few descriptors larger
    jobs stop with "Too many open files".
Facts: soft and hard limits as the non-login shell has them, -1 for none; rdma: RDMA devices.
Source: getrlimit(2) of the agent, which inherits what a launcher over SSH would; the names in
    /sys/class/infiniband.
Fix: raise them in /etc/security/limits.conf, or with LimitMEMLOCK= and LimitNOFILE= of sshd's or
    the scheduler's service, and log in again.
"""

from __future__ import annotations

from typing import Mapping, TypedDict

from preflight.api import Check, Expect, Node, Verdict, Want, fail, ok, same_everywhere, warn

GIB = 1 << 30
RDMA_MEMLOCK_GIB = 16
"""AWS's node check warns below 16 GiB where RDMA is in use; below it NCCL's buffers and the
job's own registrations run out."""
FEW_DESCRIPTORS = 1024
"""A hard limit of 1024 descriptors stopped NCCL's bootstrap at four nodes and more; the soft limit
does not matter, since NCCL and PyTorch raise it to the hard one."""
FEW_PROCESSES = 4096
"""Eight ranks with a dozen loader workers and their thread pools come near this."""


class Limits(TypedDict):
    limits: Mapping[str, tuple[int, int]]
    rdma: list[str]


def probe(node: Node) -> Limits:
    return Limits(limits=node.limits(), rdma=node.listdir("/sys/class/infiniband") or [])


def size(limit: float) -> str:
    if limit < 0:
        return "unlimited"
    return f"{limit / GIB:g} GiB" if limit >= GIB else f"{limit / (1 << 20):g} MiB"


def below(limit: float, needed: float) -> bool:
    return 0 <= limit < needed


def compare(facts: Mapping[str, Limits], want: Want) -> dict[str, Verdict]:
    """The worst of what is wrong with a node alone, else what sets it apart from the others."""
    memlock = same_everywhere(
        {node: fact["limits"]["memlock"][0] for node, fact in facts.items()},
        "memlock",
        show=size,
        say=warn,
        reproduce="ulimit -l",
    )
    nofile = same_everywhere(
        {node: fact["limits"]["nofile"][1] for node, fact in facts.items()},
        "hard nofile",
        say=warn,
        reproduce="ulimit -Hn",
    )
    return {
        node: alone(fact, want)
        or next((v for v in (memlock[node], nofile[node]) if v.status != "pass"), None)
        or ok(
            "memlock {}, nofile {} of {}".format(
                size(fact["limits"]["memlock"][0]), *fact["limits"]["nofile"]
            )
        )
        for node, fact in facts.items()
    }


def alone(facts: Limits, want: Want) -> Verdict | None:
    memlock, _ = facts["limits"]["memlock"]
    _, nofile = facts["limits"]["nofile"]
    _, nproc = facts["limits"]["nproc"]
    asked_memlock, asked_nofile = want.get("expect.memlock_gib"), want.get("expect.nofile")
    if asked_memlock is not None and below(memlock, asked_memlock * GIB):
        summary = f"memlock is {size(memlock)}, expected {asked_memlock:g} GiB"
        return fail(summary, observed=memlock, expected=asked_memlock * GIB, reproduce="ulimit -l")
    if asked_nofile is not None and below(nofile, asked_nofile):
        summary = f"hard nofile is {nofile}, expected {asked_nofile}"
        return fail(summary, observed=nofile, expected=asked_nofile, reproduce="ulimit -Hn")
    if facts["rdma"] and asked_memlock is None and below(memlock, RDMA_MEMLOCK_GIB * GIB):
        summary = "memlock is {}, RDMA ({}) needs {} GiB or more".format(
            size(memlock), facts["rdma"][0], RDMA_MEMLOCK_GIB
        )
        expected = RDMA_MEMLOCK_GIB * GIB
        return warn(summary, observed=memlock, expected=expected, reproduce="ulimit -l")
    if asked_nofile is None and below(nofile, FEW_DESCRIPTORS + 1) and len(want.nodes) > 1:
        summary = f"hard nofile is {nofile}, NCCL's bootstrap needs more on many nodes"
        return warn(summary, observed=nofile, expected=FEW_DESCRIPTORS + 1, reproduce="ulimit -Hn")
    if below(nproc, FEW_PROCESSES):
        summary = f"hard nproc is {nproc}, ranks and loaders need {FEW_PROCESSES} or more"
        return warn(summary, observed=nproc, expected=FEW_PROCESSES, reproduce="ulimit -Hu")
    return None


CHECK = Check(
    probe=probe,
    compare=compare,
    expects=(
        Expect("memlock_gib", float, "GiB", "least soft limit of locked memory"),
        Expect("nofile", int, "", "least hard limit of open files"),
    ),
    explains=("collective.local", "collective.all_reduce"),
)
