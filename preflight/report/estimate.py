"""What synchronising gradients costs, for people; see `estimated.py` for it as data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from rich.cells import cell_len
from rich.text import Text

from preflight.estimate import (
    BACKWARD,
    MOST_NODES,
    MUCH,
    WORTH,
    Gradients,
    Job,
    Remedy,
    Step,
    money,
    remedies,
    sizes,
)
from preflight.report.estimated import SCHEMA, EstimateModel
from preflight.report.page import INDENT, Page

GAP = 2
"""Between columns."""
BYTE_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
COUNT_UNITS = ("", "K", "M", "B", "T")
UNTIL = ((1e-3, 1e6, "us"), (1.0, 1e3, "ms"), (600.0, 1.0, "s"), (3600.0, 1 / 60, "min"))
"""Seconds below which a unit is used, and how many of it a second has."""
CAREFUL = (
    "Accumulation makes the batch larger and compression loses precision: see that the model still "
    "learns."
)


@dataclass(frozen=True)
class Estimate:
    """What was asked, and what is known to answer it."""

    gradients: Gradients
    nodes: int
    job: Job | None
    """None if nobody said how long a step computes."""
    least_step_s: float
    """That a step must compute so that communication is not much."""
    sources: tuple[str, str]
    """Where bandwidth and latency are from."""
    days: float | None = None
    """Of the job on one node."""
    hourly: float | None = None
    """What a node costs."""

    def to_json(self) -> str:
        """Return all of it as JSON."""
        gradients, job = self.gradients, self.job
        sync = gradients.sync(self.nodes)
        bandwidth, latency = self.sources
        found: dict[str, Any] = {
            "schema": SCHEMA,
            "gradients": asdict(gradients),
            "sources": {"bandwidth": bandwidth, "latency": latency},
            "nodes": self.nodes,
            "synchronisation": {
                "bytes": gradients.size,
                "seconds": sync.seconds,
                **sync._asdict(),
                "hierarchical": gradients.is_hierarchical,
            },
            "least_step_s": self.least_step_s,
        }
        if job:
            found |= {
                "step_s": job.step_s,
                "accumulation": job.accumulation,
                "overlap": job.overlap,
                "share": {
                    "with_overlap": replace(job, overlap=True).at(self.nodes).share,
                    "without_overlap": replace(job, overlap=False).at(self.nodes).share,
                },
                "scaling": [self.row(job.at(count)) for count in sizes(self.nodes)],
                "next_node_adds": job.added(self.nodes + 1),
                "last_node_worth": job.last_worth(),
                "remedies": [
                    {**remedy._asdict(), "step": self.row(remedy.step)}
                    for remedy in remedies(job, self.nodes)
                ],
            }
        return EstimateModel.model_validate(found).to_json()

    def row(self, step: Step) -> dict[str, float | None]:
        """Return a step with the days and the money that it comes to."""
        days = None if self.days is None else step.days(self.days)
        known = days is not None and self.hourly is not None
        cost = money(days or 0.0, step.nodes, self.hourly or 0.0) if known else None
        return {**step._asdict(), "days": days, "cost": cost}


def render(estimate: Estimate, width: int, encoding: str = "utf-8") -> Text:
    """Return the estimate's lines."""
    page = Page(width, encoding)
    gradients, nodes = estimate.gradients, estimate.nodes
    page.wrap(f"{counted(gradients.parameters)} parameters, {where(gradients, nodes)}", indent=0)
    synchronisation(page, estimate)
    if estimate.job:
        step(page, estimate, estimate.job)
        scaling(page, estimate, estimate.job)
        next_node(page, estimate.job, nodes)
        advice(page, remedies(estimate.job, nodes))
    elif estimate.least_step_s:
        page.blank()
        page.wrap(
            f"Communication stays below {percent(MUCH)} of the time where a step computes for"
            f" {duration(estimate.least_step_s)} or more; --step-time tells the rest.",
            indent=0,
        )
    return page.text()


def where(gradients: Gradients, nodes: int) -> str:
    """Return between whom gradients go."""
    gpus = f" of {gradients.gpus_per_node} GPUs" if gradients.gpus_per_node > 1 else ""
    return f"{nodes:,} node{'s' * (nodes > 1)}{gpus}"


def synchronisation(page: Page, estimate: Estimate) -> None:
    """Write what one synchronisation takes, and why."""
    gradients, nodes = estimate.gradients, estimate.nodes
    sync, size = gradients.sync(nodes), scaled(gradients.size, BYTE_UNITS, " ")
    compressed = f", compressed {three(gradients.compression)} x" * (gradients.compression != 1)
    if not sync.seconds:
        page.title("One GPU alone has nothing to synchronise")
        return
    page.title(f"A synchronisation takes {duration(sync.seconds)}")
    page.wrap(f"{size} of {gradients.dtype}{compressed}", "gradients")
    if nodes > 1:
        page.wrap(f"{duration(sync.network_s)}, {way(gradients, nodes)}", "network  ")
    if sync.inside_s:
        speed = f"{three(gradients.inside / 1e9)} GB/s"
        by = "NVLink" if gradients.nvlink_gbs else "PCIe; for NVLink: --nvlink GB/s"
        page.wrap(f"{duration(sync.inside_s)}, among the GPUs at {speed} ({by})", "in a node")
    if nodes > 1:
        steps = 2 * (nodes - 1)
        each = f"{three(gradients.network.latency_us)} us"
        page.wrap(
            f"{duration(sync.latency_s)}, {steps:,} steps of {each}: {estimate.sources[1]}",
            "latency  ",
        )
        page.wrap(estimate.sources[0], "bandwidth")


