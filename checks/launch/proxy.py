"""No proxy of the launch environment would catch traffic between the nodes.

Why: gRPC and HTTP clients (JAX, Ray, TensorFlow, an etcd rendezvous, health checks) go by the proxy
    that is set for downloads, also to the next node: the job waits for workers that never come, or
    reads "Connection closed by server". NCCL, Gloo and torch's own store take no notice of it.
Facts: found (http_proxy, https_proxy, all_proxy, grpc_proxy, no_proxy, no_grpc_proxy, in small and
    in capital letters: value, without user and password, and who sets it), address (by which other
    nodes reach this one), container (whose environment it is, if one's that runs), unseen (why
    nothing but launch.env is known).
Source: launch.env, then the login user's non-login shell or a docker or podman container that runs.
    Who reads what: gRPC core http_proxy_mapper.cc (small letters alone), curl(1) and Python's
    urllib (both). no_proxy holds suffixes of names, whole addresses, and networks (10.0.0.0/8)
    with curl 7.86, requests and newer gRPC, not with urllib.
Fix: add all nodes' names and addresses to no_proxy, or unset the proxy for the job.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Any, Callable, Mapping, NamedTuple, Sequence

from preflight.api import Check, Node, Unobservable, Verdict, Want, ok, some, unknown, warn
from preflight.node.container import by_hand
from preflight.node.launch import Given, given, wanted
from preflight.node.net import interfaces, meeting_address

GRPC = ("grpc_proxy", "https_proxy", "http_proxy")
"""In the order in which gRPC takes the first that is set."""
HTTP = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
READERS = {
    "HTTP": (HTTP, ("no_proxy", "NO_PROXY")),
    "gRPC": (GRPC, ("no_grpc_proxy", "no_proxy")),
}
"""Who reads which proxies, and which exceptions: the first of those that is set."""
VARIABLES = tuple(dict.fromkeys(name for both in READERS.values() for of in both for name in of))
HERE = ("interface", "env")
LISTED = 16
"""Nodes that a fix names one by one."""


class Proxies(Given):
    address: str


def probe(node: Node, launch: Mapping[str, Any]) -> Proxies:
    # not the container's variables: its engine would be asked once more
    here = {key: launch[key] for key in HERE if key in launch}
    try:
        address: str = meeting_address(interfaces(node, here))
    except Unobservable:
        address = ""  # names are judged all the same
    return Proxies(address=address, **given(node, launch, VARIABLES))


# ---- judging -------------------------------------------------------------------------------


class Catch(NamedTuple):
    """A proxy that would catch traffic to the nodes: the same on all that have the same of it."""

    reader: str
    proxies: tuple[str, ...]
    exception: str
    """The variable that says what goes past it, empty where none is set."""
    caught: tuple[str, ...]


def compare(facts: Mapping[str, Proxies], want: Want) -> dict[str, Verdict]:
    whose: dict[str, list[str]] = {name: [name] for name in want.nodes if not is_address(name)}
    for node, fact in facts.items():
        if fact["address"]:
            whose.setdefault(fact["address"], []).append(node)
    kept: dict[str, tuple[str, ...]] = {}

    def exposed(exceptions: str) -> tuple[str, ...]:
        # Once, not for every node: nodes are as good as always started with the same no_proxy.
        if exceptions not in kept:
            rules = re.split(r"[,\s]+", exceptions.strip())
            kept[exceptions] = tuple(t for t in whose if not any(covers(rule, t) for rule in rules))
        return kept[exceptions]

    return {node: verdict(node, fact, whose, exposed, want) for node, fact in facts.items()}


def verdict(
    node: str,
    fact: Proxies,
    whose: Mapping[str, Sequence[str]],
    exposed: Callable[[str], Sequence[str]],
    want: Want,
) -> Verdict:
    """Return what is to be said of a node.

    `whose` has the nodes of each name and address that its peers may be called by, and `exposed`
    tells which of these the text of a no_proxy does not cover.
    """
    if fact["container"] and fact["unseen"]:
        return unknown(fact["unseen"])
    hidden = (f"no more than launch.env is seen: {fact['unseen']}",) if fact["unseen"] else ()
    catches = []
    for reader, (read, exceptions) in READERS.items():
        own = tuple(name for name in read if value(fact, name))
        exception = next((name for name in exceptions if name in fact["found"]), "")
        lost = exposed(value(fact, exception)) if own else ()
        if any(other != node for one in lost for other in whose[one]):
            catches.append(Catch(reader, own, exception, tuple(lost)))
    if catches:
        return caught(catches, fact, tuple(whose), want)
    proxies = tuple(name for name in VARIABLES if is_proxy(name) and value(fact, name))
    if not proxies:
        return ok("no proxy is set", details=hidden)
    past = "" if len(want.nodes) == 1 else ", and traffic between the nodes goes past"
    be = "is" if len(proxies) == 1 else "are"
    return ok(f"{some(proxies)} {be} set{past}", details=(*written(fact), *hidden))


def caught(catches: Sequence[Catch], fact: Proxies, targets: Sequence[str], want: Want) -> Verdict:
    """Return a warning of what proxies would catch."""
    first = catches[0]
    readers = " and ".join(one.reader for one in catches if one.caught == first.caught)
    proxy = fact["found"][first.proxies[0]]
    names = some(first.proxies)
    why = "{}, {}".format(proxy["value"], proxy["source"])
    beside = f"{first.exception} does not cover {some(first.caught)}"
    if not first.exception:
        beside = "no_proxy is not set"
        if first.reader == "gRPC" and value(fact, "NO_PROXY"):
            beside = "it reads no_proxy in small letters alone, and NO_PROXY is set"
    container = want.get("launch.container", {})
    several = len(want.nodes) > LISTED
    past = "all nodes' names and addresses" if several else ",".join(targets)
    off = " ".join(f"-u {name}" for name in first.proxies)
    return warn(
        f"{readers} between the nodes would go by {names} ({why}): {beside}",
        observed={one.reader: list(one.caught) for one in catches},
        fix=f"add {past} to no_proxy (in small letters); or start the job with env {off}",
        details=written(fact),
        reproduce=by_hand(container, "env | grep -i _proxy="),
    )


def written(fact: Proxies) -> tuple[str, ...]:
    return tuple("{}={} ({})".format(n, s["value"], s["source"]) for n, s in fact["found"].items())


def is_proxy(name: str) -> bool:
    """Whether a variable names a proxy, and not who goes past it."""
    return not name.lower().startswith("no_")


def value(fact: Proxies, name: str) -> str:
    """Return the value of a variable, empty where it is not set: an empty one is as good."""
    return fact["found"][name]["value"] if name in fact["found"] else ""


def covers(rule: str, target: str) -> bool:
    """Whether an entry of no_proxy means a name or address."""
    if rule == "*":
        return True
    if is_address(target):
        return holds(rule.strip("[]"), target)
    suffix = rule.lower().partition(":")[0].lstrip("*").lstrip(".")
    name = target.lower()
    return bool(suffix) and (name == suffix or name.endswith("." + suffix))


def holds(rule: str, address: str) -> bool:
    """Whether an entry of no_proxy is an address, or a network that has it."""
    try:
        return ipaddress.ip_address(address) in ipaddress.ip_network(rule, strict=False)
    except ValueError:
        return False


def is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


CHECK = Check(probe=probe, args=wanted, compare=compare)
