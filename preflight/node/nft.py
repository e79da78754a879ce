"""Rules of nftables in the form of `netfilter.py`. Sent to nodes: Python 3.8.

Source: libnftables-json(5).
"""

from __future__ import annotations

import json
from typing import Any, Mapping, Sequence

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

FAMILIES = ("ip", "ip6", "inet", "netdev")
VERDICTS = {
    **{"accept": ACCEPT, "drop": DROP, "return": RETURN, "jump": JUMP, "goto": GOTO},
    **{"reject": REJECT, "redirect": REDIRECT, "dnat": REDIRECT, "tproxy": REDIRECT},
    **{"masquerade": ACCEPT, "snat": ACCEPT, "queue": UNCLEAR, "synproxy": UNCLEAR},
    **{"fwd": UNCLEAR, "notrack": UNTRACKED, "continue": ""},
}
IDLE = ("counter", "log", "comment", "last", "dup", "flow", "mangle")
"""Statements that let a packet go on as it is; a test of what they mark is not understood."""
META = {
    **{"iifname": "iif", "iif": "iif", "oifname": "oif", "oif": "oif"},
    **{"l4proto": "l4proto", "nfproto": "nfproto", "protocol": "nfproto", "pkttype": "pkttype"},
}
PAYLOAD = {
    ("ip", "saddr"): "saddr",
    ("ip", "daddr"): "daddr",
    ("ip", "protocol"): "l4proto",
    ("ip6", "saddr"): "saddr",
    ("ip6", "daddr"): "daddr",
    ("ip6", "nexthdr"): "l4proto",
    ("tcp", "dport"): "dport",
    ("tcp", "sport"): "sport",
    ("th", "dport"): "dport",
    ("th", "sport"): "sport",
}
CONNECTION = ("state", "status", "direction")
FIB = {("type", "saddr"): "saddrtype", ("type", "daddr"): "daddrtype"}
VERSIONS = {"ip": "ipv4", "ip6": "ipv6"}
LINK = ("ether", "vlan", "arp")
WORDS = {"6": "tcp", "ip": "ipv4", "ip6": "ipv6", "2": "ipv4", "10": "ipv6"}
"""Numbers and names of other layers that mean a protocol."""
TOP = 65535
LONGEST = 200
"""Characters of a rule that are shown."""


def tables(objects: Sequence[Mapping[str, Any]]) -> list[Table]:
    """Return the tables of a ruleset, those of bridges and ARP left out."""
    found: dict[tuple[str, str], Table] = {}
    sets: dict[tuple[str, str], dict[str, list[Any]]] = {}
    for thing in objects:
        ((kind, one),) = thing.items()
        where = one.get("family", ""), one.get("table", one.get("name", ""))
        if where[0] not in FAMILIES:
            continue
        if kind == "table":
            found[where] = Table(program="nft", family=where[0], name=where[1], chains={})
        elif kind in ("set", "map"):
            sets.setdefault(where, {})[one["name"]] = one.get("elem", [])
        elif kind == "chain":
            found[where]["chains"][one["name"]] = headed(one)
        elif kind == "rule":
            rules = Statement(one["expr"], sets.get(where, {})).ends
            found[where]["chains"][one["chain"]]["rules"] += rules
    return list(found.values())


def headed(one: Mapping[str, Any]) -> Any:
    """Return a chain without its rules."""
    device = one.get("dev", "")
    return chain(
        one.get("hook", ""),
        one.get("prio", 0),
        one.get("policy", ACCEPT),
        device if isinstance(device, str) else ",".join(device),
    )


def managed_by_iptables(objects: Sequence[Mapping[str, Any]]) -> set[tuple[str, str]]:
    """Return the tables with rules of iptables in them, which nft does not show in whole."""
    rules = (thing["rule"] for thing in objects if "rule" in thing)
    return {
        (one["family"], one["table"])
        for one in rules
        if any(expression and "xt" in expression for expression in one["expr"])
    }


