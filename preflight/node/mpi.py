"""Runs all_reduce_perf of nccl-tests: on one node, or on several by mpirun or srun.

Whatever is started is ended again: by SIGTERM, at which mpirun and srun end what they started
elsewhere; what is left then, `swept` finds by its mark.
Sent to nodes: stdlib only, Python 3.8.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from pathlib import Path
from shlex import join
from typing import Any, Iterator, Mapping, Sequence, TypedDict

from preflight.api import Absent, Node, Unobservable
from preflight.node import scratch
from preflight.node.container import entered
from preflight.node.followed import GRACE_S, KEPT, Followed
from preflight.node.nccl_log import LOUD, Heard, by_host
from preflight.node.nccl_tests import Told, hosts_of, parsed, refined
from preflight.node.software import PASSED
from preflight.node.toolbox import started

SIZES = ("-b", "32K", "-e", "1G", "-f", "32")
"""32 KiB, 1 MiB, 32 MiB, 1 GiB."""
LAST, STEP, REPEATS = 1 << 30, 32, 10
COUNTS = ("-n", str(REPEATS), "-w", "0", "-c", "1")
"""Without warm-up: one that is not timed goes before each size anyway (BenchTime, "Sync")."""
ROUNDS = 2 * (REPEATS + 2)
"""How often each size is done: in place and not, with one before and one to see the sums."""
FILES = "TMPDIR"
"""Where Open MPI puts its files: who gets a SIGTERM while it ends leaves them, and in 5 ranks do in
any case. Its parameter for that would go to all nodes."""
BY_ITSELF = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self"}
"""Of a build with Open MPI that runs alone: 5 leaves its shared memory behind else."""
DEBUG = {"NCCL_DEBUG": "WARN"}
"""Where nobody says otherwise: NCCL then says why it fails."""
BRIEF = ("-b", "1M", "-e", "32M", "-f", "32", "-n", "1", "-w", "0", "-c", "0")
"""Since 2.22 NCCL connects a ring no earlier than data goes through it."""
HEAR_S = 25.0
"""To connect 512 ranks and send little; what is said by then counts."""
LOUD_KEPT = 16 << 20
"""Bytes: a rank says about 20 KB."""
MARK = "preflight_run"
"""A parameter that Open MPI does not know, so that it hands it on to all that it starts."""
STARTERS = ("OMPI", "rsh"), ("PRTE", "ssh")
"""What begins the variables of mpirun's parameters, and what starts daemons there: in Open MPI 4,
and in PRRTE, which is the mpirun of 5."""
TRIAL_S = 20.0
"""For a launcher to start `true` on all nodes and to end: 0.5 s on four nodes that are idle."""
START_S = 40.0
"""Until ranks are connected: NCCL takes 1 s on one node, up to 20 s for 512 ranks."""
STUCK_S = 10.0
"""For the next row, besides four times what the one before lets expect."""
GO_ON_S = 15.0
"""After the first row was begun; none is awaited that would end later."""
CONTAINED_S = "90"
"""A program in a container ends by itself, for no signal of ours comes there."""


ENDS = re.compile(
    r"process rank \d+ with PID \d+ on node \S+\s+exited on\s+signal \d+|"
    r"^srun: error: \S+: tasks? \d\S*: .*",
    re.MULTILINE,
)
LINGER_S = 1.0
"""For the daemons of Open MPI to see that their mpirun has ended, and to end too."""


class Plan(TypedDict):
    """What is to be run."""

    how: str
    """`alone`, `mpirun` or `srun`."""
    program: str
    nodes: list[list[Any]]
    """Of each its name, address and number of ranks, that of rank 0 first."""
    interfaces: list[str]
    """Those that lead to the others; empty: not known."""
    container: dict[str, Any]
    env: dict[str, str]
    """Of the job."""
    slurm: dict[str, str]
    """Variables that lead srun to the job: SLURM_JOB_ID, SLURM_CONF, SLURM_MPI_TYPE."""
    each: bool
    """Whether it can tell the time of each process."""
    mark: str


class Outcome(TypedDict):
    """What came of it."""

    command: str
    """How to repeat it by hand, with launch.env in the environment."""
    told: Told
    killed: bool
    """Whether it was past its time."""
    cut: bool
    """Whether larger sizes were left out, for they would have taken too long."""
    problem: str
    """Why it did not end well, as its launcher or the system says."""
    ends: list[str]
    """What the launcher says of ranks that have ended badly."""
    signal: int
    """That ended the program, or its launcher; 0: none, or ours."""


def tried(node: Node, plan: Plan) -> str:
    """Return why a launcher cannot start anything on all nodes; empty if it can."""
    try:
        argv, env = start_of(node, plan, 1)
        with begun(node, plan, [*argv, "true"], env, TRIAL_S) as run:
            for _ in run.texts():
                pass
    except Unobservable as problem:
        return str(problem)
    if run.killed:
        return f"{plan['how']} does not come to an end in {TRIAL_S:g} s"
    return run.why() if run.code else ""


def measured(node: Node, plan: Plan) -> Outcome:
    """Return what an all_reduce with all ranks gives.

    Raises:
        Unobservable: it cannot be started.
    """
    argv, env = start_of(node, plan, 0)
    each = plan["nodes"][0][2] if plan["how"] == "alone" else 1
    words = [*argv, plan["program"], *SIZES, *COUNTS, "-g", str(each)]
    with contextlib.ExitStack() as stack:
        report = stack.enter_context(scratch.folder()) / "report" if has_report(plan) else None
        more = ["-I", "1", "-J", str(report)] if report else []
        run = stack.enter_context(begun(node, plan, [*words, *more], env, START_S))
        cut = watched(run)
        run.stop()
        told = parsed(run.text())
        if report:
            with contextlib.suppress(OSError):
                told = refined(told, beginning(report))
    is_own = not (cut or run.killed)
    return Outcome(
        command=join(words),
        told=told,
        killed=run.killed,
        cut=cut,
        problem=run.why() if run.code and not cut else "",
        ends=ENDS.findall(run.errors()) if is_own else [],
        signal=max(0, -run.code) if is_own else 0,
    )


def overheard(node: Node, plan: Plan) -> dict[str, Heard]:
    """Return by host what NCCL says of itself when it is done once more, briefly.

    Raises:
        Unobservable: it cannot be started.
    """
    plan = Plan(**{**plan, "env": {**plan["env"], **LOUD}})
    argv, env = start_of(node, plan, 0)
    each = plan["nodes"][0][2] if plan["how"] == "alone" else 1
    words = [*argv, plan["program"], *BRIEF, "-g", str(each)]
    with begun(node, plan, words, env, HEAR_S, LOUD_KEPT) as run:
        for _ in run.texts():
            pass
    text = run.text()
    return by_host(text, hosts_of(text))


def watched(run: Followed) -> bool:
    """Follow it to its end; True: to the size after which the next one would take too long."""
    rows, begun = 0, 0.0
    for text in run.texts():
        told = parsed(text)
        if told["at"] != "all_reduce" or (begun and len(told["sizes"]) == rows):
            continue
        rows, begun = len(told["sizes"]), begun or time.monotonic()
        ahead = next_row(told)
        if time.monotonic() + ahead > begun + GO_ON_S:
            return True
        run.within(STUCK_S + 4 * ahead)
    return False


def next_row(told: Told) -> float:
    """Return how long the next row takes if its time grows as its size; 0: none is to come."""
    if not told["sizes"] or told["sizes"][-1]["bytes"] >= LAST:
        return 0.0
    return told["sizes"][-1]["ms"] / 1000 * STEP * ROUNDS


def beginning(report: Path) -> str:
    """Return what is in a file, as far as it is kept.

    Raises:
        OSError: there is none.
    """
    with report.open(encoding="utf-8", errors="replace") as file:
        return file.read(KEPT)


def has_report(plan: Plan) -> bool:
    """Whether there are several processes to tell of, and rank 0 is on this node."""
    return plan["each"] and plan["how"] == "mpirun"


# ---- how it is started -----------------------------------------------------------------------


def start_of(node: Node, plan: Plan, ranks: int) -> tuple[list[str], dict[str, str]]:
    """Return the words before the program, and its environment.

    Args:
        node: this one, that of rank 0.
        plan: what is to be run.
        ranks: on each node; 0: as many as it has GPUs.
    """
    env = {**DEBUG, **plan["env"]}
    if plan["how"] == "alone" and plan["container"]:
        given = {name: env[name] for name in env if PASSED.fullmatch(name) or name[:5] == "NCCL_"}
        return [*entered(plan["container"], given), "timeout", CONTAINED_S], {}
    if plan["how"] == "alone":
        return ["env"], {**env, **BY_ITSELF}
    if plan["how"] == "srun":
        return by_srun(plan, ranks), {**env, **plan["slurm"], MARK: plan["mark"]}
    return by_mpirun(node, plan, ranks), {**env, **parameters(shell(node, plan), plan["mark"])}


def parameters(agent: str, mark: str) -> dict[str, str]:
    """Return the variables by which mpirun starts its daemons, by this node's ssh alone."""
    own = {"plm_{}_agent": agent, "plm_{}_no_tree_spawn": "1", MARK: mark}
    return {
        f"{prefix}_MCA_{name.format(starter)}": text
        for prefix, starter in STARTERS
        for name, text in own.items()
    }


