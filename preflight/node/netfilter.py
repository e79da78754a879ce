"""Packet filters of a node, as rules of one form whoever wrote them. Sent to nodes: Python 3.8.

What nft says in JSON and iptables in lines becomes the same: chains of rules, each with tests and
a verdict. A test whose key is empty, and the verdict `unclear`, stand for what is not understood;
what follows from them is left open (`fate.py`), never guessed.
"""

from __future__ import annotations

import json
from typing import Any, TypedDict

from preflight.api import Node, Unobservable

HOOKS = ("ingress", "prerouting", "input", "output", "postrouting")
"""Those that a packet from or to this node itself passes; what is forwarded is nobody's rank."""
ACCEPT, DROP, REJECT, RETURN = "accept", "drop", "reject", "return"
JUMP, GOTO, REDIRECT, UNCLEAR = "jump", "goto", "redirect", "unclear"
UNTRACKED = "notrack"
"""A verdict that ends nothing; from then on the state of connections is another one."""
FIREWALLD, FIREWALLD_CHAIN, UFW = "firewalld", "INPUT_ZONES", "ufw"
"""Who writes rules of nft or iptables; a table of firewalld in nft has its name."""
IPTABLES_CHAINS = ("PREROUTING", "INPUT", "OUTPUT", "POSTROUTING")
MODULES = "/lib/modules/{}/kernel/net/netfilter"
NF_TABLES = "nf_tables"


class Test(TypedDict):
    """What a packet must be for a rule to match."""

    key: str
    """saddr, daddr, sport, dport, iif, oif, l4proto, nfproto, state or flags; empty: not
    understood."""
    differs: bool
    """Whether it must be none of the values."""
    values: list[str]
    """One or a range (`1-9`), a network (`10.0.0.0/8`), a name or the begin of one (`eth*`); of
    flags, those that are looked at, `/`, and those that are to be set."""


class Rule(TypedDict):
    """One rule that decides something."""

    text: str
    """As it is written, but for counters and logs."""
    tests: list[Test]
    verdict: str
    target: str
    """The chain of a jump or goto."""


class Chain(TypedDict):
    """A chain; one that has a hook is where packets come in."""

    hook: str
    priority: int
    policy: str
    device: str
    """Of ingress: the only interface that it is for."""
    rules: list[Rule]


class Table(TypedDict):
    """A table, and by which program it is written."""

    program: str
    """`nft`, `iptables`, `ip6tables`, or either of them with `-legacy`."""
    family: str
    """ip, ip6, inet or netdev."""
    name: str
    chains: dict[str, Chain]


def chain(hook: str = "", priority: int = 0, policy: str = ACCEPT, device: str = "") -> Chain:
    """Return a chain without rules."""
    return Chain(hook=hook, priority=priority, policy=policy, device=device, rules=[])


def only(key: str, *values: str) -> Test:
    """Return the test that something is one of some values."""
    return Test(key=key, differs=False, values=list(values))


def obscure() -> Test:
    """Return a test that is not understood."""
    return only("")


def writer(table: Table) -> str:
    """Return which program has written a table, and would write the next rule of it."""
    chains = table["chains"]
    if table["name"] == FIREWALLD or FIREWALLD_CHAIN in chains:
        return FIREWALLD
    if any(name.startswith(f"{UFW}-") for name in chains):
        return UFW
    if table["program"] == "nft" and any(name in IPTABLES_CHAINS for name in chains):
        return "ip6tables" if table["family"] == "ip6" else "iptables"
    return table["program"]


def within_reach(table: Table) -> Table:
    """Return a table with those of its chains that a packet from or to this node may come to."""
    chains = table["chains"]
    waiting = [name for name, one in chains.items() if one["hook"] in HOOKS]
    found: dict[str, Chain] = {}
    while waiting:
        name = waiting.pop()
        if name in chains and name not in found:
            found[name] = chains[name]
            waiting += [rule["target"] for rule in chains[name]["rules"] if rule["target"]]
    return Table(program=table["program"], family=table["family"], name=table["name"], chains=found)


# ---- asking --------------------------------------------------------------------------------


def is_idle(node: Node) -> bool:
    """Whether nf_tables is a module that is not loaded: nft would load it, and there is no rule."""
    files = node.listdir(MODULES.format(node.uname()["release"])) or ()
    loadable = any(file.startswith(f"{NF_TABLES}.ko") for file in files)
    return loadable and node.listdir(f"/sys/module/{NF_TABLES}") is None


def asked(node: Node, *argv: str) -> str:
    """Return what a program says.

    Raises:
        Unobservable: there is no such program, or it failed, in its own words.
    """
    ran = node.run(argv)
    if ran.code:
        lines = (ran.err or ran.out).strip().splitlines()
        raise Unobservable(f"{argv[0]}: {lines[0] if lines else f'exit code {ran.code}'}")
    return ran.out


def ruleset(node: Node, unread: list[str]) -> list[dict[str, Any]]:
    """Return nft's objects in JSON; tables that are too large are left out and told.

    Source: libnftables-json(5), nft >= 0.9.
    """
    whole = parsed(asked(node, "nft", "-j", "list", "ruleset"))
    if whole is not None:
        return whole
    found = []
    for one in parsed(asked(node, "nft", "-j", "list", "tables")) or ():
        table = one.get("table")
        if table:
            words = table["family"], table["name"]
            part = parsed(asked(node, "nft", "-j", "list", "table", *words))
            if part is None:
                unread.append("table {} {} is too large to be read".format(*words))
            found += part or []
    return found


def parsed(text: str) -> list[dict[str, Any]] | None:
    """Return the objects in nft's answer, None if it was cut off."""
    try:
        found: list[dict[str, Any]] = json.loads(text)["nftables"]
    except ValueError:
        return None
    return found


def saved(node: Node, *programs: str) -> str:
    """Return the tables of iptables as the first program that exists writes them.

    Raises:
        Unobservable: there is none, or it failed.
    """
    found = next(filter(node.which, programs), None)
    if found is None:
        raise Unobservable(f"no program {programs[0]!r}")
    return asked(node, found)
