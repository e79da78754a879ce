"""What the network checks cost on 16 nodes beyond connecting; budgets, met or missed.

The nodes are network namespaces with an sshd each, as the tests raise them: it needs root and what
`make test` installs. Leave the machine alone meanwhile.

    python benchmarks/mesh.py                # 16 nodes, three times
    python benchmarks/mesh.py --nodes 8 --repeats 1
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.cluster.testbed import Testbed  # noqa: E402 - the tests are no package to install

BEYOND_BUDGET_S = 10.0
"""For all standard network checks on 16 nodes, beyond logging in."""
MESH = "network.ephemeral"


def run(bed: Testbed, *only: str) -> tuple[float, dict[str, Any]]:
    """Run some checks; return the time and the report."""
    words = [word for check in only for word in ("--only", check)]
    begun = time.monotonic()
    done, report = bed.report("run", str(bed.inventory()), *words, timeout=300)
    spent = time.monotonic() - begun
    if done.returncode:
        sys.exit(f"the nodes are not well: {done.stdout}\n{done.stderr}")
    return spent, report


def floor(count: int) -> float:
    """Return the seconds that so many bare connections with an echo take, one after the other."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as server:

        def serve() -> None:
            for _ in range(count):
                connection, _ = server.accept()
                with connection:
                    connection.sendall(connection.recv(32))

        thread = threading.Thread(target=serve)
        thread.start()
        begun = time.monotonic()
        for _ in range(count):
            with socket.create_connection(server.getsockname()) as connection:
                connection.sendall(b"a" * 32)
                connection.recv(32)
        spent = time.monotonic() - begun
        thread.join()
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
        rounds = [
            (run(bed, "software.os"), run(bed, "network"), run(bed, MESH))
            for _ in range(given.repeats)
        ]
    bare_s = statistics.median(one[0][0] for one in rounds)
    all_s = statistics.median(one[1][0] for one in rounds)
    mesh_s = statistics.median(one[2][0] for one in rounds) - bare_s
    last = rounds[-1][1][1]
    beyond = all_s - bare_s
    verdict = "MISSED" if beyond > BEYOND_BUDGET_S else "met"
    print(f"logins on {given.nodes} nodes           {bare_s:8.2f} s")
    print(
        f"all network checks beyond these{beyond:8.2f} s   at most {BEYOND_BUDGET_S:g}  {verdict}"
    )
    took: dict[str, float] = {}
    for row in last["results"]:
        took[row["check"]] = max(took.get(row["check"], 0.0), row["seconds"])
    for check, seconds in sorted(took.items(), key=lambda item: -item[1]):
        print(f"    {seconds:8.2f} s  {check}")
    pairs = given.nodes * (given.nodes - 1)
    dials = pairs * 2
    floor_s = floor(dials)
    print(
        f"{MESH}: {mesh_s / pairs * 1000:.2f} ms a pair, of {pairs} pairs with two ports each;"
        f" {mesh_s / floor_s:.1f} x bare connections one after the other"
    )
    print(json.dumps({"beyond_s": round(beyond, 2), "pairs": pairs}))
    sys.exit(1 if beyond > BEYOND_BUDGET_S else 0)


if __name__ == "__main__":
    main()
