"""The job itself: its program raised or crashed, its memory or its time was used up.

These are the commonest causes, and no check of a cluster shows them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from preflight.triage.family import Finding
from preflight.triage.prefix import Who
from preflight.triage.rule import FOLLOWED, RAISED, SURE, WENT_ON, Kind, Rule, cause
from preflight.triage.story import Seen, Story, first

OOM = "job.out_of_memory"
CRASHED = "job.rank_crashed"
TIME = "job.time_limit"
PREEMPTED = "job.preempted"
LIKELY = 0.85
HOST_MEMORY = (
    "fewer data loader workers, a smaller batch or prefetch, or more memory for the job "
    "(Slurm --mem, the container's memory limit)"
)
GPU_MEMORY = "a smaller micro-batch or activation checkpointing; kill leftovers: nvidia-smi"
SEE_KERNEL = "on {node}: dmesg -T | grep -i -E 'oom|killed process'"
SEE_SEGFAULT = "on {node}: dmesg -T | grep -i segfault; run again with PYTHONFAULTHANDLER=1"
MORE_TIME = "ask for more time, or write a checkpoint before the limit and continue from it"
AGAIN = "start it again from its last checkpoint"
IN_USE = r"has (\d{1,9}(?:\.\d{1,3})?) (GiB|MiB) memory in use"
OWN = re.compile(r"this process " + IN_USE)
ANOTHER = re.compile(r"Process (\d{1,9}) " + IN_USE)


def owner_of_memory(told: Mapping[str, str]) -> Mapping[str, str]:
    """Return whose memory a full GPU holds: the rank's own, or that of another process."""
    rest = told["rest"][:2000]
    own, another = OWN.search(rest), ANOTHER.search(rest)
    held = gib(another[2], another[3]) if another else 0.0
    if another is None or held <= max(gib(own[1], own[2]) if own else 0.0, 1.0):
        return {"rest": "", "whose": OOM, "why": "", "mend": GPU_MEMORY}
    return {
        "rest": "",
        "whose": "gpu.processes",
        "why": f": process {another[1]} holds {held:.0f} GiB of it",
        "mend": f"find out whose process {another[1]} is (ps -fp {another[1]}), and end it",
    }


def gib(number: str, unit: str) -> float:
    """Return GiB."""
    return float(number) / (1 if unit == "GiB" else 1024)


