"""Nodes that die, lie or run out of ports while all go to all.

Each is a row, or the only cause; the pairs of the other nodes are judged as ever.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.blame import causes, results, summary
from tests.cluster.machine import wait_until
from tests.cluster.network_faults import PYTHON
from tests.cluster.testbed import Testbed

SSH, LAUNCH = 22, 29500
PORTS = f"{LAUNCH}-60999"
"""The launch port, and those that the kernel gives."""
RANGE = "/proc/sys/net/ipv4/ip_local_port_range"
WAITING = {"tcp": "0A", "tcp6": "0A", "udp": "07", "udp6": "07"}
"""States of sockets that wait for whoever comes (proc_net(5))."""
ENDS_S = 90
"""Far more than a run takes in which one node dies."""


def doors(bed: Testbed, node: str) -> set[int]:
    """Return the ports at which processes of a node wait for others, but for SSH's."""
    found = set()
    for table, state in WAITING.items():
        path = Path(f"/proc/{bed.machines[node].pid}/net/{table}")
        sockets = [line.split() for line in path.read_text().splitlines()[1:]]
        found |= {int(one[1].rpartition(":")[2], 16) for one in sockets if one[3] == state}
    return found - {SSH}


def others(report: dict[str, Any], node: str) -> list[tuple[str, str, str]]:
    """Return check, node and status of what is said of all other nodes and is no pass."""
    rows = [(r["check"], r["node"], r["status"]) for r in report["results"]]
    return [row for row in rows if row[1] != node and row[2] != "pass"]


# ---- a node that dies ----------------------------------------------------------------------


def kill_agent(bed: Testbed, node: str) -> None:
    """Kill the agent as the kernel does that has no memory left; its children end with it."""
    found = bed.machines[node].processes()
    bed.machines[node].kill([min(pid for pid, line in found.items() if line.startswith("python3"))])


def dying(
    bed: Testbed, node: str, how: Callable[[Testbed, str], None], check: str
) -> dict[str, Any]:
    """Return the report of a run in which a node dies while others wait for its answers.

    They wait because nothing gets in there, by then.
    """
    bed.drop(node, PORTS)
    path = bed.tmp_path / f"dying-{check}-{how.__name__}.json"
    args = ("--only", f"access,{check}", "--level", "deep", "--json", str(path))
    with bed.start("run", str(bed.inventory()), *args) as process:
        wait_until(lambda: doors(bed, node) or process.poll() is not None, "our listeners", 30)
        assert process.poll() is None
        how(bed, node)
        out, err = process.communicate(timeout=ENDS_S)
    assert process.returncode == 1, out + err
    report: dict[str, Any] = json.loads(path.read_text())
    return report


def assert_lost(report: dict[str, Any], node: str, why: str) -> None:
    """Hold a report to that: a node was lost, and all others are well."""
    assert causes(report) == [("node", "access.ssh", [node])]
    assert summary(report, "access.ssh", node).startswith(why)
    rows = {r["check"]: (r["status"], r["summary"]) for r in report["results"] if r["node"] == node}
    del rows["access.ssh"]
    assert set(rows.values()) == {("skip", "not reached")}
    assert others(report, node) == []


MESHES = [f"network.{name}" for name in ("ephemeral", "port", "path_mtu", "latency", "interface")]


@pytest.mark.parametrize("check", MESHES)
def test_an_agent_that_is_killed(bed: Testbed, check: str) -> None:
    _, node, *_ = bed.names
    report = dying(bed, node, kill_agent, check)
    assert_lost(report, node, "the agent has ended")
    assert node not in summary(report, check, bed.names[-1])


def test_a_master_whose_agent_is_killed(bed: Testbed) -> None:
    master, *rest = bed.names
    report = dying(bed, master, kill_agent, "network.port")
    assert causes(report) == [("node", "access.ssh", [master])]
    said = f"the master {master} was lost meanwhile"
    assert [summary(report, "network.port", node) for node in rest] == [said] * len(rest)


def test_a_node_whose_network_goes_away(bed: Testbed) -> None:
    *_, node = bed.names
    report = dying(bed, node, Testbed.unplug, "network.ephemeral")
    assert_lost(report, node, "stopped answering: silent for ")


# ---- a node that lies ----------------------------------------------------------------------

# Answers whoever comes, by TCP or UDP, and not as our listeners do. Says `ready` first.
RUBBISH = """
import os, socket, sys, threading
kind, port = sys.argv[1], int(sys.argv[2])
tcp = socket.create_server(("0.0.0.0", port), backlog=512)
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.bind(("0.0.0.0", port))
print("ready", flush=True)
def answer(said):
    kinds = {"garbage": os.urandom(len(said)), "echo": said, "endless": bytes(65507)}
    return kinds.get(kind, b"")
def talk(one):
    with one:
        said = one.recv(4096)
        while said and kind != "closes":
            one.sendall(answer(said))
            said = said if kind == "endless" else one.recv(4096)
def datagrams():
    while True:
        said, whence = udp.recvfrom(65536)
        if answer(said):
            udp.sendto(answer(said), whence)
threading.Thread(target=datagrams, daemon=True).start()
while True:
    threading.Thread(target=talk, args=tcp.accept()[:1], daemon=True).start()
"""
DOOR = 15001
FOREIGN = "accepted by something that is not our listener, as by a proxy or service mesh"
SILENT = "accepted, but our listener never answered, as behind a proxy or service mesh"
ANSWERS = {
    "garbage": FOREIGN,
    "echo": FOREIGN,
    "endless": FOREIGN,
    "closes": FOREIGN,
    "silent": SILENT,
}


