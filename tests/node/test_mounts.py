"""The mount table and visits of this very machine."""

from __future__ import annotations

import json
from pathlib import Path

from preflight.api import Visit
from preflight.node.mounts import mounts, own_names, parsed
from preflight.node.replay import Replay
from preflight.node.toolbox import Toolbox


def test_visits_come_back_with_what_is_there(tmp_path: Path) -> None:
    link, file = tmp_path / "link", tmp_path / "file"
    link.symlink_to(tmp_path)
    file.touch()
    missing, below = tmp_path / "missing", file / "below"
    found = Toolbox().visit([str(path) for path in (link, missing, below)])
    there = found[str(link)]
    assert (there.error, there.real) == ("", str(tmp_path.resolve()))
    assert there.readable
    assert there.writable
    assert 0 < there.free <= there.size
    assert found[str(missing)] == Visit("ENOENT")
    assert found[str(below)] == Visit("ENOTDIR")


def test_nothing_is_visited_for_nothing() -> None:
    assert Toolbox().visit([]) == {}


def test_a_path_lies_on_the_mount_that_holds_it(tmp_path: Path) -> None:
    found = mounts(Toolbox(), ["/proc/self", str(tmp_path / "none")])
    proc = found["expected"]["/proc/self"]
    assert (proc["mount"]["path"], proc["mount"]["type"]) == ("/proc", "proc")
    assert found["visits"][str(tmp_path / "none")]["error"] == "ENOENT"
    assert json.loads(json.dumps(found)) == found


def test_a_source_without_a_name_is_empty() -> None:
    mount = parsed("36 35 0:40 / /a\\134b rw - tmpfs  rw,size=4k")
    assert mount["path"] == "/a\\b"
    assert (mount["source"], mount["options"]) == ("", ["rw", "size=4k"])


def test_a_node_goes_by_its_host_name_where_its_addresses_are_not_told() -> None:
    refused = {"unobservable": "psutil could not be loaded"}
    uname = {"node": "gpu01.lan", "release": "", "version": "", "machine": ""}
    node = Replay({"uname": {"": uname}, "psutil": {"net_if_addrs": refused}})
    assert own_names(node) == ["gpu01.lan", "gpu01"]