RULES = (
    Rule(r"Exception ignored in[: ]", Kind.FACT, source="Python: what a destructor raised"),
    Rule(r"--- Logging error ---", Kind.FACT, source="Python's logging: its line was not written"),
    Rule(r"(?:Task|Future) exception was never retrieved", Kind.FACT, source="Python's asyncio"),
    # Memory
    Rule(
        r"CUDA out of memory\. Tried to allocate (?P<wanted>[\d.]{1,12} [KMG]iB)(?P<rest>.*)",
        Kind.CAUSE,
        cause="{whose}",
        says="{who} had no GPU memory left when it asked for {wanted}{why}",
        confidence=SURE,
        fix="{mend}",
        confirm="nvidia-smi on {node} while it runs",
        refine=owner_of_memory,
        source="torch CUDACachingAllocator.cpp, 1.13 to 2.9",
    ),
    cause(
        r"Cuda failure (?:2 )?'out of memory'",
        OOM,
        "{who} had no GPU memory left for NCCL",
        GPU_MEMORY,
        "NCCL alloc.h",
        confidence=LIKELY,
        checks=("gpu.processes",),
    ),
    Rule(
        r"(?:[Mm]emory cgroup o|O)ut of memory: Kill(?:ed)? process (?P<pid>\d{1,9}) "
        r"\((?P<program>[^)]{1,40})\)",
        Kind.CAUSE,
        cause=OOM,
        says="the kernel of {node} killed {program} (pid {victim}): no memory was left",
        confidence=SURE,
        fix=HOST_MEMORY,
        confirm=SEE_KERNEL,
        checks=("host.memory",),
        refine=lambda told: {"victim": told["pid"]},
        source="Linux mm/oom_kill.c",
    ),
    cause(
        r"invoked oom-killer: gfp_mask|oom-kill:constraint=",
        OOM,
        "the kernel of {node} killed a process: no memory was left",
        HOST_MEMORY,
        "Linux mm/oom_kill.c",
        confidence=LIKELY,
        confirm=SEE_KERNEL,
        checks=("host.memory",),
    ),
    cause(
        r"[Dd]etected \d{1,9} oom[_-]kill event",
        OOM,
        "Slurm saw the kernel kill a task of {node}: the job's memory limit was reached",
        HOST_MEMORY,
        "slurmstepd, cgroup plugins",
        confirm=SEE_KERNEL,
        checks=("host.memory",),
    ),
    cause(
        r"OOMKilled|TERM_MEMLIMIT|=>> PBS: job killed: mem|"
        r"killed due to memory pressure \(OOM\)|due to the node running low on memory",
        OOM,
        "{who} was ended because the memory limit was reached",
        HOST_MEMORY,
        "Kubernetes, LSF, PBS, Ray",
        checks=("host.memory",),
    ),
    cause(
        r"DataLoader worker \(pid(?:\(s\))? [\d, ]{1,80}\) (?:is killed by signal: Killed|"
        r"exited unexpectedly)",
        OOM,
        "a data loader worker of {who} was killed, most likely for memory",
        HOST_MEMORY,
        "torch.utils.data",
        confidence=0.8,
        confirm=SEE_KERNEL,
        checks=("host.memory", "host.shm"),
    ),
    cause(
        r"DataLoader worker \(pid(?:\(s\))? [\d, ]{1,80}\) is killed by signal: Bus error|"
        r"workers are out of shared memory",
        "host.shm",
        "a data loader worker of {who} found /dev/shm full",
        "more shared memory: docker --shm-size=16g, or --ipc=host; Kubernetes: an emptyDir of "
        "medium Memory at /dev/shm",
        "torch.utils.data",
        confirm="df -h /dev/shm on {node}",
    ),
    # Crashes
    cause(
        r"Fatal Python error: (?P<crash>Segmentation fault|Illegal instruction|"
        r"Floating-point exception|[A-Z_][^\r]{0,80}?(?:null pointer|refcount|memory)[^\r]{0,80})",
        CRASHED,
        "{who} crashed: {crash}",
        "the stack below that line names the extension; upgrade or rebuild it for this torch",
        "Python faulthandler",
        confirm=SEE_SEGFAULT,
    ),
    cause(
        r"Fatal Python error: Bus error",
        "host.shm",
        "{who} got SIGBUS: most often /dev/shm is full",
        "more shared memory: docker --shm-size=16g, or --ipc=host",
        "Python faulthandler",
        confirm="df -h /dev/shm on {node}",
        confidence=LIKELY,
    ),
    cause(
        r"Segmentation fault(?: +\(core dumped\)|: address not mapped| encountered)|"
        r"(?:python|pt_|ray)[\w.:-]{0,20}\[\d{1,9}\]: segfault at |"
        r"Signal: Segmentation fault \(11\)|"
        r"SegmentationFault\W+is detected",
        CRASHED,
        "{who} crashed: segmentation fault",
        "find the library in the core dump or with PYTHONFAULTHANDLER=1; upgrade or rebuild it",
        "shells, Linux, Open MPI",
        confidence=0.9,
        confirm=SEE_SEGFAULT,
    ),
    cause(
        r"double free or corruption|(?:malloc|free|realloc|munmap_chunk)\(\): \w[\w ]{0,30}"
        r"(?:pointer|size|corrupt\w*|detected)",
        CRASHED,
        "{who} crashed: its memory was corrupted",
        "upgrade or rebuild the extension named in the stack; PYTHONFAULTHANDLER=1 shows it",
        "glibc malloc",
        confidence=LIKELY,
    ),
    # Time
    cause(
        r"CANCELLED AT \S{1,40} DUE TO TIME LIMIT",
        TIME,
        "the job reached its time limit and Slurm ended it",
        MORE_TIME + " (sbatch --time, --signal=B:USR1@300)",
        "slurmstepd",
        confirm="sacct -j JOB --format=State,Elapsed,Timelimit",
    ),
    cause(
        r"TERM_RUNLIMIT|=>> PBS: job killed: walltime|DeadlineExceeded|"
        r"Job was active longer than specified deadline",
        TIME,
        "the job reached its time limit and the scheduler ended it",
        MORE_TIME,
        "LSF, PBS, Kubernetes",
    ),
    # Preemption
    cause(
        r"CANCELLED AT \S{1,40} DUE TO PREEMPTION",
        PREEMPTED,
        "the job was preempted by one of higher priority",
        AGAIN + "; sbatch --requeue does so by itself",
        "slurmstepd",
    ),
    cause(
        r"CANCELLED AT \S{1,40} DUE TO NODE FAILURE|"
        r"Node failure on (?P<node>[\w.-]+)|TERM_HOST_?FAIL",
        PREEMPTED,
        "the scheduler lost {node} and ended the job",
        "see why the node went away (scontrol show node {node}, its kernel log and BMC), then "
        + AGAIN,
        "slurmstepd, srun, LSF",
        checks=("gpu.health", "host.kernel_log"),
    ),
    cause(
        r"TERM_PREEMPT|DisruptionTarget|reason: (?:Preempted|Evicted|TerminationByKubernetes)|"
        r"Preempted (?:in order to admit|by (?:a )?(?:higher|pod))|The node was low on resource|"
        r"[Ss]pot (?:[Ii]nstance )?interruption notice",
        PREEMPTED,
        "the scheduler took {who} off its node",
        AGAIN,
        "LSF, Kubernetes, clouds",
        confidence=LIKELY,
    ),
    cause(
        r"\*\*\* JOB \d{1,12} ON \S{1,80} CANCELLED AT \S{1,40} \*\*\*",
        PREEMPTED,
        "somebody cancelled the job (scancel)",
        "sacct -j JOB --format=State,User tells who",
        "slurmstepd",
        confidence=0.6,
        kind=Kind.SYMPTOM,
    ),
    # Start
    cause(
        r"error: unrecognized arguments: .{0,200}--local[-_]rank",
        "job.python_error",
        "the program does not know --local-rank, with which it was started",
        "start it with torchrun, and read LOCAL_RANK from the environment",
        "torch.distributed.launch",
    ),
)
PYTHON = "job.python_error"
RAISED_FIRST = 0.92
"""Confidence that what was raised first ended the job."""
CHAINED = 200
"""Lines after an exception within which the same rank only says it again in other words."""
NUMBER = re.compile(r"0x[0-9a-f]+|\d+")


