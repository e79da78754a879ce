"""Each fault of the testbed is really there, and is gone after `restore`."""

from __future__ import annotations

import errno
import json
import re
import socket
import subprocess
import time
from pathlib import Path

import pynvml
import pytest
import yaml

from tests.cluster.hardware import gpu_values
from tests.cluster.machine import wait_until
from tests.cluster.testbed import Testbed


def dial(bed: Testbed, node: str, port: int, timeout: float = 1) -> int:
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


def test_preflight_runs_in_a_home_and_with_a_cache_of_its_own(bed: Testbed) -> None:
    done = bed.preflight("--help")
    assert (done.stdout[:6], done.stderr, done.returncode) == ("Usage:", "", 0)
    assert bed.environment() == {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": str(bed.tmp_path / "home"),
        "LANG": "C.UTF-8",
        "XDG_CACHE_HOME": str(bed.tmp_path / "cache"),
    }


def test_a_run_without_report_says_why(bed: Testbed) -> None:
    with pytest.raises(FileNotFoundError, match=r"no report, exit code 2: "):
        bed.report("nonsense")


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
    jumbo = ["ping", "-c1", "-W1", "-Mdo", "-s8972", "tb2"]
    bed.mtu("tb1", 9000)
    bed.mtu("tb2", 9000)
    with pytest.raises(ChildProcessError, match=r"100% packet loss|No buffer space"):
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
    ask = ["/usr/bin/python3", "-c", "import socket; socket.create_connection(('tb1', 29500), 1)"]
    assert bed.run("tb3", *ask) == ""
    with pytest.raises(ChildProcessError, match="TimeoutError: timed out"):
        bed.run("tb2", *ask)


@pytest.mark.parametrize(
    ("with_", "code"),
    [
        ("tcp reset", errno.ECONNREFUSED),
        ("admin-prohibited", errno.EHOSTUNREACH),
        ("host-unreachable", errno.EHOSTUNREACH),
        ("net-unreachable", errno.ENETUNREACH),
        ("port-unreachable", errno.ECONNREFUSED),
    ],
)
def test_reject(bed: Testbed, with_: str, code: int) -> None:
    bed.hold_port("tb1")
    bed.reject("tb1", 29500, with_)  # type: ignore[arg-type]  # from the list above
    assert dial(bed, "tb1", 29500) == code


def test_reset_of_what_was_accepted(bed: Testbed) -> None:
    bed.hold_port("tb1")
    bed.reset("tb1", 29500)
    assert dial(bed, "tb1", 29500) == errno.ECONNRESET
    bed.restore()
    bed.hold_port("tb1")
    assert dial(bed, "tb1", 29500) == 0


def test_unplugged_node_does_not_answer(bed: Testbed) -> None:
    bed.unplug("tb4")
    assert dial(bed, "tb4", 22) == errno.ETIMEDOUT
    bed.restore()
    assert dial(bed, "tb4", 22, timeout=5) == 0


def test_second_address_is_the_same_machine(bed: Testbed) -> None:
    address = bed.second_address("tb2")
    assert address == "10.78.0.102"
    assert f"{address} ssh-ed25519" in bed.known_hosts.read_text().replace(",", "\n")
    assert f"inet {address}/24" in bed.run("tb2", "ip", "addr", "show", "eth0")
    bed.restore()
    assert address not in bed.run("tb2", "ip", "addr", "show", "eth0")


# ---- users, SSH server, interpreter, clock, limits -------------------------------------------


def test_changed_uid_and_group(bed: Testbed) -> None:
    bed.change_uid("tb2", "alice", 2077, gid=3001)
    bed.add_group("tb2", "gpu", 4001, "alice", "root")
    expected = "uid=2077(alice) gid=3001(train) groups=3001(train),4001(gpu)\n"
    assert bed.ssh("tb2", "id").stdout == expected
    assert bed.run("tb1", "id", "-u", "alice") == "2001\n"
    bed.restore()
    assert bed.run("tb2", "id", "alice") == "uid=2001(alice) gid=2001(train) groups=2001(train)\n"


