"""What it costs to synchronise gradients: seconds, efficiency, days. Pure computation.

The model is the textbook's: the time of an all_reduce is bytes / bandwidth + steps x latency
(Thakur and others, 2005). In a ring of n each one sends 2(n-1)/n of the bytes in 2(n-1) steps, and
no way sends less (Patarasuk and Yuan, 2009). With NVLink the nodes add up inside first, and what
goes between them is then a ring of nodes; without it the ring goes through all GPUs. Each node
brings batches of its own, so that n of them do n times the work of one in a step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1}
"""Of one gradient."""
EFFICIENCY = 0.6
"""Of nominal bandwidth: the middle of the 0.5 to 0.7 that collectives get of plain networks. RDMA
has more: 360 to 390 of 400 Gb/s are what Azure asks of ib_write_bw."""
GBPS = 100.0
"""Nominal, of a node: one port of a usual data-plane NIC."""
LATENCY_US = 14.0
"""Of a step of the ring: NCCL's own figure (src/graph/tuning.cc, hwLat of NET, Ring, Simple)."""
PCIE_GBS = 20.0
"""Bus bandwidth among GPUs without NVLink: gcm asks for 18, Azure for 25 of four A100."""
BACKWARD = 2 / 3
"""Of a step's computing: the backward pass takes twice as long as the forward one (Kaplan and
others, 2020, section 2.1). Gradients come into being in it, so no more can be hidden."""
MUCH = 0.3
"""Share of communication from which something should be done: our own choice."""
WORTH = 0.5
"""Of what one node does alone: a node that adds less no longer pays. Our own choice."""
GAIN = 1.005
"""Times as fast: less is shown as 1.00."""
FACTORS = (2, 4, 8, 16)
"""By how much a network may be faster, or a batch larger, before one asks for something else."""
MOST_NODES = 16384
"""That are asked for, and looked at for where nodes no longer pay: 131,072 GPUs, 8 a node."""
FEW_NODES = 8
"""Up to here each number of them is shown."""
HOURS = 24


class Sync(NamedTuple):
    """How long one synchronisation takes, by where the time goes."""

    network_s: float
    inside_s: float
    latency_s: float

    @property
    def seconds(self) -> float:
        """All of it."""
        return sum(self)


@dataclass(frozen=True)
class Network:
    """What is between the nodes."""

    gbps: float
    """That a node really gets, each way."""
    latency_us: float = LATENCY_US

    @property
    def rate(self) -> float:
        """Bytes a second."""
        return self.gbps * 1e9 / 8


@dataclass(frozen=True)
class Gradients:
    """What is synchronised, and between whom."""

    parameters: float
    dtype: str
    network: Network
    gpus_per_node: int = 1
    nvlink_gbs: float | None = None
    """Bus bandwidth among the GPUs of a node; None without NVLink."""
    compression: float = 1.0

    @property
    def size(self) -> float:
        """Bytes that are synchronised."""
        return self.parameters * BYTES[self.dtype] / self.compression

    @property
    def inside(self) -> float:
        """Bytes a second among the GPUs of a node."""
        return (self.nvlink_gbs or PCIE_GBS) * 1e9

    @property
    def is_hierarchical(self) -> bool:
        """Whether nodes add up inside before they send."""
        return self.nvlink_gbs is not None and self.gpus_per_node > 1

    @property
    def between(self) -> float:
        """Bytes a second from node to node: a ring through all GPUs goes through PCIe too."""
        alone = self.gpus_per_node == 1 or self.is_hierarchical
        return self.network.rate if alone else min(self.network.rate, self.inside)

    def sync(self, nodes: int) -> Sync:
        """Return what one synchronisation of all GPUs takes."""
        local = ring(self.gpus_per_node) * self.size / self.inside
        latency = 2 * (nodes - 1) * self.network.latency_us / 1e6
        if nodes == 1:
            return Sync(0.0, local, 0.0)
        if self.is_hierarchical:
            return Sync(ring(nodes) * self.size / self.between, local, latency)
        return Sync(ring(nodes * self.gpus_per_node) * self.size / self.between, 0.0, latency)


class Step(NamedTuple):
    """What a step takes on some nodes."""

    nodes: int
    sync_s: float
    seconds: float
    """Of a step; one synchronisation is shared by all steps that accumulate into it."""
    share: float
    """Of communication that nothing hides."""
    efficiency: float
    """Of scaling: what a node does, as a share of what one does alone."""
    speed_up: float
    """Over one node."""

    def days(self, alone: float) -> float:
        """Return how long a job takes that takes so many days on one node."""
        return days_on(alone, self.nodes, self.efficiency)


