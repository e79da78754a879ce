"""The plan adds up: one master, ranks that are unique and complete, a GPU for each of them.

Why: with two ranks of one number, one that nobody has, or a master that each node takes for itself,
    all wait for the rendezvous until it times out, or each node trains alone. More ranks than GPUs
    end in "Duplicate GPU detected" or "invalid device ordinal".
Facts: found (MASTER_ADDR, MASTER_PORT, RANK, NODE_RANK, GROUP_RANK, LOCAL_RANK, WORLD_SIZE,
    LOCAL_WORLD_SIZE, SLURM_NTASKS and its kin, CUDA_VISIBLE_DEVICES, NVIDIA_VISIBLE_DEVICES: value
    and who sets it), master (what MASTER_ADDR means there), addresses (the node's own), gpus (UUIDs
    by index, which have MIG, and why they cannot be counted), container (whose environment it is,
    if one's that runs), unseen (why nothing but launch.env is known).
Source: launch.env, then the login user's non-login shell or a docker or podman container that runs;
    getaddrinfo(3), getifaddrs(3), NVML. CUDA C++ Programming Guide, CUDA_VISIBLE_DEVICES; MIG User
    Guide (a process sees one MIG device); sbatch(1); torch/distributed/run.py: torchrun gives each
    rank RANK, LOCAL_RANK and WORLD_SIZE, so nothing else need set them.
Fix: `preflight launch INVENTORY` writes commands that fit the inventory; take out of launch.env and
    the shells' start files what says otherwise.
"""

from __future__ import annotations

import ipaddress
from dataclasses import replace
from typing import Any, Callable, Iterator, Mapping, Sequence, Tuple

from preflight.api import (
    STATUSES,
    Check,
    Verdict,
    Want,
    fail,
    majority,
    ok,
    some,
    unknown,
    warn,
)
from preflight.node.container import by_hand
from preflight.node.launch import INVENTORY, wanted
from preflight.node.net import CLOSED_IN
from preflight.node.planned import CUDA, MASTER, PORT, Plan, View, plan, value, view

RANKS = ("RANK", "NODE_RANK", "GROUP_RANK")
"""What tells a node from the others. RANK may be a node's number, as Kubeflow's PyTorchJob has it,
or that of its first rank."""
PER_NODE, TASKS, JOB_NODES = "SLURM_NTASKS_PER_NODE", "SLURM_NTASKS", "SLURM_JOB_NUM_NODES"
LOOPBACK = ("127.", "::1")
OWN = "torchrun gives each rank its own"
GPUS, NAMES = ("gpu.inventory",), ("network.names",)
"""What can explain that there are too few GPUs, and that MASTER_ADDR means another node or none."""

Found = Iterator[Tuple[str, Verdict]]


# ---- judging -------------------------------------------------------------------------------


def compare(facts: Mapping[str, Plan], want: Want) -> dict[str, Verdict]:
    found: dict[str, list[Verdict]] = {node: [] for node in facts}
    for part in (masters, set_on_some, ranks, sizes, tasks, devices):
        for node, verdict in part(facts, want):
            found[node].append(verdict)
    return {node: told(facts[node], found[node], want) for node in facts}


def told(fact: Plan, found: list[Verdict], want: Want) -> Verdict:
    """Return the gravest of what was found, a fault of its own first, the rest as its details."""
    if fact["container"] and fact["unseen"]:
        found.append(unknown(fact["unseen"]))
    if found:
        worst = max(found, key=lambda v: (STATUSES.index(v.status), v.explained_by == ()))
        return replace(worst, details=tuple(v.summary for v in found if v is not worst))
    hidden = (f"no more than launch.env is seen: {fact['unseen']}",) if fact["unseen"] else ()
    nodes, each = len(want.nodes), want.get("launch.gpus_per_node", 0)
    words = "1 node" if nodes == 1 else f"{nodes} nodes"
    words += f" with {each} ranks each" if each > 1 else ""
    return ok(f"{words}, rank 0 on {want.get('launch.master')}", details=(*written(fact), *hidden))


def written(fact: Plan) -> tuple[str, ...]:
    return tuple("{}={} ({})".format(n, s["value"], s["source"]) for n, s in fact["found"].items())


def said(fact: Plan, name: str) -> str:
    """Return a variable with its value and who sets it."""
    return "{}={} ({})".format(name, value(fact, name), fact["found"][name]["source"])


def place(fact: Plan, name: str) -> str:
    """Return where a variable is set, for a fix."""
    source = fact["found"][name]["source"]
    return f"the environment of {source}" if source == fact["container"] else source


def wrong(fact: Plan, name: str, why: str, want: Want, **more: Any) -> Verdict:
    """Return the failure of a variable; what launch.env sets is the plan's fault, and no node's."""
    ours = fact["found"][name]["source"] == INVENTORY
    default = {
        "fix": f"take {name} out of {place(fact, name)}: {OWN}",
        "reproduce": by_hand(want.get("launch.container", {}), f"printenv {name}"),
        "scope": "cluster" if ours else "node",
        "explained_by": (),
    }
    return fail(f"{said(fact, name)}{why}", observed=value(fact, name), **{**default, **more})


