"""What a run costs on 100 nodes, beside bare logins and beside Ansible; the budgets, met or missed.

The nodes are one sshd of this machine's own, on addresses 127.0.x.y, made for the occasion: it
needs openssh-server, and `python3` on the PATH that sshd gives. Times depend on the machine, so
what counts is ratios within one run; leave the machine alone meanwhile.

    python benchmarks/fanout.py                 # 100 nodes, three times; five minutes
    python benchmarks/fanout.py --nodes 20 --repeats 1 --no-ansible
    python benchmarks/fanout.py --many          # 1,000 nodes too
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import getpass
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from preflight import catalog
from preflight.inventory import NodeSpec, load
from preflight.node.boot import code
from preflight.payload import Payload
from preflight.run import Errand, Plan, Visit, go, plan_errand
from preflight.transport.ssh import SshTransport

SSHD = "/usr/sbin/sshd"
CONFIG = """
Port {port}
ListenAddress 0.0.0.0
AllowUsers {user}@127.0.0.0/8
HostKey {folder}/host
AuthorizedKeysFile {folder}/key.pub
SetEnv HOME={folder}/home
MaxStartups 1000
UseDNS no
UsePAM no
StrictModes no
PidFile none
PasswordAuthentication no
KbdInteractiveAuthentication no
"""
"""HOME is an empty folder, so that the login shell has no start files to read."""
BARE = """
import socket, sys
from concurrent.futures import ThreadPoolExecutor
import paramiko

port, user, key_file, host_file, fanout, *addresses = sys.argv[1:]
key = paramiko.Ed25519Key.from_private_key_file(key_file)
host = paramiko.Ed25519Key.from_private_key_file(host_file)

def login(address):
    transport = paramiko.Transport(socket.create_connection((address, int(port))))
    transport.connect(host, user, pkey=key)
    channel = transport.open_session()
    channel.exec_command("python3 -c pass")
    code = channel.recv_exit_status()
    transport.close()
    return code

with ThreadPoolExecutor(int(fanout)) as pool:
    sys.exit(any(pool.map(login, addresses)))
"""
NODE_PYTHON = shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin") or "python3"
"""What a node finds: on the PATH that sshd gives."""
WAIT_S = 10.0
NODE_REPEATS, VERSION_REPEATS = 9, 9
MANY = 1000

CPU_BUDGET, LOGINS_BUDGET, ANSIBLE_BUDGET = 2.0, 5.0, 1 / 6
NODE_BUDGET_MS, VERSION_BUDGET_MS, SENT_BUDGET_KB = 150.0, 150.0, 250.0
MANY_BUDGET, MANY_BUDGET_MIB = 11.0, 400.0


@dataclass(frozen=True)
class Spent:
    """What a command took; CPU with that of its children."""

    wall_s: float
    cpu_s: float
    rss_mib: float


@dataclass(frozen=True)
class Bench:
    """The nodes, and how to reach them."""

    folder: Path
    port: int
    user: str
    fanout: int

    def addresses(self, count: int) -> list[str]:
        """Return the addresses of that many nodes."""
        return [f"127.0.{number // 250 + 1}.{number % 250 + 1}" for number in range(count)]

    def inventory(self, count: int) -> Path:
        """Write an inventory of that many nodes."""
        ssh = {"user": self.user, "port": self.port, "key": f"{self.folder}/key"}
        ssh |= {"known_hosts": f"{self.folder}/known_hosts", "fanout": self.fanout}
        nodes = [{"name": f"n{i:04}", "address": a} for i, a in enumerate(self.addresses(count))]
        path = self.folder / f"{count}.yaml"
        path.write_text(json.dumps({"cluster": "bench", "ssh": ssh, "nodes": nodes}))
        return path

    def preflight(self, count: int) -> Spent:
        """Run all checks of the level quick."""
        report = self.folder / "report.json"
        words = ["run", str(self.inventory(count)), "--level", "quick", "--json", str(report)]
        found = spent([sys.executable, "-m", "preflight", *words], codes=(0, 1, 3))
        results = json.loads(report.read_text())["results"]
        reached = [r for r in results if r["check"] == "access.ssh" and r["status"] == "pass"]
        if len(reached) != count:
            sys.exit(f"only {len(reached)} of {count} nodes were reached; see {report}")
        return found

    def bare(self, count: int) -> Spent:
        """Log in everywhere, start Python, and log out."""
        words = [self.port, self.user, self.folder / "key", self.folder / "host", self.fanout]
        return spent([sys.executable, "-c", BARE, *map(str, words), *self.addresses(count)])

    def ansible(self, program: str, count: int) -> Spent:
        """Gather facts everywhere, without connections left from before."""
        hosts = self.folder / "hosts.ini"
        key = f"ansible_user={self.user} ansible_port={self.port}"
        key += f" ansible_ssh_private_key_file={self.folder}/key ansible_python_interpreter=python3"
        lines = [f"n{i:04} ansible_host={a} {key}" for i, a in enumerate(self.addresses(count))]
        hosts.write_text("\n".join(lines) + "\n")
        with tempfile.TemporaryDirectory(prefix="preflight-") as control:
            env = {"ANSIBLE_SSH_CONTROL_PATH_DIR": control, "ANSIBLE_HOST_KEY_CHECKING": "False"}
            config = Path(control) / "ansible.cfg"
            config.touch()
            env |= {"ANSIBLE_HOME": f"{self.folder}/ansible", "ANSIBLE_CONFIG": str(config)}
            words = ["all", "-i", str(hosts), "-m", "setup", "-f", str(self.fanout)]
            return spent([program, *words], env)


def spent(
    command: Sequence[str], env: Mapping[str, str] | None = None, codes: Sequence[int] = (0,)
) -> Spent:
    """Run a command; end the benchmark with its output if it fails."""
    with tempfile.TemporaryFile() as output:
        begun = time.monotonic()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(env or {})},
        )
        _, status, used = os.wait4(process.pid, 0)
        wall_s = time.monotonic() - begun
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode not in codes:
            output.seek(0)
            said = output.read().decode(errors="replace")[-2000:]
            sys.exit(f"{command[0]} ended with code {process.returncode}:\n{said}")
    return Spent(wall_s, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)


@contextlib.contextmanager
def bench(fanout: int, most: int) -> Iterator[Bench]:
    """Start the nodes' sshd."""
    with tempfile.TemporaryDirectory(prefix="preflight-") as name, socket.socket() as sock:
        folder = Path(name)
        (folder / "home").mkdir()
        for key in ("host", "key"):
            words = ["-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)]
            subprocess.run(["ssh-keygen", *words], check=True)
        sock.bind(("127.0.0.1", 0))
        made = Bench(folder, sock.getsockname()[1], getpass.getuser(), fanout)
        sock.close()
        host = (folder / "host.pub").read_text()
        known = [f"[{address}]:{made.port} {host}" for address in made.addresses(most)]
        (folder / "known_hosts").write_text("".join(known))
        config = folder / "sshd_config"
        config.write_text(CONFIG.format(port=made.port, user=made.user, folder=folder))
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)
        with (folder / "log").open("wb") as log:
            sshd = subprocess.Popen([SSHD, "-D", "-e", "-f", str(config)], stderr=log)
        try:
            wait(made)
            yield made
        finally:
            sshd.terminate()
            sshd.wait()


