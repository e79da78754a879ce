"""From facts and what is wanted to the grid: one verdict for every check on every node. Pure."""

from __future__ import annotations

import bisect
import json
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from preflight.api import FAIL, STATUSES, Verdict, Want, skip, some, unknown
from preflight.catalog import Loaded
from preflight.shape import garbled

Fact = Mapping[str, Any]
"""`{"value": ...}` or `{"problem": {"kind": ..., "message": ...}}`."""
Evidence = Mapping[str, Mapping[str, Fact]]
"""Facts by evidence key and node: the report's `facts`."""
REACH = "access.ssh"
"""The check whose facts say which nodes were reached."""
SCOPES = ("node", "pair", "cluster")
SKIPPED_KINDS = ("needs_root", "not_reached", "not_permitted")
FEW = 8
"""Nodes whose answers are left out at most to find where a check crashes; a node costs some ten
tries more."""
USED_UP = {"too many open files": "ulimit -n", "resource temporarily unavailable": "ulimit -u"}
"""What a node says that is at a limit of files or processes, and what shows that limit."""


@dataclass(frozen=True)
class Cell:
    """One place of the grid."""

    check: Loaded
    node: str
    verdict: Verdict

    @property
    def failed(self) -> bool:
        """Whether the claim does not hold."""
        return self.verdict.status == FAIL


def reached(evidence: Evidence, nodes: Sequence[str]) -> set[str]:
    """Return the nodes in which an agent answered."""
    facts = evidence.get(REACH, {})
    return {n for n in nodes if (facts.get(n, {}).get("value") or {}).get("reached")}


def judge(
    checks: Sequence[Loaded], evidence: Evidence, want: Want, skips: Mapping[str, str]
) -> list[Cell]:
    """Return a cell for every check and node, in the order given.

    Args:
        checks: the selected ones.
        evidence: what probes and exercises found.
        want: what the inventory expects; its `nodes` are the rows.
        skips: reasons by check id for those that are not to run.
    """
    there = reached(evidence, want.nodes)
    cells = []
    for one in checks:
        if one.id in skips:
            verdicts = {node: skip(skips[one.id]) for node in want.nodes}
        else:
            facts = evidence.get(one.evidence, {})
            verdicts = judge_check(one, {n: facts.get(n) for n in want.nodes}, want, there)
        cells += [Cell(one, node, verdicts[node]) for node in want.nodes]
    return cells


def understood(checks: Sequence[Loaded], evidence: Evidence) -> Evidence:
    """Return evidence in which what is not as its check promises is a problem of that node."""
    promises = {one.evidence: one.promise for one in checks}

    def read(key: str, fact: Fact) -> Fact:
        problem = garbled(fact["value"], promises.get(key, Any)) if "value" in fact else None
        return {"problem": problem} if problem else fact

    return {k: {n: read(k, fact) for n, fact in by.items()} for k, by in evidence.items()}


def judge_check(
    one: Loaded, facts: Mapping[str, Fact | None], want: Want, there: set[str]
) -> dict[str, Verdict]:
    """Return one check's verdict of every node."""
    verdicts: dict[str, Verdict] = {}
    values = {}
    args = asked(one, want)
    for node, fact in facts.items():
        if node not in there and one.id != REACH:
            verdicts[node] = skip("not reached")
        elif isinstance(args, Verdict):
            verdicts[node] = args
        elif fact is not None and "value" in fact:
            values[node] = fact["value"]
        else:
            verdicts[node] = of_problem(one, (fact or {}).get("problem"))
    if one.check.judge:
        found = {n: guarded(one, one.check.judge, value, want) for n, value in values.items()}
    else:
        found = together(one, values, want)
    said = {node: guarded(one, checked, one, found.get(node)) for node in values}
    return verdicts | said


def together(one: Loaded, values: Mapping[str, Any], want: Want) -> dict[str, Any]:
    """Return what `compare` says of all nodes at once.

    Where it crashes on what a few of them answered, it costs those, and the others are judged
    without them: a bug of the check that meets any answers costs all.
    """
    compare = one.check.compare

    def said(nodes: Sequence[str]) -> Any:
        if not compare or not nodes:
            return {}
        return guarded(one, lambda: dict(compare({n: values[n] for n in nodes}, want)))

    def crashes(nodes: Sequence[str]) -> bool:
        return isinstance(said(nodes), Verdict)

    nodes = [*values]
    found = said(nodes)
    if isinstance(found, dict):
        return found
    few, too = (culprits(order, crashes) for order in (nodes, nodes[::-1]))
    odd = few | too
    rest = said([node for node in nodes if node not in odd])
    if len(odd) == len(nodes) or not isinstance(rest, dict):
        return dict.fromkeys(nodes, found)
    whose = "its answer" if few == too else f"the answer of one of {some(sorted(odd))}"
    theirs = replace(found, summary=f"{whose} cannot be understood: {found.summary}")
    return {**rest, **dict.fromkeys(odd, theirs)}