# ---- where ranks meet ----------------------------------------------------------------------


def masters(facts: Mapping[str, Plan], want: Want) -> Found:
    """Yield what is wrong with MASTER_ADDR and MASTER_PORT."""
    port = str(want.get("launch.port"))
    for node, fact in facts.items():
        own = value(fact, PORT)
        if own and own != port:
            fix = f"set {PORT}={port} in {place(fact, PORT)}, or launch.port to {own}"
            yield node, warn(f"{PORT}={own}, launch.port is {port}", observed=own, fix=fix)
        words, say = elsewhere(node, facts, want) if value(fact, MASTER) else ("", fail)
        if words:
            ours = fact["found"][MASTER]["source"] == INVENTORY and fact["master"]
            yield (
                node,
                say(
                    f"{MASTER}={value(fact, MASTER)} {words}",
                    observed=value(fact, MASTER),
                    fix=f"set {MASTER} to an address of {want.get('launch.master')}"
                    f" in {place(fact, MASTER)}",
                    reproduce=f"getent hosts {value(fact, MASTER)}",
                    scope="cluster" if ours else "node",
                    explained_by=NAMES,
                ),
            )


def elsewhere(
    node: str, facts: Mapping[str, Plan], want: Want
) -> tuple[str, Callable[..., Verdict]]:
    """Say what MASTER_ADDR means on a node that is not the master, and how bad that is.

    What is no node's address may be a public one that leads to the master, as clouds have them.
    """
    master, means = want.get("launch.master"), set(facts[node]["master"])
    if len(want.nodes) == 1:
        return "", fail
    if not means:
        return "does not resolve here", fail
    if all(address.startswith(LOOPBACK) for address in means):
        return "" if node == master else f"is this node itself, not the master {master}", fail
    theirs = outer(facts[master]) if master in facts else set()
    if not theirs or means & theirs:
        return "", fail
    meant = next((other for other, fact in facts.items() if means & outer(fact)), "")
    if meant:
        return f"is {meant}, but the master is {master}", fail
    words = f"is no address of the master {master} ({some(sorted(theirs))})"
    return words, warn if any(ipaddress.ip_address(one).is_global for one in means) else fail


def outer(fact: Plan) -> set[str]:
    """Return the addresses of a node that others may reach."""
    return {address for address in fact["addresses"] if not address.startswith(CLOSED_IN)}


# ---- which ranks there are -----------------------------------------------------------------


def set_on_some(facts: Mapping[str, Plan], want: Want) -> Found:
    """Yield the nodes that have, or lack, unlike most what says who a node is or where all meet."""
    for name in (MASTER, *RANKS):
        having = [node for node, fact in facts.items() if value(fact, name)]
        lacking = [node for node in facts if node not in having]
        if having and lacking:
            scope = "cluster" if len(having) == len(lacking) else "node"
            for node in having if len(having) <= len(lacking) else ():
                why = f", not set on {some(lacking)}"
                yield node, wrong(facts[node], name, why, want, scope=scope)
            for node in lacking if len(lacking) < len(having) else ():
                words = f"no {name}, which is set on {some(having)}"
                fix = f"set {name} here too, or take it out there: {OWN}"
                yield node, fail(words, fix=fix, explained_by=())


def ranks(facts: Mapping[str, Plan], want: Want) -> Found:
    """Yield what is wrong with the numbers of nodes: each must be there once."""
    for name in RANKS:
        held = {node: value(fact, name) for node, fact in facts.items() if value(fact, name)}
        for node, own in held.items():
            twins = [other for other, theirs in held.items() if theirs == own and other != node]
            if len(twins) == len(facts) - 1 > 0:
                every = "both" if len(facts) == 2 else f"all {len(facts)}"
                why = f" on {every} nodes: each must have its own"
                yield node, wrong(facts[node], name, why, want, scope="cluster")
                continue
            why = misplaced(name, own, node, want)
            if not why and twins and not (own == "0" and node == want.get("launch.master")):
                why = f", which {some(twins)} has too"
            if why:
                yield node, wrong(facts[node], name, why, want)


def misplaced(name: str, own: str, node: str, want: Want) -> str:
    """Say why no node, or not this one, can have a number; nothing if it can."""
    count, master = len(want.nodes), want.get("launch.master")
    each = want.get("launch.gpus_per_node", 0) or 1
    steps = {1, each} if name == "RANK" else {1}
    right = {str(number * step) for step in steps for number in range(count)}
    if master not in want.nodes:  # the run is about a part of the plan
        return ""
    if own not in right:
        return (
            f": {count} nodes have 0 to {max(map(int, right))}" if count > 1 else ": it must be 0"
        )
    if (own == "0") != (node == master):
        return f", but the master, with 0, is {master}"
    return ""