def answer_rubbish(bed: Testbed, node: str, kind: str) -> None:
    """Lead what comes to a node from others to a process that answers it otherwise."""
    machine = bed.machines[node]
    argv = (PYTHON, "-c", RUBBISH, kind, str(DOOR))
    bed._undo(machine.end, machine.start(*argv, says="ready"))
    rule = f"meta l4proto {{ tcp, udp }} th dport {PORTS} redirect to :{DOOR}"
    chain = f"chain lies {{ type nat hook prerouting priority -100; {rule}\n}}"
    bed.nft(node, f"table ip lies {{ {chain}\n}}")


@pytest.mark.parametrize("kind", ANSWERS)
def test_a_node_that_answers_rubbish(bed: Testbed, kind: str) -> None:
    _, node, *_ = bed.names
    answer_rubbish(bed, node, kind)
    checks = [f"network.{name}" for name in ("ephemeral", "port", "path_mtu", "interface")]
    _, report = bed.report("run", str(bed.inventory()), "--only", ",".join(checks))
    assert causes(report) == [("node", "network.ephemeral", [node])]
    said = summary(report, "network.ephemeral", node)
    words = f"the other nodes do not reach it on random high ports: {ANSWERS[kind]}"
    assert said == words
    assert others(report, node) == []
    assert results(report, "unknown") == [
        (
            "network.path_mtu",
            node,
            "UDP filtered: even small datagrams from the other nodes to it are not answered, so"
            " what size passes cannot be told",
        )
    ]
    words = f"could not be the master: the other nodes do not reach it on port {LAUNCH}"
    assert results(report, "warn") == [("network.port", node, f"{words}: {ANSWERS[kind]}")]


def test_a_master_that_answers_rubbish(bed: Testbed) -> None:
    master, *_ = bed.names
    answer_rubbish(bed, master, "garbage")
    _, report = bed.report("run", str(bed.inventory()), "--only", "network.ephemeral,network.port")
    assert causes(report) == [("node", "network.ephemeral", [master])]
    assert report["causes"][0]["explains"] == [{"check": "network.port", "node": master}]
    assert others(report, master) == []


# Runs the agent, and passes on what it says until it has taken its modules.
LIAR = """\
#!/usr/bin/python3
import subprocess, sys
agent = subprocess.Popen(["/usr/bin/python3", *sys.argv[1:]], stdout=subprocess.PIPE)
answers = 0
for line in agent.stdout:
    answers += line.startswith(b"preflight-")
    sys.stdout.buffer.write(line if answers < 3 else {lie})
    sys.stdout.flush()
"""
LIES = {
    "cut_off": ("line[:-3]", "stopped answering: silent for "),
    "huge": ("line + bytes(5 << 20)", "the node sent a line of more than 4 MiB, it begins with "),
}


@pytest.mark.parametrize("kind", LIES)
def test_an_agent_that_says_rubbish(bed: Testbed, kind: str) -> None:
    lie, why = LIES[kind]
    _, node, *_ = bed.names
    bed.change_file(node, "/opt/liar", LIAR.format(lie=lie), 0o755)
    python = {node: {"ssh": {"python": "/opt/liar"}}}
    nodes = [bed.spec(name, **python.get(name, {})) for name in bed.names]
    _, report = bed.report("run", str(bed.inventory(nodes=nodes)), "--only", f"access,{MESHES[0]}")
    assert_lost(report, node, why)


# ---- a node that runs out ------------------------------------------------------------------


@pytest.mark.parametrize("free", [0, 1])
def test_a_node_whose_ports_are_used_up(bed: Testbed, free: int) -> None:
    _, node, *_ = bed.names
    bed._undo(bed.run, node, "sh", "-c", f"echo 32768 60999 > {RANGE}")
    bed.run(node, "sh", "-c", f"echo 40000 40000 > {RANGE}")
    if not free:
        bed.hold_port(node, 40000)
    _, report = bed.report("run", str(bed.inventory()), "--only", "network.ephemeral,network.port")
    assert causes(report) == [("node", "network.ephemeral", [node])]
    why = "this node has no port free to connect from, of net.ipv4.ip_local_port_range"
    said = summary(report, "network.ephemeral", node)
    assert said == f"it does not reach the other nodes on random high ports: {why}"
    assert others(report, node) == []


# ---- a clock that jumps --------------------------------------------------------------------


@pytest.mark.parametrize(("seconds", "period_s"), [(0.02, 0.003), (3600, 0.05)])
def test_a_clock_that_jumps(bed: Testbed, seconds: float, period_s: float) -> None:
    _, node, *_ = bed.names
    bed.skew(node, seconds, period_s)
    done, report = bed.report("run", str(bed.inventory()))
    clock = ("node", "host.clock", [node])
    assert causes(report) in ([], [clock])  # it is asked the time only now and then
    assert done.returncode == len(report["causes"])
    found = results(report, "fail", "warn", "unknown")
    assert {(check, where) for check, where, _ in found} <= {("host.clock", node)}
    taken = [row["seconds"] for row in report["results"] if row["seconds"] is not None]
    assert all(0 <= one <= report["run"]["seconds"] for one in taken)