def way(gradients: Gradients, nodes: int) -> str:
    """Return how gradients go from node to node."""
    rate = f"{three(gradients.between * 8 / 1e9)} Gb/s"
    if gradients.is_hierarchical:
        return f"2(n-1)/n of it in a ring of {nodes:,} nodes at {rate}"
    gpus = gradients.gpus_per_node
    members = f"{nodes * gpus:,} GPUs" if gpus > 1 else f"{nodes:,} nodes"
    slow = ", which is PCIe's; for NVLink: --nvlink GB/s"
    return f"2(n-1)/n of it in a ring of {members} at {rate}" + slow * (
        gradients.between < gradients.network.rate
    )


def step(page: Page, estimate: Estimate, job: Job) -> None:
    """Write what a step takes, and how much of it is communication."""
    now = job.at(estimate.nodes)
    other = replace(job, overlap=not job.overlap).at(estimate.nodes).share
    how = "without overlap" if job.overlap else "with overlap"
    hides = f", which hides {duration(BACKWARD * job.step_s)} at most" if job.overlap else ""
    each = f", one synchronisation in {job.accumulation}" if job.accumulation > 1 else ""
    page.title(f"A step takes {duration(now.seconds)}, {percent(now.share)} of it communication")
    words = f"{duration(job.step_s)} computing{hides}{each}"
    compared = f"; {how} {percent(other)} would be communication" if now.sync_s else ""
    page.wrap(words + compared)


def scaling(page: Page, estimate: Estimate, job: Job) -> None:
    """Write what comes of more nodes."""
    rows = [["nodes", "sync", "step", "comm.", "efficiency", "speed-up"]]
    rows[0] += ["days"] * (estimate.days is not None) + ["cost"] * (estimate.hourly is not None)
    for count in sizes(estimate.nodes):
        one = job.at(count)
        sums = estimate.row(one)
        rows.append(
            [
                f"{count:,}",
                *(duration(one.sync_s), duration(one.seconds)),
                *(percent(one.share), percent(one.efficiency), f"{one.speed_up:.2f}"),
                *(few(value) for key in ("days", "cost") if (value := sums[key]) is not None),
            ]
        )
    page.blank()
    table(page, rows)


def next_node(page: Page, job: Job, nodes: int) -> None:
    """Write when another node no longer pays."""
    last, now = job.last_worth(), job.at(nodes)
    page.blank()
    if now.speed_up < 1:
        page.wrap(f"{nodes:,} nodes do less than one alone.", indent=0, style="bold red")
    added = job.added(nodes + 1)
    verb = "add" if added >= 0 else "take away"
    words = f"Node {nodes + 1:,} would {verb} {abs(added):.2f} of what one does alone. "
    if last == MOST_NODES:
        words += f"Node {last:,} would still add {job.added(last):.2f}."
    elif last == 1:
        words += f"None adds {WORTH:g}: more nodes do not pay as things are."
    else:
        words += f"From node {last + 1:,} on it is less than {WORTH:g}: they no longer pay."
    page.wrap(words, indent=0)


def advice(page: Page, ways: Sequence[Remedy]) -> None:
    """Write what to do about much communication."""
    if not ways:
        return
    page.title(f"More than {percent(MUCH)} is communication. What would help, each alone:")
    rows = [["", "step", "comm.", "as fast"]]
    rows += [
        [
            in_words(one),
            duration(one.step.seconds),
            percent(one.step.share),
            f"{one.faster:.2f} x",
        ]
        for one in ways
    ]
    table(page, rows, left=1)
    page.wrap(CAREFUL, indent=0, style="dim")


def in_words(one: Remedy) -> str:
    """Return what is to be done."""
    return {
        "network": f"a network {one.factor} x as fast",
        "accumulation": f"accumulation over {one.factor} x as many steps",
        "compression": f"compression {one.factor} x",
        "overlap": "overlap with the backward pass",
    }[one.kind]


def table(page: Page, rows: Sequence[Sequence[str]], left: int = 0) -> None:
    """Write columns, the first `left` of them flush left; the first row is a heading."""
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    for place, row in enumerate(rows):
        cells = (
            text.ljust(width) if at < left else text.rjust(width)
            for at, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        page.line((" " * INDENT + (" " * GAP).join(cells), "" if place else "dim"))


def three(value: float) -> str:
    """Return a number with three digits that count."""
    return f"{float(f'{value:.3g}'):,.12g}"


def few(value: float) -> str:
    """Return days or money."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else three(value)


def percent(share: float) -> str:
    """Return a share for people."""
    return f"{100 * share:.0f} %"


def scaled(value: float, units: Sequence[str], gap: str = "") -> str:
    """Return a number with the unit in which it is short."""
    place = 0
    while value >= 1000 and place < len(units) - 1:
        value, place = value / 1000, place + 1
    return f"{three(value)}{gap}{units[place]}"


def counted(parameters: float) -> str:
    """Return how many parameters there are."""
    return scaled(parameters, COUNT_UNITS)


def duration(seconds: float) -> str:
    """Return a time for people."""
    for most, factor, unit in UNTIL:
        if seconds < most:
            return f"{three(seconds * factor)} {unit}" if seconds else "0"
    return f"{three(seconds / 3600)} h"
