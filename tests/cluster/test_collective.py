"""An all_reduce for real, with torch on every node: who is slow, wrong or not there is named."""

from __future__ import annotations

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from preflight import catalog
from preflight.api import Want
from tests.cluster.blame import causes, results, summary
from tests.cluster.machine import wait_until
from tests.cluster.testbed import RUN_LIMIT_S, Testbed

TORCH = Path(__file__).parents[2] / ".venv-torch/bin/python"
"""Made by `make test`."""
CATALOG = catalog.load()
CHECK, PAIRS = "collective.all_reduce", "collective.pairs"

if not TORCH.exists() and os.environ.get("PREFLIGHT_REQUIRE_CLUSTER") != "1":
    pytest.skip(f"no {TORCH}: make it with `make test`", allow_module_level=True)


def run(bed: Testbed, *args: str, **overrides: Any) -> dict[str, Any]:
    """Return the report of a run; root reads the venv wherever it is."""
    launch = {"python": str(TORCH), **overrides.pop("launch", {})}
    inventory = bed.inventory(ssh={"user": "root"}, launch=launch, **overrides)
    _, report = bed.report("run", str(inventory), *(args or ("--only", CHECK)))
    assert report["facts"][CHECK]
    return report


@pytest.fixture(autouse=True)
def quiet(bed: Testbed) -> None:
    """Have no node say that others load it, as they do where tests run side by side."""
    for node in bed.names:
        bed.load(node, 0)


def test_all_is_well(bed: Testbed) -> None:
    before = {node: bed.files(node) for node in bed.names}
    report = run(bed)
    assert causes(report) == []
    assert results(report, "fail", "warn", "unknown", "skip") == []
    said = summary(report, CHECK, "tb1")
    assert said.startswith("all_reduce of ")
    assert " over 4 nodes (torch 2.13.0+cpu, Gloo): busbw " in said
    assert said.endswith(" GB/s, all sums right")
    assert not any(map(bed.survivors, bed.names))
    assert {node: bed.files(node) for node in bed.names} == before


def test_a_node_with_a_slow_link(bed: Testbed) -> None:
    bed.rate_limit("tb2", 200)
    bed.rate_limit("tb2", 200, "in")
    report = run(bed)
    assert causes(report) == [("node", CHECK, ["tb2"])]
    said = summary(report, CHECK, "tb2")
    assert said.startswith("an all_reduce waits for data between it and the other nodes: 0.")
    assert summary(report, CHECK, "tb1").endswith("; data with tb2 is slow, told there")


def test_one_direction(bed: Testbed) -> None:
    bed.rate_limit("tb3", 200)
    report = run(bed)
    assert causes(report) == [("node", CHECK, ["tb3"])]
    said = summary(report, CHECK, "tb3")
    assert said.startswith("an all_reduce waits for data from it to the other nodes: 0.")


def test_two_slow_nodes(bed: Testbed) -> None:
    for node in ("tb2", "tb4"):
        bed.rate_limit(node, 200)
    report = run(bed)
    found = causes(report)  # one if both are as slow, to the last digit
    assert {(kind, check) for kind, check, _ in found} == {("node", CHECK)}
    assert sorted(node for _, _, nodes in found for node in nodes) == ["tb2", "tb4"]


def test_a_slow_pair(bed: Testbed) -> None:
    bed.rate_limit("tb1", 200, to="tb4")
    report = run(bed)
    assert causes(report) == [("pair", CHECK, ["tb1", "tb4"])]
    said = summary(report, CHECK, "tb1")
    assert said.startswith("an all_reduce waits for data from it to tb4: 0.")


def test_random_ports_that_are_dropped(bed: Testbed) -> None:
    bed.drop("tb3", "32768-60999")
    report = run(bed, "--only", "network,collective")
    assert causes(report) == [("node", "network.firewall", ["tb3"])]
    assert (CHECK, "tb3") in {(c, n) for c, n, _ in results(report, "fail")}


def test_random_ports_that_something_else_drops(bed: Testbed) -> None:
    bed.drop("tb3", "32768-60999")
    report = run(bed, "--only", "network.ephemeral", "--only", "collective")
    assert causes(report) == [("node", "network.ephemeral", ["tb3"])]
    failed = {(check, node) for check, node, _ in results(report, "fail")}
    assert {(CHECK, "tb3"), (PAIRS, "tb3")} <= failed


