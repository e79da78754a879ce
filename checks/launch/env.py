"""The launch environment is the same on all nodes, and what it names exists on each.

Why: NCCL chooses interfaces, devices and algorithms by it. Ranks that choose differently hang in
    the first collective; a misspelt variable changes nothing, and says nothing.
Facts: settings (NCCL_*, GLOO_*, UCX_*, TORCH_*, FI_*, OFI_NCCL_*, MASTER_ADDR, MASTER_PORT: value
    and who sets it; files that the login user may not read), interfaces (their names), devices
    (RDMA, with the state of their ports), master (what MASTER_ADDR means there), addresses (the
    node's own, where MASTER_ADDR is set).
Source: launch.env, the non-login shell, ~/.nccl.conf (or $NCCL_CONF_FILE), /etc/nccl.conf: the
    first who sets a variable wins, as in NCCL 2.30's src/misc/param.cc; of a docker or podman
    container launch.env alone. /sys/class/net, /sys/class/infiniband, getaddrinfo(3).
Fix: set the variable once for all nodes: in launch.env, the job's script, or /etc/nccl.conf.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Collection, Mapping, TypedDict

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
    warn,
)
from preflight.node.launch import Settings, settings, wanted
from preflight.node.nccl import GONE, KNOWN, NEWEST, OLD, is_known
from preflight.node.net import CLASS, FAMILIES, entries, matches, selects
from preflight.node.rdma import Device, active, devices

PREFIXES, HCA, UCX = "NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "UCX_NET_DEVICES"
NAMES = ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
"""Whole names of interfaces, with commas; the other three have rules of their own."""
NOT_COMPARED = ("NCCL_HOSTID", "NCCL_MNNVL_UUID", "NCCL_CONF_FILE")
"""Say something of one node."""
LOGS = ("NCCL_DEBUG", "FI_LOG_", "UCX_LOG_", "TORCH_LOGS", "TORCH_CPP_LOG")
DUMPS = ("_DUMP_FILE", "_DUMP_FILE_RANK")
"""Names that begin or end so change what is written, not what is done."""
MILD = ("NCCL_TOPO_FILE", "NCCL_GRAPH_FILE", "NCCL_IB_GID_INDEX", "MASTER_PORT")
"""May differ on purpose, between machines of two kinds; a difference is worth a look."""
NEAR = 0.8
"""Of difflib's similarity: NCCL_SOCKET_IFNAM is near, a plugin's own variable is not."""
LOOPBACK = ("127.", "::1")


class Environment(TypedDict):
    settings: Settings
    interfaces: list[str]
    devices: list[Device]
    master: list[str]
    addresses: list[str]


def probe(node: Node, launch: Mapping[str, Any]) -> Environment:
    found = settings(node, launch)
    master = found["found"].get("MASTER_ADDR")
    own = node.psutil("net_if_addrs") if master else {}
    return Environment(
        settings=found,
        interfaces=[n for n in node.listdir(CLASS) or () if n != "bonding_masters"],
        devices=devices(node),
        master=node.resolve(master["value"]) if master else [],
        addresses=[
            a["address"].split("%")[0]
            for has in own.values()
            for a in has
            if a["family"] in FAMILIES
        ],
    )


def compare(facts: Mapping[str, Environment], want: Want) -> dict[str, Verdict]:
    found = {
        node: [*lacking(fact), *meeting(node, facts, want), *doubts(fact)]
        for node, fact in facts.items()
    }
    for name in sorted({n for fact in facts.values() for n in fact["settings"]["found"]}):
        if not is_free(name):
            for node, verdict in parity(facts, name).items():
                found[node].append(verdict)
    return {node: told(facts[node], verdicts) for node, verdicts in found.items()}


def told(fact: Environment, found: list[Verdict]) -> Verdict:
    """Return the gravest of what was found, the rest of what is wrong as its details."""
    wrong = [verdict for verdict in found if verdict.status not in {"pass", "skip"}]
    if wrong:
        worst = max(wrong, key=lambda verdict: STATUSES.index(verdict.status))
        return replace(worst, details=tuple(v.summary for v in wrong if v is not worst))
    given = fact["settings"]["found"]
    lines = ["{}={} ({})".format(n, s["value"], s["source"]) for n, s in given.items()]
    lines += [f"{name} is deprecated, {OLD[name]} is the new name" for name in given if name in OLD]
    count = {0: "no variable steers", 1: "1 variable steers"}.get(
        len(given), f"{len(given)} variables steer"
    )
    return ok(count + " communication", details=tuple(lines))


def value(fact: Environment, name: str) -> str:
    """Return the value of a variable, empty where it is not set."""
    setting = fact["settings"]["found"].get(name)
    return setting["value"] if setting else ""


def place(fact: Environment, name: str) -> str:
    """Return who sets a variable, for a fix."""
    return fact["settings"]["found"][name]["source"]


# ---- the same everywhere -------------------------------------------------------------------


def is_free(name: str) -> bool:
    """Whether a variable may differ from node to node."""
    return name in NOT_COMPARED or name.startswith(LOGS) or name.endswith(DUMPS)


def parity(facts: Mapping[str, Environment], name: str) -> dict[str, Verdict]:
    """Return the verdicts of one variable; not to be set is a value too.

    A name of an interface or device may differ where no other node's value would do.
    """
    values = {node: value(fact, name) or None for node, fact in facts.items()}
    kinds: dict[str, list[str]] = {}
    for node, own in values.items():
        kinds.setdefault(own or "", []).append(node)
    usual = majority(kinds)
    likely = kinds if usual is None else (usual,)
    compared = {n: own for n, own in values.items() if not is_forced(facts[n], name, own, likely)}
    own_business = name.startswith("TORCH_") and not name.startswith(("TORCH_NCCL", "TORCH_DIST"))
    verdicts = same_everywhere(
        compared,
        name,
        say=warn if name in MILD or own_business else fail,
        reproduce=f"printenv {name}; grep -s {name} ~/.nccl.conf /etc/nccl.conf",
    )
    return {n: replace(v, fix=mend(facts[n], name, v)) for n, v in verdicts.items()}


def is_forced(fact: Environment, name: str, own: str | None, likely: Collection[str]) -> bool:
    """Whether a node must have another value, since it lacks what the others name."""
    if name not in {PREFIXES, HCA, UCX, *NAMES} or own is None or absent(fact, name, own):
        return False
    others = [other for other in likely if other not in {"", own}]
    return bool(others) and all(absent(fact, name, other) for other in others)


def mend(fact: Environment, name: str, verdict: Verdict) -> str | None:
    """Return what gives a node the value of the others."""
    if verdict.status == "pass" or verdict.scope == "cluster":
        return None
    if verdict.expected is None:
        return f"remove {name} from {place(fact, name)}"
    where = place(fact, name) if name in fact["settings"]["found"] else "/etc/nccl.conf"
    if not name.startswith("NCCL_") or where == "the shell":
        where = "the shell's start files, or once for all nodes in launch.env"
    return f"set {name}={verdict.expected} in {where}"


# ---- what is named exists ------------------------------------------------------------------


def lacking(fact: Environment) -> list[Verdict]:
    """Return failures of variables that name what this node does not have."""
    found = []
    for name in (PREFIXES, HCA, UCX, *NAMES):
        words = absent(fact, name, value(fact, name))
        if words:
            ports = name in {HCA, UCX}
            found.append(
                fail(
                    f"{name}={value(fact, name)} {words}",
                    observed=words,
                    expected=value(fact, name),
                    fix=f"name one that exists in {place(fact, name)}",
                    reproduce="ls /sys/class/infiniband" if ports else "ip -brief address",
                )
            )
    return found


def absent(fact: Environment, name: str, rule: str) -> str:
    """Say what of a variable's value this node lacks; nothing if it has all."""
    here = fact["interfaces"]
    if not rule:
        return ""
    if name == HCA:
        return absent_hca(fact, rule)
    if name == PREFIXES:  # NCCL ignores one of a single character
        hit = len(rule) < 2 or any(selects(rule, interface) for interface in here)
        return "" if hit else f"matches no interface here: {some(here)}"
    words = [word.strip() for word in rule.split(",") if word.strip()]
    if name == UCX:
        here = [*here, *(device["name"] for device in fact["devices"])]
        words = [] if rule[0] == "^" else [w.split(":")[0] for w in words if w != "all"]
    lost = [word for word in words if word not in here]
    return f"names {some(lost)}, which is not here: {some(here)}" if lost else ""


