"""The launch plan: how many ranks there are, which is which, and what each is told."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.triage.family import Finding
from preflight.triage.launched import cause
from preflight.triage.rule import Kind, Rule
from preflight.triage.story import Story
from preflight.triage.words import MOST_RANKS

PLAN = "launch.plan"
TORCHRUN = (
    "start it with torchrun, which sets RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, "
    "or set them for each rank"
)
DUPLICATE = cause(
    r"Duplicate GPU detected : rank (?P<one>\d{1,7}) and rank (?P<other>\d{1,7}) both on CUDA "
    r"device (?P<bus>[0-9a-fA-F]{1,16})",
    "gpu.inventory",
    "ranks {one} and {other} both use the GPU at PCI {bus}: more ranks than GPUs are started "
    "there, or none chose its own",
    "start as many ranks as the node has GPUs (nvidia-smi -L; --nproc-per-node), and call "
    "torch.cuda.set_device(LOCAL_RANK) in each; see CUDA_VISIBLE_DEVICES",
    "NCCL init.cc, 2.5 to 2.29",
    checks=(PLAN, "access.identity"),
    confirm="preflight run --only gpu.inventory,launch.plan,access.identity",
)
MEMBER = Rule(
    r"Initializing distributed: GLOBAL_RANK: (?P<rank>\d{1,7}), MEMBER: "
    r"(?P<member>\d{1,7})/(?P<members>\d{1,7})",
    Kind.FACT,
    source="Lightning fabric/utilities/distributed.py",
)
ALL_HERE = Rule(
    r"All distributed processes registered\. Starting with \d{1,7} processes",
    Kind.FACT,
    stage="bootstrap",
    source="Lightning fabric/utilities/distributed.py",
)
SENT_TO_ITSELF = Rule(
    r"sent unique ID to worker \d{1,7} \((?P<prober>127\.[\d.]{5,11}|\[::1\]):\d{1,5}\)",
    Kind.FACT,
    source="spark-comm nccl_backend.rs; spark-arena/sparkrun#259",
)
REFUSED = Rule(
    r"Connect attempt \d{1,6}/\d{1,6}: Connection refused \(os error 111\)",
    Kind.FACT,
    source="spark-comm nccl_backend.rs",
)
RULES = (
    DUPLICATE,
    MEMBER,
    ALL_HERE,
    SENT_TO_ITSELF,
    REFUSED,
    cause(
        r"Multiple Ranks are using the same GPU/Partition",
        "gpu.inventory",
        "several ranks of {node} use one GPU",
        "start as many ranks as the node has GPUs, and call torch.cuda.set_device(LOCAL_RANK)",
        "NCCL init.cc since 2.30",
        checks=(PLAN,),
    ),
    cause(
        r"Bootstrap Root : mismatch in (?:rank count|info) from procs",
        PLAN,
        "ranks were told different numbers of ranks (WORLD_SIZE), or are of two jobs",
        "the same WORLD_SIZE for all ranks, and another MASTER_PORT for each job",
        "NCCL bootstrap.cc",
        checks=("software.nccl",),
    ),
    cause(
        r"Bootstrap Root : rank (?P<number>\d{1,7}) of \d{1,7} ranks has already checked in",
        PLAN,
        "two processes both are rank {number}",
        "a RANK of its own for each process: node rank x processes a node + local rank",
        "NCCL bootstrap.cc",
    ),
    cause(
        r"Error initializing torch\.distributed using (?:env|tcp)://\S* rendezvous: (?:environment "
        r"variable )?(?P<lacking>\w{2,40}) (?:expected, but not set|parameter missing)",
        PLAN,
        "{who} was started without {lacking}",
        TORCHRUN,
        "torch distributed/rendezvous.py",
    ),
    cause(
        r"KeyError: '(?P<lacking>RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|MASTER_ADDR"
        r"|MASTER_PORT|SLURM_PROCID|SLURM_LOCALID|SLURM_NTASKS)'",
        PLAN,
        "{who} was started without {lacking} in its environment",
        TORCHRUN + "; Slurm's own are there under srun only",
        "Python os.environ",
    ),
    cause(
        r"You set `--ntasks=\d{1,7}` in your SLURM bash script, but this variable is not supported",
        PLAN,
        "Slurm was asked for --ntasks, Lightning wants --ntasks-per-node",
        "#SBATCH --nodes and --ntasks-per-node as the Trainer's num_nodes and devices, and srun",
        "Lightning plugins/environments/slurm.py",
    ),
    cause(
        r"The value for `--ntasks-per-node` set in SLURM .{0,40}does not match|"
        r"You set `devices=\d{1,7}` in Lightning, but the number of tasks per node configured in "
        r"SLURM|You set `num_nodes=\d{1,7}` in Lightning, but the number of nodes configured",
        PLAN,
        "Slurm's nodes and tasks are not the Trainer's num_nodes and devices",
        "#SBATCH --nodes and --ntasks-per-node as the Trainer's num_nodes and devices",
        "Lightning plugins/environments/slurm.py",
    ),
    cause(
        r"You requested gpu: \[[\d, ]{1,200}\]",
        "gpu.inventory",
        "{who} was to use GPUs that its node does not have, or may not see",
        "nvidia-smi -L on {node}; see CUDA_VISIBLE_DEVICES and the scheduler's --gres",
        "Lightning utilities/device_parser.py",
        checks=(PLAN,),
    ),
)


def find(story: Story) -> Iterator[Finding]:
    """Yield what only several lines tell."""
    yield from one_machine(story)
    yield from never_came(story)
    yield from probed(story)


def one_machine(story: Story) -> Iterator[Finding]:
    """Yield that NCCL takes two nodes for one: ranks on both seem to use the same GPU."""
    ranks = story.ranks()
    for seen in story.of_rule(DUPLICATE):
        pair = [ranks.get(int(seen.told[name])) for name in ("one", "other")]
        nodes = [story.node_of(rank.who) for rank in pair if rank]
        if len(set(filter(None, nodes))) > 1:
            yield Finding(
                cause="access.identity",
                kind=Kind.CAUSE,
                says=f"NCCL takes {' and '.join(nodes)} for one machine: they have the same name "
                "or boot id",
                confidence=0.96,
                fix="give each node, and each container, its own host name; or export NCCL_HOSTID "
                "with another value on each",
                evidence=(seen,),
                nodes=tuple(nodes),
                confirm="preflight run --only access.identity",
            )
            return


def never_came(story: Story) -> Iterator[Finding]:
    """Yield who is missing where Lightning's ranks have waited to the end of the log."""
    lines = story.of_rule(MEMBER)
    if not lines or story.of_rule(ALL_HERE) or not any(map(story.stuck, lines)):
        return
    members = int(lines[0].told["members"])
    here = {int(seen.told["member"]) - 1 for seen in lines}
    missing = [rank for rank in range(min(members, MOST_RANKS)) if rank not in here]
    if not missing:
        return
    twice = all(story.count(seen) > 1 for seen in lines)
    again = "; each other one came twice: RANK is the same on several nodes" if twice else ""
    yield Finding(
        cause=PLAN,
        kind=Kind.SYMPTOM,
        says=f"of {members} ranks {len(missing)} never came, {missing[0]} to {missing[-1]}{again}",
        confidence=0.75,
        fix="#SBATCH --nodes and --ntasks-per-node as the Trainer's num_nodes and devices, and "
        "start the program with srun",
        evidence=tuple(lines),
        ranks=tuple(missing),
        confirm="preflight run --only launch.plan,network.port",
        checks=("network.port", "network.firewall"),
    )


def probed(story: Story) -> Iterator[Finding]:
    """Yield that a readiness probe took the place of a rank."""
    sent, refused = story.of_rule(SENT_TO_ITSELF), story.of_rule(REFUSED)
    if not sent or not refused:
        return
    yield Finding(
        cause=PLAN,
        kind=Kind.CAUSE,
        says=f"rank 0 sent its id to {sent[0].told['prober']}, a probe on its own node, and then "
        "listened no more: the ranks are refused",
        confidence=0.9,
        fix="look for the port with ss -ltn instead of connecting to it (nc -z)",
        evidence=(*sent, *refused),
        confirm="see whether what starts the job connects to that port",
        checks=("network.foreign",),
    )
