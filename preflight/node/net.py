"""Network interfaces, and which of them carry the job's data. Sent to nodes: stdlib, Python 3.8."""

from __future__ import annotations

from typing import Any, Mapping, Sequence, TypedDict

from preflight.api import Address, Node, majority
from preflight.node.bonds import Bond, Member, bond, members
from preflight.node.launch import Setting, settings, tcp_only

CLASS = "/sys/class/net"
RDMA = "/sys/class/infiniband"
FAMILIES = ("AF_INET", "AF_INET6")
IFNAME, FAMILY = "NCCL_SOCKET_IFNAME", "NCCL_SOCKET_FAMILY"
NCCL_ORDER = ("ib", "^docker,lo,virbr", "docker", "lo", "virbr")
"""What NCCL tries in turn where NCCL_SOCKET_IFNAME is not set."""
NCCLS = "NCCL's choice"
KINDS = {"bridge": "bridge", "bonding": "bond", "tun_flags": "tun", "device": "physical"}
"""What a file in an interface's directory of sysfs says of it."""
LOWER = "lower_"
"""Before the name of what an interface lies on, in its directory."""
OUTER_BRIDGE = "outer bridge"
OUTER = ("physical", "bond", "vlan")
"""Kinds that lead out of the node, and so does a bridge that has one of them for a port."""
INNER = ("bridge", "vxlan", "tun")
"""Kinds that mostly lead to containers and virtual machines of the node itself."""
CLOSED_IN = ("127.", "::1", "169.254.", "fe8", "fe9", "fea", "feb")
"""Loopback and link-local addresses begin so: of no use to other nodes."""


class Bonded(TypedDict, total=False):
    """What an interface has only if it is a bond, or lies on one."""

    bond: Bond


class Interface(Bonded):
    """One interface. `up` is what an administrator set; `running`, that it has a carrier too."""

    name: str
    kind: str
    """`loopback`, `physical`, `bond`, `outer bridge` (with a port that leads out), `bridge`, `tun`,
    the kernel's word (`vlan`), or `virtual`."""
    addresses: list[Address]
    """IPv4 first, without zones."""
    mtu: int
    speed_mbps: int
    """0: not told, as by most virtual ones."""
    duplex: str
    """`full`, `half` or `unknown`."""
    up: bool
    running: bool
    members: list[Member]


class DataPlane(TypedDict):
    """The interfaces of the data plane; the first one is also where ranks meet."""

    names: list[str]
    idle: list[str]
    """Those that NCCL_SOCKET_IFNAME names in whole, and NCCL does without: they are down, or have
    no carrier or no address."""
    aside: list[str]
    """Those that nobody named, and that a rule such as `^lo,docker`, or NCCL's own, did not leave
    out: bridges of containers, and what no other node could reach. NCCL would use them too."""
    address: Address
    """The first one's, empty if it has none that other nodes could use."""
    why: str
    """Who chose: `launch.interface`, `NCCL_SOCKET_IFNAME=eth1 (the shell)`, `NCCL's choice`."""
    problem: str
    """Why there is no such interface; empty where there is one."""


class Network(TypedDict):
    """The interfaces that other nodes might reach or that the data plane is made of."""

    interfaces: list[Interface]
    data_plane: DataPlane


def interfaces(node: Node, launch: Mapping[str, Any]) -> Network:
    """Return the interfaces in the kernel's order, and the data plane.

    Source: getifaddrs(3), netdevice(7) and SIOCETHTOOL, by psutil; /sys/class/net.
    """
    addresses, stats = node.psutil("net_if_addrs"), node.psutil("net_if_stats")
    # psutil sorts addresses by family and is stable: those with IPv4 come first, as in getifaddrs.
    names = [*(n for n in addresses if n in stats), *(n for n in stats if n not in addresses)]
    found = [seen(name, addresses.get(name, ()), stats[name]) for name in names]
    environment = settings(node, launch)["found"]
    chosen = data_plane(found, launch.get("interface"), environment)
    used = {*chosen["names"], *chosen["idle"]}
    shown = [i for i in found if i["name"] in used or reachable(i)]
    for one in shown:
        one["kind"] = kind(node, one["name"])
        for below in bonds(node, one):
            one["bond"] = bond(node, below)
            one["members"] += members(node, one["bond"], stats)
    if is_unnamed(chosen):
        put_aside(chosen, [i for i in shown if i["name"] in chosen["names"]])
    several = len(chosen["names"]) + len(chosen["aside"]) > 1
    if several and chosen["why"] == NCCLS and not tcp_only(environment) and node.listdir(RDMA):
        only_meet(chosen, [one["name"] for one in found])
    return Network(interfaces=shown, data_plane=chosen)


def is_unnamed(chosen: DataPlane) -> bool:
    """Whether the data plane is all that a rule such as `^lo,docker` leaves, or NCCL's own."""
    return chosen["why"] == NCCLS or chosen["why"].startswith(f"{IFNAME}=^")


