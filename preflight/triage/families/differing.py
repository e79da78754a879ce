"""In what ranks differ that must be the same for all: network, plugin, devices, GPUDirect RDMA."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from preflight.node.nccl_cause import NO_DIRECT, NO_PLUGIN, NO_RDMA
from preflight.triage.family import Finding
from preflight.triage.rule import Kind, Rule
from preflight.triage.story import Seen, Story

RULES = (
    Rule(
        r"GPU Direct RDMA Disabled for HCA \d{1,3} '(?P<gdr_off>[\w.-]{1,40})'",
        Kind.FACT,
        says="{who} has no GPUDirect RDMA",
        source="NCCL transport/net_ib.cc, with NET among NCCL_DEBUG_SUBSYS",
    ),
    Rule(
        r"NET/IB ?: GPU Direct RDMA Enabled for HCA \d{1,3} '(?P<gdr_on>[\w.-]{1,40})'",
        Kind.FACT,
        source="NCCL transport/net_ib.cc, with NET among NCCL_DEBUG_SUBSYS",
    ),
    Rule(
        r"Channel 00(?:/\d{1,3})? : .{4,60} \[(?:send|receive)\] via "
        r"NET/IB\w{0,8}/(?P<plain>\d{1,3}(?:\(\d{1,5}\))?)\s*$",
        Kind.FACT,
        says="{who} sends without GPUDirect RDMA",
        source="NCCL transport/net.cc: the line ends with /GDRDMA where it is used",
    ),
    Rule(
        r"NET/IB ?: No device found\.",
        Kind.FACT,
        says="{who} has no RDMA device",
        source="NCCL transport/net_ib.cc since 2.4.2",
    ),
)
LACKS = RULES[-1]


def find(story: Story) -> Iterator[Finding]:
    """Yield what some ranks have and others have not."""
    yield from differing_networks(story)
    yield from without_device(story)
    yield from without_gdr(story)


def values(story: Story, fact: str) -> tuple[Counter[str], dict[str, list[Seen]]]:
    """Return how often each value of a fact was stated, and the lines of each."""
    lines: dict[str, list[Seen]] = {}
    for seen in story.stated(fact).values():
        lines.setdefault(seen.told[fact].strip(), []).append(seen)
    return Counter({value: len(some) for value, some in lines.items()}), lines


def odd_ones(counts: Counter[str], lines: dict[str, list[Seen]]) -> tuple[Seen, ...]:
    """Return a line of those that are fewer, and one of the others."""
    usual = counts.most_common(1)[0][0]
    fewer = [seen for value, some in lines.items() if value != usual for seen in some]
    return (*fewer, lines[usual][0])


def differing_networks(story: Story) -> Iterator[Finding]:
    """Yield it if some ranks use another network than the others: NCCL does not cross-check it."""
    counts, lines = values(story, "network")
    if len(counts) < 2:
        return
    evidence = odd_ones(counts, lines)
    ranks, nodes = story.owners(evidence[:-1])
    shown = ", ".join(f"{value} ({number} ranks)" for value, number in counts.most_common())
    plugin = len({value for value in counts if value.startswith(("IB", "AWS"))}) > 1
    yield Finding(
        cause="software.nccl" if plugin else "rdma.devices",
        kind=Kind.CAUSE,
        says=f"the ranks use different networks: {shown}; NCCL hangs so, without an error",
        confidence=0.9,
        fix=NO_PLUGIN if plugin else NO_RDMA,
        evidence=evidence,
        ranks=ranks,
        nodes=nodes,
        confirm="ldconfig -p | grep nccl-net on each node"
        if plugin
        else "ibv_devinfo on each node",
        checks=("rdma.devices", "rdma.port", "software.nccl", "launch.env"),
    )


def without_device(story: Story) -> Iterator[Finding]:
    """Yield it if some ranks find no RDMA device, and others have one."""
    lack = story.of_rule(LACKS)
    have = story.stated("hcas")
    lacking = {story.whose(seen.who) for seen in lack}
    others = [seen for who, seen in have.items() if who not in lacking]
    if not lack or not others or story.stated("complete"):
        return
    ranks, nodes = story.owners(tuple(lack))
    yield Finding(
        cause="rdma.devices",
        kind=Kind.SYMPTOM,
        says=f"{len(lacking)} ranks find no RDMA device, and {len(others)} have one",
        confidence=0.6,
        fix="ibv_devinfo on these nodes; in containers --device=/dev/infiniband",
        evidence=(lack[0], others[0]),
        ranks=ranks,
        nodes=nodes,
        checks=("rdma.port",),
    )


def without_gdr(story: Story) -> Iterator[Finding]:
    """Yield it if GPUDirect RDMA is off on some nodes and used on others."""
    off = story.stated("gdr_off")
    plain = story.stated("plain")
    on = story.stated("gdr_on")
    lines = (*off.values(), *plain.values())
    if not off or not (on or plain):
        return
    ranks, nodes = story.owners(tuple(off.values()))
    yield Finding(
        cause="rdma.gdr",
        kind=Kind.SYMPTOM,
        says="GPUDirect RDMA is off on some ranks and on for others: these have half the bandwidth",
        confidence=0.6,
        fix=NO_DIRECT,
        evidence=lines,
        ranks=ranks,
        nodes=nodes,
        confirm="lsmod | grep peermem on each node",
    )