def test_pairs_at_level_deep(bed: Testbed) -> None:
    report = run(bed, "--only", "collective", "--level", "deep")
    assert causes(report) == []
    said = summary(report, PAIRS, "tb1")
    assert said.startswith("an all_reduce with tb2, tb3, tb4 alone is right, data comes at ")
    assert results(report, "fail", "warn", "unknown") == []


def test_pairs_of_a_slow_node(bed: Testbed) -> None:
    bed.rate_limit("tb2", 200)
    report = run(bed, "--only", "collective")
    assert causes(report) == [("node", PAIRS, ["tb2"])]
    said = summary(report, PAIRS, "tb2")
    assert said.startswith("with two nodes alone, data from it to the other nodes comes at 0.")
    assert summary(report, PAIRS, "tb3").endswith("; with tb2 it is not so, which is told there")
    assert (CHECK, "tb2") in {(check, node) for check, node, _ in results(report, "fail")}


NEVER = """
import os
import signal

fork = os.fork


def hung():
    pid = fork()
    if not pid:
        signal.pause()
    return pid


os.fork = hung
"""
"""A sitecustomize with which a process that is forked does nothing."""


def test_a_rank_that_never_starts(bed: Testbed) -> None:
    bed.change_file("tb3", "/opt/late/sitecustomize.py", NEVER)
    report = run(bed, "--only", "collective", launch={"env": {"PYTHONPATH": "/opt/late"}})
    assert causes(report) == [("node", PAIRS, ["tb3"])]
    assert summary(report, CHECK, "tb3") == (
        "an all_reduce between it and the other nodes does not end: "
        "tb3 did not come to where ranks meet"
    )
    assert not any(map(bed.survivors, bed.names))


def test_a_node_that_others_load(bed: Testbed) -> None:
    bed.rate_limit("tb2", 200)
    bed.load("tb2", 99)
    report = run(bed)
    assert causes(report) == []
    said = summary(report, CHECK, "tb1")
    assert "; how fast says little, as others load tb2 (99 tasks want " in said


def test_an_interface_that_one_node_lacks(bed: Testbed) -> None:
    bed.login_shell("tb2", "root", "/bin/bash")
    bed.change_file("tb2", "/root/.bashrc", "export GLOO_SOCKET_IFNAME=eth9\n")
    report = run(bed, "--only", "launch,collective")
    assert causes(report) == [("node", "launch.env", ["tb2"])]
    assert [node for check, node, _ in results(report, "fail") if check == CHECK] == ["tb2"]
    assert summary(report, CHECK, "tb2") == (
        "an all_reduce of 4 nodes does not end: connecting to each other: "
        "Unable to find address for: eth9"
    )
    said = summary(report, CHECK, "tb1")
    assert said.startswith("an all_reduce with tb3, tb4 alone is right; with tb2 it is not")


def test_another_interface_on_one_node(bed: Testbed) -> None:
    bed.add_interface("tb2", "away0", "10.1.1")
    bed.login_shell("tb2", "root", "/bin/bash")
    bed.change_file("tb2", "/root/.bashrc", "export GLOO_SOCKET_IFNAME=away0\n")
    report = run(bed, "--only", "launch,network,collective")
    assert causes(report) == [("node", "launch.env", ["tb2"])]
    failed = {(check, node) for check, node, _ in results(report, "fail")}
    assert {(CHECK, "tb2"), (PAIRS, "tb2")} <= failed
    assert summary(report, CHECK, "tb2") == (
        "an all_reduce between it and the other nodes does not end: "
        "connecting to each other: connect: Network is unreachable"
    )


def test_an_interpreter_that_does_not_start(bed: Testbed) -> None:
    for node in bed.names:
        script = "exit 7" if node == "tb4" else f'exec {TORCH} "$@"'
        bed.change_file(node, "/opt/torch/python", f"#!/bin/sh\n{script}\n", 0o755)
    report = run(
        bed, "--only", "software,launch,collective", launch={"python": "/opt/torch/python"}
    )
    assert causes(report) == [("node", "software.python", ["tb4"])]
    words = "/opt/torch/python does not start: it ended with code 7"
    assert summary(report, CHECK, "tb4") == f"its rank cannot start: {words}"
    assert " over 3 nodes " in summary(report, CHECK, "tb1")


