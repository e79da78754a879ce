"""Each fault of the testbed is really there, and is gone after `restore`."""

from __future__ import annotations

import errno
import socket

import pytest
import yaml

from tests.cluster.machine import wait_until
from tests.cluster.testbed import Testbed


def dial(bed: Testbed, node: str, port: int, timeout: float = 0.2) -> int:
    """Return the errno of a TCP connect from the controller to a node, 0 when it got through."""
    with socket.socket() as connection:
        connection.settimeout(timeout)
        try:
            connection.connect((bed.machines[node].address, port))
        except TimeoutError:
            return errno.ETIMEDOUT
        except OSError as error:
            return error.errno or 0
    return 0


def test_nodes_are_machines_of_their_own(bed: Testbed) -> None:
    for name, machine in bed.machines.items():
        assert bed.run(name, "hostname") == f"{name}\n"
        assert bed.run(name, "getent", "hosts", "tb2").split() == ["10.78.0.2", "tb2"]
        assert f"inet {machine.address}/24" in bed.run(name, "ip", "-4", "addr", "show", "eth0")
    assert bed.run("tb1", "ping", "-c1", "-W2", "-q", "tb4").count("0% packet loss") == 1


@pytest.mark.parametrize(
    ("user", "identity"), [("alice", "uid=2001(alice) gid=2001(train) groups=2001(train)"),
                           ("root", "uid=0(root) gid=0(root) groups=0(root)")]
)  # fmt: skip
def test_both_users_log_in(bed: Testbed, user: str, identity: str) -> None:
    done = bed.ssh("tb3", "id; hostname; pwd", user=user)
    home = {"alice": "/home/alice", "root": "/root"}[user]
    assert (done.stdout, done.stderr, done.returncode) == (f"{identity}\ntb3\n{home}\n", "", 0)


def test_run_as_another_user(bed: Testbed) -> None:
    assert bed.run("tb1", "id", "-un", as_user="alice") == "alice\n"


def test_a_failed_command_says_what_it_printed(bed: Testbed) -> None:
    with pytest.raises(ChildProcessError, match=r"exit code 2: ls: cannot access '/nowhere'"):
        bed.run("tb1", "ls", "/nowhere")


def test_inventory_merges_mappings(bed: Testbed) -> None:
    path = bed.inventory(ssh={"user": "root"}, nodes=[bed.spec("tb2")], launch={"port": 29501})
    assert yaml.safe_load(path.read_text()) == {
        "cluster": "testbed",
        "ssh": {"user": "root", "key": str(bed.key), "known_hosts": str(bed.known_hosts)},
        "nodes": [{"name": "tb2", "address": "10.78.0.2"}],
        "launch": {"port": 29501},
    }


def test_preflight_runs_without_this_environment(bed: Testbed) -> None:
    with bed.start("--help") as process:
        process.communicate(timeout=60)
    assert sorted(bed.environment()) == ["HOME", "LANG", "PATH"]


def test_survivors_and_files_show_what_is_left(bed: Testbed) -> None:
    assert bed.survivors("tb1") == []
    before = bed.files("tb1")
    left = ["/tmp/a", "/dev/shm/b", "/run/c", "/var/tmp/d", "/home/alice/e"]
    bed.run("tb1", "touch", *left)
    assert bed.files("tb1") - before == {*left}
    bed.run("tb1", "rm", *left)
    with bed.popen("tb1", "sleep", "1000", as_user="alice"):
        try:
            wait_until(lambda: bed.survivors("tb1") == ["sleep 1000"], "sleep")
        finally:
            bed.restore()
    assert bed.survivors("tb1") == []


def test_mtu(bed: Testbed) -> None:
    bed.mtu("tb2", 1400)
    assert bed.run("tb2", "cat", "/sys/class/net/eth0/mtu") == "1400\n"
    bed.restore()
    assert bed.run("tb2", "cat", "/sys/class/net/eth0/mtu") == "1500\n"


def test_switch_mtu_carries_jumbo_frames(bed: Testbed) -> None:
    jumbo = ["ping", "-c1", "-W0.2", "-Mdo", "-s8972", "tb2"]
    bed.mtu("tb1", 9000)
    bed.mtu("tb2", 9000)
    with pytest.raises(ChildProcessError, match="100% packet loss"):
        bed.run("tb1", *jumbo)
    bed.switch_mtu(9000)
    assert ", 0% packet loss" in bed.run("tb1", *jumbo)


def test_held_port_has_an_owner(bed: Testbed) -> None:
    pid = bed.hold_port("tb1", 29500)
    assert bed.run("tb1", "ps", "-o", "user=,comm=", "-p", str(pid)).split() == ["alice", "python3"]
    assert dial(bed, "tb1", 29500) == 0
    bed.restore()
    assert dial(bed, "tb1", 29500) == errno.ECONNREFUSED


def test_drop_loses_new_connections(bed: Testbed) -> None:
    bed.hold_port("tb1")
    bed.drop("tb1", 29500)
    assert dial(bed, "tb1", 29500) == errno.ETIMEDOUT
    assert dial(bed, "tb1", 22) == 0
    bed.restore()
    bed.hold_port("tb1")
    assert dial(bed, "tb1", 29500) == 0


def test_drop_from_one_node_only(bed: Testbed) -> None:
    bed.hold_port("tb1")
    bed.drop("tb1", "29000-30000", source="tb2")
    ask = ["/usr/bin/python3", "-c", "import socket; socket.create_connection(('tb1', 29500), 0.3)"]
    assert bed.run("tb3", *ask) == ""
    with pytest.raises(ChildProcessError, match="TimeoutError: timed out"):
        bed.run("tb2", *ask)


@pytest.mark.parametrize(
    ("with_", "code"),
    [
        ("tcp reset", errno.ECONNREFUSED),
        ("admin-prohibited", errno.EHOSTUNREACH),
        ("host-unreachable", errno.EHOSTUNREACH),
        ("port-unreachable", errno.ECONNREFUSED),
    ],
)
def test_reject(bed: Testbed, with_: str, code: int) -> None:
    bed.hold_port("tb1")
    bed.reject("tb1", 29500, with_)  # type: ignore[arg-type]  # from the list above
    assert dial(bed, "tb1", 29500) == code


def test_unplugged_node_does_not_answer(bed: Testbed) -> None:
    bed.unplug("tb4")
    assert dial(bed, "tb4", 22) == errno.ETIMEDOUT
    bed.restore()
    assert dial(bed, "tb4", 22, timeout=5) == 0
