"""`preflight estimate`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from preflight import estimate, measured
from preflight.cli import options
from preflight.errors import ConfigError
from preflight.estimate import Gradients, Job, Network
from preflight.measured import Bandwidth, Latency
from preflight.report import model, terminal
from preflight.report.estimate import Estimate, render
from preflight.yaml_lines import shown

POWERS = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}
MOST_PARAMETERS = 1e15
"""A thousand times what the largest models have."""
NODES = 2
_COUNT = re.compile(r"(\d[\d_]*(?:\.\d*)?(?:e\+?\d+)?) ?([KMBGT]?)", re.IGNORECASE)


F = TypeVar("F", bound=Callable[..., Any])


def parameters(ctx: click.Context, param: click.Parameter, value: str) -> float:
    """Return 7e9 for `7e9` and `7B`."""
    match = _COUNT.fullmatch(value)
    if not match:
        words = f"{shown(value)} is no number of parameters; write 7e9, 7B or 350M"
        raise click.BadParameter(words, ctx, param)
    number = float(match[1]) * POWERS[match[2].upper()]
    if not 1 <= number <= MOST_PARAMETERS:
        words = f"{shown(value)} is not a number of parameters from 1 to {MOST_PARAMETERS:g}"
        raise click.BadParameter(words, ctx, param)
    return number


def amount(
    name: str, least: float, most: float, metavar: str, text: str, **more: Any
) -> Callable[[F], F]:
    """Return an option that takes a number from a range."""
    kind = click.FloatRange(least, most)
    return click.option(
        name, type=kind, callback=options.number, metavar=metavar, help=text, **more
    )


def count(name: str, most: int, text: str, **more: Any) -> Callable[[F], F]:
    """Return an option that takes a whole number, at least 1."""
    return click.option(name, type=click.IntRange(1, most), metavar="N", help=text, **more)


@click.command(name="estimate")
@click.option(
    "--parameters",
    callback=parameters,
    required=True,
    metavar="NUMBER",
    help="Of the model, or of what is trained of it: 7e9, 7B, 350M.",
)
@click.option(
    "--dtype",
    type=click.Choice([*estimate.BYTES]),
    default="bf16",
    show_default=True,
    help="Of gradients as they are sent; fp32 under PyTorch's autocast.",
)
@count(
    "--nodes",
    estimate.MOST_NODES,
    "That train together.",
    show_default=f"those of the report, else {NODES}",
)
@count(
    "--gpus-per-node",
    1024,
    "Each with gradients of its own.",
    show_default="as in the report, else 1",
)
@amount(
    "--step-time",
    1e-4,
    86400,
    "SECONDS",
    "That a GPU computes in a step, without communication.",
)
@count("--accumulation", 10000, "Steps to one synchronisation.", default=1, show_default=True)
@amount(
    "--compression",
    1,
    10000,
    "FACTOR",
    "By which gradients are smaller when sent.",
    default=1,
    show_default=True,
)
@click.option("--overlap", is_flag=True, help="Sent while the backward pass goes on, as DDP does.")
@amount(
    "--bandwidth",
    0.001,
    100000,
    "GBPS",
    "Nominal, in Gb/s a node; all its NICs together.",
    show_default=f"as the report has it, else {estimate.GBPS:g}",
)
@amount(
    "--efficiency",
    0.01,
    1,
    "SHARE",
    "Of --bandwidth that is reached: 0.5 to 0.7 by TCP, 0.9 by RDMA.",
    show_default=f"{estimate.EFFICIENCY:g}",
)
@amount(
    "--latency",
    0,
    1000000,
    "US",
    "From node to node, in microseconds.",
    show_default=f"as the report has it, else {estimate.LATENCY_US:g}",
)
@amount(
    "--nvlink",
    0.1,
    100000,
    "GB/S",
    "Bus bandwidth among a node's GPUs, if they have NVLink: 235 of A100, 370 of H100.",
)
@click.option(
    "--from-report",
    "report_path",
    type=options.PATH,
    metavar="REPORT",
    help="Take what `preflight run --level deep --json REPORT` has measured.",
)
@amount("--days", 0.001, 100000, "DAYS", "That the job takes on one node.")
@amount("--cost", 0, 1000000, "PRICE", "Of a node for an hour; needs --days.")
@click.option("--json", "json_path", metavar="PATH", help="Write it as JSON; - is stdout.")
@options.no_color
def command(json_path: str | None, no_color: bool, **given: Any) -> int:
    """Say what synchronising gradients costs, and how many nodes still pay.

    Time of a synchronisation, its share of a step, efficiency, days and money from one node to
    --nodes, and what helps where communication is too much. Data parallel training: each GPU has
    the whole model, and batches of its own; where it is sharded, half as much again is sent.

    Exit codes: 0 told, 2 usage error.
    """
    options.see_writable(json_path)
    told = answer(given)
    if json_path != "-":
        terminal.put(lambda width, encoding: render(told, width, encoding), not no_color)
    if json_path:
        options.write(json_path, told.to_json())
    return 0


def answer(given: Mapping[str, Any]) -> Estimate:
    """Return the estimate.

    Raises:
        ConfigError: options that do not go together, or a report that tells nothing.
    """
    for option, needed in (("cost", "days"), ("days", "step_time")):
        if given[option] is not None and given[needed] is None:
            raise ConfigError(f"--{option}: needs --{needed.replace('_', '-')} too")
    path = given["report_path"]
    report = model.read(path) if path else None
    bandwidth, latency = network(given, *(seen(report, path) if report else (None, None)))
    gradients = Gradients(
        given["parameters"],
        given["dtype"],
        Network(bandwidth.gbps, latency.us),
        given["gpus_per_node"] or (report and report.want.launch.get("gpus_per_node")) or 1,
        given["nvlink"],
        given["compression"],
    )
    nodes = given["nodes"] or (len(report.nodes) if report else NODES)
    how = given["accumulation"], given["overlap"]
    return Estimate(
        gradients,
        nodes,
        Job(gradients, given["step_time"], *how) if given["step_time"] else None,
        estimate.least_step(gradients.sync(nodes).seconds, *how),
        (bandwidth.instrument, latency.instrument),
        given["days"],
        given["cost"],
    )


def seen(report: model.Report, path: Path) -> tuple[Bandwidth | None, Latency | None]:
    """Return what a report tells of the network.

    Raises:
        ConfigError: nothing.
    """
    found = measured.bandwidth(report, path), measured.latency(report, path)
    if found == (None, None):
        raise ConfigError(
            f"{path}: no bandwidth or latency was measured in this run; "
            "preflight run INVENTORY --level deep --json REPORT measures both"
        )
    return found


def network(
    given: Mapping[str, Any], bandwidth: Bandwidth | None, latency: Latency | None
) -> tuple[Bandwidth, Latency]:
    """Return what to reckon with: what is given goes before what was measured.

    Raises:
        ConfigError: a share of nothing.
    """
    if given["latency"] is not None:
        latency = Latency(given["latency"], "--latency")
    elif latency is None:
        latency = Latency(estimate.LATENCY_US, "NCCL's own figure; yours: --latency")
    if bandwidth is None or given["bandwidth"] is not None:
        nominal, share = given["bandwidth"] or estimate.GBPS, given["efficiency"]
        share = estimate.EFFICIENCY if share is None else share
        words = f"{100 * share:.3g} % of nominal {nominal:,g} Gb/s a node"
        return Bandwidth(share * nominal, words), latency
    if given["efficiency"] is not None:
        raise ConfigError(
            "--efficiency: is a share of --bandwidth; the report has what is reached, leave it out"
        )
    return bandwidth, latency
