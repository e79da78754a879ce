"""Which addresses NCCL, Gloo and TensorPipe would give to the other nodes of a job, as they do it.

Sent to nodes: stdlib only, Python 3.8.
"""

from __future__ import annotations

import ipaddress
from typing import Any, Mapping, Sequence, TypedDict

from preflight.api import Address, Node
from preflight.node.container import is_sealed
from preflight.node.launch import Setting, settings
from preflight.node.net import (
    FAMILIES,
    FAMILY,
    NCCLS,
    Network,
    interfaces,
    kind,
    reachable,
)

NCCL, GLOO, TENSORPIPE = "NCCL", "Gloo", "TensorPipe"
NAMES = {GLOO: "GLOO_SOCKET_IFNAME", TENSORPIPE: "TP_SOCKET_IFNAME"}
"""The variable that names the interfaces of each."""
LOOPBACK = ("127.", "::1")
LINK_LOCAL = ("fe8", "fe9", "fea", "feb")
"""IPv6's link-local addresses begin so."""
HOST_NAME = "the host name"


class Choice(TypedDict):
    """One address that one of them would give to the other nodes."""

    by: str
    """`NCCL`, `Gloo` or `TensorPipe`."""
    interface: str
    """Empty where no interface has that address."""
    kind: str
    """See `preflight.node.net.Interface`."""
    address: Address
    """Empty where there is none: `problem` says why."""
    subnet: Address
    """By its netmask, as `10.0.0.0/24`; empty where it is not known."""
    why: str
    """Who chose: a variable and its source, `the host name tb1`, `NCCL's choice`."""
    named: bool
    """Whether a variable or the inventory named the interface."""
    problem: str


class Choices(TypedDict):
    """What a node would give to the others; NCCL's first choice is where its ranks meet."""

    network: Network
    choices: list[Choice]
    others: dict[str, Address]
    """Further addresses that other nodes might reach, by interface, one each."""


def choices(node: Node, launch: Mapping[str, Any]) -> Choices:
    """Return what NCCL, Gloo and TensorPipe would choose, but for what the host name decides.

    Source: as `preflight.node.net.interfaces`.
    """
    network = interfaces(node, launch)
    has = addresses_of(node)
    environment = settings(node, launch)["found"]
    made = nccl(node, network, has, environment)
    for by in NAMES:
        if by in named_by(environment):
            made += by_variable(node, by, environment[NAMES[by]], has)
    taken = {one["address"] for one in made}
    others = {
        one["name"]: reachable(one)
        for one in network["interfaces"]
        if reachable(one) and reachable(one) not in taken
    }
    return Choices(network=network, choices=made, others=others)


def choices_by_name(node: Node, launch: Mapping[str, Any]) -> list[Choice]:
    """Return what Gloo and TensorPipe would choose by the host name, where no variable decides.

    The address of the host name that they can bind to first, or else 127.0.0.1. May wait for a
    resolver. A container may have a host name of its own, which is not looked into.
    Source: PyTorch 2.x ProcessGroupGloo::createDefaultDevice (torch/csrc/distributed/c10d/
    ProcessGroupGloo.cpp) and TensorPipeAgent::guessAddress (torch/csrc/distributed/rpc/
    tensorpipe_agent.cpp), by getaddrinfo(3) and bind(2).
    """
    environment = settings(node, launch)["found"]
    left = [by for by in NAMES if by not in named_by(environment)]
    if not left or is_sealed(launch.get("container", {})):
        return []
    name, has = node.uname()["node"], addresses_of(node)
    own = {address.split("%")[0] for found in has.values() for address in found}
    found = node.resolve(name)
    usable = [one for one in found if one.startswith("127.") or one.split("%")[0] in own]
    why = f"{HOST_NAME} {name}"
    if not usable:
        why += f", which is {found[0]}, not an address of this node" if found else " has no address"
    address = usable[0] if usable else "127.0.0.1"
    return [choice(node, by, address, has, why, named=False) for by in left]


def addresses_of(node: Node) -> dict[str, dict[str, str]]:
    """Return the netmask of each address, by interface and address, in getifaddrs(3)'s order."""
    return {
        name: {a["address"]: a.get("netmask") or "" for a in found if a["family"] in FAMILIES}
        for name, found in node.psutil("net_if_addrs").items()
    }