def wait(made: Bench) -> None:
    """Wait until sshd listens."""
    limit = time.monotonic() + WAIT_S
    while time.monotonic() < limit:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.1.1", made.port)):
            return
    sys.exit(f"sshd does not listen:\n{(made.folder / 'log').read_text()}")


class Table:
    """The figures, printed as they come; what misses its budget is remembered."""

    def __init__(self) -> None:
        self.missed = 0

    def say(self, what: str, value: float, unit: str, budget: float, detail: str = "") -> None:
        """Print a figure beside its budget."""
        self.missed += value > budget
        verdict = "MISSED" if value > budget else "met"
        print(f"{what:32}{value:8.2f} {unit:12}at most {budget:6.2f}  {verdict:8}{detail}")


def on_a_node(made: Bench, table: Table) -> None:
    """Measure one node after the other: what is sent to it, and its own CPU, by check."""
    checks = catalog.load()
    cluster = load(made.inventory(1), checks.expects)
    plan = Plan(cluster, checks.select([], "quick"), "quick", {}, 600)
    errand = plan_errand(plan.running, plan.want, time.monotonic() + plan.deadline_s)
    calls = {**errand.calls, **errand.rooted}
    every = Payload({one.module: one.text for one in checks.values()})
    idle = dataclasses.replace(errand, calls={}, rooted={})
    rounds = [
        (on_node(cluster.nodes[0], idle), on_node(cluster.nodes[0], errand))
        for _ in range(NODE_REPEATS)
    ]
    parts = {"the agent's start": [start["agent_s"] + start["children_s"] for start, _ in rounds]}
    parts["the agent's work"] = [used["agent_s"] - start["agent_s"] for start, used in rounds]
    for key in calls:
        parts[key] = [used["calls_s"][key] for _, used in rounds]
    own = [used["children_s"] - sum(used["calls_s"].values()) for _, used in rounds]
    parts["children, to start and end"] = own
    totals = [used["agent_s"] + used["children_s"] for _, used in rounds]
    node = {"system": "linux", "machine": os.uname().machine, "libc": "glibc 2.31", "code": code()}
    sent = len(every.blob) + sum(len(part or "") for part in every.modules(node))
    table.say("sent to a node, all checks", sent / 1000, "KB", SENT_BUDGET_KB)
    table.say("a node's own CPU", statistics.median(totals) * 1000, "ms", NODE_BUDGET_MS)
    python = statistics.median(
        spent([NODE_PYTHON, "-c", "pass"]).cpu_s for _ in range(NODE_REPEATS)
    )
    print(f"    {python * 1000:8.2f} ms  an empty python3, for comparison")
    for part, some in sorted(parts.items(), key=lambda item: -statistics.median(item[1])):
        whose = [one.id for one in plan.running if one.evidence == part]
        share = f"{statistics.median(some) * 1000:8.2f} ms"
        print(f"    {share}  {', '.join(whose) or part}")