def find(story: Story) -> Iterator[Finding]:
    """Find the rank whose program was the first to raise."""
    raised = list(own(story))
    start = first(raised)
    if start is None:
        return
    alike = [seen for seen in raised if same(seen, start)]
    alike.sort(key=lambda seen: (seen is not start, seen.order))
    ranks = sorted({w.rank for seen in alike if (w := story.whose(seen.who)).rank is not None})
    yield Finding(
        cause=PYTHON,
        kind=Kind.CAUSE,
        says=f"{named(story, start, ranks)} raised {start.text}",
        confidence=RAISED_FIRST,
        fix="mend the program: its traceback stands above that line",
        evidence=tuple(alike),
        ranks=tuple(ranks),
    )


def own(story: Story) -> Iterator[Seen]:
    """Yield the exceptions that tell of nothing but the program itself, and that it ended by."""
    faults = story.events(Kind.CONSEQUENCE, Kind.SYMPTOM, Kind.CAUSE)
    others = [seen for seen in faults if seen.rule is not RAISED]
    explained = {(seen.file, seen.line) for seen in others}
    failed: dict[tuple[str, Who], list[int]] = {}
    for seen in story.of_rule(FOLLOWED):
        if (who := story.whose(seen.who)).rank is not None:
            failed.setdefault((seen.file, who), []).append(seen.line)
    went_on = {(seen.file, story.whose(seen.who)): seen.line for seen in story.of_rule(WENT_ON)}
    for seen in story.of_rule(RAISED):
        key = seen.file, story.whose(seen.who)
        again = any(0 < seen.line - line < CHAINED for line in failed.get(key, ()))
        alone = key[1].rank is not None or not others
        survived = alone and went_on.get(key, 0) > seen.line
        if not again and not survived and (seen.file, seen.line) not in explained:
            yield seen


def same(one: Seen, other: Seen) -> bool:
    """Whether two ranks raised the same, but for numbers."""
    return NUMBER.sub("", one.text) == NUMBER.sub("", other.text)


def named(story: Story, start: Seen, ranks: list[int]) -> str:
    """Return who raised it, the first one first."""
    who = story.whose(start.who)
    node = story.node_of(who)
    where = f" on {node}" if node else ""
    if who.rank is None:
        return f"a rank{where}" if where else story.called(who)
    others = len(ranks) - 1
    more = f" (and {others} other{'s' if others > 1 else ''})" if others else ""
    return f"rank {who.rank}{where}{more}"