def only_meet(chosen: DataPlane, order: Sequence[str]) -> None:
    """Leave in a data plane what counts where RDMA carries the data: where ranks meet.

    IPoIB's interfaces stay: they are rails, whatever their packets are.
    """
    first = min([*chosen["names"], *chosen["aside"]], key=order.index)
    chosen["aside"] = [name for name in chosen["aside"] if name == first]
    if not first.startswith(NCCL_ORDER[0]):
        chosen["names"] = chosen["names"][:1]


def put_aside(chosen: DataPlane, found: Sequence[Interface]) -> None:
    """Take out of a data plane what leads to containers, if anything else is left."""
    outer = [one for one in found if one["kind"] not in INNER]
    if outer:
        chosen["aside"] += [one["name"] for one in found if one not in outer]
        chosen["names"] = [one["name"] for one in outer]
        chosen["address"] = reachable(outer[0])


def seen(name: str, addresses: Sequence[Mapping[str, Any]], stats: Mapping[str, Any]) -> Interface:
    """Return what psutil tells of an interface."""
    flags = stats["flags"].split(",")
    return Interface(
        name=name,
        kind="",
        addresses=[a["address"].split("%")[0] for a in addresses if a["family"] in FAMILIES],
        mtu=stats["mtu"],
        speed_mbps=max(0, stats["speed"]),
        duplex=stats["duplex"].rsplit("_", 1)[-1].lower(),
        up="up" in flags,
        running="running" in flags,
        members=[],
    )


def kind(node: Node, name: str) -> str:
    """Return what an interface is.

    Source: sysfs-class-net; the DEVTYPE of uevent is the driver's own word.
    """
    if name == "lo":
        return "loopback"
    files = node.listdir(f"{CLASS}/{name}") or ()
    for file, word in KINDS.items():
        if file in files:
            return OUTER_BRIDGE if word == "bridge" and leads_out(node, name) else word
    lines = (node.read(f"{CLASS}/{name}/uevent") or "").splitlines()
    return next((line[8:] for line in lines if line.startswith("DEVTYPE=")), "virtual")


def leads_out(node: Node, bridge: str) -> bool:
    """Whether a bridge has a port that leads out of the node, besides those of containers."""
    return any(kind(node, port) in OUTER for port in node.listdir(f"{CLASS}/{bridge}/brif") or ())


def bonds(node: Node, one: Interface) -> list[str]:
    """Return the bond that an interface is, or those that a VLAN or bridge may lie on.

    Source: lower_* (sysfs-class-net).
    """
    if one["kind"] == "bond":
        return [one["name"]]
    if one["kind"] not in {"vlan", OUTER_BRIDGE}:
        return []
    files = node.listdir("{}/{}".format(CLASS, one["name"])) or ()
    lower = (file[len(LOWER) :] for file in files if file.startswith(LOWER))
    return [name for name in lower if node.read(f"{CLASS}/{name}/bonding/slaves") is not None]


def reachable(one: Interface) -> Address:
    """Return an interface's first address that other nodes could use, or nothing."""
    return next((a for a in one["addresses"] if not a.startswith(CLOSED_IN)), Address(""))


def data_plane(
    found: Sequence[Interface], named: str | None, environment: Mapping[str, Setting]
) -> DataPlane:
    """Return the interfaces that `launch.interface` names, or else those that NCCL would take.

    NCCL opens its sockets on all interfaces that NCCL_SOCKET_IFNAME matches, or that the first of
    its own rules matches at all; its ranks meet on the first one.
    Source: NCCL 2.30 ncclFindInterfaces (src/misc/socket.cc), ncclOsFindInterfaces
    (src/os/linux.cc): running interfaces with an IPv4 or IPv6 address, ::1 not counted;
    a value of one character is ignored. Older ones do not set virbr apart. NCCL_COMM_ID, which may
    decide too, is not looked at.
    """
    if named:
        one = next((i for i in found if i["name"] == named), None)
        problem = "" if one else f"there is no interface {named!r} (launch.interface)"
        return plane([one] if one else [], "launch.interface", problem)
    family = environment[FAMILY]["value"] if FAMILY in environment else ""
    usable = [i for i in found if i["running"] and has_address(i, family)]
    setting = environment.get(IFNAME)
    if setting and len(setting["value"]) > 1:
        words = "{}={} ({})".format(IFNAME, setting["value"], setting["source"])
        chosen = plane(
            [i for i in usable if selects(setting["value"], i["name"])],
            words,
            f"no interface that is up and has an address matches {words}",
        )
        chosen["idle"] = [
            i["name"] for i in found if i not in usable and is_named(setting["value"], i["name"])
        ]
        return chosen
    tried = ([i for i in usable if selects(rule, i["name"])] for rule in NCCL_ORDER)
    return plane(next(filter(None, tried), []), NCCLS, "no interface is up and has an address")