def test_a_rank_that_is_killed(bed: Testbed) -> None:
    launch = {"python": str(TORCH), "env": {"SITE_PHRASE": "open sesame"}}
    inventory = bed.inventory(ssh={"user": "root"}, launch=launch)
    path = bed.tmp_path / "killed.json"
    with bed.start("run", str(inventory), "--only", CHECK, "--json", str(path)) as process:
        wait_until(lambda: len(ranks(bed, "tb3")) > 1, "a rank on tb3", 60)
        # All users of a node may read this.
        assert "sesame" not in str([bed.machines[node].processes() for node in bed.names])
        bed.machines["tb3"].kill([max(ranks(bed, "tb3"))])
        process.communicate(timeout=RUN_LIMIT_S)
    report = json.loads(path.read_text())
    assert "sesame" not in str(report["facts"][CHECK])
    assert causes(report) == [("node", CHECK, ["tb3"])]
    said = summary(report, CHECK, "tb3")
    assert said == (
        "an all_reduce of 4 nodes does not end: its rank was ended by SIGKILL, "
        "as the kernel does when memory runs out"
    )
    assert not any(map(bed.survivors, bed.names))


def ranks(bed: Testbed, node: str) -> list[int]:
    """Return the pids of interpreters with torch on a node: the first one, and those it forked."""
    return [
        pid for pid, line in bed.machines[node].processes().items() if line.startswith(str(TORCH))
    ]


@pytest.mark.parametrize("node", ["tb1", "tb3"])
def test_a_node_that_is_lost_meanwhile(bed: Testbed, node: str) -> None:
    inventory = bed.inventory(ssh={"user": "root"}, launch={"python": str(TORCH)})
    path = bed.tmp_path / f"lost-{node}.json"
    args = ("--only", "access,collective", "--json", str(path))
    with bed.start("run", str(inventory), *args) as process:
        store = node == "tb1"  # where ranks meet
        wait_until(lambda: len(ranks(bed, node)) > 1 + store, f"a rank on {node}", 60)
        bed.machines[node].kill([min(agents(bed, node))])
        process.communicate(timeout=RUN_LIMIT_S)
    report = json.loads(path.read_text())
    assert causes(report) == [("node", "access.ssh", [node])]
    said = "the all_reduce did not end, as a node that took part was lost meanwhile"
    there = [name for name in bed.names if name != node]
    assert {summary(report, CHECK, name) for name in there} == {said}
    for name in there:
        assert summary(report, PAIRS, name).startswith("an all_reduce with ")


def test_no_torch_anywhere(bed: Testbed) -> None:
    report = run(bed, launch={"python": "/usr/bin/python3"})
    assert causes(report) == []
    assert results(report, "skip") == [
        (CHECK, n, "no torch in /usr/bin/python3") for n in bed.names
    ]


def test_a_home_that_may_have_torch(bed: Testbed) -> None:
    for node in bed.names:
        bed.add_user(node, "bob", 2002)
    bed.change_file("tb2", "/home/bob/.local/bin/x", "")
    bed.run("tb2", "chmod", "700", "/home/bob")
    launch = {"user": "bob", "python": "/usr/bin/python3"}
    _, report = bed.report("run", str(bed.inventory(launch=launch)), "--only", CHECK)
    words = "packages may come from /home/bob/.local too: the login user may not look into it"
    assert results(report, "unknown") == [(CHECK, "tb2", f"no torch in /usr/bin/python3; {words}")]


def test_large_packets_that_are_lost(bed: Testbed) -> None:
    bed.lose_large("tb2", 1450)
    report = run(bed, "--only", "network,collective")
    assert causes(report) == [("node", "network.path_mtu", ["tb2"])]
    assert (CHECK, "tb2") in {(check, node) for check, node, _ in results(report, "fail")}


def test_torch_in_a_container(bed: Testbed) -> None:
    for node in bed.names:
        homes = (str(TORCH.parents[1]), str(TORCH.resolve().parents[1]))
        bed.container(node, shared=("/usr", *homes))
    report = run(bed, launch={"container": {"engine": "podman", "name": "train"}})
    assert results(report, "fail", "warn", "unknown", "skip") == []
    assert " over 4 nodes (torch 2.13.0+cpu, Gloo)" in summary(report, CHECK, "tb1")
    wait_until(lambda: not any(ranks(bed, node) for node in bed.names), "no rank")


