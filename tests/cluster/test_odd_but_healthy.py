"""What is odd about a cluster and does no harm: no failure, no warning, nothing unknown."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.cluster.blame import causes, results, summary
from tests.cluster.machine import execute
from tests.cluster.nodes import BRIDGE, CONTROLLER
from tests.cluster.testbed import Testbed

RUN_LIMIT_S = 500
"""Only to end one that hangs: here a machine may be as busy as it will."""
pytestmark = pytest.mark.timeout(RUN_LIMIT_S + 100)
SECOND = "10.99.0"
ARP = {"arp_ignore": 1, "arp_announce": 2}
"""For each interface its own addresses alone, as nodes with two in one segment are to be set."""
DISABLED = [f"/proc/sys/net/ipv6/conf/{which}/disable_ipv6" for which in ("all", "default")]
FIREWALL = """
table inet filter {{
    set peers {{ type ipv4_addr; flags interval; elements = {{ {peers} }}; }}
    chain raw {{
        type filter hook prerouting priority raw
        udp dport 8472 notrack
    }}
    chain input {{
        type filter hook input priority filter; policy drop
        ct state vmap {{ established : accept, related : accept, invalid : drop }}
        iif lo accept
        meta l4proto {{ icmp, ipv6-icmp }} accept
        tcp dport 22 ct state new accept
        ip saddr @peers tcp dport {{ 29500, 32768-60999 }} ct state new accept
        ip saddr @peers udp dport 32768-60999 accept
        limit rate 3/second log prefix "drop "
    }}
    chain forward {{
        type filter hook forward priority filter; policy drop
    }}
}}
"""

KUBERNETES = """
-N KUBE-FIREWALL
-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m conntrack ! --ctstate ESTABLISHED,DNAT -j DROP
-N KUBE-SERVICES
-A KUBE-SERVICES -p tcp -m addrtype --dst-type LOCAL -m tcp --dport 30500 -j REJECT
-A KUBE-SERVICES -d 10.96.3.4/32 -p tcp -m tcp --dport 29500 -j REJECT
-A INPUT -m conntrack --ctstate NEW -m comment --comment kube-proxy -j KUBE-SERVICES
-A INPUT -j KUBE-FIREWALL
-N cali-wl-to-host
-A cali-wl-to-host -j DROP
-A INPUT -p ipencap -j DROP
-A INPUT -i cali+ -g cali-wl-to-host
-N f2b-sshd
-A f2b-sshd -s 203.0.113.7/32 -j REJECT
-A INPUT -p tcp -m multiport --dports 22 -j f2b-sshd
-A INPUT -m conntrack --ctstate INVALID -j DROP
-A INPUT -p tcp --syn -m hashlimit --hashlimit-above 999/sec --hashlimit-name syn -j DROP
-A FORWARD -j DROP
-A INPUT -s 10.78.0.0/24 -j ACCEPT
-A INPUT -j REJECT --reject-with icmp-host-prohibited
"""
"""What kube-proxy, Calico and fail2ban write, and a host's own firewall after it."""


def healthy(bed: Testbed, *args: str, **overrides: Any) -> dict[str, Any]:
    """Return the report of a run, as root, in which nothing is wrong."""
    for node in bed.names:
        bed.allow_sudo(node)
    inventory = bed.inventory(ssh={"become": "sudo"}, **overrides)
    done, report = bed.report("run", str(inventory), *args, timeout=RUN_LIMIT_S)
    whole = json.dumps(report, indent=1)
    assert results(report, "fail", "warn", "unknown") == [], whole
    assert (causes(report), report["verdict"], done.returncode) == ([], "ready", 0), whole
    return report


def ip(bed: Testbed, node: str, *lines: str) -> None:
    """Run commands of ip on a node; each device that they add goes again."""
    for line in lines:
        words = line.split()
        if words[:2] in (["link", "add"], ["tuntap", "add"]):
            bed._undo(bed.run, node, "ip", "link", "del", words[2])
        elif words[:2] == ["addr", "add"] and words[-1] in ("eth0", "lo"):
            bed._undo(bed.run, node, "ip", "addr", "del", *words[2:])
    bed.machines[node].run("ip", "-batch", "-", stdin="\n".join(lines))


def disable_ipv6(bed: Testbed, node: str) -> None:
    """Take IPv6 off a node, as an admin does by sysctl."""
    for path in DISABLED:
        bed._undo(bed.run, node, "sh", "-c", f"echo 0 > {path}")
        bed.run(node, "sh", "-c", f"echo 1 > {path}")


def separate_arp(bed: Testbed, node: str) -> None:
    """Let each interface tell and answer for its own addresses only.

    Both are in one segment, and by default either answers for the other. What the peers have
    learned so leads nowhere once the second one is taken off again, which ARP finds out after 8 s.
    """
    for name, value in ARP.items():
        path = f"/proc/sys/net/ipv4/conf/all/{name}"
        bed._undo(bed.run, node, "sh", "-c", f"echo 0 > {path}")
        bed.run(node, "sh", "-c", f"echo {value} > {path}")


def firewall(bed: Testbed, node: str) -> None:
    """Let in what the other nodes need, and nothing else."""
    peers = [machine.address for machine in bed.machines.values()]
    bed.nft(node, FIREWALL.format(peers=", ".join([*peers, f"{SECOND}.0/24"])))


def docker(bed: Testbed, node: str) -> None:
    """Install a container runtime: its bridge has the same address on every node."""
    ip(bed, node, "link add docker0 type bridge", "addr add 172.17.0.1/16 dev docker0")
    bed.run(node, "ip", "link", "set", "docker0", "up")