def culprits(nodes: Sequence[str], crashes: Callable[[Sequence[str]], bool]) -> set[str]:
    """Return the fewest nodes without which nothing crashes, or all where those are not few.

    Of several such sets it is the one that comes last.
    """
    found: set[str] = set()
    rest = [*nodes]
    while crashes(rest):
        if len(found) == min(FEW, len(nodes) // 2):
            return {*nodes}
        fewer = range(len(rest))
        place = bisect.bisect_left(fewer, True, key=lambda at: not crashes(rest[at + 1 :]))
        found.add(rest.pop(place))
    return found


def outdated(one: Loaded, was: Want, now: Want) -> str:
    """Return why what was found for one want is no evidence for another; empty if it is.

    A probe was given other arguments. An exercise that does not say what it goes by may have
    gone by anything of the launch.
    """
    before = asked(one, was)
    if before == asked(one, now):
        return ""
    found = []
    for section in ("launch", "expect"):
        old, new = getattr(was, section), getattr(now, section)
        changes = {key: {section: old | {key: new.get(key)}} for key in {**old, **new}}
        sections = {"launch": was.launch, "expect": was.expect}
        keys = [k for k, new in changes.items() if asked(one, Want(**sections | new)) != before]
        found += [f"recorded for another {section}: {', '.join(keys)}"] if keys else []
    return "; ".join(found) or "recorded for another inventory"


def asked(one: Loaded, want: Want) -> Any:
    """Return all that a check's facts depend on, besides the nodes: a probe's arguments.

    A Verdict if `args` crashes, or gives what cannot be sent to a node.
    """
    args = one.check.args
    if args:
        return guarded(one, lambda: plain([*args(want)]))
    return [want.launch] if one.check.exercise else []


def plain(value: Any) -> Any:
    """Return a value as it is after JSON.

    Raises:
        TypeError: it holds what JSON does not have.
        ValueError: it holds a number or text that JSON cannot write.
    """
    return json.loads(written(value))


def written(value: Any) -> bytes:
    """Return a value as JSON.

    Raises:
        TypeError: it holds what JSON does not have.
        ValueError: it holds a number or text that JSON cannot write.
    """
    return json.dumps(value, ensure_ascii=False, allow_nan=False).encode()


def guarded(one: Loaded, function: Any, *given: Any) -> Any:
    """Return what a function of a check gives, or the verdict that it crashed."""
    try:
        return function(*given)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - a judge that crashes, or exits, is a row
        trace = tuple(traceback.format_exception(error))
        return unknown(f"bug in check {one.id}: {type(error).__name__}: {error}", details=trace)


def checked(one: Loaded, verdict: Any) -> Verdict:
    """Return a judge's verdict if it is one."""
    if isinstance(verdict, Verdict) and is_whole(verdict):
        return verdict
    return unknown(f"bug in check {one.id}: no verdict for this node, but {verdict!r}")


def is_whole(said: Verdict) -> bool:
    """Whether a verdict has what its type promises, and can be written as JSON."""
    if said.status not in STATUSES or said.scope not in SCOPES or not said.summary:
        return False
    many = [said.details, said.peers]
    many += [ids for ids in (said.explains, said.explained_by) if ids is not None]
    if not all(isinstance(texts, (list, tuple)) for texts in many):
        return False
    texts = [said.summary, *(text for text in (said.fix, said.reproduce) if text is not None)]
    texts += [text for some in many for text in some]
    try:
        written([texts, said.observed, said.expected])
    except (TypeError, ValueError):
        return False
    return all(isinstance(text, str) for text in texts)


def of_problem(one: Loaded, problem: Mapping[str, Any] | None) -> Verdict:
    """Return the verdict where there are no facts: never a pass."""
    if not problem:
        return unknown("the check gave no facts for this node")
    kind, message = problem.get("kind"), str(problem.get("message"))
    if kind in SKIPPED_KINDS:
        return skip(message)
    if kind == "bug":
        details = tuple(str(problem.get("traceback", "")).splitlines())
        return unknown(f"bug in check {one.id}: {message}", details=details)
    limit = next((show for words, show in USED_UP.items() if words in message.lower()), None)
    fix = f"see {limit} there, and raise it in /etc/security/limits.conf or for sshd's service"
    return unknown(message, fix=fix if limit else None)