def absent_hca(fact: Environment, rule: str) -> str:
    """Say what NCCL would not find; it then goes on over TCP and tells nobody."""
    if off(fact):
        return ""
    names = [device["name"] for device in fact["devices"]]
    there = some(names) if names else "no RDMA device"
    if rule.startswith("^"):
        left = any(selects(rule, name) for name in names)
        return "" if left or not names else f"leaves none of {there}"
    lost = [entry.lstrip("=") for entry in entries(rule) if not has_port(fact, entry)]
    return f"names {some(lost)}, which is not here: {there}" if lost else ""


def has_port(fact: Environment, entry: str) -> bool:
    """Whether an entry `device[:port]` of NCCL_IB_HCA means a port of this node."""
    port = [*entry.split(":"), ""][1]
    return any(
        matches(entry, device["name"])
        and (not port or any(str(p["number"]) == port for p in device["ports"]))
        for device in fact["devices"]
    )


def off(fact: Environment) -> bool:
    """Whether NCCL is told not to use RDMA."""
    return value(fact, "NCCL_IB_DISABLE") not in {"", "0"} or value(fact, "NCCL_NET") == "Socket"


# ---- where ranks meet ----------------------------------------------------------------------


def meeting(node: str, facts: Mapping[str, Environment], want: Want) -> list[Verdict]:
    """Return what is wrong with MASTER_ADDR and MASTER_PORT of a node."""
    port, expected = value(facts[node], "MASTER_PORT"), str(want.get("launch.port"))
    found = []
    if port and port != expected:
        found.append(warn(f"MASTER_PORT={port}, launch.port is {expected}", observed=port))
    address, master = value(facts[node], "MASTER_ADDR"), want.get("launch.master")
    if address and len(want.nodes) > 1:
        say, words = elsewhere(node, facts, master)
        if words:
            more = {"observed": address, "fix": f"set MASTER_ADDR to an address of {master}"}
            found.append(
                say(f"MASTER_ADDR={address} {words}", reproduce="getent hosts " + address, **more)
            )
    return found


