"""Rules of all programs, and what becomes of a packet in them."""

from __future__ import annotations

from typing import Any

import pytest

from preflight.api import Unobservable
from preflight.node import iptables, nft
from preflight.node.fate import IN, OUT, Fate, Packet, fate, spans
from preflight.node.netfilter import Table, is_idle, ruleset, saved, within_reach, writer
from preflight.node.replay import Replay

PACKET = Packet("10.0.0.2", "10.0.0.1", 29500, iif="eth0")
CHAINS = """\
*{table}
:PREROUTING ACCEPT [0:0]
:INPUT {policy} [0:0]
:OUTPUT ACCEPT [0:0]
:one - [0:0]
:two - [0:0]
{rules}
COMMIT
"""


def of_iptables(*rules: str, policy: str = "ACCEPT", table: str = "filter") -> list[Table]:
    lines = "\n".join(f"-A {rule}" for rule in rules)
    return iptables.tables(CHAINS.format(table=table, policy=policy, rules=lines), "iptables")


def of_nft(*expressions: Any, policy: str = "accept", sets: Any = ()) -> list[Table]:
    """One chain of nft, with these rules."""
    where = {"family": "inet", "table": "t"}
    head = {**where, "name": "c", "type": "filter", "hook": "input", "prio": 0, "policy": policy}
    rules = [{"rule": {**where, "chain": "c", "expr": list(one)}} for one in expressions]
    table = {"table": {"family": "inet", "name": "t"}}
    return nft.tables([table, *sets, {"chain": head}, *rules])


def match(left: Any, right: Any, op: str = "==") -> dict[str, Any]:
    return {"match": {"op": op, "left": left, "right": right}}


def payload(protocol: str, name: str) -> dict[str, Any]:
    return {"payload": {"protocol": protocol, "field": name}}


def end(tables: list[Table], packet: Packet = PACKET) -> str:
    return fate(tables, packet, IN).kind


DROP: dict[str, Any] = {"drop": None}
DPORT, STATE = payload("tcp", "dport"), {"ct": {"key": "state"}}


@pytest.mark.parametrize(
    ("rule", "lost"),
    [
        ("-j DROP", True),
        ("-p tcp -j DROP", True),
        ("-p udp -j DROP", False),
        ("! -p udp -j DROP", True),
        ("-p 6 -j DROP", True),
        ("-s 10.0.0.2/32 -j DROP", True),
        ("-s 10.0.0.0/255.255.255.0 -j DROP", True),
        ("! -s 10.0.0.0/24 -j DROP", False),
        ("-d 10.0.0.2/32 -j DROP", False),
        ("-i eth+ -j DROP", True),
        ("! -i lo -j DROP", True),
        ("-i lo -j DROP", False),
        ("-p tcp -m tcp --dport 29500 -j DROP", True),
        ("-p tcp -m tcp --dport 29501: -j DROP", False),
        ("-p tcp -m tcp --dport :30000 -j DROP", True),
        ("-p tcp -m tcp ! --dport 22 -j DROP", True),
        ("-p tcp -m multiport --dports 22,29000:30000 -j DROP", True),
        ("-p tcp -m tcp --tcp-flags FIN,SYN,RST,ACK SYN -j DROP", True),
        ("-p tcp -m tcp ! --tcp-flags FIN,SYN,RST,ACK SYN -j DROP", False),
        ("-p tcp -m tcp --tcp-flags FIN,SYN NONE -j DROP", False),
        ("-m conntrack --ctstate NEW,INVALID -j DROP", True),
        ("-m conntrack ! --ctstate NEW -j DROP", False),
        ("-m conntrack --ctstate DNAT -j DROP", False),
        ("-m state --state RELATED,ESTABLISHED -j DROP", False),
        ("-m iprange --src-range 10.0.0.2-10.0.0.9 -j DROP", True),
        ("-m addrtype --dst-type LOCAL -j DROP", True),
        ("-m addrtype --dst-type BROADCAST -j DROP", False),
        ('-m comment --comment "-j ACCEPT" -j DROP', True),
        # not understood: never for sure
        ("-m set --match-set banned src -j DROP", False),
        ("-m limit --limit 3/min -j DROP", False),
        ("-p tcp -m tcp --sport 1024:65535 -j DROP", False),
        ("-m mark --mark 0x1 -j DROP", False),
        ("-j NFQUEUE --queue-num 0", False),
        ("-j LOG", False),
    ],
)
def test_rules_of_iptables(rule: str, lost: bool) -> None:
    assert end(of_iptables(f"INPUT {rule}")) == ("drop" if lost else "accept")


