"""Reports made by hand, each a situation that a user meets."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from preflight.api import FAIL, PASS, SKIP, UNKNOWN, WARN
from preflight.catalog import Manual
from preflight.report import model
from preflight.report.build import Policy, coverage, of_others, overall, verdict

NAMES = {
    "access": ("ssh", "python", "identity"),
    "software": ("os", "python", "driver", "cuda", "pytorch", "nccl"),
    "launch": ("env", "paths"),
    "network": ("interface", "port", "firewall", "mtu", "path_mtu", "link"),
    "rdma": ("devices", "port", "qos"),
    "gpu": ("inventory", "health", "fabric"),
    "host": ("limits", "shm", "clock", "kernel_log"),
    "storage": ("mounts", "identity"),
    "collective": ("all_reduce",),
}
CHECKS = [f"{group}.{name}" for group, names in NAMES.items() for name in names]
LOCAL = [check for check in CHECKS if check.split(".")[0] not in ("collective", "rdma")]


def manual(why: str) -> Manual:
    return Manual("It holds", why, "a number", "nowhere", "mend it")


MANUALS = {
    "network.mtu": manual(
        "a smaller MTU on one node drops what the others send it in full packets, or cuts it up:\n"
        "NCCL hangs or crawls, while small tests pass. More of this stands in the manual."
    ),
    "software.driver": manual("NCCL and CUDA pick other code paths with another driver."),
    "access.ssh": manual(
        "what cannot be reached cannot be judged, and a launcher that logs in would stop here too."
    ),
    "gpu.health": manual("a GPU with uncorrectable errors ends the job when it meets them."),
    "storage.mounts": manual("a rank that does not find its data dies, and the others wait."),
}


@dataclass
class Grid:
    """Results by check and node; what is not said passes."""

    names: Sequence[str]
    checks: Sequence[str] = tuple(CHECKS)
    cells: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    causes: list[model.Cause] = field(default_factory=list)

    def say(
        self, check: str, nodes: Collection[str], status: str, summary: str, **more: Any
    ) -> None:
        for node in nodes:
            words = summary.format(node=node)
            self.cells[check, node] = {"status": status, "summary": words, **more}

    def cause(
        self,
        check: str,
        nodes: Sequence[str],
        kind: str = "node",
        explains: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        after = [
            model.Explained(check=c, node=n) for c, names in (explains or {}).items() for n in names
        ]
        first = self.cells[check, nodes[0]]
        self.causes.append(
            model.Cause.model_validate(
                {
                    "kind": kind,
                    "nodes": list(nodes),
                    "check": check,
                    "summary": first["summary"],
                    "explains": after,
                    "fix": first.get("fix", "mend it"),
                }
            )
        )

    def lose(self, nodes: Collection[str]) -> None:
        """Make nodes ones that were not reached."""
        for check in self.checks:
            if check != "access.ssh":
                self.say(check, nodes, SKIP, "not reached")

    def report(self, policy: Policy | None = None, **run: Any) -> model.Report:
        results = [
            model.Result.model_validate(
                {"check": check, "node": node, "status": PASS, "summary": "as it should be"}
                | self.cells.get((check, node), {})
            )
            for check in self.checks
            for node in self.names
        ]
        rows = {name: [r for r in results if r.node == name] for name in self.names}
        theirs = of_others(self.causes, results)
        waivers = run.pop("waivers", [])
        nodes = [
            model.NodeModel(
                name=name,
                address="10.0.0.1",
                verdict=verdict(rows[name], theirs, policy or Policy()),
                seconds=1.5,
                coverage=coverage(rows[name]),
            )
            for name in self.names
        ]
        facts = {
            "id": "3f2a",
            "started_at": "2026-11-30T03:15:22Z",
            "seconds": 14.2,
            "level": "standard",
            "inventory": "pod.yaml",
            "cluster": "h100-pod-3",
        }
        return model.Report(
            schema=model.SCHEMA,
            tool=model.Tool(name="preflight", version="0.1.0"),
            run=model.Run.model_validate(facts | run),
            verdict=overall([node.verdict for node in nodes]),
            want=model.WantModel(
                launch={},
                expect={},
                waivers=waivers,
                require=[*(policy or Policy()).require],
                skip={},
                fail_on="warn" if policy and policy.fail_on_warn else "fail",
            ),
            nodes=nodes,
            checks=[model.CheckModel(id=c, claim="It holds", level="quick") for c in self.checks],
            results=results,
            causes=self.causes,
            facts={},
        )


def gpus(*numbers: int, width: int = 2) -> list[str]:
    return [f"gpu{number:0{width}}" for number in numbers]


EIGHT = gpus(*range(1, 9))


def ready() -> model.Report:
    return Grid(EIGHT).report()


def mtu() -> model.Report:
    """One MTU explains three other failures; root is missing."""
    grid = Grid(EIGHT)
    grid.say(
        "network.mtu",
        ["gpu03"],
        FAIL,
        "eth1 has MTU 1500, the 7 others have 9000",
        observed=1500,
        expected=9000,
        fix="ip link set dev eth1 mtu 9000",
        reproduce="ip link show dev eth1",
    )
    grid.say("network.path_mtu", ["gpu03", "gpu05"], FAIL, "packets of 8972 bytes are lost")
    grid.say("collective.all_reduce", ["gpu03"], FAIL, "stalls above 64 KiB")
    grid.cause(
        "network.mtu",
        ["gpu03"],
        explains={"network.path_mtu": ["gpu03", "gpu05"], "collective.all_reduce": ["gpu03"]},
    )
    for check in ("network.firewall", "host.kernel_log", "rdma.qos"):
        grid.say(check, EIGHT, SKIP, "needs root")
    return grid.report()


def tie() -> model.Report:
    """Two nodes differ, and nothing says which of them is right."""
    grid = Grid(EIGHT[:2])
    summary = "differs: NVIDIA driver 550.54.15 on gpu01; NVIDIA driver 535.161.08 on gpu02"
    fix = "install one driver on both and reboot, or set expect.driver to the right one"
    for node, driver in (("gpu01", "550.54.15"), ("gpu02", "535.161.08")):
        more = {"observed": driver, "fix": fix, "reproduce": "cat /proc/driver/nvidia/version"}
        grid.say("software.driver", [node], FAIL, summary, **more)
    grid.cause("software.driver", EIGHT[:2], kind="cluster")
    return grid.report(seconds=3.21)


def unreachable() -> model.Report:
    """Three of eight nodes cannot be reached, for two reasons."""
    grid = Grid(EIGHT)
    grid.lose(["gpu03", "gpu05", "gpu07"])
    for node in ("gpu03", "gpu05"):
        grid.say(
            "access.ssh",
            [node],
            FAIL,
            f"10.0.0.{node[-1]}:22: connection refused",
            observed="refused",
            fix="start sshd there, or set ssh.port to the port that it listens on",
        )
    grid.say(
        "access.ssh",
        ["gpu07"],
        FAIL,
        "10.0.0.7:22: 'ubuntu' is refused; tried ~/.ssh/id_ed25519 SHA256:6Yk1bqT; "
        "the server allows publickey",
        observed="authentication refused",
        fix="see ssh.user and ssh.key, and authorized_keys there",
    )
    grid.cause("access.ssh", ["gpu03", "gpu05"])
    grid.cause("access.ssh", ["gpu07"])
    return grid.report()


def undetermined() -> model.Report:
    """Nothing failed; one node hung in one check, and a check has a bug."""
    grid = Grid(EIGHT)
    grid.say("gpu.health", ["gpu06"], UNKNOWN, "no answer within 10 s")
    grid.say("gpu.inventory", ["gpu06"], UNKNOWN, "no answer within 10 s")
    trace = ["Traceback (most recent call last):\n", '  File "clock.py", line 9, in judge\n']
    bug = "bug in check host.clock: KeyError: 'offset_s'"
    grid.say("host.clock", ["gpu02", "gpu06"], UNKNOWN, bug, details=trace)
    grid.say("gpu.fabric", EIGHT, SKIP, "no NVSwitch here")
    grid.say("rdma.devices", EIGHT, SKIP, "no RDMA device on any node")
    grid.say("rdma.port", EIGHT, SKIP, "no RDMA device on any node")
    grid.say("rdma.qos", EIGHT, SKIP, "needs root")
    grid.say("network.firewall", EIGHT, SKIP, "needs root")
    return grid.report()


def hundreds() -> model.Report:
    """Seven faults on 300 nodes, some of them wide."""
    names = gpus(*range(1, 301), width=3)
    grid = Grid(names)
    rack = names[96:128]
    grid.say(
        "storage.mounts",
        rack,
        FAIL,
        "/data is not mounted, 268 of 300 nodes have nas01:/export/data",
        fix="mount -t nfs4 -o rw,hard,vers=4.2,nconnect=8,rsize=1048576,wsize=1048576 "
        "nas01:/export/data /data",
        reproduce="findmnt /data",
    )
    grid.cause("storage.mounts", rack)
    lost = [names[n] for n in (13, 77, 201, 202, 203)]
    grid.lose(lost)
    for node in lost:
        said = f"10.1.0.{int(node[3:])}:22: timed out"
        fix = "see that the machine is up and no firewall drops"
        grid.say("access.ssh", [node], FAIL, said, observed="filtered", fix=fix)
    grid.cause("access.ssh", lost)
    odd = names[0:300:25]
    grid.say("host.limits", odd, WARN, "nofile is 1024, NCCL wants 65536", fix="ulimit -n 65536")
    for node, gpu in ((names[40], 3), (names[180], 7)):
        said = f"GPU {gpu} has 14 uncorrectable ECC errors, expected 0"
        grid.say("gpu.health", [node], FAIL, said, fix=f"nvidia-smi --gpu-reset -i {gpu}")
        grid.cause("gpu.health", [node])
    old = [names[5], names[6]]
    said = "NVIDIA driver 535.161.08, 293 of 300 nodes have 550.54.15"
    grid.say("software.driver", old, FAIL, said, fix="install driver 550.54.15, then reboot")
    grid.say("software.cuda", old, FAIL, "CUDA 12.4 needs driver 550")
    grid.cause("software.driver", old, explains={"software.cuda": old})
    port = {"fix": "kill 4711", "reproduce": "ss -ltnp 'sport = :29500'"}
    said = "port 29500 is taken by pid 4711 (python train.py) of bob"
    grid.say("network.port", [names[0]], FAIL, said, **port)
    grid.cause("network.port", [names[0]])
    said = "packets from gpu120 to gpu250 are lost, both are well with others"
    grid.say("network.path_mtu", [names[119]], FAIL, said, fix="tracepath -n gpu250")
    grid.cause("network.path_mtu", [names[119], names[249]], kind="pair")
    return grid.report(seconds=153.4)


WAIVED = model.Waived(until=dt.date(2026, 12, 31), owner="ops", reason="RMA pending")


def waived() -> model.Report:
    """The only failure is waived; another waiver has ended."""
    grid = Grid(EIGHT)
    said = "NVIDIA driver 535.161.08, the 7 others have 550.54.15"
    grid.say("software.driver", ["gpu07"], FAIL, said, fix="install 550.54.15", waived=WAIVED)
    grid.cause("software.driver", ["gpu07"])
    right = {"check": "software.driver", "node": "gpu07", **WAIVED.model_dump(mode="json")}
    over = right | {"check": "host.shm", "until": "2026-10-01", "reason": "to be rebooted"}
    return grid.report(waivers=[right, over])


def waived_cause() -> model.Report:
    """A waived failure has consequences that nobody waived."""
    grid = Grid(EIGHT)
    said = "eth1 has MTU 1500, the 7 others have 9000"
    fix = "ip link set dev eth1 mtu 9000"
    grid.say("network.mtu", ["gpu03"], FAIL, said, fix=fix, waived=WAIVED)
    grid.say("network.path_mtu", ["gpu03"], FAIL, "packets of 8972 bytes are lost")
    grid.cause("network.mtu", ["gpu03"], explains={"network.path_mtu": ["gpu03"]})
    return grid.report()


def this_machine() -> model.Report:
    grid = Grid(["localhost"], LOCAL)
    grid.say("gpu.inventory", grid.names, SKIP, "no GPU on any node")
    grid.say("gpu.health", grid.names, SKIP, "no GPU on any node")
    grid.say("gpu.fabric", grid.names, SKIP, "no GPU on any node")
    for check in ("network.firewall", "host.kernel_log"):
        grid.say(check, grid.names, SKIP, "needs root")
    said = "/dev/shm is 64 MiB, NCCL wants 1 GiB"
    fix = "start the container with --shm-size=8g, or mount -o remount,size=8g /dev/shm"
    grid.say("host.shm", grid.names, WARN, said, fix=fix)
    return grid.report(seconds=0.84, cluster="this machine", inventory=None)


SITUATIONS = {
    made.__name__: made
    for made in (
        ready,
        mtu,
        tie,
        unreachable,
        undetermined,
        hundreds,
        waived,
        waived_cause,
        this_machine,
    )
}