def elsewhere(node: str, facts: Mapping[str, Environment], master: str) -> tuple[Any, str]:
    """Say what MASTER_ADDR means that is not the master, and how bad that is."""
    means = set(facts[node]["master"])
    if not means:
        return fail, "does not resolve here"
    if all(address.startswith(LOOPBACK) for address in means):
        return fail, "" if node == master else "is this node itself, not the master " + master
    if (
        master not in facts
        or not facts[master]["addresses"]
        or means & set(facts[master]["addresses"])
    ):
        return fail, ""
    for other, fact in facts.items():
        if means & {a for a in fact["addresses"] if not a.startswith(LOOPBACK)}:
            return fail, f"is {other}, but the master is {master}"
    return warn, f"is no address of the master {master}"


# ---- what does not do what it seems to -----------------------------------------------------


def doubts(fact: Environment) -> list[Verdict]:
    """Return warnings of one node."""
    found = [
        warn(f"{path} may not be read by the login user: what it sets is not known")
        for path in fact["settings"]["unreadable"]
    ]
    for name in fact["settings"]["found"]:
        words = unread(name)
        if words:
            fix = f"mend or remove {name} in {place(fact, name)}"
            found.append(warn(words, observed=name, fix=fix))
    ports = active(fact["devices"])
    if ports and off(fact):
        name = "NCCL_NET" if value(fact, "NCCL_NET") else "NCCL_IB_DISABLE"
        words = f"{name}={value(fact, name)} keeps NCCL on TCP, though {some(ports)} is active"
        found.append(warn(words, observed=name, fix=f"remove {name} from {place(fact, name)}"))
    return found


def unread(name: str) -> str:
    """Say that nobody reads a variable of this name; nothing if somebody may."""
    if name in GONE:
        since, now = GONE[name]
        return f"NCCL {since} and newer do not read {name}" + (f", but {now}" if now else "")
    if not name.startswith("NCCL_") or is_known(name):
        return ""
    import difflib  # of use on the controller only: nodes import this file too

    near = difflib.get_close_matches(name, sorted(KNOWN), 1, NEAR)
    hint = f", did you mean {near[0]}?" if near else ""
    return f"no NCCL up to {NEWEST} reads {name}{hint}"


CHECK = Check(
    probe=probe,
    args=wanted,
    compare=compare,
    explains=(
        *("network.interface", "network.link", "network.mtu", "network.port"),
        *("collective.local", "collective.all_reduce", "collective.pairs"),
    ),
)