def by_mpirun(node: Node, plan: Plan, ranks: int) -> list[str]:
    """Return the words of Open MPI's mpirun.

    MPI itself carries next to nothing, over TCP, and binds no rank to a core: NCCL would be slow.
    """
    version = node.run(["mpirun", "--version"], timeout_s=TRIAL_S, env=plan["env"]).out
    if "Open MPI" not in version:
        raise Unobservable(f"mpirun is {version.split(chr(10))[0]!r}, not Open MPI's")
    hosts = [(reached(node, *one[:2]), ranks or one[2]) for one in plan["nodes"]]
    words = ["mpirun", "--host", ",".join(f"{host}:{count}" for host, count in hosts)]
    words += ["-np", str(sum(count for _, count in hosts)), "--bind-to", "none"]
    words += ["--mca", "pml", "ob1", "--mca", "btl", "tcp,self"]
    if plan["interfaces"]:
        names_of = ",".join(plan["interfaces"])
        words += ["--mca", "btl_tcp_if_include", names_of, "--mca", "oob_tcp_if_include", names_of]
    words += ["--allow-run-as-root"] if not os.geteuid() else []
    given = [f"{name}={text}" for name, text in DEBUG.items() if name not in plan["env"]]
    return [*words, *(word for one in (*sorted(plan["env"]), *given) for word in ("-x", one))]


