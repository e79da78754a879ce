"""The main job on real nodes: all is well, a node is missing, nothing is left behind."""

from __future__ import annotations

import datetime as dt
import json
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from preflight.errors import TransportError
from tests.checks_made import write
from tests.cluster.blame import causes, results, summary
from tests.cluster.machine import wait_until
from tests.cluster.testbed import Testbed
from tests.messages.aloud import Aloud


def test_a_healthy_cluster_is_ready_without_a_warning(bed: Testbed) -> None:
    done, report = bed.report("run", str(bed.inventory()))
    assert results(report, "fail", "warn", "unknown") == []
    assert (report["verdict"], done.returncode, done.stderr) == ("ready", 0, "")
    assert done.stdout.splitlines()[0].startswith("testbed")
    addresses = {node["name"]: node["address"] for node in report["nodes"]}
    assert addresses == {name: machine.address for name, machine in bed.machines.items()}


def test_judging_again_gives_the_same(bed: Testbed) -> None:
    with_fault = bed.inventory(expect={"mtu": 1400})
    done, report = bed.report("run", str(with_fault))
    first = bed.tmp_path / "first.json"
    first.write_text(json.dumps(report))
    again, second = bed.report("judge", str(first))
    assert again.returncode == done.returncode == 1
    assert {k: v for k, v in second.items() if k != "tool"} == {
        k: v for k, v in report.items() if k != "tool"
    }
    other = bed.inventory(expect={"mtu": 1500})
    forgiving, third = bed.report("judge", str(first), "-i", str(other))
    assert (forgiving.returncode, third["verdict"]) == (0, "ready")


LOST: dict[str, tuple[Callable[[Testbed], object], str]] = {
    "refused": (lambda bed: bed.stop_sshd("tb2"), "refused"),
    "filtered": (lambda bed: bed.drop_ssh("tb2"), "no answer within"),
    "unplugged": (lambda bed: bed.unplug("tb2"), ""),
    "silent": (lambda bed: bed.silent_sshd("tb2"), ""),
    "changed_key": (lambda bed: bed.change_host_key("tb2"), "host key"),
    "hanging_shell": (lambda bed: bed.hang_login("tb2"), ""),
    "no_python": (lambda bed: bed.no_python("tb2"), "no python3"),
}


@pytest.mark.parametrize("fault", LOST)
def test_a_node_that_cannot_be_reached_is_a_row(bed: Testbed, fault: str) -> None:
    put_in, words = LOST[fault]
    put_in(bed)
    inventory = bed.inventory(ssh={"connect_timeout_s": 3, "login_timeout_s": 6})
    done, report = bed.report("run", str(inventory), "--deadline", "60")
    assert causes(report) == [("node", "access.ssh", ["tb2"])]
    assert words in summary(report, "access.ssh", "tb2")
    assert done.returncode == 1
    others = [r for r in report["results"] if r["node"] == "tb2" and r["check"] != "access.ssh"]
    assert {(r["status"], r["summary"]) for r in others} == {("skip", "not reached")}
    assert report["causes"][0]["fix"]


SAYS_NO: dict[str, Callable[[Testbed], object]] = {
    "no route": lambda bed: bed.reject("tb2", 22, "host-unreachable"),
    "network unreachable": lambda bed: bed.reject("tb2", 22, "net-unreachable"),
    "reset": lambda bed: bed.reset("tb2", 22),
}


def test_a_dead_node_that_is_waived_is_done_without(bed: Testbed) -> None:
    bed.stop_sshd("tb2")
    waiver = {"check": "access.ssh", "node": "tb2", "owner": "ops", "reason": "RMA"}
    waiver["until"] = str(dt.datetime.now(dt.timezone.utc).date() + dt.timedelta(1))
    done, report = bed.report("run", str(bed.inventory(waivers=[waiver])))
    assert (done.returncode, report["verdict"]) == (0, "ready")
    assert {n["name"]: n["verdict"] for n in report["nodes"]} == {
        **dict.fromkeys(bed.names, "ready"),
        "tb2": "undetermined",
    }
    assert "3 of 4 nodes are ready: tb[1,3-4]; 1 failure waived; no check judged tb2" in done.stdout


