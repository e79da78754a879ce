"""A verdict without an inventory, and the inventory that `preflight init` writes, on real nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from tests.cluster.blame import causes, results
from tests.cluster.testbed import Testbed

NAMES = "tb[1-4]"


def run(bed: Testbed, *args: str) -> tuple[dict[str, Any], list[str]]:
    """Return the report of a run that must be ready, and its nodes."""
    done, report = bed.report("run", *args)
    assert results(report, "fail", "warn", "unknown") == []
    assert (report["verdict"], done.returncode, done.stderr) == ("ready", 0, "")
    return report, [node["name"] for node in report["nodes"]]


def test_hosts(configured: Testbed) -> None:
    report, nodes = run(configured, "--hosts", NAMES, "--exclude", "tb[2-3]")
    assert nodes == ["tb1", "tb4"]
    assert (report["run"]["cluster"], report["run"]["inventory"]) == (NAMES, None)
    addresses = ",".join(f"alice@{m.address}:22" for m in configured.machines.values())
    assert len(run(configured, "--hosts", addresses)[1]) == 4


def test_a_host_file(configured: Testbed) -> None:
    path = configured.tmp_path / "hosts.txt"
    path.write_bytes(b"# the testbed\r\ntb1\r\n\ttb2 \r\n\r\ntb[3-4]\r\n")
    assert run(configured, "--hostfile-in", str(path))[1] == ["tb1", "tb2", "tb3", "tb4"]
    path.write_text("tb1 slots=8\ntb2 slots=8\n")
    done, report = configured.report("run", "--hostfile-in", str(path), "--only", "gpu.inventory")
    assert done.returncode == 1  # slots are GPUs, and the testbed has none
    assert causes(report) == [("node", "gpu.inventory", ["tb1", "tb2"])]


def test_the_inventory_of_init_gives_the_same_verdict(configured: Testbed) -> None:
    configured.share("/data")
    path = configured.tmp_path / "first.yaml"
    path.unlink(missing_ok=True)
    done = configured.preflight("init", "--hosts", NAMES, "-o", str(path))
    assert (done.returncode, done.stdout, done.stderr) == (
        0,
        "",
        "preflight: launch.gpus_per_node was not learnt: no node that answered shows a GPU\n"
        f"preflight: wrote {path}: 4 nodes, 4 answered; next: preflight run {path}\n",
    )
    assert yaml.safe_load(path.read_text()) == {
        "ssh": None,
        "nodes": [NAMES],
        "launch": {"interface": "eth0"},
        "expect": {
            "mounts": [{"path": "/data", "type": "fuse.nfs4", "source": "10.78.0.4:/export"}]
        },
    }
    with_inventory, nodes = run(configured, str(path))
    without, _ = run(configured, "--hosts", NAMES)
    assert nodes == list(configured.names)
    assert with_inventory["verdict"] == without["verdict"]
    configured.unmount("tb2", "/data")
    _, report = configured.report("run", str(path))
    assert causes(report) == [("node", "storage.mounts", ["tb2"])]


def test_init_with_a_node_that_is_off(configured: Testbed) -> None:
    configured.stop_sshd("tb3")
    done = configured.preflight("init", "--hosts", NAMES, "-o", "-")
    assert done.returncode == 0
    assert [line.split(":")[1] for line in done.stderr.splitlines()] == [
        " tb3 did not answer",
        " launch.gpus_per_node was not learnt",
    ]
    assert "# tb3 did not answer when this was written: nothing below" in done.stdout
    assert "  interface: eth0                   # seen on 3 of 4 nodes\n" in done.stdout
    assert yaml.safe_load(done.stdout)["nodes"] == [NAMES]


def test_init_from_ansible_with_what_gpus_there_are(bed: Testbed) -> None:
    for name in bed.names:
        bed.nvml(name)
    path = bed.tmp_path / "hosts.ini"
    addresses = [f"{name} ansible_host={m.address}" for name, m in bed.machines.items()]
    path.write_text(
        "\n".join(
            [
                *("[nodes]", *addresses, "[all:vars]", "ansible_user=alice"),
                f"ansible_ssh_private_key_file={bed.key}",
            ]
        )
    )
    folder = Path(bed.environment()["HOME"], ".ssh")
    folder.mkdir()
    (folder / "known_hosts").write_bytes(bed.known_hosts.read_bytes())
    target = bed.tmp_path / "from-ansible.yaml"
    done = bed.preflight("init", "--ansible", str(path), "-o", str(target), "--force")
    assert (done.returncode, done.stdout) == (0, "")
    assert yaml.safe_load(target.read_text())["launch"] == {"gpus_per_node": 8, "interface": "eth0"}
    report, nodes = run(bed, str(target), "--only", "gpu.inventory")
    assert nodes == list(bed.names)
    assert report["want"]["launch"]["gpus_per_node"] == 8