HUNG = """
import signal

with open("/proc/self/comm", "w") as title:
    title.write("hung")
signal.pause()
"""
"""A torch whose import comes to no end, and whose process says that it is there."""
WRAPPER = f'#!/bin/sh\n{TORCH} "$@"\nexit $?\n'
"""Stays the interpreter's parent, so that a signal to what was started does not end that."""


SLOW_WRAPPER = f'#!/bin/sh\nsleep 4711\nexec {TORCH} "$@"\n'
"""Does something before, which comes to no end."""


def starting(bed: Testbed, node: str) -> bool:
    """Whether `SLOW_WRAPPER` is at it."""
    return "sleep 4711" in bed.machines[node].processes().values()


def importing(bed: Testbed, node: str) -> bool:
    """Whether an import of `HUNG` goes on there."""
    names = (bed.machines[node].path(f"/proc/{pid}/comm") for pid in ranks(bed, node))
    return any(name.exists() and name.read_text() == "hung\n" for name in names)


def reducing(bed: Testbed, node: str) -> bool:
    """Whether there is a rank there."""
    return len(ranks(bed, node)) > 1


def agents(bed: Testbed, node: str) -> list[int]:
    """Return the pids of the agent and of the children that it has forked."""
    lines = bed.machines[node].processes().items()
    return [pid for pid, line in lines if line.startswith("python3 -E -s -S -B -c")]


def ended_while(bed: Testbed, what: Any, end: str, inventory: Path) -> None:
    """End a run, or the agents of it, while something goes on on all nodes; nothing may be left."""
    before = {node: bed.files(node) for node in bed.names}
    with bed.start("run", str(inventory), "--only", CHECK) as process:
        for node in bed.names:
            wait_until(partial(what, bed, node), f"{what.__name__} on {node}", 60)
        if end == "agents":
            for node in bed.names:
                bed.machines[node].kill([min(agents(bed, node))])
        else:
            process.send_signal(signal.Signals[end])
        process.communicate(timeout=RUN_LIMIT_S)
    wait_until(lambda: not any(map(bed.survivors, bed.names)), "no process of ours")
    assert {node: bed.files(node) for node in bed.names} == before


TWO_RANKS = '''"""Two ranks of each node do an all_reduce.

Why: as where there are two GPUs.
Facts: as of collective.all_reduce.
Source: as of collective.all_reduce.
Fix: none.
"""

from preflight.api import Check, ok
from preflight.node.trials import all_together


def exercise(fleet, want):
    return all_together(fleet, want, lambda gpus, most: ["cpu", "cpu"])


def compare(facts, want):
    return {node: ok("done") for node in facts}


CHECK = Check(exercise=exercise, compare=compare)
'''


def two_ranks(bed: Testbed, tmp_path: Path) -> dict[str, Any]:
    """Return what is found on two nodes with two ranks each."""
    folder = tmp_path / "checks"
    (folder / "site").mkdir(parents=True)
    (folder / "site" / "two_ranks.py").write_text(TWO_RANKS)
    inventory = bed.inventory(ssh={"user": "root"}, launch={"python": str(TORCH)})
    args = ("--only", "site.two_ranks", "--nodes", "tb[1-2]", "--checks", str(folder))
    _, report = bed.report("run", str(inventory), *args)
    return {node: fact["value"] for node, fact in report["facts"]["site.two_ranks"].items()}


def test_two_ranks_on_each_node(bed: Testbed, tmp_path: Path) -> None:
    facts = two_ranks(bed, tmp_path)
    want = Want({"port": 29500, "env": {}, "master": "tb1"}, {}, ["tb1", "tb2"])
    together, alone = (CATALOG[check].check.compare for check in (CHECK, "collective.local"))
    assert together
    assert alone
    for node, other, ranks in (("tb1", "tb2", [0, 1]), ("tb2", "tb1", [2, 3])):
        fact = facts[node]
        assert (fact["run"]["at"], fact["run"]["world"], fact["run"]["rank"]) == ("", 4, ranks[0])
        assert (fact["local"]["at"], fact["local"]["world"]) == ("", 2)
        for size in fact["run"]["sizes"] + fact["local"]["sizes"]:
            assert (len(size["ranks"]), max(size["ranks"]), size["wrong"]) == (2, size["ms"], 0)
        assert list(fact["peers"]) == [other]
    assert {said.status for said in together(facts, want).values()} == {"pass"}
    said = alone(
        {node: {**fact, "nccl": "2.29.7", "gpus": 2} for node, fact in facts.items()}, want
    )
    assert said["tb1"].summary.startswith("all_reduce of 2 GPUs (NCCL 2.29.7): ")