def plane(chosen: Sequence[Interface], why: str, problem: str) -> DataPlane:
    """Return the data plane that some interfaces make; the problem counts if there are none."""
    found = DataPlane(
        names=[one["name"] for one in chosen],
        idle=[],
        aside=[],
        address=reachable(chosen[0]) if chosen else Address(""),
        why=why,
        problem="" if chosen else problem,
    )
    outer = [one for one in chosen if reachable(one)]
    if outer and is_unnamed(found):
        found["names"] = [one["name"] for one in outer]
        found["aside"] = [one["name"] for one in chosen if one not in outer]
        found["address"] = reachable(outer[0])
    return found


def has_address(one: Interface, family: str) -> bool:
    """Whether NCCL would take one of its addresses."""
    kinds = {"AF_INET6" if ":" in a else "AF_INET" for a in one["addresses"] if a != "::1"}
    return family in kinds if family in FAMILIES else bool(kinds)


def selects(rule: str, name: str) -> bool:
    """Whether NCCL's rule takes a name: prefixes with commas, `=` for whole names, `^` for not.

    Source: NCCL 2.30 src/misc/utils.cc, parseStringList and matchIfList.
    """
    listed = entries(rule)
    hit = not listed or any(matches(entry, name) for entry in listed)
    return hit != rule.startswith("^")


def is_named(rule: str, name: str) -> bool:
    """Whether NCCL's rule names an interface in whole, as `eth1`, `=eth1` and `eth1:0` do."""
    names = [entry.lstrip("=").split(":")[0] for entry in entries(rule)]
    return name in names and not rule.startswith("^")


def entries(rule: str) -> list[str]:
    """Return the entries of a rule, each with the `=` that stands before the whole list."""
    words = rule[1:] if rule.startswith("^") else rule
    exact = "=" if words.startswith("=") else ""
    return [exact + word for word in words[len(exact) :].split(",") if word.split(":")[0]]


def matches(entry: str, name: str) -> bool:
    """Whether one entry means this name; what follows a colon is a port's number."""
    word = entry.split(":")[0]
    return name == word[1:] if word.startswith("=") else name.startswith(word)


def meeting_address(found: Network) -> Address:
    """Return the address by which other nodes reach this one: the data plane's, if it has one."""
    others = (reachable(one) for one in found["interfaces"] if one["kind"] not in INNER)
    return found["data_plane"]["address"] or next(filter(None, others), Address(""))


def link_gbps(network: Network, address: str) -> float:
    """Return the speed of the link that an address is on; of a bond, that of one member."""
    ones: list[Interface] = [one for one in network["interfaces"] if address in one["addresses"]]
    real = [one for one in ones if one["kind"] in {*OUTER, OUTER_BRIDGE}]
    return max((one["speed_mbps"] / 1000 / max(1, len(one["members"])) for one in real), default=0)


def main_interfaces(found: Network) -> list[Interface]:
    """Return the interfaces of the data plane, the first one first."""
    return by_names(found, found["data_plane"]["names"])


def comparable(facts: Mapping[str, Network]) -> dict[str, list[Interface]]:
    """Return the interfaces of each node's data plane that others can be compared with.

    Where nobody named them, one node may have more than another: then those that all have.
    """
    used = {node: main_interfaces(fact) for node, fact in facts.items()}
    there = [{one["name"] for one in found} for found in used.values() if found]
    unnamed = any(fact["data_plane"]["why"] == NCCLS for fact in facts.values())
    if not unnamed or len({len(names) for names in there}) < 2:
        return used
    common = set.intersection(*there)
    return {
        node: [one for one in found if one["name"] in common] or found[:1]
        for node, found in used.items()
    }


def by_names(found: Network, names: Sequence[str]) -> list[Interface]:
    """Return interfaces by their names, in that order."""
    by_name = {one["name"]: one for one in found["interfaces"]}
    return [by_name[name] for name in names]


def usual_choice(facts: Mapping[str, Network]) -> str | None:
    """Return the names of the interfaces that more than half of the nodes use, None without."""
    kinds: dict[str, list[str]] = {}
    for node, fact in facts.items():
        kinds.setdefault(", ".join(fact["data_plane"]["names"]), []).append(node)
    return majority(kinds)


def strayed(fact: Network, usual: str | None) -> str:
    """Say that a node has the interfaces that most nodes use, and uses others; else nothing."""
    names, theirs = fact["data_plane"]["names"], usual.split(", ") if usual else []
    here = {one["name"] for one in fact["interfaces"]}
    if not names or {*names} <= {*theirs} or {*theirs} <= {*names} or not here.issuperset(theirs):
        return ""
    be = "is" if len(names) == 1 else "are"
    chosen, why = ", ".join(names), fact["data_plane"]["why"]
    return f"{chosen} {be} chosen here ({why}), {usual} on most nodes"
