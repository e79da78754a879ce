"""Every name of the inventory is a machine of its own.

Why: two names for one machine put two sets of ranks on the same GPUs: NCCL then stops with
    "Duplicate GPU detected", or both sets starve each other.
Facts: boot_id and netns (network namespace), which two names share only when they are one machine;
    hostname; server_address.
Source: /proc/sys/kernel/random/boot_id, /proc/self/ns/net, $SSH_CONNECTION.
Fix: take one of the two names out of the inventory, or mend the DNS or /etc/hosts entry that
    points to the wrong machine.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Mapping

from preflight.api import Check, Verdict, Want, fail, ok, some, unknown, warn
from preflight.node.kernel import Identity, identity


def compare(facts: Mapping[str, Identity], want: Want) -> dict[str, Verdict]:
    machines: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for node, fact in facts.items():
        machines[(fact["boot_id"], fact["netns"])].append(node)
    return {node: verdict(fact, machines, node) for node, fact in facts.items()}


def verdict(fact: Identity, machines: Mapping[tuple[str, str], list[str]], node: str) -> Verdict:
    if not (fact["boot_id"] and fact["netns"]):
        return unknown("the machine does not say its boot id and network namespace")
    same = machines[(fact["boot_id"], fact["netns"])]
    others = [name for name in same if name != node]
    if not others:
        return ok("a machine of its own: " + fact["hostname"])
    summary = "{} are one machine: {}".format(some(same), fact["hostname"])
    # A bench of many addresses of 127/8 on one machine is meant so, and known to whoever made it.
    bench = fact["server_address"].startswith("127.") or fact["server_address"] == "::1"
    say = warn if bench else fail
    return say(summary, observed=same, scope="pair", peers=tuple(others))


CHECK = Check(probe=identity, compare=compare)
