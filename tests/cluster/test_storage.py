"""Faults of shared storage on real nodes; the network file system is a stand-in over FUSE."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from tests.cluster.blame import causes, results, summary
from tests.cluster.machine import wait_until
from tests.cluster.testbed import Testbed

WHAT = "fuse.nfs4 10.78.0.4:/export"
EXPECTED = {"path": "/data", "type": "*nfs4", "source": "10.78.0.4:/export", "writable": True}


def report(bed: Testbed, *mounts: dict[str, Any]) -> dict[str, Any]:
    """Return the report of a run of `storage`, which must not be ready."""
    expect = {"expect": {"mounts": list(mounts)}} if mounts else {}
    done, found = bed.report("run", str(bed.inventory(**expect)), "--only", "storage")
    assert done.returncode == 1
    return found


def test_a_share_that_is_mounted_everywhere_passes(bed: Testbed) -> None:
    bed.share("/data")
    inventory = bed.inventory(expect={"mounts": [EXPECTED]})
    done, found = bed.report("run", str(inventory), "--only", "storage")
    assert results(found, "fail", "warn", "unknown") == []
    assert summary(found, "storage.mounts", "tb2") == "mounted and answering: /data"
    assert done.returncode == 0


FAULTS: dict[str, tuple[Callable[[Testbed], Any], str]] = {
    "missing": (
        lambda bed: bed.unmount("tb2", "/data"),
        f"/data: not mounted, the 3 others have {WHAT}",
    ),
    "hung": (
        lambda bed: bed.fuse_mode("tb2", "hang"),
        "/data does not answer in 2 s: whatever touches it hangs",
    ),
    "stale": (
        lambda bed: bed.fuse_mode("tb2", "stale"),
        "/data is stale: the server no longer knows it (stale file handle)",
    ),
    "broken": (lambda bed: bed.fuse_mode("tb2", "eio"), "/data gives input/output errors"),
    "read_only": (
        lambda bed: bed.run("tb2", "mount", "-o", "remount,bind,ro", "/data"),
        "/data: options ro, the 3 others have rw",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_a_share_is_told_and_nobody_else_is_blamed(bed: Testbed, fault: str) -> None:
    put_in, words = FAULTS[fault]
    bed.share("/data")
    put_in(bed)
    found = report(bed)
    assert causes(found) == [("node", "storage.mounts", ["tb2"])]
    assert found["causes"][0]["summary"] == words
    assert found["causes"][0]["fix"]


def test_another_source_is_told(bed: Testbed) -> None:
    for node in bed.names:
        bed.fuse_mount(node, "/data", "10.78.0.4:/" + ("other" if node == "tb3" else "export"))
    found = report(bed)
    assert causes(found) == [("node", "storage.mounts", ["tb3"])]
    words = f"/data: fuse.nfs4 10.78.0.4:/other, the 3 others have {WHAT}"
    assert found["causes"][0]["summary"] == words


def test_the_hung_one_of_several_mounts_is_named(bed: Testbed) -> None:
    bed.share("/data")
    bed.share("/home/shared", "10.78.0.4:/home")
    bed.fuse_mode("tb2", "hang", "/home/shared")
    found = report(bed)
    assert causes(found) == [("node", "storage.mounts", ["tb2"])]
    words = "/home/shared does not answer in 2 s: whatever touches it hangs"
    assert found["causes"][0]["summary"] == words


def test_what_is_expected_and_mounted_nowhere_is_one_cause(bed: Testbed) -> None:
    found = report(bed, EXPECTED)
    assert causes(found) == [("node", "storage.mounts", list(bed.names))]
    words = "/data does not exist, expected *nfs4 10.78.0.4:/export"
    assert found["causes"][0]["summary"] == words


def test_a_mount_that_the_user_may_not_write_is_told(bed: Testbed) -> None:
    bed.share("/data").chmod(0o755)
    found = report(bed, EXPECTED)
    assert causes(found) == [("node", "storage.mounts", list(bed.names))]
    assert found["causes"][0]["summary"] == "alice may not write to /data"


def test_nothing_of_ours_stays_behind_a_hung_mount(bed: Testbed) -> None:
    bed.share("/data")
    bed.fuse_mode("tb2", "hang")
    report(bed)
    bed.fuse_mode("tb2", "ok")
    wait_until(lambda: not bed.survivors("tb2"), "no process of ours on tb2")


def test_another_uid_is_told_and_explains_what_may_not_be_written(bed: Testbed) -> None:
    shared = bed.share("/data")
    shared.chmod(0o750)
    os.chown(shared, 2001, 2001)
    bed.change_uid("tb3", "alice", 3001, 3001)
    found = report(bed, EXPECTED)
    ((kind, check, nodes),) = causes(found)
    assert (kind, check, nodes) == ("node", "storage.identity", ["tb3"])
    (cause,) = found["causes"]
    assert cause["summary"] == (
        "user alice: uid 3001, gid 3001, the 3 others have uid 2001, gid 2001"
    )
    assert cause["explains"] == [{"check": "storage.mounts", "node": "tb3"}]


def test_a_user_that_one_node_does_not_know(bed: Testbed) -> None:
    bed.remove_user("tb2", "alice")
    inventory = bed.inventory(ssh={"user": "root"}, launch={"user": "alice"})
    done, found = bed.report("run", str(inventory), "--only", "storage")
    assert done.returncode == 1
    assert causes(found) == [("node", "storage.identity", ["tb2"])]
    words = "user alice: unknown here, the 3 others have uid 2001, gid 2001"
    assert found["causes"][0]["summary"] == words


def test_a_group_that_one_node_lacks(bed: Testbed) -> None:
    for node in bed.names:
        bed.add_group(node, "data", 5001 if node == "tb4" else 5000, "alice")
    found = report(bed)
    assert causes(found) == [("node", "storage.identity", ["tb4"])]
    words = "group data of user alice has gid 5001, on the others 5000"
    assert found["causes"][0]["summary"] == words


# ---- faults in pairs: the one does not hide the other ------------------------------------------


def test_another_uid_does_not_hide_a_mount_that_hangs(bed: Testbed) -> None:
    bed.share("/data")
    bed.change_uid("tb3", "alice", 3001, 3001)
    bed.fuse_mode("tb3", "hang")
    found = report(bed)
    assert causes(found) == [
        ("node", "storage.identity", ["tb3"]),
        ("node", "storage.mounts", ["tb3"]),
    ]
    assert "umount -f -l /data" in found["causes"][1]["fix"]


def test_uids_that_differ_do_not_hide_a_mount_that_hangs(bed: Testbed) -> None:
    bed.share("/data")
    bed.change_uid("tb1", "alice", 3001, 3001)
    bed.fuse_mode("tb2", "hang")
    nodes = [bed.spec("tb1"), bed.spec("tb2")]
    _, found = bed.report("run", str(bed.inventory(nodes=nodes)), "--only", "storage")
    assert causes(found) == [
        ("cluster", "storage.identity", ["tb1", "tb2"]),
        ("node", "storage.mounts", ["tb2"]),
    ]


def test_a_missing_mount_explains_the_working_directory_on_it(bed: Testbed) -> None:
    (bed.share("/data") / "job").mkdir()
    bed.unmount("tb2", "/data")
    inventory = bed.inventory(launch={"workdir": "/data/job"})
    _, found = bed.report("run", str(inventory), "--only", "storage", "--only", "launch")
    assert causes(found) == [("node", "storage.mounts", ["tb2"])]
    assert found["causes"][0]["explains"] == [{"check": "launch.paths", "node": "tb2"}]


def test_a_mount_that_hangs_on_one_node_does_not_hide_what_is_nowhere(bed: Testbed) -> None:
    for node in bed.names:
        bed.fuse_mount(node, "/data")
    bed.fuse_mode("tb2", "hang")
    _, report = bed.report("run", str(bed.inventory(launch={"workdir": "/data/typo"})))
    assert causes(report) == [
        ("node", "launch.paths", ["tb1", "tb3", "tb4"]),
        ("node", "storage.mounts", ["tb2"]),
    ]


def test_an_export_within_an_export_is_mounted_by_use(bed: Testbed) -> None:
    bed.share("/data")
    for node in ("tb1", "tb3", "tb4"):
        bed.fuse_mount(node, "/data/alice", "10.78.0.4:/export/alice")
    done, found = bed.report("run", str(bed.inventory()), "--only", "storage")
    assert (done.returncode, results(found, "fail", "warn", "unknown")) == (0, [])
    assert summary(found, "storage.mounts", "tb2") == "mounted and answering: /data"
    assert summary(found, "storage.mounts", "tb3") == "mounted and answering: /data, /data/alice"


# ---- what differs rightly ------------------------------------------------------------------


@pytest.mark.parametrize("names", [("tb1", "tb2", "tb3", "tb4"), ("tb3", "tb4")])
def test_the_server_of_a_share_needs_no_mount_of_it(bed: Testbed, names: tuple[str, ...]) -> None:
    for node in names[:-1]:
        bed.fuse_mount(node, "/data", f"{bed.machines['tb4'].address}:/data")
    bed.mount_tmpfs("tb4", "/data")
    inventory = bed.inventory(nodes=[bed.spec(name) for name in names])
    done, found = bed.report("run", str(inventory), "--only", "storage")
    assert results(found, "fail", "warn", "unknown") == []
    assert summary(found, "storage.mounts", "tb4") == "serves what the others mount: /data"
    assert done.returncode == 0


def test_each_node_may_mount_a_directory_of_its_own(bed: Testbed) -> None:
    for node in bed.names:
        bed.fuse_mount(node, "/scratch", f"10.78.0.9:/scratch/{node}")
    done, found = bed.report("run", str(bed.inventory()), "--only", "storage")
    assert results(found, "fail", "warn", "unknown") == []
    assert done.returncode == 0
