"""What ranks say of themselves when they start: versions, addresses, networks, how far."""

from __future__ import annotations

from preflight.node import nccl_log
from preflight.triage.rule import Kind, Rule

COMM = (
    r"rank (?P<comm_rank>\d{1,7}) nranks (?P<nranks>\d{1,7}) "
    r"(?:.*busId (?P<bus_id>[0-9a-f]{1,12}) )?.*- Init "
)


def fact(pattern: str, source: str, stage: str = "", starts: bool = False) -> Rule:
    """Return a rule of a line that tells of no fault."""
    return Rule(pattern, Kind.FACT, source=source, stage=stage, starts=starts)


RULES = (
    fact(nccl_log.VERSION, "NCCL init.cc, 2.4 to 2.30"),
    fact(r"cudaDriverVersion (?P<cuda_driver>\d{4,6})", "NCCL init.cc since 2.13"),
    fact(
        r"(?:PyTorch|torch) [Vv]ersion ?[:=] ?v?(?P<torch_version>\d+\.\d+\.\d+[\w.+-]*)",
        "torch.utils.collect_env and many training programs",
    ),
    fact(
        r"NCCL_SOCKET_IFNAME set (?:by environment )?to (?P<socket_ifname>\S+)",
        "NCCL param.h, misc/socket.cc",
    ),
    fact(
        nccl_log.BOOTSTRAP,
        "NCCL bootstrap.cc, 2.4 to 2.30",
        stage="bootstrap",
    ),
    fact(nccl_log.HCAS, "NCCL transport/net_ib.cc since 2.4"),
    fact(nccl_log.SOCKETS, "NCCL transport/net_socket.cc"),
    fact(f"NCCL INFO {nccl_log.NETWORK}", "NCCL init.cc since 2.6"),
    fact(nccl_log.LOADED, "NCCL net.cc since 2.12"),
    fact(nccl_log.INITIALIZED, "NCCL plugin/net.cc since 2.27"),
    fact(COMM + r"(?P<init>START)", "NCCL init.cc since 2.18", stage="bootstrap"),
    fact(
        COMM + r"(?P<complete>COMPLETE)",
        "NCCL init.cc since 2.4",
        stage="collective",
    ),
    fact(
        r"rank (?P<comm_rank>\d{1,7}) nRanks (?P<nranks>\d{1,7}) nNodes (?P<nodes>\d{1,6}) ",
        "NCCL init.cc since 2.20",
        stage="transport setup",
    ),
    fact(
        r"ProcessGroupNCCL initialization options: size: (?P<world_size>\d{1,7}), "
        r"global rank: (?P<rank>\d{1,7})",
        "torch ProcessGroupNCCL.cpp since 2.3, of every group",
    ),
    fact(
        r"The client socket has connected to \[?(?P<master>[\w.:%-]+?)\]?:(?P<port>\d{1,5}) on",
        "torch c10d/socket.cpp",
        stage="rendezvous",
    ),
    fact(
        r"The server socket has started to listen on \[?[\w.:%-]+?\]?:(?P<port>\d{1,5})",
        "torch c10d/socket.cpp",
        stage="rendezvous",
    ),
    fact(
        r"Initializing distributed: GLOBAL_RANK: (?P<rank>\d{1,7}), "
        r"MEMBER: \d{1,7}/(?P<world_size>\d{1,7})",
        "Lightning fabric/utilities/distributed.py",
        stage="rendezvous",
    ),
    fact(
        r"Setting OMP_NUM_THREADS environment variable for each process",
        "torchrun, before it starts the ranks of a node",
        stage="launch",
        starts=True,
    ),
    fact(
        r"Starting elastic_operator with launch configs",
        "torchrun with TORCHELASTIC_LOG_LEVEL=INFO",
        stage="launch",
        starts=True,
    ),
    fact(
        r"Rendezvous complete for workers\. Result:",
        "torchrun with TORCHELASTIC_LOG_LEVEL=INFO; again after each restart",
        stage="launch",
        starts=True,
    ),
    fact(
        r"\[runner\.py:\d+:main\] cmd = (?:pdsh|mpirun|srun|/)",
        "DeepSpeed launcher/runner.py",
        stage="launch",
        starts=True,
    ),
)