def on_node(node: NodeSpec, errand: Errand) -> dict[str, Any]:
    """Do what a run does on a node; return the CPU seconds of the agent, its children and calls."""
    visit = Visit(node)
    go(visit, SshTransport(), errand)
    if not visit.login["reached"]:
        sys.exit(f"{node.name}: {visit.login['message']}")
    while True:
        used: dict[str, Any] = visit.sessions[0].call("preflight.node.agent", "usage").value
        if not used["pids"]:
            visit.close()
            frames = {key: pending.frame or {} for key, pending in visit.asked.items()}
            return used | {"calls_s": {key: frames[key].get("cpu_s", 0.0) for key in frames}}


def beside(made: Bench, count: int, repeats: int, program: str | None, table: Table) -> float:
    """Measure a whole run beside bare logins and beside Ansible; return its time."""
    few = max(1, count // 10)
    runs: dict[str, Callable[[], Spent]] = {
        "preflight": lambda: made.preflight(count),
        "bare": lambda: made.bare(count),
        "preflight, few": lambda: made.preflight(few),
        "bare, few": lambda: made.bare(few),
    }
    if program:
        runs["ansible"] = lambda: made.ansible(program, count)
    rounds = [{name: run() for name, run in runs.items()} for _ in range(repeats)]
    wall_s, cpu_ms = dict[str, float](), dict[str, float]()
    for name in runs:
        wall_s[name] = statistics.median(one[name].wall_s for one in rounds)
        cpu_ms[name] = statistics.median(one[name].cpu_s for one in rounds) * 1000
    ours, bare = (
        (cpu_ms[name] - cpu_ms[f"{name}, few"]) / (count - few) for name in ("preflight", "bare")
    )
    detail = f"{ours:.1f} ms a node; {bare:.1f} ms"
    table.say("controller's CPU for a node", ours / bare, "bare logins", CPU_BUDGET, detail)
    whole = cpu_ms["preflight"] / cpu_ms["bare"]
    print(f"    {whole:8.2f} bare logins, with the start of both programs")
    detail = "{preflight:.1f} s; {bare:.1f} s".format(**wall_s)
    ratio = wall_s["preflight"] / wall_s["bare"]
    table.say("time", ratio, "bare logins", LOGINS_BUDGET, detail)
    if program:
        detail = "{preflight:.1f} s; {ansible:.1f} s".format(**wall_s)
        ratio = wall_s["preflight"] / wall_s["ansible"]
        table.say("time", ratio, "Ansible's", ANSIBLE_BUDGET, detail)
    return wall_s["preflight"]


def ansible(folder: Path) -> str | None:
    """Return Ansible's command; where there is none it is installed for the occasion."""
    found = shutil.which("ansible")
    if found is None:
        place = folder / "venv"
        venv.create(place, with_pip=True)
        words = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "ansible-core"]
        done = subprocess.run([place / "bin/python", *words], capture_output=True, check=False)
        found = None if done.returncode else str(place / "bin/ansible")
    return found


def starting(table: Table) -> None:
    """Measure `preflight --version`."""
    command = [sys.executable, "-m", "preflight", "--version"]
    wall_s = statistics.median(spent(command).wall_s for _ in range(VERSION_REPEATS))
    table.say("preflight --version", wall_s * 1000, "ms", VERSION_BUDGET_MS)


def many(made: Bench, fewer: int, fewer_s: float, table: Table) -> None:
    """Measure a run on very many nodes."""
    found = made.preflight(MANY)
    times = MANY / fewer
    detail = f"{found.wall_s:.1f} s; {fewer_s:.1f} s"
    budget = MANY_BUDGET / 10 * times
    table.say(f"time of {MANY} nodes", found.wall_s / fewer_s, f"of {fewer}", budget, detail)
    table.say(f"controller's memory, {MANY}", found.rss_mib, "MiB", MANY_BUDGET_MIB)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--fanout", type=int, default=64)
    parser.add_argument("--many", action="store_true", help=f"{MANY} nodes too")
    parser.add_argument("--no-ansible", action="store_true")
    given = parser.parse_args()
    table = Table()
    starting(table)
    with bench(given.fanout, MANY if given.many else given.nodes) as made:
        on_a_node(made, table)
        program = None if given.no_ansible else ansible(made.folder)
        if program is None and not given.no_ansible:
            print("Ansible: skipped, there is none and pip could not install ansible-core")
        wall_s = beside(made, given.nodes, given.repeats, program, table)
        if given.many:
            many(made, given.nodes, wall_s, table)
    sys.exit(1 if table.missed else 0)


if __name__ == "__main__":
    main()
