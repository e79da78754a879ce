"""The nodes' clocks agree.

Why: torchrun takes a node for dead whose heartbeats look 15 s old; Slurm job credentials expire at
    120 s, MUNGE refuses those that are 300 s off; over a network file system a skewed clock makes
    new files look old, so checkpoints are skipped; logs of many nodes cannot be put in order.
Facts: offset_s of the node's clock to the controller's, error_s around it. Measured inside one
    round trip of the open session, the shortest of three; half of it is subtracted.
Source: the session's frames. Judged against the median of the nodes, so a controller whose clock is
    wrong blames nobody, beyond the errors of both, so a busy one does not either.
Fix: `chronyc makestep`, or `timedatectl set-ntp true`; see why the time service does not run.
"""

from __future__ import annotations

import statistics
from typing import Mapping, TypedDict

from preflight.api import Check, Fleet, Verdict, Want, fail, ok, unknown, warn

FAIL_S = 15.0
"""torchrun's rendezvous drops a node whose heartbeat is older than 5 s x 3 by the clock of another
(keep_alive_interval and keep_alive_max_attempt in torch's dynamic_rendezvous.py). Slurm's job
credentials allow 120 s, MUNGE and Kerberos 300 s."""
WARN_S = 1.0
"""NTP leaves milliseconds. Above it logs cannot be put in order, nor file times be compared."""


class Clock(TypedDict):
    offset_s: float
    error_s: float


def exercise(fleet: Fleet, want: Want) -> dict[str, Clock]:
    return {
        node: Clock(offset_s=clock["offset_s"], error_s=clock["error_s"])
        for node, clock in fleet.clocks().items()
    }


def compare(facts: Mapping[str, Clock], want: Want) -> dict[str, Verdict]:
    if len(facts) == 1:
        return {node: ok("no other clock to compare with") for node in facts}
    offsets = [fact["offset_s"] for fact in facts.values()]
    middle = statistics.median_low(offsets)
    its_error = next(f["error_s"] for f in facts.values() if f["offset_s"] == middle)
    agreeing = sum(abs(offset - middle) <= WARN_S for offset in offsets)
    if 2 * agreeing <= len(offsets):  # no majority: which clock is right cannot be told
        spread, error = max(offsets) - min(offsets), max(f["error_s"] for f in facts.values())
        words = f"the clocks are up to {spread:.1f} s apart"
        return {node: verdict(spread, 2 * error, words, "cluster") for node in facts}
    return {
        node: verdict(
            fact["offset_s"] - middle,
            fact["error_s"] + its_error,
            "the clock is {:+.1f} s off the others'".format(fact["offset_s"] - middle),
        )
        for node, fact in facts.items()
    }


def verdict(off_s: float, error_s: float, words: str, scope: str = "node") -> Verdict:
    sure, most = max(0.0, abs(off_s) - error_s), abs(off_s) + error_s
    if sure <= WARN_S and most > FAIL_S:
        return unknown(f"the clock cannot be told: the answer took {2 * error_s:.0f} s")
    if sure <= WARN_S:
        return ok(f"within {max(1.0, most * 1000):.0f} ms of the others")
    return (fail if sure > FAIL_S else warn)(
        words, observed=round(off_s, 1), expected=0, reproduce="date +%s.%N", scope=scope
    )


CHECK = Check(exercise=exercise, args=lambda _: (), compare=compare)