@pytest.mark.parametrize(
    ("expressions", "kind"),
    [
        ([match(DPORT, 29500), DROP], "drop"),
        ([match(DPORT, {"set": [22, {"range": [29000, 30000]}]}), DROP], "drop"),
        ([match(DPORT, 29500, "!="), DROP], "accept"),
        ([match(DPORT, 1024, ">="), {"reject": {"type": "tcp reset"}}], "reject"),
        ([match(DPORT, 29500, "<"), DROP], "accept"),
        ([match(payload("udp", "dport"), 29500), DROP], "accept"),
        ([match(payload("th", "dport"), 29500), DROP], "drop"),
        ([match(payload("ip", "saddr"), {"prefix": {"addr": "10.0.0.0", "len": 8}}), DROP], "drop"),
        ([match(payload("ip6", "saddr"), "fd00::1", "!="), DROP], "accept"),
        ([match({"meta": {"key": "iifname"}}, "eth*"), DROP], "drop"),
        ([match({"meta": {"key": "nfproto"}}, "ipv6"), DROP], "accept"),
        ([match(STATE, ["established", "related"], "in"), DROP], "accept"),
        ([match(STATE, "established", "!="), DROP], "drop"),
        ([match(payload("tcp", "flags"), "syn", "in"), DROP], "drop"),
        ([match(payload("tcp", "flags"), ["fin", "ack"], "in"), DROP], "accept"),
        ([match({"&": [payload("tcp", "flags"), ["syn", "ack"]]}, "syn"), DROP], "drop"),
        ([match({"&": [payload("tcp", "flags"), {"|": ["syn", "ack"]}]}, "syn"), DROP], "drop"),
        ([match({"fib": {"result": "type", "flags": ["daddr"]}}, "local"), DROP], "drop"),
        ([match(DPORT, "@closed"), DROP], "drop"),
        (
            [{"vmap": {"key": DPORT, "data": {"set": [[22, {"accept": None}], [29500, DROP]]}}}],
            "drop",
        ),
        ([{"vmap": {"key": DPORT, "data": "@verdicts"}}], "drop"),
        ([{"counter": None}, {"log": {}}, DROP], "drop"),
        # not understood: never for sure
        ([match(DPORT, "@gone"), DROP], "accept"),
        ([{"vmap": {"key": DPORT, "data": "@gone"}}], "accept"),
        ([{"limit": {"rate": 3}}, DROP], "accept"),
        ([match({"meta": {"key": "mark"}}, 1), DROP], "accept"),
        ([match({"meta": {"key": "mark"}}, 1, "!="), DROP], "accept"),
        ([match({"concat": [payload("ip", "saddr"), DPORT]}, {"set": []}), DROP], "accept"),
        ([match(payload("ip", "saddr"), "10.0.0.1", ">"), DROP], "accept"),
        ([{"something new": {}}, DROP], "accept"),
    ],
)
def test_rules_of_nft(expressions: list[Any], kind: str) -> None:
    where = {"family": "inet", "table": "t"}
    sets = [
        {"set": {**where, "name": "closed", "elem": [{"elem": {"val": 29500}}]}},
        {"map": {**where, "name": "verdicts", "elem": [[{"range": [29000, 30000]}, DROP]]}},
    ]
    assert end(of_nft(expressions, sets=sets)) == kind


def test_chains() -> None:
    drop_at_end = "INPUT -j DROP"
    assert end(of_iptables("INPUT -j one", "one -j RETURN", drop_at_end)) == "drop"
    assert end(of_iptables("INPUT -j one", "one -j ACCEPT", drop_at_end)) == "accept"
    assert end(of_iptables("INPUT -g one", "one -j RETURN", drop_at_end)) == "accept"
    assert end(of_iptables("INPUT -j one", "one -g two", "two -j RETURN", drop_at_end)) == "drop"
    assert end(of_iptables("INPUT -j one", "one -j two", policy="DROP")) == "drop"
    assert end(of_iptables("INPUT -j RETURN", drop_at_end)) == "accept"
    maybe = "-m mark --mark 1"
    assert end(of_iptables(f"INPUT {maybe} -j one", "one -j ACCEPT", drop_at_end)) == "accept"
    assert end(of_iptables(f"INPUT {maybe} -j one", "one -j DROP", drop_at_end)) == "drop"
    assert end(of_iptables("INPUT -j one", f"one {maybe} -j RETURN", "one -j DROP")) == "accept"
    assert end(of_iptables("INPUT -j one", "one -j one", drop_at_end)) == "drop"


def test_what_may_lose_a_packet_is_told() -> None:
    found = fate(of_iptables("INPUT -m mark --mark 1 -j DROP"), PACKET, IN)
    assert [place.text for place in found.open] == ["-A INPUT -m mark --mark 1 -j DROP"]


