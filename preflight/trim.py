"""Cuts a module's source down to what is used of it.

pynvml takes a node 80 ms to compile, of which a run uses a twentieth: NVML has 440 functions.
"""

from __future__ import annotations

import ast
from collections.abc import Collection


def trim(text: str, wanted: Collection[str]) -> str:
    """Return a source with only the top-level definitions that are wanted, and what they need.

    Statements that are no plain definition stay, such as imports and calls.

    Args:
        text: the source.
        wanted: names; those that it does not define are left alone.
    """
    body = ast.parse(text).body
    by_name: dict[str, list[ast.stmt]] = {}
    for statement in body:
        for name in defined(statement):
            by_name.setdefault(name, []).append(statement)
    todo = [one for one in body if not defined(one)]
    todo += [one for name in wanted for one in by_name.get(name, ())]
    kept: set[ast.stmt] = set()
    while todo:
        one = todo.pop()
        if one not in kept:
            kept.add(one)
            for part in ast.walk(one):
                if isinstance(part, ast.Name):
                    todo += by_name.get(part.id, ())
    lines = text.splitlines(keepends=True)
    return "".join("".join(lines[first_line(one) : one.end_lineno]) for one in body if one in kept)


def defined(statement: ast.stmt) -> list[str]:
    """Return the names that a plain definition gives, none for any other statement."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return [statement.name]
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    names = [target.id for target in targets if isinstance(target, ast.Name)]
    return names if len(names) == len(targets) else []


def first_line(statement: ast.stmt) -> int:
    """Return the index of a statement's first line, its decorators included."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef) and statement.decorator_list:
        return statement.decorator_list[0].lineno - 1
    return statement.lineno - 1
