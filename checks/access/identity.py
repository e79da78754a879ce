"""Every name of the inventory is a machine of its own.

Why: two names for one machine put two sets of ranks on the same GPUs: NCCL then stops with
    "Duplicate GPU detected", or both sets starve each other.
Facts: boot_id and netns (network namespace), which two names share only when they are one machine,
    or virtual machines that were resumed from one snapshot; hostname; server_address.
Source: /proc/sys/kernel/random/boot_id, /proc/self/ns/net, $SSH_CONNECTION.
Fix: take one of the two names out of the inventory, or mend the DNS or /etc/hosts entry that
    points to the wrong machine.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Mapping, Sequence

from preflight.api import Check, Verdict, Want, fail, ok, some, unknown, warn
from preflight.node.kernel import Identity, identity

SNAPSHOT = "virtual machines resumed from one snapshot have it; so have two containers of a machine"


def compare(facts: Mapping[str, Identity], want: Want) -> dict[str, Verdict]:
    machines: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for node, fact in facts.items():
        machines[(fact["boot_id"], fact["netns"])].append(node)
    return {node: verdict(facts, machines, node) for node in facts}


def verdict(
    facts: Mapping[str, Identity], machines: Mapping[tuple[str, str], list[str]], node: str
) -> Verdict:
    fact = facts[node]
    if not (fact["boot_id"] and fact["netns"]):
        return unknown("the machine does not say its boot id and network namespace")
    same = machines[(fact["boot_id"], fact["netns"])]
    others = [name for name in same if name != node]
    if not others:
        return ok("a machine of its own: " + fact["hostname"])
    copies = [name for name in others if is_copy(fact, facts[name])]
    if copies == others:
        return warn(
            f"{some(same)} have one boot id, and hostnames and addresses of their own",
            details=(SNAPSHOT,),
            observed=same,
            scope="pair",
            peers=tuple(others),
            fix="see whether their GPUs are the same: nvidia-smi -L; reboot what was resumed",
        )
    one = [name for name in same if name not in copies]
    summary = "{} are one machine: {}".format(some(one), fact["hostname"])
    # A bench of many addresses of 127/8 on one machine is meant so, and known to whoever made it.
    bench = is_bench([facts[name]["server_address"] for name in one])
    others = [name for name in one if name != node]
    return (warn if bench else fail)(summary, observed=one, scope="pair", peers=tuple(others))


def is_copy(one: Identity, other: Identity) -> bool:
    """Whether two that share a boot id differ in all that a machine is called by."""
    if one["hostname"] == other["hostname"]:
        return False
    return len({one["server_address"], other["server_address"]} - {""}) == 2


def is_bench(addresses: Sequence[str]) -> bool:
    """Whether names mean this machine on purpose: by loopback, or by loopback and locally."""
    loop = [address for address in addresses if address.startswith("127.") or address == "::1"]
    return bool(loop) and len(loop) == len([address for address in addresses if address])


CHECK = Check(probe=identity, compare=compare)
