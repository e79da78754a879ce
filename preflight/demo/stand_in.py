"""The Python of a simulated node: the agent that arrives sees a recording in place of a machine.

Started as a script by the demo's `python3`, with the command line that a node's Python would get.
What the agent would import to see the machine is put in its place before it begins; the agent
itself knows nothing of it.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

RECORDING = "PREFLIGHT_DEMO_RECORDING"
"""The variable that names this node's recording."""

EACH = "*"
"""In a recording: any other node."""


def main() -> None:
    """Become the node, then run what follows `-c`."""
    sys.path[0] = str(Path(__file__).parents[2])  # this file's own folder holds no packages
    recording = json.loads(Path(os.environ[RECORDING]).read_text(encoding="utf-8"))
    furnish(recording["node"], recording.get("exercises", {}))
    place = sys.argv.index("-c")
    code, sys.argv[:] = sys.argv[place + 1], ["-c", *sys.argv[place + 2 :]]
    exec(code, {"__name__": "__main__"})


def furnish(node: Mapping[str, Any], exercises: Mapping[str, Mapping[str, Any]]) -> None:
    """Put a recording in the machine's place.

    Args:
        node: its answers, as `replay.py` reads them.
        exercises: what functions return that drive several nodes, by module and name.
    """
    toolbox = importlib.import_module("preflight.node.toolbox")
    replay = importlib.import_module("preflight.node.replay")
    child = importlib.import_module("preflight.node.child")
    vars(toolbox)["Toolbox"] = lambda: replay.Replay(node)
    # no bug of the probe's: it could not look
    vars(child)["Unobservable"] = (child.Unobservable, replay.Unrecorded)
    for module, answers in exercises.items():
        for function, answer in answers.items():
            vars(importlib.import_module(module))[function] = replayed(answer)
    vars(socket)["socket"] = NoSocket
    if not hasattr(os, "waitid"):
        vars(os).update(waiting())


def replayed(answer: Any) -> Callable[..., Any]:
    """Return what stands in for a function: it gives its recorded answer.

    One that stays says so of what is in place, and answers when it is told to stop. One that goes
    to others answers for each of those by name, the same for all.
    """

    def function(node: Any, *args: Any) -> Any:  # noqa: ARG001 - every probe's signature
        if args and hasattr(args[0], "ready"):
            args[0].ready(answer)
            select.select([args[0]], [], [])
        if isinstance(answer, dict) and set(answer) == {EACH}:
            return dict.fromkeys(args[0], answer[EACH])
        return answer

    return function


class NoSocket:
    """In place of a socket: what was not recorded must not reach the real network."""

    def __init__(self, *args: object, **options: object) -> None:  # noqa: ARG002 - as a socket's
        raise importlib.import_module("preflight.api").Unobservable(
            "this node is simulated, and its recording has nothing of traffic between nodes"
        )


def waiting() -> dict[str, Any]:
    """Return `os.waitid` and its constants for Python < 3.13 on macOS, by waitpid(2).

    As far as the agent asks: what is said with WNOWAIT is remembered, and said again.
    """
    left: dict[int, SimpleNamespace] = {}

    def waitid(which: int, pid: int, options: int) -> SimpleNamespace | None:  # noqa: ARG001
        if which == P_PID:
            return left.pop(pid, None)
        if left:
            return next(iter(left.values()))
        ended, status = os.waitpid(-1, os.WNOHANG)
        if not ended:
            return None
        code = os.waitstatus_to_exitcode(status)
        state = CLD_EXITED if code >= 0 else CLD_KILLED
        left[ended] = SimpleNamespace(si_pid=ended, si_code=state, si_status=abs(code))
        return left[ended]

    P_ALL, P_PID, WEXITED, WNOWAIT, CLD_EXITED, CLD_KILLED = 0, 1, 4, 32, 1, 2
    names = ("waitid", "P_ALL", "P_PID", "WEXITED", "WNOWAIT", "CLD_EXITED", "CLD_KILLED")
    values = (waitid, P_ALL, P_PID, WEXITED, WNOWAIT, CLD_EXITED, CLD_KILLED)
    return dict(zip(names, values, strict=True))


if __name__ == "__main__":
    main()
