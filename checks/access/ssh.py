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
from typing import Any, Mapping

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
    hints: dict[str, set[str]] = defaultdict(set)
    for one in facts.values():
        if not one["reached"]:
            hints[one["kind"]].add(one["hint"])
    together = {kind: fix for kind, fix in TOGETHER.items() if len(hints[kind]) > 1}
    return {node: judge(one, together.get(one.get("kind", ""))) for node, one in facts.items()}


def judge(facts: Mapping[str, Any], together: str | None) -> Verdict:
    if not facts["reached"] and facts["kind"] in OURS:
        details = tuple(facts.get("traceback", "").splitlines())
        return unknown(facts["message"], fix=facts["hint"], details=details)
    if not facts["reached"] and together:
        own = (facts["hint"],)
        return fail(facts["message"], observed=facts["kind"], fix=together, details=own)
    if not facts["reached"]:
        return fail(facts["message"], observed=facts["kind"], fix=facts["hint"] or None)
    noise = facts.get("noise", "")
    if noise:
        return warn(
            "the login shell prints to standard output: " + noise[:80],
            fix="let start files print only when the shell is interactive",
            reproduce="ssh NODE true",
        )
    return ok("logged in as {} to {}".format(facts["user"], facts["address"]))


CHECK = Check(exercise=exercise, args=lambda _: (), compare=compare)
