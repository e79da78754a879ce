"""Proxies of the launch environment that would catch traffic between the nodes."""

from __future__ import annotations

from typing import Any

from tests.cluster.blame import causes, results
from tests.cluster.testbed import Testbed

CHECK = "launch.proxy"
SECRET = "hunter2"


def run(bed: Testbed, **overrides: Any) -> tuple[dict[str, Any], str]:
    """Return the report of a run of this check, which finds no failure, and what was printed."""
    done, report = bed.report("run", str(bed.inventory(**overrides)), "--only", CHECK, "-v")
    assert (done.returncode, causes(report)) == (0, []), done.stdout + done.stderr
    return report, done.stdout


def shell(bed: Testbed, node: str, lines: str) -> None:
    """Have the login user's shell of a node set variables."""
    bed.login_shell(node, "alice", "/bin/bash")
    bed.change_file(node, "/home/alice/.bashrc", lines)


def test_a_proxy_of_one_node(bed: Testbed) -> None:
    shell(bed, "tb2", f"export https_proxy=http://bob:{SECRET}@proxy:3128 no_proxy=localhost,tb1\n")
    report, shown = run(bed)
    ((check, node, words),) = results(report, "warn", "unknown")
    assert (check, node) == (CHECK, "tb2")
    assert words == (
        "HTTP and gRPC between the nodes would go by https_proxy (http://(hidden)@proxy:3128, the"
        " shell): no_proxy does not cover tb2, tb3, tb4, 10.78.0.1 and 3 more"
    )
    (tb2,) = [r for r in report["results"] if (r["check"], r["node"]) == (CHECK, "tb2")]
    assert tb2["fix"] == (
        "add tb1,tb2,tb3,tb4,10.78.0.1,10.78.0.2,10.78.0.3,10.78.0.4 to no_proxy"
        " (in small letters); or start the job with env -u https_proxy"
    )
    assert SECRET not in str(report) + shown


def test_a_proxy_that_lets_the_nodes_past(bed: Testbed) -> None:
    shell(bed, "tb2", "export http_proxy=proxy:3128 no_proxy='tb1,tb3 .tb4,10.78.0.0/24'\n")
    report, _ = run(bed)
    assert results(report, "warn", "unknown") == []


def test_a_proxy_of_the_inventory(bed: Testbed) -> None:
    env = {"ALL_PROXY": f"socks5://bob:{SECRET}@proxy:1080"}
    report, shown = run(bed, launch={"env": env})
    told = results(report, "warn")
    assert [node for _, node, _ in told] == list(bed.names)
    assert len({words for _, _, words in told}) == 1  # so that the report says it once
    assert SECRET not in str(report) + shown


def test_a_recording_has_no_login_of_a_proxy(bed: Testbed) -> None:
    shell(bed, "tb2", f"export http_proxy=http://bob:{SECRET}@proxy:3128\n")
    path = bed.tmp_path / "recorded-proxy.json"
    inventory = str(bed.inventory())
    done = bed.preflight("record", "tb2", "-i", inventory, "-o", str(path), "--only", CHECK)
    assert done.returncode == 0, done.stderr
    assert "http://(hidden)@" in path.read_text()
    assert SECRET not in path.read_text()
