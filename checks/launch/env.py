"""The launch environment is the same on all nodes, and what it names exists on each.

Why: NCCL chooses interfaces, devices and algorithms by it. Ranks that choose differently hang in
    the first collective; a misspelt variable changes nothing, and says nothing.
Facts: settings (NCCL_*, GLOO_*, UCX_*, TORCH_*, FI_*, OFI_NCCL_*, TP_SOCKET_IFNAME, MASTER_ADDR,
    MASTER_PORT, CUDA_DEVICE_MAX_CONNECTIONS: value and who sets it; lines of nccl.conf that seem
    to set something and do not, such as `NCCL_DEBUG = INFO`; files that may not be read; whose
    they are, if a container's, and why it was not looked into), interfaces (their names), devices
    (RDMA, with the state of their ports). MASTER_ADDR and MASTER_PORT are judged by launch.plan.
Source: launch.env, the login user's non-login shell, ~/.nccl.conf of the job's user (or
    $NCCL_CONF_FILE), /etc/nccl.conf: the first who sets a variable wins, as in NCCL 2.30's
    src/misc/param.cc. Of a docker or podman container that runs, launch.env, its environment and
    its files (`docker exec`); of an image launch.env alone. /sys/class/net, /sys/class/infiniband.
Fix: set the variable once for all nodes: in launch.env, the job's script, or /etc/nccl.conf; for a
    container with --env.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Collection, Mapping

from preflight.api import (
    STATUSES,
    Check,
    Node,
    Verdict,
    Want,
    fail,
    majority,
    ok,
    same_everywhere,
    some,
    unknown,
    warn,
)
from preflight.node.container import by_hand
from preflight.node.environment import (
    HCA,
    IS_NUMBER,
    NAMING,
    PREFIXES,
    UCX,
    Environment,
    absent,
    said,
    spellings,
    value,
)
from preflight.node.launch import DISABLE, SHELL, SYSTEM_FILE, settings, tcp_only, wanted
from preflight.node.nccl import OLD, OTHERS, unread
from preflight.node.net import CLASS, entries
from preflight.node.rdma import active, devices, is_down, of_nccl

NOT_COMPARED = ("NCCL_HOSTID", "NCCL_MNNVL_UUID", "NCCL_CONF_FILE", "MASTER_ADDR", "MASTER_PORT")
"""Say something of one node, or are judged by launch.plan."""
COLLECTIVES = ("collective.local", "collective.all_reduce", "collective.pairs")
INTERFACES = ("network.interface", "network.link", "network.mtu", "network.port")
CHOOSING = (PREFIXES, "NCCL_SOCKET_FAMILY")
"""Variables that choose the interfaces of the data plane; no other one changes what is seen there.
"""
CHOOSING_TOO = ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
"""Variables that choose those of Gloo and TensorPipe."""
LOGS = ("NCCL_DEBUG", "FI_LOG_", "UCX_LOG_", "TORCH_LOGS", "TORCH_CPP_LOG")
DUMPS = ("_DUMP_FILE", "_DUMP_FILE_RANK")
"""Names that begin or end so change what is written, not what is done."""
MILD = ("NCCL_TOPO_FILE", "NCCL_GRAPH_FILE", "NCCL_IB_GID_INDEX")
"""May differ on purpose, between machines of two kinds; a difference is worth a look."""
BARRIER, CHECKED = "TORCH_DIST_INIT_BARRIER", ("TORCH_DISTRIBUTED_DEBUG", "DETAIL")
"""What of torch's makes ranks wait for each other: a barrier, and collectives that are checked by
more collectives (torch/distributed/distributed_c10d.py). The rest is a node's own business."""


def probe(node: Node, launch: Mapping[str, Any]) -> Environment:
    return Environment(
        settings=settings(node, launch),
        interfaces=[n for n in node.listdir(CLASS) or () if n != "bonding_masters"],
        devices=devices(node),
    )


def compare(facts: Mapping[str, Environment], want: Want) -> dict[str, Verdict]:
    usual = {name: usual_value(facts, name) for name in NAMING}
    found = {node: [*lacking(fact, usual), *doubts(fact)] for node, fact in facts.items()}
    seen = {node: fact for node, fact in facts.items() if not fact["settings"]["unseen"]}
    for name in sorted({n for fact in seen.values() for n in fact["settings"]["found"]}):
        if not is_free(name):
            for node, verdict in parity(seen, name, want.get("launch.container", {})).items():
                found[node].append(verdict)
    return {node: told(facts[node], verdicts) for node, verdicts in found.items()}


