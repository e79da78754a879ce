"""What bus bandwidth an all_reduce should reach, by what its data goes through. Pure; for judges.

busbw is what each way would have to carry in a ring, so that its line rate is that of the slowest
stage: all ports of a node together, or the way between its GPUs. Other algorithms may be above it:
NVLS adds up in NVSwitches (473 GB/s in place of 366 on eight H200), SHARP in those of the network,
and on exactly two nodes Tree sends less between them (NVIDIA/nccl-tests#196). So it is a least, and
what is above it is never judged; what is known of siblings goes beyond it.
Never on a node: what judges stays on the controller.
"""

from __future__ import annotations

from statistics import median
from typing import Mapping, NamedTuple, Sequence

from preflight.api import Verdict, fail, warn
from preflight.node.wires import RDMA, Card, Wires

SIBLINGS = 0.9
"""Of the others' median: nccl-tests fails below this part of what it is told to expect."""
LATENCY = 0.05
"""Of what a size takes at line rate: where the smallest size takes more, latency counts in it. Our
own choice: NCCL sends small sizes by protocols with a third of the latency of the large ones'."""
FAST_GBPS = 100
MORE_SOCKETS = "set NCCL_SOCKET_NTHREADS=4 and NCCL_NSOCKS_PERTHREAD=4, or have NCCL use RDMA"
"""From here one socket and thread, NCCL's default, does not fill a link; its manual's advice."""
NVLINK_GBS = ((100, 40.1), (90, 20.6), (87, 20.0), (86, 12.0), (70, 20.0), (60, 18.0))
"""GB/s each way of a link that data gets, from a compute capability on: NCCL 2.30
src/graph/topo.h, ncclTopoNVLinkBw. 86 alone, bridges of A40 and RTX 3090, has less."""
PCIE_GBS = {3: 0.75, 4: 1.5, 5: 3.0, 6: 6.0}
"""GB/s each way of a lane that data gets, by generation: topo.cc, kvDictPciGen."""


class Band(NamedTuple):
    """Parts of line rate: below the first it is a failure, the second is usual."""

    least: float
    usual: float


TCP_BAND = Band(0.5, 0.7)
"""Plain networks. 60 of a3's 100 GB/s are asked for by cluster-health-scanner."""
RDMA_BAND = Band(0.625, 0.9)
"""Of eight ports of 400G, 400 GB/s: cluster-health-scanner asks for 250 (a3ultra, a4), NVSentinel
and ROCm/cvs for 300; CoreWeave has 356 to 366 on 64 H100; sichek asks for 360 of ib_write_bw."""
NVLINK_BAND = Band(0.75, 0.95)
"""gcm asks for 180 on A100 (240 by NCCL's figures), Azure for 193 of a bridged pair of them and 228
of eight; 235 of 240 and 366 of 371 (H200 without NVLS) were measured by ml-engineering."""
PCIE_BAND = Band(0.3, 0.75)
"""NVSentinel asks for 15 (of PCIe 5.0, 48), gcm for 18 (of PCIe 4.0, 24): from one CPU to another
it is much less, and where cards cannot reach each other."""
STREAM_GBPS = 10.0
"""Gloo sends to a rank through one TCP stream, which a CPU core cannot fill far above this: 6 to 8
Gb/s were measured on two cores that three ranks shared. Faster links are not judged by it."""


class Expectation(NamedTuple):
    """GB/s of bus bandwidth, by what is the slowest on the way."""

    line: float
    """At line rate."""
    usual: float
    least: float
    source: str
    """What it was derived from: `8 x 400G`."""
    firm: bool
    """Whether less than the least is a failure: by Gloo, fast TCP or PCIe it may have to be so."""
    fix: str | None = None


class Stage(NamedTuple):
    """Ways that all data goes through."""

    gbs: float
    band: Band
    source: str
    firm: bool = True
    fix: str | None = None