def test_all_chains_of_a_hook_must_let_it_through() -> None:
    accepts = of_nft([{"accept": None}])
    assert end([*accepts, *of_iptables("INPUT -j DROP")]) == "drop"
    assert end([*of_iptables("PREROUTING -j DROP", table="raw"), *accepts]) == "drop"


def test_what_is_led_elsewhere_is_another_packet() -> None:
    nat = of_iptables("PREROUTING -p tcp -j REDIRECT --to-ports 15001", table="nat")
    assert end([*nat, *of_iptables("INPUT -j DROP")]) == "redirect"
    maybe = of_iptables(
        "PREROUTING -m mark --mark 1 -j DNAT --to-destination 10.0.0.9", table="nat"
    )
    assert end([*maybe, *of_iptables("INPUT -j DROP")]) == "accept"


def test_states_are_not_known_where_connections_are_not_tracked() -> None:
    rule = "-m conntrack --ctstate NEW -j DROP"
    assert end(of_iptables(f"PREROUTING {rule}", table="raw")) == "accept"
    untracked = of_iptables("PREROUTING -j NOTRACK", table="raw")
    assert end([*untracked, *of_iptables(f"INPUT {rule}")]) == "accept"


def test_going_out() -> None:
    packet = Packet("10.0.0.1", "10.0.0.2", 29500, oif="eth0")
    tables = of_iptables("OUTPUT -o eth0 -d 10.0.0.2/32 -j REJECT", "INPUT -j DROP")
    assert fate(tables, packet, OUT).kind == "reject"
    assert fate(tables, packet._replace(daddr="10.0.0.3"), OUT) == Fate("accept")


def test_the_other_family_is_let_alone() -> None:
    packet = Packet("fd00::2", "fd00::1", 29500, iif="eth0")
    assert end(of_iptables("INPUT -j DROP"), packet) == "accept"
    assert end(of_nft([DROP]), packet) == "drop"


def test_ranges_of_ports() -> None:
    tables = of_iptables("INPUT -p tcp -m multiport --dports 22,40000:41000 -j DROP")
    assert spans(tables, 32768, 60999, 64) == [(32768, 39999), (40000, 41000), (41001, 60999)]
    assert spans(tables, 32768, 60999, 1) == [(32768, 39999)]
    assert spans([], 32768, 60999, 64) == [(32768, 60999)]


def test_who_writes() -> None:
    (table,) = of_iptables("INPUT -j DROP")
    assert writer(table) == "iptables"
    assert writer(Table(**{**table, "program": "nft"})) == "iptables"
    assert writer(of_nft([DROP])[0]) == "nft"


def test_only_what_packets_may_come_to_is_kept() -> None:
    (table,) = of_iptables("INPUT -j one")
    assert set(within_reach(table)["chains"]) == {"PREROUTING", "INPUT", "OUTPUT", "one"}


# ---- asking --------------------------------------------------------------------------------


def test_a_module_that_is_not_loaded_is_not_asked() -> None:
    folder = "/lib/modules/6.1/kernel/net/netfilter"
    node: dict[str, Any] = {
        "uname": {"": {"release": "6.1"}},
        "listdir": {folder: ["nf_tables.ko.xz"], "/sys/module/nf_tables": None},
    }
    assert is_idle(Replay(node))
    node["listdir"]["/sys/module/nf_tables"] = ["refcnt"]
    assert not is_idle(Replay(node))
    node["listdir"] = {folder: None}
    assert not is_idle(Replay(node))


def test_a_ruleset_that_is_cut_off_is_read_table_by_table() -> None:
    tables = '{"nftables": [{"table": {"family": "ip", "name": "%s"}}]}'
    both = tables.replace("}}]}", '}}, {"table": {"family": "ip", "name": "nat"}}]}') % "filter"
    node: dict[str, Any] = {
        "run": {
            "nft -j list ruleset": {"out": both[:40]},
            "nft -j list tables": {"out": both},
            "nft -j list table ip filter": {"out": tables % "filter"},
            "nft -j list table ip nat": {"out": both[:40]},
        }
    }
    unread: list[str] = []
    found = ruleset(Replay(node), unread)
    assert found == [{"table": {"family": "ip", "name": "filter"}}]
    assert unread == ["table ip nat is too large to be read"]


def test_programs_that_fail_or_are_missing() -> None:
    node: dict[str, Any] = {
        "which": {"iptables-nft-save": None, "iptables-save": None},
        "run": {"nft -j list ruleset": {"code": 1, "err": "Operation not permitted\n"}},
    }
    with pytest.raises(Unobservable, match="nft: Operation not permitted"):
        ruleset(Replay(node), [])
    with pytest.raises(Unobservable, match="no program 'iptables-nft-save'"):
        saved(Replay(node), "iptables-nft-save", "iptables-save")