def sizes(facts: Mapping[str, Plan], want: Want) -> Found:
    """Yield what does not fit the number of nodes, or of ranks on each."""
    count, each = len(want.nodes), want.get("launch.gpus_per_node", 0)
    total = f"{count} x {each} ranks are planned" if each else f"{count} nodes are planned"
    for node, fact in facts.items():
        whole = want.get("launch.master") in want.nodes
        if value(fact, "WORLD_SIZE") and whole and not fits(value(fact, "WORLD_SIZE"), count, each):
            yield node, wrong(fact, "WORLD_SIZE", f": {total}", want)
        if each and value(fact, "LOCAL_WORLD_SIZE") not in {"", str(each)}:
            yield node, wrong(fact, "LOCAL_WORLD_SIZE", f": launch.gpus_per_node is {each}", want)
        if each > 1 and value(fact, "LOCAL_RANK"):
            yield node, wrong(fact, "LOCAL_RANK", f" for all {each} ranks of the node", want)


def fits(world: str, nodes: int, each: int) -> bool:
    """Whether a WORLD_SIZE is the number of ranks, or of nodes where these are counted."""
    if not world.isdecimal() or int(world) == 0:
        return False
    return int(world) in {nodes, nodes * each} if each else int(world) % nodes == 0


# ---- a launcher inside a launcher ----------------------------------------------------------


def tasks(facts: Mapping[str, Plan], want: Want) -> Found:
    """Yield what is wrong with a scheduler's tasks: torchrun needs one a node."""
    each = want.get("launch.gpus_per_node", 0)
    fix = "sbatch --ntasks-per-node=1 for torchrun, as `preflight launch --sbatch` writes it"
    for node, fact in facts.items():
        name = PER_NODE if value(fact, PER_NODE) else TASKS
        here = per_node(fact, want)
        if here is None or here == 1:
            continue
        if here > 1 and each in {0, here}:
            yield (
                node,
                warn(
                    f"{said(fact, name)}: torchrun under srun would be started {here:g} times a"
                    " node, each with all the node's ranks",
                    observed=value(fact, name),
                    fix=f"{fix}; a script that srun starts without torchrun is right as it is",
                ),
            )
        else:
            right = f"1 for torchrun{f', {each} without it' if each > 1 else ''}"
            why = f": {here:g} tasks a node, right is {right}"
            yield node, wrong(fact, name, why, want, fix=fix)


def per_node(fact: Plan, want: Want) -> float | None:
    """Return the scheduler's tasks per node, None where it does not say."""
    if value(fact, PER_NODE):
        count, nodes = value(fact, PER_NODE), "1"
    else:
        count, nodes = value(fact, TASKS), value(fact, JOB_NODES) or str(len(want.nodes))
    if not (count.isdecimal() and nodes.isdecimal() and int(nodes)):
        return None
    return int(count) / int(nodes)


# ---- a GPU for each rank -------------------------------------------------------------------


def devices(facts: Mapping[str, Plan], want: Want) -> Found:
    """Yield the nodes on which ranks see fewer GPUs than they need."""
    promised, contained = want.get("launch.gpus_per_node", 0), bool(want.get("launch.container"))
    views = {n: view(fact, contained) for n, fact in facts.items() if not fact["gpus"]["problem"]}
    kinds: dict[str, list[str]] = {}
    for node, one in views.items():
        kinds.setdefault(str(one.gpus), []).append(node)
    needed = promised or int(majority(kinds) or 0)
    beside = f"the plan has {promised} ranks a node" if promised else f"most nodes see {needed}"
    for node, fact in facts.items():
        if node not in views:
            if promised:
                yield node, unknown("GPUs cannot be counted: {}".format(fact["gpus"]["problem"]))
        elif fact["gpus"]["mig"] and promised > 1 and not value(fact, CUDA):
            yield node, sliced(fact["gpus"]["mig"], promised)
        elif views[node].gpus < needed:
            yield node, too_few(fact, views[node], beside, want)


def sliced(mig: Sequence[int], promised: int) -> Verdict:
    """Return the warning of GPUs with MIG: CUDA shows a process one MIG device alone."""
    return warn(
        f"MIG is on for GPU {some([str(index) for index in mig], 8)}: "
        f"all {promised} ranks of the node would see the same MIG device",
        observed=mig,
        fix="nvidia-smi -mig 0, or set CUDA_VISIBLE_DEVICES=MIG-... for each rank in its script",
        reproduce="nvidia-smi -L",
    )


def too_few(fact: Plan, seen: View, beside: str, want: Want) -> Verdict:
    """Return the failure of a node with more ranks than GPUs that they see."""
    if seen.by:
        why = " leaves {} of {} GPUs, {}".format(seen.gpus, len(fact["gpus"]["uuids"]), beside)
        fix = f"take {seen.by} out of {place(fact, seen.by)}, or plan with launch.gpus_per_node"
        return wrong(fact, seen.by, why, want, fix=fix)
    return fail(
        f"{seen.gpus or 'no'} GPU{'' if seen.gpus == 1 else 's'}, {beside}",
        observed=seen.gpus,
        fix="see gpu.inventory; or set launch.gpus_per_node to what all nodes have",
        reproduce="nvidia-smi -L",
        explained_by=GPUS,
    )


CHECK = Check(
    probe=plan,
    args=wanted,
    compare=compare,
    explains=("collective.local", "collective.all_reduce", "collective.pairs"),
)
