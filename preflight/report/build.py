"""From evidence to a finished report: judge, find causes, apply waivers, say the verdict. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from preflight import __version__, causes
from preflight.api import FAIL, SKIP, UNKNOWN, WARN, Point, Want
from preflight.catalog import Catalog, Loaded
from preflight.inventory import Waiver
from preflight.judge import REACH, Cell, Evidence, guarded, judge, outdated, understood
from preflight.report import model

T = TypeVar("T")
EXIT_CODES = {"ready": 0, "not_ready": 1, "undetermined": 3}


@dataclass(frozen=True)
class Policy:
    """How the grid becomes a verdict."""

    require: frozenset[str] = frozenset()
    """Checks that must say something: where one is skipped or left out, nothing is ready."""
    fail_on_warn: bool = False
    today: dt.date = dt.date.max


@dataclass(frozen=True)
class Facts:
    """What a run found, or a report kept."""

    run: model.Run
    evidence: Evidence
    fact_seconds: Mapping[str, Mapping[str, float]]
    """By evidence key and node."""
    addresses: Mapping[str, str]
    node_seconds: Mapping[str, float]


def build(
    checks: Sequence[Loaded],
    facts: Facts,
    want: Want,
    skips: Mapping[str, str],
    waivers: Sequence[Waiver],
    policy: Policy,
) -> model.Report:
    """Return the report of a run."""
    evidence = understood(checks, facts.evidence)
    cells = judge(checks, evidence, want, skips)
    results = [
        result(cell, waiver_of(cell, waivers, policy.today), seconds(facts, cell)) for cell in cells
    ]
    found = [cause(one, evidence) for one in causes.find(cells)]
    theirs = of_others(found, results)
    # An expired waiver is a warning of the nodes that it was for.
    ended = {w.node for w in waivers if policy.fail_on_warn and w.until < policy.today}
    spared = done_without(results)
    by_node: dict[str, list[model.Result]] = {name: [] for name in want.nodes}
    for one in results:
        by_node[one.node].append(one)
    nodes = [
        model.NodeModel(
            name=name,
            address=facts.addresses.get(name, ""),
            verdict="not_ready" if {None, name} & ended else verdict(rows, theirs, policy),
            seconds=facts.node_seconds.get(name, 0.0),
            coverage=coverage(rows),
        )
        for name, rows in by_node.items()
    ]
    return model.Report(
        schema=model.SCHEMA,
        tool=model.Tool(name="preflight", version=__version__),
        run=facts.run,
        verdict=overall([node.verdict for node in nodes if node.name not in spared]),
        want=model.WantModel(
            launch=want.launch,
            expect=want.expect,
            waivers=[waiver.model_dump(mode="json", exclude_none=True) for waiver in waivers],
            require=sorted(policy.require),
            skip=dict(skips),
            fail_on="warn" if policy.fail_on_warn else "fail",
        ),
        nodes=nodes,
        checks=[
            model.CheckModel(id=one.id, claim=one.manual.claim, level=level(one)) for one in checks
        ],
        results=results,
        causes=found,
        curves={one.id: drawn for one in checks if (drawn := curves(one, facts.evidence))},
        facts={key: {n: dict(f) for n, f in by.items()} for key, by in evidence.items()},
    )


def level(one: Loaded) -> Any:
    """Return a check's level; the catalogue has seen that it is one of the three."""
    return one.check.level


def seconds(facts: Facts, cell: Cell) -> float:
    """Return what a cell's facts took; a probe that several checks share counts for each."""
    return facts.fact_seconds.get(cell.check.evidence, {}).get(cell.node, 0.0)


def result(cell: Cell, waiver: Waiver | None, taken_s: float) -> model.Result:
    """Return a cell as the report has it."""
    said = cell.verdict
    trouble = said.status in (FAIL, WARN)
    fix = causes.fix_of(cell) if trouble else said.fix
    return model.Result(
        check=cell.check.id,
        node=cell.node,
        status=said.status,
        summary=said.summary,
        observed=said.observed,
        expected=said.expected,
        details=list(said.details),
        fix=fix,
        reproduce=said.reproduce,
        seconds=taken_s,
        waived=None
        if waiver is None
        else model.Waived(until=waiver.until, owner=waiver.owner, reason=waiver.reason),
    )


def waiver_of(cell: Cell, waivers: Iterable[Waiver], today: dt.date) -> Waiver | None:
    """Return the waiver of a failing cell that is still in force."""
    for waiver in waivers:
        right = waiver.check in (cell.check.id, cell.check.group)
        right = right and waiver.node in (None, cell.node)
        if right and cell.failed and waiver.until >= today:
            return waiver
    return None


def coverage(rows: Sequence[model.Result]) -> model.Coverage:
    """Return how many checks said something, and how many were skipped."""
    skipped = sum(row.status == SKIP for row in rows)
    return model.Coverage(ran=len(rows) - skipped, skipped=skipped)