class Statement:
    """A rule of nft: its expressions, and the sets and maps of its table."""

    def __init__(self, expressions: Sequence[Any], sets: Mapping[str, list[Any]]) -> None:
        self.sets = sets
        self.tests: list[Test] = []
        self.words: list[str] = []
        self.ends: list[Rule] = []
        """What it decides: one rule, of a map one for each entry, or none."""
        for expression in expressions:
            ((kind, inner),) = expression.items()
            self.take(kind, inner)

    def take(self, kind: str, inner: Any) -> None:
        """Take one expression."""
        if kind == "match":
            self.match(inner)
        elif kind == "vmap":
            self.choose(inner)
        elif kind in VERDICTS:
            self.end(kind, inner)
        elif kind not in IDLE or (kind == "mangle" and "payload" in inner["key"]):
            self.tests.append(obscure())
            self.words.append(short({kind: inner}))

    def match(self, inner: Mapping[str, Any]) -> None:
        """Take a match."""
        left, right, op = inner["left"], inner["right"], inner["op"]
        self.tests += tests_of(left, op, self.listed(right))
        plain = op == "in" or (op == "==" and "&" not in left)
        self.words.append(f"{written(left)} {'' if plain else f'{op} '}{written(right)}")

    def choose(self, inner: Mapping[str, Any]) -> None:
        """Take a map from values to verdicts: one rule for each."""
        data = inner["data"]
        entries = self.sets.get(data[1:]) if isinstance(data, str) else data.get("set")
        before = [*self.tests], [*self.words]
        for value, verdict in entries or ():
            self.tests, self.words = [*before[0]], [*before[1]]
            self.match({"left": inner["key"], "op": "==", "right": value})
            ((kind, more),) = verdict.items()
            self.end(kind, more)
        if entries is None:
            self.tests.append(obscure())
            self.end("queue", None)

    def end(self, kind: str, inner: Any) -> None:
        """Take a verdict."""
        verdict = VERDICTS.get(kind, UNCLEAR)
        target = inner["target"] if verdict in (JUMP, GOTO) else ""
        words = " ".join([*self.words, decided(kind, inner)])[:LONGEST]
        if verdict:
            self.ends.append(Rule(text=words, tests=self.tests, verdict=verdict, target=target))

    def listed(self, right: Any) -> list[Any]:
        """Return the values that a match compares with."""
        if isinstance(right, str) and right.startswith("@"):
            return self.sets.get(right[1:], [None])
        if isinstance(right, dict) and "set" in right:
            return list(right["set"])
        return right if isinstance(right, list) else [right]


def tests_of(left: Any, op: str, values: Sequence[Any]) -> list[Test]:
    """Return what a match tests, with what its field implies."""
    if isinstance(left, dict) and "&" in left and is_flags(left["&"][0]):
        mask = left["&"][1]
        wanted = [f"{joined(mask)}/{joined(values)}"]
        return [only("l4proto", "tcp"), Test(key="flags", differs=op == "!=", values=wanted)]
    if is_flags(left) and op == "in":  # any of them
        each = [f"{one}/{one}" for one in joined(values).split(",")]
        return [only("l4proto", "tcp"), only("flags", *each)]
    if not isinstance(left, dict) or len(left) != 1:
        return [obscure()]
    ((kind, inner),) = left.items()
    key, implied = field(kind, inner)
    found = [valued(value) for value in values]
    if op in (">=", ">", "<=", "<"):
        found = bounded(op, found) if key in ("dport", "sport") else [None]
    if not key or None in found or op not in ("==", "!=", "in", "!", ">=", ">", "<=", "<"):
        return [*implied, obscure()]
    kept = [WORDS.get(str(v), str(v)) if key in ("l4proto", "nfproto") else str(v) for v in found]
    return [*implied, Test(key=key, differs=op in ("!=", "!"), values=kept)]


