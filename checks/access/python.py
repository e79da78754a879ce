"""The node has a Python that runs our agent, and psutil loads in it.

Why: probes run in the node's own Python >= 3.8; those that need psutil get it sent along.
Facts: reached, hello (python, executable, machine, libc), psutil: sent, site-packages, or none
    and why.
Source: the agent's first frame.
Fix: install Python 3.8 or newer, or name one in the inventory under ssh.python.
"""

from __future__ import annotations

from typing import TypedDict, cast

from preflight.api import Check, Fleet, Verdict, Want, ok, warn


class Hello(TypedDict):
    python: str
    executable: str


class Login(TypedDict):
    hello: Hello
    psutil: str


def exercise(fleet: Fleet, want: Want) -> dict[str, Login]:
    return {node: cast(Login, fleet.login(node)) for node in fleet.nodes}


def judge(facts: Login, want: Want) -> Verdict:
    hello, psutil = facts["hello"], facts["psutil"]
    summary = "Python {} ({})".format(hello["python"], hello["executable"])
    if psutil.startswith("none"):
        return warn(
            summary + ", but psutil does not load: what needs it is unknown",
            details=(psutil,),
            fix="install psutil >= 5.9 for " + hello["executable"],
        )
    return ok(summary)


CHECK = Check(exercise=exercise, args=lambda _: (), judge=judge)