def told(fact: Environment, found: list[Verdict]) -> Verdict:
    """Return the gravest of what was found, the rest of what is wrong as its details."""
    wrong = [verdict for verdict in found if verdict.status not in {"pass", "skip"}]
    if wrong:
        worst = max(wrong, key=lambda verdict: STATUSES.index(verdict.status))
        rest = tuple(v.summary for v in wrong if v is not worst)
        follows = {effect for v in wrong if v.status == "fail" for effect in v.explains or ()}
        return replace(worst, details=rest, explains=tuple(sorted(follows)))
    given = fact["settings"]["found"]
    lines = ["{}={} ({})".format(n, s["value"], s["source"]) for n, s in given.items()]
    lines += [f"{name} is deprecated, {OLD[name]} is the new name" for name in given if name in OLD]
    count = {0: "no variable steers", 1: "1 variable steers"}.get(
        len(given), f"{len(given)} variables steer"
    )
    unseen = fact["settings"]["unseen"]
    if unseen:
        return ok(
            f"{count} communication in launch.env", details=(*lines, f"no more is seen: {unseen}")
        )
    return ok(count + " communication", details=tuple(lines))


def place(fact: Environment, name: str) -> str:
    """Return who sets a variable, for a fix."""
    source = fact["settings"]["found"][name]["source"]
    return environment_of(source) if source == fact["settings"]["container"] else source


def environment_of(container: str) -> str:
    """Return where the environment of a container is set, for a fix."""
    return f"the environment of {container} (its image, or --env when it is started)"


# ---- the same everywhere -------------------------------------------------------------------


def is_free(name: str) -> bool:
    """Whether a variable may differ from node to node."""
    return name in {*NOT_COMPARED, *OTHERS} or name.startswith(LOGS) or name.endswith(DUMPS)


def parity(
    facts: Mapping[str, Environment], name: str, container: Mapping[str, Any]
) -> dict[str, Verdict]:
    """Return the verdicts of one variable; not to be set is a value too.

    A name of an interface or device may differ where no other node's value would do.
    """
    known = spellings(facts, name)
    told = {node: said(fact, name) for node, fact in facts.items()}
    values = {node: own and known[own] for node, own in told.items()}
    kinds: dict[str, list[str]] = {}
    for node, own in values.items():
        kinds.setdefault(own or "", []).append(node)
    usual = majority(kinds)
    likely = kinds if usual is None else (usual,)
    compared = {n: own for n, own in values.items() if not is_forced(facts[n], name, own, likely)}
    verdicts = same_everywhere(
        compared,
        name,
        show=lambda own: str(own) or "(empty)",
        say=warn if is_mild(name, [own or "" for own in values.values()]) else fail,
        reproduce=by_hand(container, f"printenv {name}; grep -s {name} ~/.nccl.conf {SYSTEM_FILE}"),
    )
    return {
        node: replace(verdict, fix=mend(facts[node], name, verdict), explains=follows(name))
        for node, verdict in verdicts.items()
        if verdict.status in {"warn", "fail"}
    }


def follows(name: str) -> tuple[str, ...]:
    """Return the checks whose failures can follow from a wrong value of a variable."""
    if name in CHOOSING_TOO:
        return (INTERFACES[0], *COLLECTIVES)
    return (*INTERFACES, *COLLECTIVES) if name in CHOOSING else COLLECTIVES


def is_mild(name: str, values: Collection[str]) -> bool:
    """Whether a difference is worth no more than a warning.

    An empty value is as good as none to NCCL's numbers, but not to all of its words.
    """
    if name == CHECKED[0]:
        return CHECKED[1] not in {own.upper() for own in values}
    torch = name.startswith("TORCH_") and name != BARRIER
    return name in MILD or torch or not any(values)


def is_forced(fact: Environment, name: str, own: str | None, likely: Collection[str]) -> bool:
    """Whether a node must have another value, since it lacks what the others name."""
    if name not in NAMING or not own or absent(fact, name, own):
        return False
    others = [other for other in likely if other not in {"", own}]
    return bool(others) and all(absent(fact, name, other) for other in others)


def mend(fact: Environment, name: str, verdict: Verdict) -> str | None:
    """Return what gives a node the value of the others."""
    return None if verdict.scope == "cluster" else put(fact, name, verdict.expected)