def expectation(wires: Mapping[str, Wires | None], ranks: int) -> Expectation | str:
    """Return what an all_reduce of all GPUs of some nodes should reach, or why that is not known.

    Args:
        wires: by node; None: not known.
        ranks: of each node.
    """
    stages: list[Stage | str] = []
    for one in wires.values():
        if one is None:
            return "what its data goes through is not known"
        if len(wires) > 1:
            stages += [between(one, ranks), *to_gpus(one["cards"], ranks)]
        if ranks > 1:
            stages.append(inside(one["cards"], ranks))
    unknown = [stage for stage in stages if isinstance(stage, str)]
    known = [stage for stage in stages if isinstance(stage, Stage)]
    if unknown or not known:
        return unknown[0] if unknown else "one rank alone sends nothing"
    return derived(known)


def derived(known: Sequence[Stage]) -> Expectation:
    """Return what is left after all stages."""
    narrow = min(known, key=lambda stage: stage.gbs * stage.band.usual)
    return Expectation(
        line=narrow.gbs,
        usual=narrow.gbs * narrow.band.usual,
        least=min(stage.gbs * stage.band.least for stage in known),
        source=narrow.source,
        firm=all(stage.firm for stage in known),
        fix=narrow.fix,
    )


def of_gloo(link_gbps: Sequence[float]) -> Expectation | str:
    """Return what an all_reduce by Gloo should reach, or why that is not known.

    Args:
        link_gbps: of a link of each node; 0: not told.
    """
    slowest = min(link_gbps, default=0.0)
    if not slowest:
        return "the speed of the links is not told"
    stage = Stage(min(slowest, STREAM_GBPS) / 8, TCP_BAND, f"1 x {slowest:g}G TCP", firm=False)
    source = stage.source + (" by one stream" if slowest > STREAM_GBPS else "")
    return derived([stage._replace(source=source)])


