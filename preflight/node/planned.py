"""What a node shows of the launch plan: who is the master, which ranks, and which GPUs they see.

Sent to nodes: stdlib only, Python 3.8.
"""

from __future__ import annotations

from typing import Any, Mapping, NamedTuple, Sequence, TypedDict

from preflight.api import Address, Node
from preflight.node.launch import Given, given
from preflight.node.net import FAMILIES
from preflight.node.nvml import gpus
from preflight.node.variables import PLAN

MASTER, PORT = "MASTER_ADDR", "MASTER_PORT"
CUDA, NVIDIA = "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"
NOT_TOLD = ("", "all", "void")
"""Values of NVIDIA_VISIBLE_DEVICES that name no GPU: the container has all, or is given them in
another way (CDI). Source: NVIDIA Container Toolkit, docker-specialized."""


class Seen(TypedDict):
    """The GPUs of a node."""

    uuids: list[str]
    """By index; empty where it is not told."""
    mig: list[int]
    problem: str
    """Why they cannot be counted."""


class Plan(Given):
    """What one node shows of the plan; see launch.plan."""

    master: list[Address]
    addresses: list[Address]
    gpus: Seen


def plan(node: Node, launch: Mapping[str, Any]) -> Plan:
    """Return what a node shows of the plan."""
    known = given(node, launch, (MASTER, PORT, *PLAN))
    master = known["found"].get(MASTER)
    own = node.psutil("net_if_addrs") if master else {}
    return Plan(
        master=[Address(one) for one in node.resolve(master["value"])] if master else [],
        addresses=[
            a["address"].split("%")[0]
            for has in own.values()
            for a in has
            if a["family"] in FAMILIES
        ],
        gpus=seen(node),
        **known,
    )


def seen(node: Node) -> Seen:
    """Return the GPUs of a node; of AMD's just how many there are."""
    found = gpus(node)
    problems = [found["error"], *(one["error"] for one in found["gpus"])]
    return Seen(
        uuids=[one["uuid"] or "" for one in found["gpus"]] or [""] * len(found["amd"]),
        mig=[one["index"] for one in found["gpus"] if one["mig"]],
        problem=next(filter(None, problems), ""),
    )


def value(fact: Given, name: str) -> str:
    """Return the value of a variable, empty where it is not set."""
    return fact["found"][name]["value"] if name in fact["found"] else ""


class View(NamedTuple):
    """How many GPUs a rank sees, and the variable that leaves out the others, if one does."""

    gpus: int
    by: str


def view(fact: Plan, contained: bool) -> View:
    """Return what a rank sees of a node's GPUs.

    Args:
        fact: of the node.
        contained: whether the job runs in a container, which NVIDIA_VISIBLE_DEVICES is for.
    """
    uuids = fact["gpus"]["uuids"]
    view = View(len(uuids), "")
    if contained and value(fact, NVIDIA) not in NOT_TOLD:
        uuids = meant(value(fact, NVIDIA), uuids)
        view = View(len(uuids), NVIDIA) if len(uuids) < view.gpus else view
    if CUDA in fact["found"]:
        count = len(meant(value(fact, CUDA), uuids))
        view = View(count, CUDA) if count < view.gpus else view
    return view


def meant(rule: str, uuids: Sequence[str]) -> list[str]:
    """Return the GPUs that a list of indices and UUIDs means, up to an entry that means none.

    Of MIG devices a process sees the first one alone.
    Source: CUDA C++ Programming Guide, CUDA_VISIBLE_DEVICES; MIG User Guide.
    """
    found: list[str] = []
    for word in rule.split(","):
        entry = word.strip()
        if entry.startswith("MIG-"):
            return found or [entry]
        by_index = entry.isdecimal() and int(entry) < len(uuids)
        named = (
            [uuids[int(entry)]] if by_index else [u for u in uuids if entry and u.startswith(entry)]
        )
        if not named:
            break
        found += named[:1]
    return found