def nccl(
    node: Node,
    network: Network,
    has: Mapping[str, Mapping[str, str]],
    environment: Mapping[str, Setting],
) -> list[Choice]:
    """Return NCCL's choices: of the interface that its ranks meet on, and of those with data.

    Interfaces that lead to no other node are left out, but for the one where ranks meet.
    """
    plane = network["data_plane"]
    place = {name: number for number, name in enumerate(has)}
    first = min([*plane["names"], *plane["aside"]], key=lambda n: place.get(n, 0), default="")
    wanted = environment[FAMILY]["value"] if FAMILY in environment else ""
    families = (wanted,) if wanted in FAMILIES else FAMILIES
    named = plane["why"] != NCCLS
    made = []
    for name in dict.fromkeys([first, *plane["names"]] if first else []):
        taken = (a for a in has.get(name, ()) if a != "::1" and family_name(a) in families)
        made.append(choice(node, NCCL, next(taken, ""), has, plane["why"], named, name))
    if plane["problem"]:
        made.append(choice(node, NCCL, "", has, plane["why"], named, problem=plane["problem"]))
    return made


def family_name(address: str) -> str:
    """Return the name of an address's family."""
    return "AF_INET6" if ":" in address else "AF_INET"


def named_by(environment: Mapping[str, Setting]) -> dict[str, str]:
    """Return by whom its variable is obeyed, and its value: Gloo ignores one of one character."""
    values = {by: environment[v]["value"] for by, v in NAMES.items() if v in environment}
    return {by: value for by, value in values.items() if by != GLOO or len(value) > 1}


def by_variable(
    node: Node, by: str, setting: Setting, has: Mapping[str, Mapping[str, str]]
) -> list[Choice]:
    """Return what a variable makes Gloo or TensorPipe choose: the first address of an interface.

    The names are whole names; Gloo's may be several, with commas, and it ends where one is not
    there; TensorPipe then takes 127.0.0.1.
    Source: lookupAddrForIface of gloo/transport/tcp/device.cc and of TensorPipe's
    transport/uv/utility.cc.
    """
    why = "{}={} ({})".format(NAMES[by], setting["value"], setting["source"])
    names = setting["value"].split(",") if by == GLOO else [setting["value"]]
    made = []
    for name in names:
        address = next(iter(has.get(name, ())), "")
        problem = "" if address else f"no interface {name!r} with an address: {why}"
        made.append(choice(node, by, address, has, why, named=True, name=name, problem=problem))
    return made


def choice(
    node: Node,
    by: str,
    address: str,
    has: Mapping[str, Mapping[str, str]],
    why: str,
    named: bool,
    name: str = "",
    problem: str = "",
) -> Choice:
    """Return the choice of an address, and of the interface that has it."""
    there = name or next((n for n, found in has.items() if address and address in found), "")
    there = there or ("lo" if address.startswith("127.") else "")
    return Choice(
        by=by,
        interface=there,
        kind=kind(node, there) if there in has else "",
        address=Address(address.split("%")[0]),
        subnet=subnet(address, has.get(there, {}).get(address, "")),
        why=why,
        named=named,
        problem=problem,
    )


def subnet(address: str, mask: str) -> Address:
    """Return the subnet of an address, empty where its netmask is not known."""
    if not address or not mask:
        return Address("")
    length = bin(int(ipaddress.ip_address(mask))).count("1")
    interface = ipaddress.ip_interface("{}/{}".format(address.split("%")[0], length))
    return Address(str(interface.network))


def subnet_of(node: Node, address: str) -> Address:
    """Return the subnet of one of the node's addresses, empty where its netmask is not known."""
    masks = (found[address] for found in addresses_of(node).values() if address in found)
    return subnet(address, next(masks, ""))


def dialled(made: Sequence[Choice]) -> list[str]:
    """Return the addresses that other nodes can be told to dial.

    No loopback, and no link-local one of IPv6, which means nothing without an interface of the
    node that dials.
    """
    found = dict.fromkeys(one["address"] for one in made)
    return [a for a in found if a and not a.startswith((*LOOPBACK, *LINK_LOCAL))]
