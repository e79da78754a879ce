"""The training interpreter is there, and it and its Ray are of the same version on all nodes.

Why: extensions and pickles of one Python do not load in another. Ray refuses a worker whose
    Python differs even in the last number, or drops it without a word.
Facts: the version of the training interpreter, and of Ray where it is installed; or why there
    is none: it cannot be started, ended before it ran anything, or gave no answer in 8 s.
    With `launch.user` it has that user's home, for ~/.local; where the login user may not look
    into that, a detail says so.
    Where neither `launch.python`, a container nor a PATH in `launch.env` says which interpreter
    trains, python3 is looked at, and what is wrong with it is a warning.
Source: `launch.python` (else python3 of the non-login shell) or the interpreter in
    `launch.container`, run with `launch.env`; versions by *.dist-info on its sys.path.
    https://github.com/ray-project/ray/issues/44063.
Fix: use one environment or image on all nodes, at the path that launch.python names.
"""

from __future__ import annotations

from typing import Mapping

from preflight.api import Check, Expect, Verdict, Want, fail, unknown, warn
from preflight.node.software import (
    Training,
    asked,
    believed,
    by_hand,
    opened,
    together,
    training,
    versions,
)

STRICT = "Ray wants the same Python on all nodes, to the last number (ray-project/ray#44063)"
BROKEN = "make the environment anew there: the Python that it was made from may be gone, or damaged"
SLOW = "start it there by hand: files of a slow file system come quicker the second time"


def compare(facts: Mapping[str, Training], want: Want) -> dict[str, Verdict]:
    return believed(facts, compared(facts, want), want, "python")


def compared(facts: Mapping[str, Training], want: Want) -> dict[str, Verdict]:
    said, silent = opened(facts)
    for node, verdict in silent.items():
        silence = facts[node]["silence"]
        if silence == "missing" and (said or want.get("launch.python")):
            silent[node] = fail(verdict.summary, reproduce=by_hand(want, "-V"))
        elif silence == "broken":
            silent[node] = fail(verdict.summary, fix=BROKEN, reproduce=by_hand(want, "-c pass"))
        elif silence == "slow":
            silent[node] = unknown(verdict.summary, fix=SLOW, reproduce=by_hand(want, "-c pass"))
    pythons = {node: inside["python"] for node, inside in said.items()}
    rays = {node: inside["packages"].get("ray") for node, inside in said.items()}
    series = {version.rsplit(".", 1)[0] for version in pythons.values()}
    strict = (STRICT,) if any(rays.values()) else ()
    return {
        **silent,
        **together(
            versions(
                pythons,
                "Python",
                want.get("expect.python"),
                say=fail if strict or len(series) > 1 else warn,
                details=strict,
                reproduce=by_hand(want, "-V"),
            ),
            versions(rays, "Ray", reproduce=by_hand(want, "-m pip show ray"), explains=()),
        ),
    }


CHECK = Check(
    probe=training,
    args=asked,
    compare=compare,
    expects=(Expect("python", str, "", "Python of the training environment, such as 3.10"),),
    explains=("software.cuda", "software.pytorch", "software.nccl", "collective.all_reduce"),
)