def at_once(bed: Testbed, commands: dict[str, str]) -> dict[str, str]:
    """Return what commands print that are given on several nodes at the same time."""

    def given(node: str) -> str:
        done = bed.ssh(node, commands[node], "root", 90)
        assert done.returncode == 0, done.stderr
        return done.stdout

    with ThreadPoolExecutor() as pool:
        return dict(zip(commands, pool.map(given, commands), strict=True))


JOB = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.tensor(float(dist.get_rank() + 1))
dist.all_reduce(x)
told = dist.get_rank(), dist.get_world_size(), int(x), os.environ["GLOO_SOCKET_IFNAME"]
os.write(1, f"{told} {os.environ['SITE_PHRASE']} {sys.argv[1:]}\\n".encode())
dist.barrier()
dist.destroy_process_group()
"""


def test_the_commands_of_preflight_launch_start_a_job(bed: Testbed) -> None:
    nodes = ["tb1", "tb2"]
    for node in nodes:
        bed.change_file(node, "/opt/job/train.py", JOB)
    launch = {
        "python": str(TORCH),
        "master": "tb2",
        "workdir": "/opt/job",
        "interface": "eth0",
        "gpus_per_node": 2,
        "env": {"SITE_PHRASE": "open 'sesame'"},
    }
    inventory = bed.inventory(launch=launch, nodes=[bed.spec(node) for node in nodes])
    printed = bed.preflight("launch", str(inventory), "--", "train.py", "--name", "a b").stdout
    blocks = [block.splitlines() for block in printed.strip().split("\n\n")]
    commands = {head.removeprefix("# "): line for head, line in blocks}
    assert list(commands) == ["tb2", "tb1"]
    told = at_once(bed, commands)
    for node, ranks in (("tb2", (0, 1)), ("tb1", (2, 3))):
        assert sorted(told[node].splitlines()) == [
            f"({rank}, 4, 10, 'eth0') open 'sesame' ['--name', 'a b']" for rank in ranks
        ]


def test_it_is_repeated_by_hand(bed: Testbed) -> None:
    nodes = ["tb1", "tb2"]
    report = run(bed, nodes=[bed.spec(node) for node in nodes])
    facts = {node: report["facts"][CHECK][node]["value"] for node in nodes}
    told = at_once(bed, {node: fact["engine"]["command"] for node, fact in facts.items()})
    assert all(line.startswith("64 MiB: ") and line.endswith(" s\n") for line in told.values())
    row = next(r for r in report["results"] if r["check"] == CHECK)
    words = "by hand, at the same time on all nodes, each its own --node_rank: "
    assert words + facts["tb1"]["engine"]["command"] in row["details"]


ENDS = pytest.mark.parametrize("end", ["SIGINT", "SIGKILL", "agents"])


@ENDS
def test_nothing_is_left_of_an_import(bed: Testbed, end: str) -> None:
    for node in bed.names:
        bed.change_file(node, "/opt/hung/torch.py", HUNG)
        bed.change_file(node, "/opt/hung/python", WRAPPER, 0o755)
    launch = {"python": "/opt/hung/python", "env": {"PYTHONPATH": "/opt/hung"}}
    inventory = bed.inventory(ssh={"user": "root"}, launch=launch)
    ended_while(bed, importing, end, inventory)


@ENDS
def test_nothing_is_left_of_a_start(bed: Testbed, end: str) -> None:
    for node in bed.names:
        bed.change_file(node, "/opt/slow/python", SLOW_WRAPPER, 0o755)
    inventory = bed.inventory(ssh={"user": "root"}, launch={"python": "/opt/slow/python"})
    ended_while(bed, starting, end, inventory)


@ENDS
def test_nothing_is_left_of_an_all_reduce(bed: Testbed, end: str) -> None:
    inventory = bed.inventory(ssh={"user": "root"}, launch={"python": str(TORCH)})
    ended_while(bed, reducing, end, inventory)
