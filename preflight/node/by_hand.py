"""How an all_reduce with torch is repeated by hand. Pure.

Sent to nodes: stdlib only, Python 3.8.
"""

from __future__ import annotations

from shlex import join, quote
from typing import Mapping, Sequence

from preflight.node.ranks import Ranked

PROGRAM = (
    "import os, time, torch, torch.distributed as dist; "
    'dist.init_process_group("{}"); x = torch.ones(1 << 24, device={}); '
    "dist.all_reduce(x); x[0].item(); begun = time.time(); "
    'dist.all_reduce(x); x[0].item(); print("64 MiB:", time.time() - begun, "s"); '
    "dist.barrier(); dist.destroy_process_group()"
)
"""It is done twice, for the first time connects; `item` waits for the GPU."""
ON_GPUS = PROGRAM.format("nccl", '"cuda:" + os.environ["LOCAL_RANK"]')
ON_CPUS = PROGRAM.format("gloo", '"cpu"')
IFNAME = "GLOO_SOCKET_IFNAME"


def commands(
    devices: Mapping[str, Sequence[str]],
    facts: Mapping[str, Ranked],
    port: int,
    env: Mapping[str, str],
) -> dict[str, str]:
    """Return the command of each node, which waits until all have been given theirs.

    Args:
        devices: of all nodes that take part; they meet at the first one.
        facts: of these nodes.
        port: where they meet.
        env: of the job, in which the command is given, inside of the container where one is named.
    """
    where = [f"--master_addr={facts[node]['address']}" for node in devices][:1]
    where.append(f"--master_port={port}")
    found = {}
    for rank, (node, own) in enumerate(devices.items()):
        python, interface = facts[node]["asked"], facts[node]["interface"]
        is_cpu = "cpu" in own
        words = [python, "-m", "torch.distributed.run", f"--nnodes={len(devices)}"]
        words += [f"--node_rank={rank}", f"--nproc_per_node={len(own)}", *where]
        words += ["--no_python", python, "-c", ON_CPUS if is_cpu else ON_GPUS]
        ours = f"{IFNAME}=${{{IFNAME}-{quote(interface)}}} "
        found[node] = (ours if is_cpu and interface and IFNAME not in env else "") + join(words)
    return found