def field(kind: str, inner: Any) -> tuple[str, list[Test]]:
    """Return the key of a field, empty if there is none, and what it implies of the packet."""
    if kind == "meta":
        return META.get(inner["key"], ""), []
    if kind == "ct":
        return (inner["key"] if inner["key"] in CONNECTION else ""), []
    if kind == "fib":
        return FIB.get((inner["result"], "".join(inner["flags"])), ""), []
    if kind != "payload" or "protocol" not in inner:
        return "", []
    protocol = inner["protocol"]
    key = PAYLOAD.get((protocol, inner["field"]), "")
    if protocol in VERSIONS:
        return key, [only("nfproto", VERSIONS[protocol])]
    return key, [] if protocol in ("th", *LINK) else [only("l4proto", protocol)]


def is_flags(left: Any) -> bool:
    """Whether a field is that of TCP's flags."""
    payload = left.get("payload", {}) if isinstance(left, dict) else {}
    return payload.get("protocol") == "tcp" and payload.get("field") == "flags"


def joined(flags: Any) -> str:
    """Return flags as one word."""
    if isinstance(flags, list):
        return ",".join(map(joined, flags))
    if isinstance(flags, dict) and "|" in flags:
        return joined(flags["|"])
    return str(flags) if flags else ""


def valued(value: Any) -> str | None:
    """Return a value as a word, None if it is not understood."""
    if isinstance(value, (str, int)):
        return str(value)
    if not isinstance(value, dict):
        return None
    if "elem" in value:
        return valued(value["elem"]["val"])
    if "prefix" in value:
        return "{addr}/{len}".format(**value["prefix"])
    if "range" in value:
        return "-".join(map(str, value["range"]))
    return None


def bounded(op: str, found: Sequence[str | None]) -> list[str | None]:
    """Return the range of ports that a comparison means."""
    if len(found) != 1 or not str(found[0]).isdigit():
        return [None]
    bound = int(str(found[0]))
    low = {">=": bound, ">": bound + 1}.get(op, 0)
    high = {"<=": bound, "<": bound - 1}.get(op, TOP)
    return [f"{low}-{high}"]


# ---- as it is written ----------------------------------------------------------------------


def written(part: Any) -> str:
    """Return one side of a match as nft writes it."""
    word = valued(part)
    if word is not None:
        return word
    if isinstance(part, list):
        return ",".join(map(written, part))
    if isinstance(part, dict) and len(part) == 1:
        ((kind, inner),) = part.items()
        return of_kind(kind, inner)
    return short(part)


def of_kind(kind: str, inner: Any) -> str:
    """Return a field, or several values, as nft writes them."""
    if kind in ("set", "concat"):
        parts = (" . " if kind == "concat" else ", ").join(map(written, inner))
        return parts if kind == "concat" else f"{{ {parts} }}"
    if kind == "payload" and "field" in inner:
        return "{protocol} {field}".format(**inner)
    if kind == "meta":
        return inner["key"] if META.get(inner["key"]) in ("iif", "oif") else f"meta {inner['key']}"
    if kind == "&":
        return "{} & ({})".format(written(inner[0]), written(inner[1]).replace(",", " | "))
    return "ct {}".format(inner["key"]) if kind == "ct" else short({kind: inner})


def short(part: Any) -> str:
    """Return what is not understood."""
    return json.dumps(part)[:LONGEST]


def decided(kind: str, inner: Any) -> str:
    """Return a verdict as nft writes it."""
    if kind in ("jump", "goto"):
        return "{} {}".format(kind, inner["target"])
    if kind == "reject" and inner:
        more = " type {}".format(inner["expr"]) if "expr" in inner else ""
        return "reject with {}{}".format(inner["type"], more)
    if kind in ("redirect", "dnat") and inner:
        address, port = inner.get("addr", ""), inner.get("port", "")
        return f"{kind} to {address}" + (f":{port}" if port else "")
    return kind
