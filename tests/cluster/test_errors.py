"""Links that drop packets or flap: each is named, with its node, and no other."""

from __future__ import annotations

from typing import Any

from tests.cluster.blame import causes, results, summary
from tests.cluster.testbed import Testbed

CHECK = "network.errors"
SOUND = "eth0: no damage to speak of, and not many drops or downs"


def run(bed: Testbed, **overrides: Any) -> dict[str, Any]:
    """Return the report of a run of the check, which finds nothing that ends a job."""
    done, report = bed.report("run", str(bed.inventory(**overrides)), "--only", CHECK)
    assert (done.returncode, causes(report)) == (0, [])
    return report


def test_sound_links(bed: Testbed) -> None:
    report = run(bed)
    assert results(report, "fail", "warn", "unknown", "skip") == []
    assert summary(report, CHECK, "tb1") == SOUND


def test_a_link_that_drops(bed: Testbed) -> None:
    bed.flood("tb3")
    report = run(bed)
    ((_, node, words),) = results(report, "warn")
    assert node == "tb3"
    assert words.startswith("eth0 drops ")
    assert words.endswith(" packets a second (rx_dropped), the other nodes 0")
    assert summary(report, CHECK, "tb1") == SOUND


def test_a_link_that_flaps(bed: Testbed) -> None:
    for node in bed.names:
        bed.add_cable(node, "data8", flaps=12 if node == "tb2" else 0)
    report = run(bed, launch={"interface": "data8"})
    words = "data8 has gone down 13 times in 1 days, the other nodes 1 times"
    assert results(report, "warn", "unknown") == [(CHECK, "tb2", words)]