def test_removed_user_cannot_log_in(bed: Testbed) -> None:
    bed.remove_user("tb2", "alice")
    assert "Permission denied (publickey)" in bed.ssh("tb2", "id").stderr
    bed.restore()
    assert bed.ssh("tb2", "id -un").stdout == "alice\n"


@pytest.mark.parametrize(
    ("shell", "command"), [("/usr/bin/fish", "echo $FISH_VERSION"), ("/bin/tcsh", "echo $version")]
)
def test_login_shell(bed: Testbed, shell: str, command: str) -> None:
    bed.login_shell("tb2", "alice", shell)
    assert re.match(r"(tcsh )?\d\.\d", bed.ssh("tb2", command).stdout)


def test_login_that_hangs(bed: Testbed) -> None:
    bed.hang_login("tb2")
    with pytest.raises(subprocess.TimeoutExpired):
        bed.ssh("tb2", "id", timeout=3)
    wait_until(lambda: "sleep infinity" in bed.survivors("tb2"), "sleep")
    bed.restore()
    assert bed.ssh("tb2", "id -un").stdout == "alice\n"


def test_noise_at_login(bed: Testbed) -> None:
    bed.login_noise("tb2", "*** It's maintenance on Monday ***")
    noise = "*** It's maintenance on Monday ***\n"
    assert bed.ssh("tb2", "echo x").stdout == f"{noise}x\n"
    bed.restore()
    assert bed.ssh("tb2", "echo x").stdout == "x\n"


def test_sudo(bed: Testbed) -> None:
    assert bed.ssh("tb2", "sudo -n id -u").stderr == "sudo: a password is required\n"
    bed.allow_sudo("tb2")
    assert bed.ssh("tb2", "sudo -n id -u").stdout == "0\n"
    bed.restore()
    assert bed.ssh("tb2", "sudo -n id -u").stderr == "sudo: a password is required\n"


def test_stopped_sshd_refuses(bed: Testbed) -> None:
    bed.stop_sshd("tb2")
    assert dial(bed, "tb2", 22) == errno.ECONNREFUSED
    bed.restore()
    assert bed.machines["tb2"].answers()


def test_silent_sshd_accepts_and_says_nothing(bed: Testbed) -> None:
    bed.silent_sshd("tb2")
    with (
        socket.create_connection((bed.machines["tb2"].address, 22), timeout=0.2) as connection,
        pytest.raises(TimeoutError),
    ):
        connection.recv(1)
    bed.restore()
    assert bed.machines["tb2"].answers()


def test_filtered_ssh(bed: Testbed) -> None:
    bed.drop_ssh("tb2")
    assert dial(bed, "tb2", 22) == errno.ETIMEDOUT


def test_changed_host_key_is_refused(bed: Testbed) -> None:
    bed.change_host_key("tb2")
    assert bed.ssh("tb2", "id").stderr.endswith("Host key verification failed.\n")
    bed.restore()
    assert bed.ssh("tb2", "id -un").stdout == "alice\n"


