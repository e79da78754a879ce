"""Check files written on the spot, loaded as any check is."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

from preflight.catalog import Loaded, load_file

MANUAL = '''"""{claim}

Why: it matters.
Facts: a number.
Source: nowhere.
Fix: mend it.
"""

from __future__ import annotations

from preflight.api import *

'''


def write(folder: Path, check_id: str, code: str, claim: str = "It holds.") -> Path:
    """Write a check file with a proper docstring and this code."""
    group, name = check_id.split(".")
    path = folder / group / f"{name}.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(MANUAL.format(claim=claim) + dedent(code))
    return path


def made(folder: Path, check_id: str, code: str) -> Loaded:
    """Write and load one."""
    return load_file(write(folder, check_id, code))


def simple(folder: Path, check_id: str, *explains: str, more: str = "") -> Loaded:
    """Return a check whose facts say its verdict: [status, summary, scope, peers]."""
    return made(
        folder,
        check_id,
        f"""
        def probe(node):
            return 1


        def judge(facts, want):
            status, summary, *rest = facts
            more = dict(zip(("scope", "peers", "observed"), rest))
            more["peers"] = tuple(more.get("peers", ()))
            return Verdict(status, summary, **more)


        CHECK = Check(probe=probe, judge=judge, explains={explains!r}{more})
        """,
    )


def probing(probe: str, judge: str = "return ok('fine')") -> str:
    """Return the code of a check whose probe and judge are these lines."""
    return (
        f"def probe(node):\n    {probe}\n\n\n"
        f"def judge(facts, want):\n    {judge}\n\n\n"
        "CHECK = Check(probe=probe, judge=judge)\n"
    )