def of_others(
    found: Sequence[model.Cause], results: Sequence[model.Result]
) -> set[tuple[str, str]]:
    """Return check and node of the failing results that another node answers for.

    A node that only fails to reach a bad one is good: without the bad one it would pass. A cause
    that is waived answers for nothing.
    """
    waived = {(row.check, row.node) for row in results if row.waived}
    return {
        (effect.check, effect.node)
        for one in found
        for effect in one.explains
        if one.kind == "node"
        and effect.node not in one.nodes
        and not all((one.check, node) in waived for node in one.nodes)
    }


def verdict(
    rows: Sequence[model.Result], theirs: set[tuple[str, str]], policy: Policy
) -> model.RunVerdict:
    """Return one node's verdict. A node of which nothing was told is undetermined."""
    counted = [row for row in rows if not row.waived and (row.check, row.node) not in theirs]
    bad = {FAIL, WARN} if policy.fail_on_warn else {FAIL}
    if any(row.status in bad for row in counted):
        return "not_ready"
    missing = policy.require - {row.check for row in rows if row.status != SKIP}
    # Reaching a node is no judgement of it.
    told = any(row.status != SKIP and not row.check.startswith("access.") for row in rows)
    if missing or not told or any(row.status == UNKNOWN for row in rows):
        return "undetermined"
    return "ready"


def done_without(results: Iterable[model.Result]) -> set[str]:
    """Return the nodes that were not reached and need not be: somebody answers for that.

    Of such a node nothing was judged, so it is not ready itself; the others can be.
    """
    return {row.node for row in results if row.check == REACH and row.waived}


def overall(verdicts: Sequence[model.RunVerdict]) -> model.RunVerdict:
    """Return the verdict of all nodes together; of none at all nothing was told."""
    if not verdicts:
        return "undetermined"
    for gravest in ("not_ready", "undetermined"):
        if gravest in verdicts:
            return gravest
    return "ready"


def cause(found: causes.Cause, evidence: Evidence) -> model.Cause:
    """Return a cause as the report has it."""
    return model.Cause(
        kind=found.kind,
        nodes=found.nodes,
        check=found.check.id,
        summary=found.summary,
        explains=[model.Explained(check=c.check.id, node=c.node) for c in found.explains],
        fix=found.fix,
        pairs=bad_pairs(found.check, evidence),
    )


def bad_pairs(one: Loaded, evidence: Evidence) -> dict[str, dict[str, str]]:
    """Return what came of the pairs that are bad, by both nodes, of a check on pairs."""

    def bad(told: Mapping[str, Mapping[str, object]]) -> dict[str, dict[str, str]]:
        rows = {a: {b: str(word) for b, word in by.items() if word} for a, by in told.items()}
        return {node: by for node, by in rows.items() if by}

    return shown(one, one.check.pairs, evidence, bad)


def curves(one: Loaded, evidence: Evidence) -> dict[str, list[model.Point]]:
    """Return how a rate grows with size, by node or `*`, of a check that tells it."""

    def drawn(told: Mapping[str, Sequence[Point]]) -> dict[str, list[model.Point]]:
        points = {
            node: [model.Point(**point._asdict()) for point in by] for node, by in told.items()
        }
        return {node: by for node, by in points.items() if by}

    return shown(one, one.check.curves, evidence, drawn)


def shown(
    one: Loaded,
    told: Callable[[Mapping[str, Any]], Any] | None,
    evidence: Evidence,
    read: Callable[[Any], dict[str, T]],
) -> dict[str, T]:
    """Return what a check gives the report of its facts to show, nothing where that has a bug."""
    known = evidence.get(one.evidence, {})
    facts = {node: fact["value"] for node, fact in known.items() if "value" in fact}
    if told is None or not facts:
        return {}
    said = guarded(one, lambda: read(told(facts)))
    return said if isinstance(said, dict) else {}


def again(
    report: model.Report,
    catalog: Catalog,
    want: Want,
    skips: Mapping[str, str],
    waivers: Sequence[Waiver],
    policy: Policy,
) -> model.Report:
    """Return a report judged anew from its facts; all its checks are in the catalogue."""
    checks = [catalog[one.id] for one in report.checks]
    fact_seconds: dict[str, dict[str, float]] = {}
    for row in report.results:
        by_node = fact_seconds.setdefault(catalog[row.check].evidence, {})
        by_node[row.node] = row.seconds
    facts = Facts(
        run=report.run,
        fact_seconds=fact_seconds,
        evidence=evidence(report, checks, want, skips),
        addresses={node.name: node.address for node in report.nodes},
        node_seconds={node.name: node.seconds for node in report.nodes},
    )
    return build(checks, facts, want, skips, waivers, policy)


def evidence(
    report: model.Report, checks: Sequence[Loaded], want: Want, skips: Mapping[str, str]
) -> Evidence:
    """Return a report's facts; where there are none for this want, the problem that says so."""
    was = Want(report.want.launch, report.want.expect, want.nodes)
    facts = dict(report.facts)
    for one in checks:
        why = outdated(one, was, want)
        if one.id in report.want.skip and one.evidence not in report.facts:
            why = f"skipped when it was recorded: {report.want.skip[one.id]}"
        if why and one.id not in skips:
            problem = {"problem": {"kind": "unobservable", "message": why}}
            facts[one.evidence] = dict.fromkeys(want.nodes, problem)
    return facts
