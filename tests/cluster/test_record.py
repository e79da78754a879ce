"""A node of the testbed, recorded over SSH, is replayed with the facts that it gave."""

from __future__ import annotations

from pathlib import Path

from preflight import catalog, inventory
from preflight.transport.ssh import SshTransport
from tests.cluster.testbed import Testbed
from tests.test_recording import assert_replays, taken_from, want_of

OF_THE_TESTBED = ("tb1", "tb2", "alice", "10.78.0.")


def test_facts_and_names(bed: Testbed) -> None:
    cluster = inventory.load(bed.inventory(), catalog.load().expects)
    taken = taken_from(cluster, cluster.nodes[0], SshTransport())
    assert taken.facts["preflight.node.kernel:identity"]["value"]["hostname"] == "tb1"
    text = assert_replays(taken, want_of(cluster)).to_json()
    assert [word for word in OF_THE_TESTBED if f'"{word}' in text or f"/{word}" in text] == []


def test_by_command(bed: Testbed, tmp_path: Path) -> None:
    target = tmp_path / "tb1.json"
    done = bed.preflight("record", "tb1", "-i", str(bed.inventory()), "-o", str(target))
    assert (done.returncode, done.stdout) == (0, "")
    again = bed.preflight("demo", str(target), "--folder", str(tmp_path / "demo"))
    assert again.returncode == 0
    assert "READY  tb1 is ready" in again.stdout
    assert "LookupError" not in again.stdout
