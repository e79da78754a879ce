"""What the variables of a launch environment name, and whether the node has it.

Sent to nodes: stdlib only, Python 3.8.
"""

from __future__ import annotations

import re
from typing import Mapping, TypedDict

from preflight.api import some
from preflight.node.launch import NOT_ZERO, Settings, tcp_only
from preflight.node.net import entries, selects
from preflight.node.rdma import Device, has_port

PREFIXES, HCA, UCX = "NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "UCX_NET_DEVICES"
NAMES = ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
"""Whole names of interfaces, with commas; the other three have rules of their own."""
NAMING = (PREFIXES, HCA, UCX, *NAMES)
RANGE = re.compile(r"(.*)\[(\d+)-(\d+)\](.*)")
"""Of UCX_NET_DEVICES: mlx5_[0-7]:1. Other wildcards mean nothing there: names are compared by
strcmp(3). Source: UCX 1.23 src/ucp/core/ucp_context.c, src/ucs/config/parser.c."""
MOST = 64
"""Devices that UCX takes of a list."""
ANY_CASE = ("NCCL_NET", "NCCL_ALGO", "NCCL_PROTO")
"""NCCL compares their words by strcasecmp(3): net.cc and tuning.cc of 2.30."""
FEW = 16
"""Rules by which names are taken that are compared by what each node takes by them."""
IS_NUMBER = re.compile(r"\s*[-+]?\d")
WHOLE = re.compile(r"\s*([-+]?)(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)\s*")
"""A value that strtoll(3) reads to its end; what begins with 0 is octal."""
SWITCH = re.compile(r"NCCL_\w+_DISABLE")
"""Of these 0 is as good as none: NCCL_PARAM in NCCL 2.30's src/."""


class Environment(TypedDict):
    """What launch.env looks at; see there."""

    settings: Settings
    interfaces: list[str]
    devices: list[Device]


def value(fact: Environment, name: str) -> str:
    """Return the value of a variable, empty where it is not set."""
    setting = fact["settings"]["found"].get(name)
    return setting["value"] if setting else ""


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
        words = [] if rule[0] == "^" else [w for word in words if word != "all" for w in each(word)]
        words = [w for w in words if not has_port(fact["devices"], "=" + w)]
    lost = [word for word in words if word not in here]
    return f"names {some(lost)}, which is not here: {some(here)}" if lost else ""


def each(word: str) -> list[str]:
    """Return the devices that a word of UCX_NET_DEVICES with a range stands for."""
    match = RANGE.fullmatch(word)
    if match is None or int(match[2]) > int(match[3]):
        return [word]
    numbers = range(int(match[2]), int(match[3]) + 1)[:MOST]
    return [f"{match[1]}{number}{match[4]}" for number in numbers]


def absent_hca(fact: Environment, rule: str) -> str:
    """Say what NCCL would not find; it then goes on over TCP and tells nobody."""
    net = value(fact, "NCCL_NET").lower()
    if tcp_only(fact["settings"]["found"]) or (
        net and not net.startswith("ib")
    ):  # IBext of NVIDIA's plugin heeds it too
        return ""
    names = [device["name"] for device in fact["devices"]]
    there = some(names) if names else "no RDMA device"
    if rule.startswith("^"):
        left = any(selects(rule, name) for name in names)
        return "" if left or not names else f"leaves none of {there}"
    lost = [entry.lstrip("=") for entry in entries(rule) if not has_port(fact["devices"], entry)]
    return f"names {some(lost)}, which is not here: {there}" if lost else ""


def taken(fact: Environment, name: str, rule: str) -> list[str]:
    """Return what NCCL takes by a rule on this node, in the order that may matter to it.

    The rule itself where another spelling of it would mean something else, or none is known.
    """
    if name == PREFIXES and len(rule) > 1:
        return [interface for interface in fact["interfaces"] if selects(rule, interface)]
    if name != HCA or rule.startswith("^") or any(e.count(":") > 1 for e in entries(rule)):
        return [rule]
    single = [
        Device(name=device["name"], ports=[port])
        for device in fact["devices"]
        for port in device["ports"]
    ]
    hits = [one for entry in entries(rule) for one in single if has_port([one], entry)]
    return list(dict.fromkeys("{}:{}".format(d["name"], d["ports"][0]["number"]) for d in hits))


def said(fact: Environment, name: str) -> str | None:
    """Return the value of a variable, None where it is not set, or as good as not set."""
    own = value(fact, name)
    is_off = SWITCH.fullmatch(name) and IS_NUMBER.match(own) and not NOT_ZERO.match(own)
    return own if name in fact["settings"]["found"] and not is_off else None


def spellings(facts: Mapping[str, Environment], name: str) -> dict[str, str]:
    """Return for each value of a variable the first of those that mean the same."""
    values = dict.fromkeys(filter(None, (said(fact, name) for fact in facts.values())))
    met: dict[str, str] = {}
    by_effect = name in NAMING and len(values) <= FEW
    return {
        own: met.setdefault(
            str([taken(fact, name, own) for fact in facts.values()])
            if by_effect
            else meaning(name, own),
            own,
        )
        for own in values
    }


def meaning(name: str, value: str) -> str:
    """Return what stands for a value in all its spellings."""
    number = WHOLE.fullmatch(value) if name.startswith("NCCL_") else None
    if number:
        digits = number[2].lower()
        base = 16 if digits.startswith("0x") else 8 if digits.startswith("0") else 10
        return str(int(number[1] + digits, base))
    return value.lower() if name in ANY_CASE else value
