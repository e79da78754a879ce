"""What the collective checks cost beyond what torch itself does, and what that is on real nodes.

The nodes are network namespaces of this machine with an sshd each, as the tests raise them, so that
all ranks share its CPUs, and most of the time goes into importing torch once a node. So the same
ranks are started by hand in the same run: they import torch, meet and do one all_reduce. What
preflight takes beyond that, and that once more on a node alone, is what a cluster takes whose nodes
have CPUs of their own. It needs root, and what `make test` installs.
Leave the machine alone meanwhile.

    python benchmarks/collective.py              # 16 nodes, three times
    python benchmarks/collective.py --nodes 64 --repeats 1
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.cluster.testbed import Testbed  # noqa: E402 - the tests are no package to install

BUDGET_S = 30.0
"""For all collective checks at standard level, up to 64 nodes."""
TORCH = ROOT / ".venv-torch/bin/python"
LIMIT_S = 600
RANK = """
import sys, torch, torch.distributed as dist
host, rank, world = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"tcp://{host}:29500", rank=rank, world_size=world)
dist.all_reduce(torch.ones(1 << 18))
dist.destroy_process_group()
"""


def run(bed: Testbed, only: str) -> float:
    """Run some checks; return the time."""
    launch = {"python": str(TORCH)}
    inventory = bed.inventory(ssh={"user": "root"}, launch=launch)
    begun = time.monotonic()
    done, report = bed.report("run", str(inventory), "--only", only, timeout=LIMIT_S)
    spent = time.monotonic() - begun
    bad = [row for row in report["results"] if row["status"] not in ("pass", "skip", "warn")]
    if bad:
        sys.exit(f"the nodes are not well: {done.stdout}\n{done.stderr}")
    return spent


def floor(bed: Testbed, nodes: Sequence[str]) -> float:
    """Return the time that ranks take which are started by hand, one a node, all at once."""
    host = bed.machines[nodes[0]].address
    begun = time.monotonic()
    ranks = [
        bed.popen(
            node,
            *("env", "GLOO_SOCKET_IFNAME=eth0", str(TORCH), "-c", RANK),
            *(host, str(rank), str(len(nodes))),
        )
        for rank, node in enumerate(nodes)
    ]
    said = [rank.communicate(timeout=LIMIT_S) for rank in ranks]
    spent = time.monotonic() - begun
    if any(rank.returncode for rank in ranks):
        sys.exit(f"ranks that were started by hand did not end well: {said}")
    return spent


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--nodes", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="preflight-") as made,
        Testbed(Path(made), given.nodes) as bed,
        bed.inside(),
    ):
        for node in bed.names:
            bed.load(node, 0)
        names = list(bed.names)
        rounds = [
            (
                run(bed, "software.os"),
                run(bed, "collective"),
                floor(bed, names),
                floor(bed, names[:1]),
            )
            for _ in range(given.repeats)
        ]
    logins_s, all_s, floor_s, alone_s = (
        statistics.median(column) for column in zip(*rounds, strict=True)
    )
    collective_s = all_s - logins_s
    own_s = collective_s - floor_s
    expected_s = own_s + alone_s
    verdict = "MISSED" if expected_s > BUDGET_S else "met"
    print(f"collective checks on {given.nodes} nodes, beyond logins{collective_s:8.2f} s")
    print(f"the same ranks by hand, all on this machine {floor_s:8.2f} s")
    print(f"    one of them alone                       {alone_s:8.2f} s")
    print(f"ratio                                       {collective_s / floor_s:8.2f}")
    print(
        f"on nodes with CPUs of their own             {expected_s:8.2f} s"
        f"   at most {BUDGET_S:g}  {verdict}"
    )
    print(json.dumps({"own_s": round(own_s, 2), "expected_s": round(expected_s, 2)}))
    sys.exit(1 if expected_s > BUDGET_S else 0)


if __name__ == "__main__":
    main()