def test_all_at_once(bed: Testbed) -> None:
    """Here NCCL chooses among all that is up and has a carrier."""
    for number, node in enumerate(bed.names, 1):
        docker(bed, node)
        disable_ipv6(bed, node)
        separate_arp(bed, node)
        bed.add_interface(node, "odd0", SECOND)
        firewall(bed, node)
        ip(
            bed,
            node,
            f"addr add 10.255.0.{number}/32 dev lo",
            "addr add 10.255.255.255/32 dev lo",
            f"addr add 192.168.7.{number}/24 dev eth0",
            "link add odd1 type veth peer name odd2",
            f"addr add 192.168.8.{number}/24 dev odd1",
            "link add odd3 type vxlan id 4 dev eth0 dstport 8472",
            f"addr add 10.244.{number}.0/32 dev odd3",
            "tuntap add odd4 mode tun",
            f"addr add 10.8.0.{number}/24 dev odd4",
            "link set odd4 up",
        )
        bed.second_address(node)
    report = healthy(bed)
    first, second, third, last = bed.names
    said = summary(report, "network.route", first)
    assert said == f"goes to {second}, {third}, {last} by eth0, odd0"


def mac(run: Callable[..., str], device: str = "eth0") -> str:
    """Return the link-layer address of a device."""
    (link,) = json.loads(run("ip", "-json", "link", "show", device))
    return str(link["address"])


@pytest.mark.parametrize("check", ["network.ephemeral", "network.path_mtu"])
def test_cards_that_were_replaced(bed: Testbed, check: str) -> None:
    """ARP still leads two nodes to each other's old one, and finds that out after 8 s."""
    first, second, third, last = bed.names
    cards = {one.address: mac(one.run) for one in bed.machines.values()}
    cards[CONTROLLER] = mac(execute, BRIDGE)
    for node, machine in bed.machines.items():
        # whoever looks for anybody is heard by all, so nobody is to look for others
        known = {there: f"{card} nud reachable" for there, card in cards.items()}
        if node in (second, last):
            peer = bed.machines[last if node == second else second].address
            known[peer] = "02:de:ad:00:00:00 nud stale"
            bed._undo(bed.run, node, "ip", "neigh", "del", peer, "dev", "eth0")
        del known[machine.address]
        lines = [f"neigh replace {there} lladdr {how} dev eth0" for there, how in known.items()]
        machine.run("ip", "-batch", "-", stdin="\n".join(lines))
    report = healthy(bed, "--only", check)
    said = {row["node"]: row["details"] for row in report["results"] if row["check"] == check}
    late = "answered only when asked once more, as where a packet is lost, or a node is busy"
    assert said == {first: [], second: [f"{last} {late}"], third: [], last: [f"{second} {late}"]}


def test_what_is_odd_and_not_chosen(bed: Testbed) -> None:
    one, two, *_ = bed.names
    disable_ipv6(bed, two)
    for number, node in enumerate(bed.names, 1):
        bed.container_bridge(node, "oddb")
        if node == one:
            continue
        ip(
            bed,
            node,
            "link add odd5 type vxlan id 5 dev eth0 dstport 4789",
            f"addr add 10.245.{number}.0/32 dev odd5",
            "link set odd5 up",
        )
    hosts = "".join(f"{m.address} {name}\n" for name, m in bed.machines.items() if name != one)
    bed.change_file(one, "/etc/hosts", f"127.0.0.1 localhost\n127.0.1.1 {one}\n{hosts}")
    env = {"NCCL_SOCKET_IFNAME": "eth0", "GLOO_SOCKET_IFNAME": "eth0", "TP_SOCKET_IFNAME": "eth0"}
    healthy(bed, launch={"env": env})


def one_subnet(number: int) -> list[str]:
    """Return what makes several interfaces in one subnet; the kernel sends by the first."""
    return [
        line
        for which in range(4)
        for line in (
            f"link add odn{which} link eth0 type macvlan mode bridge",
            f"addr add 10.95.0.{10 * number + which}/24 dev odn{which}",
            f"link set odn{which} up",
        )
    ]


def hosts_alone(number: int) -> list[str]:
    """Return what makes addresses without a subnet, each with its own route."""
    return [
        "link add odp0 link eth0 type macvlan mode bridge",
        f"addr add 10.66.0.{number}/32 dev odp0",
        "link set odp0 up",
        *(f"route add 10.66.0.{peer}/32 dev odp0" for peer in range(1, 5) if peer != number),
    ]


def ipv6_alone(number: int) -> list[str]:
    """Return what makes a data plane without IPv4."""
    return [
        "link add ods0 link eth0 type macvlan mode bridge",
        f"addr add fd00:9::{number}/64 dev ods0 nodad",
        "link set ods0 up",
    ]


@pytest.mark.parametrize(
    ("lines", "name"), [(one_subnet, "odn"), (hosts_alone, "odp"), (ipv6_alone, "ods")]
)
def test_a_data_plane_of_its_own(
    bed: Testbed, lines: Callable[[int], list[str]], name: str
) -> None:
    for number, node in enumerate(bed.names, 1):
        ip(bed, node, *lines(number))
    healthy(bed, "--only", "network", launch={"env": {"NCCL_SOCKET_IFNAME": name}})


@pytest.mark.parametrize("kind", ["nft", "legacy"])
def test_rules_of_others(bed: Testbed, kind: str) -> None:
    for node in bed.names:
        program = f"iptables-{kind}"
        bed._undo(bed.run, node, "sh", "-c", f"{program} -F; {program} -X")
        for line in KUBERNETES.strip().splitlines():
            bed.run(node, program, *line.split())
    healthy(bed, "--only", "network")