def put(fact: Environment, name: str, wanted: str | None) -> str:
    """Return how a variable gets a value on a node; None: it is not to be set."""
    if wanted is None:
        return f"remove {name} from {place(fact, name)}"
    container = fact["settings"]["container"]
    if name in fact["settings"]["found"]:
        where = place(fact, name)
    else:
        where = environment_of(container) if container else SYSTEM_FILE
    if not container and (not name.startswith("NCCL_") or where == SHELL):
        where = "the shell's start files, or once for all nodes in launch.env"
    return f"set {name}={wanted} in {where}"


# ---- what is named exists ------------------------------------------------------------------


def lacking(fact: Environment, usual: Mapping[str, str | None]) -> list[Verdict]:
    """Return failures of variables that name what this node does not have."""
    found = []
    for name in NAMING:
        words = absent(fact, name, value(fact, name))
        if words:
            ports = name in {HCA, UCX}
            found.append(
                fail(
                    f"{name}={value(fact, name)} {words}",
                    observed=words,
                    expected=value(fact, name),
                    fix=instead(fact, name, usual[name]),
                    reproduce="ls /sys/class/infiniband" if ports else "ip -brief address",
                    explains=follows(name),
                )
            )
    return found


def instead(fact: Environment, name: str, usual: str | None) -> str:
    """Return how to mend a name of what is not here: as most nodes have it, if that would do."""
    if usual is None or absent(fact, name, usual):
        return f"in {place(fact, name)}, name one that this node has"
    return put(fact, name, usual or None)


def usual_value(facts: Mapping[str, Environment], name: str) -> str | None:
    """Return what more than half of the nodes have, empty where that is nothing."""
    kinds: dict[str, list[str]] = {}
    for node, fact in facts.items():
        kinds.setdefault(value(fact, name), []).append(node)
    return majority(kinds)


# ---- what does not do what it seems to -----------------------------------------------------


def doubts(fact: Environment) -> list[Verdict]:
    """Return warnings of one node."""
    given = fact["settings"]
    user = "its user" if given["container"] else "the login user"
    found = [
        warn(f"{path} may not be read by {user}: what it sets is not known")
        for path in given["unreadable"]
    ]
    if given["container"] and given["unseen"]:
        found.append(unknown(given["unseen"]))
    for line in given["idle"]:
        words = f"{line['source']} has {line['text']!r}, which sets nothing: NCCL reads NAME=VALUE"
        fix = f"write {line['meant']} there, without spaces or a word before it"
        found.append(warn(words, observed=line["text"], fix=fix))
    values = given["found"].values()
    for file in sorted({s["source"] for s in values if s["value"].endswith("\r")}):
        words = f"{file} has the line ends of Windows: NCCL takes them into the values"
        found.append(warn(words, observed=file, fix=f"take them out of {file}: sed -i 's/\\r$//'"))
    for name in given["found"]:
        words = unread(name)
        if words:
            fix = f"mend or remove {name} in {place(fact, name)}"
            found.append(warn(words, observed=name, fix=fix))
    return [*found, *on_tcp(fact)]


def on_tcp(fact: Environment) -> list[Verdict]:
    """Return warnings of RDMA that is kept from use, or is not, though it seems so."""
    found, name = [], tcp_only(fact["settings"]["found"])
    ports = active(of_nccl(fact["devices"]) if name == DISABLE else fact["devices"])
    if ports and name:
        be = "is" if len(ports) == 1 else "are"
        words = f"{name}={value(fact, name)} keeps NCCL on TCP, though {some(ports)} {be} active"
        found.append(warn(words, observed=name, fix=f"remove {name} from {place(fact, name)}"))
    disable = value(fact, DISABLE)
    if disable and not IS_NUMBER.match(disable):
        words = f"{DISABLE}={disable} disables nothing: NCCL reads a number, and a word is 0"
        fix = f"set {DISABLE}=1 in {place(fact, DISABLE)}, or remove it there"
        found.append(warn(words, observed=disable, fix=fix))
    rule = value(fact, HCA)
    down = [] if name or rule[:1] == "^" else entries(rule)
    down = [entry.lstrip("=") for entry in down if is_down(fact["devices"], entry)]
    if down:
        words = f"{HCA} names {some(down)}, which has no active port: NCCL goes without it"
        found.append(warn(words, observed=down, fix="see network.link", reproduce="ibstat"))
    return found


CHECK = Check(
    probe=probe,
    args=wanted,
    compare=compare,
    explains=(*INTERFACES, *COLLECTIVES),
)