def reached(node: Node, name: str, address: str) -> str:
    """Return how another node is called here: by its name, if that is known."""
    try:
        return name if node.resolve(name) else address
    except Unobservable:
        return address


def shell(node: Node, plan: Plan) -> str:
    """Return the ssh that mpirun is to use: it asks nothing, and writes no key into known_hosts.

    Raises:
        Unobservable: there is none.
    """
    host = reached(node, *plan["nodes"][-1][:2])
    lines = node.run(["ssh", "-G", host], timeout_s=TRIAL_S).out.splitlines()
    files = next((line.split()[1:] for line in lines if line.startswith("userknownhostsfile ")), [])
    words = ["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5", "-o", "LogLevel=ERROR"]
    words += ["-o", "UpdateHostKeys=no"]
    if files[:1] != ["/dev/null"]:
        words += ["-o", "StrictHostKeyChecking=yes"]
    return " ".join(words)


def by_srun(plan: Plan, ranks: int) -> list[str]:
    """Return the words of srun, for a step beside what else runs in the job.

    Raises:
        Unobservable: nodes have not as many ranks as each other.
    """
    counts = {ranks or one[2] for one in plan["nodes"]}
    if len(counts) > 1:
        raise Unobservable("srun starts as many ranks on each node, and they have not as many GPUs")
    each, names = counts.pop(), [one[0] for one in plan["nodes"]]
    words = ["srun", f"--jobid={plan['slurm']['SLURM_JOB_ID']}", "--overlap", "--overcommit"]
    words += [f"--nodelist={','.join(names)}", f"--nodes={len(names)}"]
    words += [f"--ntasks={len(names) * each}", f"--ntasks-per-node={each}"]
    return [*words, "--kill-on-bad-exit=1", "--time=2"]


@contextlib.contextmanager
def begun(
    node: Node,
    plan: Plan,
    words: Sequence[str],
    env: Mapping[str, str],
    limit_s: float,
    most: int = KEPT,
) -> Iterator[Followed]:
    """Run a command, and end it; arguments as of `Followed`.

    Raises:
        Absent: there is no such program.
        Unobservable: it cannot be started.
    """
    program = node.which(words[0])
    if program is None:
        raise Absent(f"no program {words[0]!r}")
    more: list[str] = []
    with contextlib.ExitStack() as stack:
        if plan["how"] == "alone" or (plan["how"] == "mpirun" and FILES not in env):
            env = {**env, FILES: str(stack.enter_context(scratch.folder()))}
            more = ["-x", f"{FILES}={files_of(plan['mark'])}"] if plan["how"] == "mpirun" else []
        argv = [program, *more, *words[1:]]
        yield stack.enter_context(Followed(started(argv, env), limit_s, most))


# ---- what comes of it ------------------------------------------------------------------------


def swept(node: Node, mark: str) -> int:  # noqa: ARG001 - the first argument of all node functions
    """End what is left of a run on this node, and remove what its ranks wrote.

    Returns:
        How many processes had to be ended.
    """
    count = 0
    for number, wait_s in ((0, LINGER_S), (signal.SIGTERM, GRACE_S), (signal.SIGKILL, GRACE_S)):
        left = list(marked(mark))
        count = count or len(left) * bool(number)
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, number)
        until = time.monotonic() + wait_s
        while any(marked(mark)) and time.monotonic() < until:
            time.sleep(0.02)
    scratch.remove(files_of(mark))
    return count


def files_of(mark: str) -> Path:
    """Return where the ranks of a run put their files, the same on all nodes."""
    return Path(scratch.MEMORY, mark)


def marked(mark: str) -> Iterator[int]:
    """Return the pids of processes that have a mark in their environment or command line."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # it is gone, or somebody else's
                text = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
                if mark.encode() in text:
                    yield int(entry.name)
