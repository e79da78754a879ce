"""Every node can be logged in to, and runs our agent.

Why: what cannot be reached cannot be judged, and a launcher that logs in would stop here too.
Facts: reached; address, user, server, host_key, auth, connect_s, login_s as far as the login came;
    kind, message and hint when it failed, or the node was lost later; noise: what start files
    printed; hello: the agent's own words.
Source: the SSH connection of this run.
Fix: log in by hand with the same user and key, and mend what it says.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Mapping, Sequence

from preflight.api import Check, Fleet, Verdict, Want, fail, ok, unknown, warn

OURS = ("resources", "bug")
"""Kinds of failure of the machine that preflight runs on, and of preflight: no node is to blame."""
TOGETHER = {
    "host key unknown": "compare the keys with the machines' own, then set "
    "ssh.host_keys: accept-new, or add each by ssh-keyscan: -v shows the commands",
    "host key changed": "if the machines were reinstalled, take out each one's old key: "
    "-v shows the commands; if not, do not log in",
    "unresolved": "see what the resolver says: getent hosts NODE; "
    "give the nodes their addresses, or correct their names",
}
"""By kind of failure the fix for several nodes, where each one's own fix holds its address."""


def exercise(fleet: Fleet, want: Want) -> dict[str, Mapping[str, Any]]:
    return {node: fleet.login(node) for node in want.nodes}


def compare(facts: Mapping[str, Mapping[str, Any]], want: Want) -> dict[str, Verdict]:
    hints: dict[str, list[str]] = defaultdict(list)
    for one in facts.values():
        if not one["reached"]:
            hints[one["kind"]].append(one["hint"])
    return {node: judge(node, one, hints[one.get("kind", "")]) for node, one in facts.items()}


def judge(node: str, facts: Mapping[str, Any], hints: Sequence[str]) -> Verdict:
    """Judge one node; `hints` are those of all nodes with its kind of failure."""
    if facts["reached"]:
        return greeted(node, facts)
    kind, hint = facts["kind"], facts["hint"]
    details: tuple[str, ...] = ()
    if kind in OURS:
        trace = tuple(facts.get("traceback", "").splitlines())
        return unknown(facts["message"], fix=hint, details=trace)
    if len(set(hints)) > 1 and kind in TOGETHER:
        hint, details = TOGETHER[kind], (hint,)
    elif len(hints) == 1:
        hint = hint.replace("ssh NODE", f"ssh {node}")
    return fail(facts["message"], observed=kind, fix=hint or None, details=details)


def greeted(node: str, facts: Mapping[str, Any]) -> Verdict:
    noise = facts.get("noise", "")
    if noise:
        return warn(
            "the login shell prints to standard output: " + noise[:80],
            fix="let start files print only when the shell is interactive",
            reproduce=f"ssh {node} true",
        )
    return ok("logged in as {} to {}".format(facts["user"], facts["address"]))


CHECK = Check(exercise=exercise, args=lambda _: (), compare=compare)