@dataclass(frozen=True)
class Job:
    """Training: steps that compute, and synchronise."""

    gradients: Gradients
    step_s: float
    """That a GPU computes in a step."""
    accumulation: int = 1
    """Steps to one synchronisation."""
    overlap: bool = False
    """Whether gradients are sent while the backward pass goes on."""

    def exposed(self, nodes: int) -> float:
        """Return the seconds of a synchronisation in which nothing is computed."""
        hidden = BACKWARD * self.step_s if self.overlap else 0.0
        return max(0.0, self.gradients.sync(nodes).seconds - hidden)

    def seconds(self, nodes: int) -> float:
        """Return what a step takes."""
        return self.step_s + self.exposed(nodes) / self.accumulation

    def at(self, nodes: int) -> Step:
        """Return what a step takes, and what that means."""
        seconds = self.seconds(nodes)
        efficiency = self.seconds(1) / seconds
        return Step(
            nodes,
            self.gradients.sync(nodes).seconds,
            seconds,
            1 - self.step_s / seconds,
            efficiency,
            nodes * efficiency,
        )

    def added(self, nodes: int) -> float:
        """Return what the last of so many nodes adds, in nodes that work alone."""
        return self.at(nodes).speed_up - self.at(nodes - 1).speed_up

    def last_worth(self) -> int:
        """Return the last node, of as many as are looked at, that pays; 1 if none that is added."""
        paying = (n for n in range(MOST_NODES, 1, -1) if self.added(n) >= WORTH)
        return next(paying, 1)


class Remedy(NamedTuple):
    """Something to do about much communication."""

    kind: str
    """One of `CHANGES`."""
    factor: int
    """By how much; 1 of overlap."""
    step: Step
    faster: float
    """How many times as fast a step is then."""


def ring(members: int) -> float:
    """Return how many times its bytes each member of a ring sends."""
    return 2 * (members - 1) / members


def days_on(alone: float, nodes: int, efficiency: float) -> float:
    """Return the days of a job on nodes that takes so many on one."""
    return alone / (nodes * efficiency)


def money(days: float, nodes: int, hourly: float) -> float:
    """Return what nodes cost for some days."""
    return days * HOURS * nodes * hourly


def least_step(sync_s: float, accumulation: int = 1, overlap: bool = False) -> float:
    """Return the seconds that a step must compute so that communication is not much."""
    return sync_s / (accumulation * MUCH / (1 - MUCH) + (BACKWARD if overlap else 0.0))


def sizes(nodes: int) -> list[int]:
    """Return the numbers of nodes to show on the way: all of a few, else doubled ones."""
    doubled = (2**power for power in range(nodes.bit_length()))
    return sorted({*(range(1, nodes) if nodes <= FEW_NODES else doubled), nodes})


def _network(job: Job, factor: int) -> Job:
    network = job.gradients.network
    faster = replace(network, gbps=factor * network.gbps)
    return replace(job, gradients=replace(job.gradients, network=faster))


def _compression(job: Job, factor: int) -> Job:
    compression = factor * job.gradients.compression
    return replace(job, gradients=replace(job.gradients, compression=compression))


CHANGES: Mapping[str, Callable[[Job, int], Job]] = {
    "network": _network,
    "accumulation": lambda job, factor: replace(job, accumulation=factor * job.accumulation),
    "compression": _compression,
    "overlap": lambda job, _: replace(job, overlap=True),
}
"""What can be done about much communication, by how much."""


def remedies(job: Job, nodes: int) -> list[Remedy]:
    """Return what helps where communication is much, with what it gains alone; the best first.

    A network is as much faster, and a batch as much larger, as it takes, or as still gains; what
    gains nothing, as a faster network for a single node, is left out.
    """
    now = job.at(nodes)
    if now.share <= MUCH:
        return []

    def enough(kind: str) -> int:
        shares = {k: CHANGES[kind](job, k).at(nodes).share for k in FACTORS}
        fits = (k for k, share in shares.items() if share <= MUCH)
        return next(fits, min(FACTORS, key=lambda k: shares[k]))

    ways = [(kind, enough(kind)) for kind in ("network", "accumulation")]
    ways += [("compression", factor) for factor in FACTORS[:2]]
    ways += [] if job.overlap else [("overlap", 1)]
    found = [
        Remedy(kind, factor, then, now.seconds / then.seconds)
        for kind, factor in ways
        for then in [CHANGES[kind](job, factor).at(nodes)]
        if now.seconds / then.seconds >= GAIN
    ]
    return sorted(found, key=lambda remedy: -remedy.faster)
