"""Rules of iptables, of both kinds, in the form of `netfilter.py`. Sent to nodes: Python 3.8.

Source: iptables-save(8), iptables-extensions(8) of 1.8.
"""

from __future__ import annotations

import shlex
from typing import Sequence

from preflight.node.netfilter import (
    ACCEPT,
    DROP,
    GOTO,
    JUMP,
    REDIRECT,
    REJECT,
    RETURN,
    UNCLEAR,
    UNTRACKED,
    Rule,
    Table,
    Test,
    chain,
    obscure,
    only,
)

PRIORITIES = {"raw": -300, "mangle": -150, "nat": -100, "filter": 0, "security": 50}
SOURCE_NAT = 100
"""Priorities of linux/netfilter_ipv4.h; nat's is another one where packets leave."""
TARGETS = {
    **{"ACCEPT": ACCEPT, "DROP": DROP, "REJECT": REJECT, "RETURN": RETURN},
    **{"REDIRECT": REDIRECT, "DNAT": REDIRECT, "TPROXY": REDIRECT},
    **{"MASQUERADE": ACCEPT, "SNAT": ACCEPT, "NOTRACK": UNTRACKED, "CT": UNTRACKED},
}
IDLE = (
    *("LOG", "NFLOG", "ULOG", "TRACE", "AUDIT", "MARK", "CONNMARK", "SECMARK", "CONNSECMARK"),
    *("TCPMSS", "CHECKSUM", "SET", "CLASSIFY", "DSCP", "TOS", "ECN", "TTL", "HL"),
)
"""Targets after which a packet goes on to the next rule."""
MODULES = ("tcp", "multiport", "conntrack", "state", "comment", "iprange", "addrtype")
"""Matches all of whose options that are not below are not understood; others never are."""
KEYS = {
    **{"-s": "saddr", "-d": "daddr", "-i": "iif", "-o": "oif", "-p": "l4proto"},
    **{"--src-range": "saddr", "--dst-range": "daddr"},
    **{"--dport": "dport", "--sport": "sport", "--dports": "dport", "--sports": "sport"},
    **{"--ctstate": "state", "--state": "state", "--ctstatus": "status"},
    **{"--src-type": "saddrtype", "--dst-type": "daddrtype"},
}
NUMBERS = {"6": "tcp"}
COMMENT = "--comment"


def tables(text: str, program: str) -> list[Table]:
    """Return the tables that a program like iptables-save wrote."""
    family = "ip6" if program.startswith("ip6") else "ip"
    found: list[Table] = []
    for line in text.splitlines():
        if line.startswith("*"):
            found.append(Table(program=program, family=family, name=line[1:].strip(), chains={}))
        elif found and line.startswith(":"):
            name, policy = line[1:].split()[:2]
            hook = name.lower() if name.isupper() and policy != "-" else ""
            policy = DROP if policy == "DROP" else ACCEPT
            found[-1]["chains"][name] = chain(hook, priority(found[-1]["name"], hook), policy)
        elif found and line.startswith("-A "):
            add(found[-1], line)
    return found


def priority(table: str, hook: str) -> int:
    """Return at which priority a chain of a table sees packets."""
    leaving = table == "nat" and hook in ("input", "postrouting")
    return SOURCE_NAT if leaving else PRIORITIES.get(table, 0)


def add(table: Table, line: str) -> None:
    """Add a rule to its chain, if it decides anything."""
    words = shlex.split(line)
    while COMMENT in words:  # it may look like anything
        place = words.index(COMMENT)
        del words[place : place + 2]
    verdict, target, until = UNCLEAR, "", len(words)
    for flag in ("-j", "-g"):
        if flag in words:
            until = words.index(flag)
            verdict, target = decision(table, flag, words[until + 1])
            break
    else:
        return
    if verdict:
        rule = Rule(text=line, tests=tests(words[2:until]), verdict=verdict, target=target)
        table["chains"][words[1]]["rules"].append(rule)


def decision(table: Table, flag: str, name: str) -> tuple[str, str]:
    """Return the verdict of a target, and the chain if it is one; nothing where it decides none."""
    if name in table["chains"]:
        return (JUMP if flag == "-j" else GOTO), name
    return ("" if name in IDLE else TARGETS.get(name, UNCLEAR)), ""


def tests(words: Sequence[str]) -> list[Test]:
    """Return what a rule tests."""
    found, rest, differs = [], list(words), False
    while rest:
        word = rest.pop(0)
        if word == "!":
            differs = True
            continue
        values = []
        while rest and not rest[0].startswith("-") and rest[0] != "!":
            values.append(rest.pop(0))
        one = test(word, values)
        if one:
            one["differs"] = differs
            found.append(one)
        differs = False
    return found


def test(option: str, values: Sequence[str]) -> Test | None:
    """Return what one option tests, None if nothing."""
    value = values[0] if values else ""
    if option == "-m" and value in MODULES:
        return None
    if option == "--tcp-flags" and len(values) == 2:
        mask, set_ = (one.lower() for one in values)
        return only("flags", "{}/{}".format(mask, "" if set_ == "none" else set_))
    key = KEYS.get(option)
    if key is None or len(values) != 1:
        return obscure()
    if key in ("iif", "oif"):
        return only(key, value[:-1] + "*" if value.endswith("+") else value)
    if key in ("sport", "dport"):
        return only(key, *(ports(one) for one in value.split(",")))
    parts = value.lower().split(",")
    return only(key, *(NUMBERS.get(one, one) for one in parts))


def ports(value: str) -> str:
    """Return a port or a range of ports, either end of which may be left out."""
    low, colon, high = value.partition(":")
    return f"{low or 0}-{high or 65535}" if colon else value