def test_killed_connection_ends_the_client(bed: Testbed) -> None:
    argv = ["ssh", "-F", "none", "-i", str(bed.key), "-o", f"UserKnownHostsFile={bed.known_hosts}"]
    with subprocess.Popen(
        [*argv, "alice@10.78.0.2", "echo up; exec sleep 1000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as client:
        assert client.stdout
        assert client.stdout.readline() == "up\n"
        bed.kill_connections("tb2")
        assert client.wait(timeout=10) == 255
    wait_until(lambda: bed.survivors("tb2") == ["sleep 1000"], "only the command is left")


def test_limits_are_those_of_sessions(bed: Testbed) -> None:
    bed.limits("tb2", memlock=65536, nofile=1024)
    assert bed.ssh("tb2", "ulimit -l; ulimit -n").stdout == "64\n1024\n"
    bed.restore()
    assert bed.ssh("tb2", "ulimit -n").stdout == bed.ssh("tb1", "ulimit -n").stdout


def test_no_python(bed: Testbed) -> None:
    bed.no_python("tb2")
    assert bed.ssh("tb2", "python3 -V").returncode == 127
    bed.restore()
    assert bed.ssh("tb2", "python3 -V").stdout.startswith("Python 3.")


def test_skew(bed: Testbed) -> None:
    bed.skew("tb2", -12.25)
    before = time.time()
    seen = float(bed.ssh("tb2", "python3 -c 'import time; print(time.time())'").stdout)
    assert before - 12.25 <= seen <= time.time() - 12.25
    bed.restore()
    before = time.time()
    assert before <= float(bed.ssh("tb2", "date +%s.%N").stdout) <= time.time()


def test_small_shm(bed: Testbed) -> None:
    size = ["findmnt", "-bno", "SIZE", "/dev/shm"]
    healthy = bed.run("tb1", *size)
    bed.shm("tb2", "64m")
    assert int(bed.run("tb2", *size)) == 64 << 20
    bed.restore()
    assert bed.run("tb2", *size) == healthy


def test_changed_file(bed: Testbed) -> None:
    before = bed.files("tb2")
    bed.change_file("tb2", "/etc/nccl.conf", "NCCL_DEBUG=INFO\n")
    bed.change_file("tb2", "/etc/nccl.conf", "NCCL_DEBUG=WARN\n")
    bed.change_file("tb2", "/srv/new/folder/file", "x")
    bed.change_file("tb2", "/etc/hostname", None)
    assert bed.ssh("tb2", "cat /etc/nccl.conf").stdout == "NCCL_DEBUG=WARN\n"
    assert bed.run("tb1", "ls", "/srv") == ""
    assert bed.ssh("tb2", "cat /etc/hostname").returncode == 1
    bed.restore()
    assert bed.files("tb2") == before
    assert bed.run("tb2", "cat", "/etc/hostname") == "tb2\n"


# ---- mounts ----------------------------------------------------------------------------------


def test_shared_directory(bed: Testbed) -> None:
    shared = bed.share("/data")
    bed.run("tb1", "sh", "-c", "echo hello > /data/greeting", as_user="alice")
    assert bed.run("tb4", "stat", "-c", "%U", "/data/greeting") == "alice\n"
    assert bed.run("tb2", "cat", "/data/greeting") == "hello\n"
    assert (shared / "greeting").read_text() == "hello\n"
    mounted = ["findmnt", "-no", "FSTYPE,SOURCE", "/data"]
    assert bed.run("tb3", *mounted).split() == ["fuse.nfs4", "10.78.0.4:/export"]
    bed.fuse_mount("tb3", "/home2", source="10.78.0.4:/home")
    assert bed.run("tb3", "ls", "/home2") == ""
    bed.unmount("tb3", "/data")
    assert bed.run("tb3", "ls", "/data") == ""
    bed.restore()
    for node in bed.names:
        assert bed.run(node, "sh", "-c", "findmnt /data; ls -d /da* /home2; true") == ""


def test_modes_of_a_mount(bed: Testbed) -> None:
    bed.fuse_mount("tb1", "/data", options="ro")
    with pytest.raises(ChildProcessError, match="Read-only file system"):
        bed.run("tb1", "touch", "/data/x")
    for mode, message in (("stale", "Stale file handle"), ("eio", "Input/output error")):
        bed.fuse_mode("tb1", mode)
        with pytest.raises(ChildProcessError, match=message):
            bed.run("tb1", "stat", "-f", "/data")
    bed.fuse_mode("tb1", "hang")
    with bed.popen("tb1", "stat", "-f", "/data") as hung:
        with pytest.raises(subprocess.TimeoutExpired):
            hung.wait(timeout=0.3)
        bed.fuse_mode("tb1", "ok")
        assert hung.wait(timeout=10) == 0


def test_hung_mount_leaves_no_process(bed: Testbed) -> None:
    bed.fuse_mount("tb1", "/data")
    bed.fuse_mode("tb1", "hang")
    with bed.popen("tb1", "stat", "-f", "/data"):
        wait_until(lambda: bed.survivors("tb1") == ["stat -f /data"], "stat")
        bed.run("tb1", "pkill", "-x", "stat")
        bed.restore()
    assert bed.survivors("tb1") == []


def test_tmpfs_and_bind(bed: Testbed) -> None:
    bed.mount_tmpfs("tb1", "/scratch", "ro,size=64k")
    bed.bind("tb1", "/etc/hosts", "/etc/hostname")
    with pytest.raises(ChildProcessError, match="Read-only file system"):
        bed.run("tb1", "touch", "/scratch/x")
    assert "10.78.0.4 tb4" in bed.run("tb1", "cat", "/etc/hostname")
    bed.restore()
    assert bed.run("tb1", "sh", "-c", "ls -d /scr*; cat /etc/hostname") == "tb1\n"


# ---- hardware and software -------------------------------------------------------------------


NVML = """
import json
import pynvml as nvml
nvml.nvmlInit()
gpus = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
last = gpus[-1]
print(json.dumps([
    nvml.nvmlSystemGetDriverVersion(), nvml.nvmlSystemGetCudaDriverVersion(), len(gpus),
    nvml.nvmlDeviceGetName(last), nvml.nvmlDeviceGetMemoryInfo(last).total,
    nvml.nvmlDeviceGetMemoryInfo(last, version=nvml.nvmlMemory_v2).total,
    nvml.nvmlDeviceGetMigMode(last), nvml.nvmlDeviceGetCudaComputeCapability(last),
    nvml.nvmlDeviceGetUUID(last), nvml.nvmlDeviceGetPciInfo(last).busId,
    nvml.nvmlDeviceGetMaxPcieLinkWidth(last),
]))
"""


def ask_nvml(bed: Testbed, node: str) -> str:
    """Run the real pynvml on a node; return its answer, or the last line of its traceback."""
    bed.change_file(node, "/opt/pynvml/pynvml.py", Path(pynvml.__file__).read_bytes())
    argv = ["/usr/bin/env", "PYTHONPATH=/opt/pynvml", "/usr/bin/python3", "-B", "-c", NVML]
    try:
        return bed.run(node, *argv).strip()
    except ChildProcessError as error:
        return str(error).strip().splitlines()[-1]


def test_nvml(bed: Testbed) -> None:
    assert "NVMLError_LibraryNotFound" in ask_nvml(bed, "tb1")
    bed.nvml("tb1")
    bed.nvml("tb2", gpu_values(count=2, driver="535.161.08") | {"gpu1.handle_rc": 15})
    bed.nvml("tb3", gpu_values() | {"init_rc": 18}, kernel="550.90.07")
    assert json.loads(ask_nvml(bed, "tb1")) == [
        *("550.54.15", 12040, 8, "NVIDIA H100 80GB HBM3", 80 << 30, 80 << 30, [0, 0], [9, 0]),
        *("GPU-00000000-0000-0000-0000-000000000007", "00000000:80:00.0", 16),
    ]
    assert "NVMLError_GpuIsLost" in ask_nvml(bed, "tb2")
    assert "NVMLError_LibRmVersionMismatch" in ask_nvml(bed, "tb3")
    assert "Module  550.90.07  " in bed.run("tb3", "cat", "/proc/driver/nvidia/version")
    bed.restore()
    assert "NVMLError_LibraryNotFound" in ask_nvml(bed, "tb1")
    assert bed.run("tb1", "ls", "/proc/driver") == ""


def test_infiniband(bed: Testbed) -> None:
    bed.infiniband("tb1")
    bed.infiniband("tb1", "mlx5_1", state="1: DOWN")
    port = "/sys/class/infiniband/mlx5_*/ports/1"
    shown = bed.ssh("tb1", f"cat {port}/state {port}/phys_state {port}/rate").stdout
    assert shown.splitlines() == [
        *("4: ACTIVE", "1: DOWN", "5: LinkUp", "2: Polling"),
        *("400 Gb/sec (4X NDR)", "400 Gb/sec (4X NDR)"),
    ]
    bed.restore()
    assert "infiniband" not in bed.run("tb1", "ls", "/sys/class").split()


def speeds(bed: Testbed, node: str, device: str) -> tuple[str, str]:
    """Return a device's speed as sysfs and as ethtool tell it."""
    return (
        bed.run(node, "cat", f"/sys/class/net/{device}/speed").strip(),
        re.findall(r"Speed: (\d+)Mb/s", bed.run(node, "ethtool", device))[0],
    )


def test_tap_has_any_speed(bed: Testbed) -> None:
    bed.add_tap("tb1", "ib0", 400_000, mtu=4092, address="10.80.0.1/24")
    assert speeds(bed, "tb1", "ib0") == ("400000", "400000")
    shown = bed.run("tb1", "ip", "addr", "show", "ib0")
    assert "LOWER_UP> mtu 4092" in shown
    assert "inet 10.80.0.1/24" in shown
    bed.restore()
    assert "ib0" not in bed.run("tb1", "ip", "-br", "link")


def test_data_network(bed: Testbed) -> None:
    for node in bed.names:
        bed.add_nic(node, "hs9", speed_mbps=25_000 if node == "tb3" else 100_000)
    assert speeds(bed, "tb2", "hs9") == ("100000", "100000")
    assert speeds(bed, "tb3", "hs9") == ("25000", "25000")
    bed.run("tb1", "ping", "-c1", "-W2", "-Mdo", "-s8972", "10.79.0.3")
    bed.mtu("tb3", 1500, device="hs9")
    with pytest.raises(ChildProcessError, match=r"100% packet loss|No buffer space"):
        bed.run("tb1", "ping", "-c1", "-W1", "-Mdo", "-s8972", "10.79.0.3")
    bed.restore()
    assert "hs9" not in bed.run("tb3", "ip", "-br", "link")


VERSIONS = """
import ctypes, importlib.metadata as m, torch, torch.version
import nvidia.nccl
found = ctypes.c_int()
ctypes.CDLL(list(nvidia.nccl.__path__)[0] + "/lib/libnccl.so.2").ncclGetVersion(ctypes.byref(found))
print(m.version("torch"), torch.__version__, torch.version.cuda, m.version("ray"), found.value)
"""


def test_training_python(bed: Testbed) -> None:
    packages = {"torch": "2.5.1+cu124", "nvidia-nccl-cu12": "2.21.5", "ray": "2.40.0"}
    odd = {"tb2": {"torch": "2.4.0+cu121", "nvidia-nccl-cu12": "2.20.5"}}
    python = bed.training_python(packages, odd)
    assert bed.run("tb1", python, "-c", VERSIONS) == "2.5.1+cu124 2.5.1+cu124 12.4 2.40.0 22105\n"
    assert bed.run("tb2", python, "-c", VERSIONS) == "2.4.0+cu121 2.4.0+cu121 12.1 2.40.0 22005\n"
    bed.restore()
    assert bed.ssh("tb1", f"test -e {python}").returncode == 1


def test_system_nccl(bed: Testbed) -> None:
    bed.system_nccl("tb1", "2.19.3")
    assert "libnccl.so.2 (libc6" in bed.run("tb1", "ldconfig", "-p")
    bed.restore()
    assert "libnccl" not in bed.run("tb1", "ldconfig", "-p")