BROKEN = {
    "libraries": "echo 'python3: error while loading shared libraries: libz.so.1' >&2; exit 127",
    "crash": "kill -SEGV $$",
    "hang": "exec sleep 1000",
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_python_that_does_not_start_is_named(bed: Testbed, fault: str) -> None:
    bed.change_file("tb2", "/usr/local/bin/python3", f"#!/bin/sh\n{BROKEN[fault]}\n", 0o755)
    inventory = bed.inventory(ssh={"login_timeout_s": 3})
    done, report = bed.report("run", str(inventory), "--only", "access")
    assert (done.returncode, causes(report)) == (1, [("node", "access.ssh", ["tb2"])])
    assert "ssh tb2 python3 -c pass must print nothing" in report["causes"][0]["fix"]


def test_host_keys_of_a_first_run_are_one_cause(bed: Testbed) -> None:
    empty = bed.tmp_path / "none_known"
    empty.write_text("")
    inventory = bed.inventory(ssh={"known_hosts": str(empty)})
    done, report = bed.report("run", str(inventory), "--only", "access")
    assert (done.returncode, causes(report)) == (1, [("node", "access.ssh", [*bed.names])])
    assert "set ssh.host_keys: accept-new" in report["causes"][0]["fix"]
    assert "on each of these nodes" not in done.stdout


def test_each_way_of_being_unreachable_has_its_own_words(bed: Testbed) -> None:
    bed.stop_sshd("tb1")
    bed.drop_ssh("tb2")
    bed.silent_sshd("tb3")
    bed.no_python("tb4")
    inventory = bed.inventory(ssh={"connect_timeout_s": 3, "login_timeout_s": 6})
    _, report = bed.report("run", str(inventory))
    said = [summary(report, "access.ssh", node) for node in bed.names]
    assert len({words.replace(node, "") for node, words in zip(bed.names, said, strict=True)}) == 4


@pytest.mark.parametrize("kind", SAYS_NO)
def test_a_network_that_says_no(bed: Testbed, kind: str, aloud: Aloud) -> None:
    SAYS_NO[kind](bed)
    done, report = bed.report("run", str(bed.inventory()), "--only", "access")
    assert (done.returncode, causes(report)) == (1, [("node", "access.ssh", ["tb2"])])
    (cause,) = report["causes"]
    (row,) = [r for r in report["results"] if (r["check"], r["node"]) == ("access.ssh", "tb2")]
    assert row["observed"] == kind
    aloud(TransportError(row["observed"], row["summary"], cause["fix"]), about=kind)


def test_noise_at_login_is_a_warning_only(bed: Testbed) -> None:
    bed.login_noise("tb3", "Welcome to tb3!")
    done, report = bed.report("run", str(bed.inventory()))
    assert done.returncode == 0
    assert results(report, "fail", "warn", "unknown") == [
        ("access.ssh", "tb3", "the login shell prints to standard output: Welcome to tb3!")
    ]


def test_two_names_for_one_machine(bed: Testbed) -> None:
    address = bed.second_address("tb1")
    nodes = [*(bed.spec(name) for name in bed.names), {"name": "tb9", "address": address}]
    known = Path(bed.known_hosts).read_text()
    key = next(line for line in known.splitlines() if bed.machines["tb1"].address in line)
    hosts = bed.tmp_path / "known_hosts_two"
    hosts.write_text(f"{known}{address} {key.split(' ', 1)[1]}\n")
    inventory = bed.inventory(nodes=nodes, ssh={"known_hosts": str(hosts)})
    done, report = bed.report("run", str(inventory), "--only", "access")
    assert done.returncode == 1
    assert causes(report) == [("pair", "access.identity", ["tb1", "tb9"])]


@pytest.mark.parametrize("shell", ["/usr/bin/tcsh", "/usr/bin/fish", "/bin/bash", "/bin/dash"])
def test_login_shells(bed: Testbed, shell: str) -> None:
    bed.login_shell("tb2", "alice", shell)
    done, report = bed.report("run", str(bed.inventory()), "--only", "access")
    assert results(report, "fail", "warn", "unknown") == []
    assert done.returncode == 3  # access alone judges nothing of a node


ROOT_CHECK = """
def probe(node):
    return {"uid": node.account().uid, "shadow": bool(node.read("/etc/shadow"))}


def judge(facts, want):
    return ok("read as uid %d" % facts["uid"]) if facts["shadow"] else fail("not readable")


CHECK = Check(probe=probe, judge=judge, needs_root=True)
"""


@pytest.fixture
def root_check(tmp_path: Path) -> str:
    write(tmp_path, "site.shadow", ROOT_CHECK)
    return str(tmp_path)


def test_checks_that_need_root_are_skipped_for_an_ordinary_user(
    bed: Testbed, root_check: str
) -> None:
    args = ("run", str(bed.inventory()), "--checks", root_check, "--only", "site")
    _, report = bed.report(*args)
    assert summary(report, "site.shadow", "tb1") == "needs root"


def test_sudo_that_is_allowed_and_sudo_that_is_not(bed: Testbed, root_check: str) -> None:
    bed.allow_sudo("tb1")
    inventory = bed.inventory(ssh={"become": "sudo"})
    done, report = bed.report(
        "run", str(inventory), "--checks", root_check, "--only", "site", "--nodes", "tb[1-2]"
    )
    assert summary(report, "site.shadow", "tb1") == "read as uid 0"
    refused = summary(report, "site.shadow", "tb2")
    assert refused.startswith("needs root: sudo -n was refused: sudo: a password is required")
    statuses = {r["node"]: r["status"] for r in report["results"] if r["check"] == "site.shadow"}
    assert statuses == {"tb1": "pass", "tb2": "skip"}
    assert done.returncode == 3  # of tb2 nothing was told


HANGING = """
import time


def probe(node):
    node.run(["sleep", "600"], timeout_s=600)


def judge(facts, want):
    return ok("never")


CHECK = Check(probe=probe, judge=judge, timeout_s=500)
"""


def alone(bed: Testbed, node: str) -> bool:
    return not bed.survivors(node)


def hanging(bed: Testbed, node: str) -> bool:
    return any("sleep 600" in line for line in bed.survivors(node))


def after_a_run(bed: Testbed, _: str) -> None:
    assert bed.preflight("run", str(bed.inventory())).returncode == 0


def interrupted(number: int) -> Callable[[Testbed, str], None]:
    def during_a_run(bed: Testbed, checks: str) -> None:
        args = ("run", str(bed.inventory()), "--checks", checks, "--only", "site")
        with bed.start(*args) as process:
            for node in bed.names:
                wait_until(partial(hanging, bed, node), "the probe")
            process.send_signal(number)
            process.communicate(timeout=20)
        if number == signal.SIGINT:
            assert process.returncode == 130

    return during_a_run


@pytest.mark.parametrize(
    "how",
    [
        after_a_run,
        interrupted(signal.SIGINT),
        interrupted(signal.SIGTERM),
        interrupted(signal.SIGKILL),
    ],
    ids=["finished", "Ctrl-C", "SIGTERM", "SIGKILL"],
)
def test_nothing_is_left_on_any_node(
    bed: Testbed, tmp_path: Path, how: Callable[[Testbed, str], None]
) -> None:
    write(tmp_path, "site.hang", HANGING)
    before = {node: bed.files(node) for node in bed.names}
    how(bed, str(tmp_path))
    for node in bed.names:
        wait_until(partial(alone, bed, node), f"no process of ours on {node}")
    assert {node: bed.files(node) for node in bed.names} == before


def test_the_deadline_ends_a_run(bed: Testbed, tmp_path: Path) -> None:
    write(tmp_path, "site.hang", HANGING)
    args = ("run", str(bed.inventory()), "--checks", str(tmp_path), "--only", "site")
    done, report = bed.report(*args, "--deadline", "6")
    assert done.returncode == 3
    assert {r["status"] for r in report["results"] if r["check"] == "site.hang"} == {"unknown"}


HANGING_ON_ONE = """
def probe(node):
    if node.uname()["node"] == "tb2":
        node.run(["sleep", "600"], timeout_s=600)
    return 1


def judge(facts, want):
    return ok("done")


CHECK = Check(probe=probe, judge=judge, timeout_s=500)
"""


def test_a_node_whose_link_goes_down_in_mid_run_is_a_row(bed: Testbed, tmp_path: Path) -> None:
    write(tmp_path, "site.hang", HANGING_ON_ONE)
    path = tmp_path / "report.json"
    args = ("run", str(bed.inventory()), "--checks", str(tmp_path), "--json", str(path))
    with bed.start(*args, "--only", "site,software.os,network.port") as process:
        wait_until(partial(hanging, bed, "tb2"), "the probe")
        bed.unplug("tb2")
        process.communicate(timeout=120)
    assert process.returncode == 1
    report = json.loads(path.read_text())
    assert causes(report) == [("node", "access.ssh", ["tb2"])]
    assert summary(report, "access.ssh", "tb2").startswith("stopped answering: silent for ")
    others = [r for r in report["results"] if r["node"] == "tb2" and r["check"] != "access.ssh"]
    assert {(r["status"], r["summary"]) for r in others} == {("skip", "not reached")}
    assert {n["name"]: n["verdict"] for n in report["nodes"]} == {
        name: "not_ready" if name == "tb2" else "ready" for name in bed.names
    }


def test_a_jump_host_that_is_lost_in_mid_run_is_named(bed: Testbed, tmp_path: Path) -> None:
    write(tmp_path, "site.hang", HANGING)
    path, jump = tmp_path / "report.json", f"{bed.machines['tb1'].address}:22"
    behind = {"ssh": {"jump": f"alice@{jump}"}}
    inventory = bed.inventory(nodes=[bed.spec("tb2", **behind), bed.spec("tb3", **behind)])
    args = ("run", str(inventory), "--checks", str(tmp_path), "--only", "site")
    with bed.start(*args, "--json", str(path)) as process:
        for node in ("tb2", "tb3"):
            wait_until(partial(hanging, bed, node), "the probe")
        bed.kill_connections("tb1")
        process.communicate(timeout=60)
    report = json.loads(path.read_text())
    assert causes(report) == [("node", "access.ssh", ["tb2", "tb3"])]
    assert summary(report, "access.ssh", "tb3").startswith(
        f"{bed.machines['tb3'].address}:22: connection lost with that to jump host {jump}"
    )
