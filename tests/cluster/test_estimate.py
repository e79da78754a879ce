"""An estimate goes by what a real run has measured."""

from __future__ import annotations

import json

import pytest

from tests.cluster.testbed import Testbed

LIMITED_MBPS = 200


def test_the_slow_link_sets_the_time(bed: Testbed) -> None:
    bed.rate_limit("tb2", LIMITED_MBPS)
    path = bed.tmp_path / "report.json"
    measuring = ("--level", "deep", "--only", "network.bandwidth,network.latency")
    bed.preflight("run", str(bed.inventory()), *measuring, "--json", str(path))
    asked = ("--parameters", "50M", "--dtype", "fp32", "--from-report", str(path))
    found = json.loads(bed.preflight("estimate", *asked, "--json", "-").stdout)
    assert found["nodes"] == 4
    gbps = found["gradients"]["network"]["gbps"]
    assert gbps == pytest.approx(LIMITED_MBPS / 1000, rel=0.2)
    assert ", tb2 to tb" in found["sources"]["bandwidth"]
    assert found["sources"]["latency"].endswith("(network.latency)")
    assert found["synchronisation"]["seconds"] == pytest.approx(1.5 * 1.6 / gbps, rel=0.02)