def between(one: Wires, ranks: int) -> Stage | str:
    """Return the stage of a node's ports, or why their rate is not known."""
    rates = [port["gbps"] for port in one["ports"]]
    if one["unsure"] or not rates or not min(rates):
        return one["unsure"] or "the rate of its ports is not told"
    fastest = max(rates)
    count = rates.count(fastest)
    if one["by"] == RDMA:
        gpus = max(ranks, len(one["cards"]))
        used = max(1, in_use(count, gpus) * ranks // gpus)
        gbs = used * fastest / 8
        lanes = min(gbs, through_slots(one, fastest) * used / count)
        slots = f" in slots for {8 * lanes:.3g}G" if lanes < RDMA_BAND.usual * gbs else ""
        return Stage(lanes, RDMA_BAND, f"{used} x {fastest:g}G{slots}")
    is_slow, source = fastest < FAST_GBPS, f"{count} x {fastest:g}G TCP"
    return Stage(
        count * fastest / 8, TCP_BAND, source, is_slow, fix=None if is_slow else MORE_SOCKETS
    )


def to_gpus(cards: Sequence[Card], ranks: int) -> list[Stage]:
    """Return the stage between a node's ports and its GPUs, if that is known."""
    rate, slot = slowest_slot(cards)
    return [Stage(ranks * rate, RDMA_BAND, f"{ranks} x {slot} of GPUs")] if rate else []


def slowest_slot(cards: Sequence[Card]) -> tuple[float, str]:
    """Return GB/s of the GPU in the slowest slot, 0 if that is not told, and that slot."""
    rates = [
        (
            PCIE_GBS.get(card["generation"], 0.0) * card["width"],
            "PCIe {generation}.0 x{width}".format(**card),
        )
        for card in cards
    ]
    return min(rates, default=(0.0, ""))


def through_slots(one: Wires, gbps: float) -> float:
    """Return GB/s that the fastest ports get through the lanes of their cards."""
    slots: dict[str, list[tuple[float, float]]] = {}
    for port in one["ports"]:
        if port["gbps"] == gbps:
            slots.setdefault(port["slot"], []).append((port["gbps"] / 8, port["slot_gbs"]))
    return sum(
        min(sum(rate for rate, _ in ports), ports[0][1] or float("inf")) for ports in slots.values()
    )


def in_use(ports: int, gpus: int) -> int:
    """Return how many ports are for GPUs: each has as many. Others of that rate are for storage."""
    if ports >= gpus:
        return ports - ports % gpus
    return max(count for count in range(1, ports + 1) if gpus % count == 0)


def inside(cards: Sequence[Card], ranks: int) -> Stage | str:
    """Return the stage between the GPUs of a node, or why its rate is not known."""
    if len(cards) < 2:
        return "of its GPUs no links are told"
    links = max(card["links"] for card in cards)
    others = len(cards) - 1
    if links and all(len(card["peers"]) == others for card in cards):
        gbs = next((r for since, r in NVLINK_GBS if cards[0]["capability"] >= since), 0.0)
        if not gbs:
            return "the rate of its NVLinks is not told"
        if not cards[0]["is_switched"]:
            links = links * (ranks - 1) // others  # those that lead to GPUs that take part
        return Stage(links * gbs, NVLINK_BAND, f"{links} x {gbs:g} GB/s NVLink")
    if any(card["peers"] for card in cards):
        return "NVLinks lead to some of its GPUs only"
    rate, slot = slowest_slot(cards)
    return Stage(rate, PCIE_BAND, slot, firm=False) if rate else "the rate of its PCIe is not told"


def is_bound(sizes: Mapping[int, float], size: int, ranks: int, line: float) -> bool:
    """Whether latency counts in what a size takes, so that it tells little of bandwidth.

    Args:
        sizes: seconds by bytes.
        size: one of them.
        ranks: of the all_reduce.
        line: GB/s.
    """
    at_best = size / (line * 1e9) * 2 * (ranks - 1) / ranks
    return sizes[min(sizes)] > LATENCY * at_best


def verdict(
    what: str, gbs: float, expected: Expectation | str, siblings: Sequence[float] = ()
) -> Verdict | None:
    """Return what is wrong with a bandwidth; None: nothing, as far as is known.

    Args:
        what: was measured, in words.
        gbs: of bus bandwidth.
        expected: or why that is not known.
        siblings: GB/s of the same on other nodes.
    """
    if isinstance(expected, Expectation) and gbs < expected.least:
        verdict_of = fail if expected.firm else warn
        return verdict_of(
            f"{what}: expected {expected.usual:.3g} GB/s from {expected.source}, "
            f"measured {gbs:.3g}",
            observed=round(gbs, 3),
            expected=round(expected.usual, 3),
            details=(derivation(expected),),
            fix=expected.fix,
        )
    usual = median(siblings) if siblings else 0.0
    if gbs >= SIBLINGS * usual:
        return None
    beside = ", as without NVLS" if is_without_nvls(gbs, expected, usual) else ""
    return warn(
        f"{what}: measured {gbs:.3g} GB/s{beside}, {usual:.3g} are usual on the others",
        observed=round(gbs, 3),
        expected=round(usual, 3),
        details=tuple(notes(gbs, expected, 1)),
    )


def is_without_nvls(gbs: float, expected: Expectation | str, usual: float) -> bool:
    """Whether a node has what a ring has, and others more than a ring can."""
    if isinstance(expected, str):
        return False
    return SIBLINGS * expected.usual <= gbs <= expected.line < usual


def notes(gbs: float, expected: Expectation | str, nodes: int) -> list[str]:
    """Return how a bandwidth compares to what was expected, for those who ask for details."""
    if isinstance(expected, str):
        return [f"not compared with a line rate: {expected}"]
    found = [derivation(expected)]
    if gbs > expected.line and nodes == 2:
        found.append("above line rate is normal on two nodes: Tree sends less between them")
    return found


def derivation(expected: Expectation) -> str:
    """Return how an expectation was derived, in words."""
    share = 100 * expected.usual / expected.line
    return (
        f"line rate by {expected.source} is {expected.line:.3g} GB/s, "
        f"{share:.0f} % of it are usual, {expected.least:.3g} GB/s the least"
    )
