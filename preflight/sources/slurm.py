"""The nodes of the Slurm allocation in which preflight is started.

Source: sbatch(1), output environment variables, and Slurm's guide to heterogeneous jobs. The
list is expanded here: `scontrol` is on no compute node's PATH for certain.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from preflight.errors import ConfigError
from preflight.inventory import Cluster, Launch, NodeSpec
from preflight.node_names import names
from preflight.sources import Found
from preflight.yaml_lines import shown

NODES, JOB, GPUS = "SLURM_JOB_NODELIST", "SLURM_JOB_ID", "SLURM_GPUS_PER_NODE"
PARTS, PART = "SLURM_HET_SIZE", NODES + "_HET_GROUP_{}"
"""A heterogeneous job has a list of nodes for each of its parts."""

_COUNTS = re.compile(r"(?:[^:,]+:)?[0-9]{1,4}(?:,(?:[^:,]+:)?[0-9]{1,4})*")


def read(environment: Mapping[str, str]) -> Found | None:
    """Return the cluster of the allocation, None outside of one.

    Raises:
        ConfigError: the list of nodes is none.
    """
    lists = node_lists(environment)
    if not lists:
        return None
    expression = ",".join(lists.values())
    try:
        nodes = tuple(NodeSpec(name=name) for name in names(expression))
    except ValueError as error:
        raise ConfigError(
            f"{', '.join(lists)}: {shown(expression)}: {error}; "
            "unset it, or say which nodes: an inventory or --hosts"
        ) from error
    gpus = gpus_per_node(environment.get(GPUS, "")) if len(lists) == 1 else None
    job = f"Slurm job {environment.get(JOB) or 'without a number'}"
    cluster = Cluster(name=job, source=None, nodes=nodes, launch=Launch(gpus_per_node=gpus))
    return Found(cluster, job)


def node_lists(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that list the job's nodes."""
    size = environment.get(PARTS, "")
    parts = (
        [PART.format(part) for part in range(int(size))] if re.fullmatch("[0-9]{1,3}", size) else []
    )
    variables = parts if parts and all(map(environment.get, parts)) else [NODES]
    return {name: environment[name] for name in variables if environment.get(name)}


def gpus_per_node(text: str) -> int | None:
    """Return how many GPUs the job asked for on each node, None if it did not say it so.

    `8`, `h100:8` or `a100:2,h100:2`. SLURM_GPUS_ON_NODE is not looked at: it is of one node.
    """
    if not _COUNTS.fullmatch(text):
        return None
    count = sum(int(part.rpartition(":")[2]) for part in text.split(","))
    return count if 0 < count <= 64 else None
