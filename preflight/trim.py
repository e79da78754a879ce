"""Cuts sources down to what is used of them on a node.

Compiling costs a node more than running: psutil takes it 20 ms, of which a run calls two
functions; pynvml has 440 functions, and what judges is needed on the controller only. Lines keep
their numbers, so that a traceback from a node fits the file.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any

IMPORTS = (ast.Import, ast.ImportFrom)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
NAMED = (*FUNCTIONS, ast.ClassDef)
SCOPES = (*NAMED, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
NOTES = ("annotation", "returns")
"""Fields of a syntax tree that are not evaluated after `from __future__ import annotations`."""


def trimmed(read: Callable[[str], str | None], wanted: Iterable[str]) -> dict[str, str]:
    """Return modules, cut down to what is wanted and to what that needs.

    What is wanted is said in words: `module.name`; `module.*` for all of it; `module` for what
    others take of it as an attribute or by a string, `.name`. Statements that define nothing are
    always kept.

    Args:
        read: gives a module's text; None where a word is no module that is sent.
        wanted: words.
    """
    modules: dict[str, Module] = {}
    new, words = set(wanted), set[str]()
    while new:
        words |= new
        for name in new | {word.rpartition(".")[0] for word in new}:
            text = None if name in modules else read(name)
            if text is not None:
                modules[name] = Module(name, text)
        new = set[str]().union(*(module.take(words) for module in modules.values())) - words
    return {name: module.kept() for name, module in modules.items()}


class Module:
    """A module's parts; strings that stand alone are none."""

    def __init__(self, name: str, text: str) -> None:
        body = ast.parse(text).body
        if any(one.end_lineno == other.lineno for one, other in pairwise(body)):
            text = ast.unparse(ast.parse(text))  # lines are what is kept or not
            body = ast.parse(text).body
        self._name = name
        self._lines = text.splitlines(keepends=True)
        self._lazy = any(isinstance(o, ast.ImportFrom) and o.module == "__future__" for o in body)
        self._taken: list[Part] = []
        self._left = [
            Part(one, alias)
            for one in body
            if not is_text(one)
            for alias in (one.names if isinstance(one, IMPORTS) else [None])
        ]

    def take(self, words: set[str]) -> set[str]:
        """Keep what is meant by the words; return those that the newly kept parts use."""
        every, loose = f"{self._name}.*" in words, self._name in words
        new = [
            part
            for part in self._left
            if not part.defines
            or every
            or any(f"{self._name}.{name}" in words for name in part.defines)
            or (loose and any(f".{name}" in words for name in part.defines))
        ]
        self._left = [part for part in self._left if part not in new]
        self._taken += new
        return {word for part in new for word in part.uses(self._name, self._lazy)}

    def kept(self) -> str:
        """Return the text of the parts that were taken, each on its lines."""
        lines = ["\n"] * len(self._lines)
        names: dict[ast.stmt, list[ast.alias]] = {}
        for part in self._taken:
            names.setdefault(part.statement, []).extend([part.alias] if part.alias else [])
        for one, aliases in names.items():
            first, end = first_line(one), one.end_lineno or 0
            if isinstance(one, IMPORTS):
                shorter = copy.copy(one)
                shorter.names = aliases
                lines[first] = ast.unparse(shorter) + "\n"
            elif isinstance(one, ast.ClassDef) and is_typed_dict(one):
                lines[first] = f"{one.name} = dict\n"
            else:
                lines[first:end] = self._lines[first:end]
                for line in idle_lines(one):
                    lines[line] = "\n"
        return "".join(lines).rstrip("\n") + "\n"


class Part:
    """A top-level statement; of an import, one of its names."""

    def __init__(self, statement: ast.stmt, alias: ast.alias | None) -> None:
        self.statement, self.alias = statement, alias
        future = isinstance(statement, ast.ImportFrom) and statement.module == "__future__"
        names = bound(alias) if alias else defined(statement)
        self.defines = frozenset(() if future else names)

    def uses(self, module: str, lazy: bool) -> Iterable[str]:
        """Return the words that it means."""
        if isinstance(self.statement, IMPORTS) and self.alias:
            return [meant(self.statement, self.alias, module)]
        return [] if is_typed_dict(self.statement) else used(self.statement, module, lazy)


def used(
    tree: ast.AST, module: str, lazy: bool, known: frozenset[str] = frozenset()
) -> Iterator[str]:
    """Yield the words that a tree means.

    Args:
        tree: the tree.
        module: where it stands.
        lazy: whether annotations are left out.
        known: names of the functions around it, which mean nothing outside.
    """
    if not (isinstance(tree, ast.Name) and tree.id in known):
        yield from words_of(tree, module)
    inner = known | own_names(tree) if isinstance(tree, FUNCTIONS) else known
    for field, value in ast.iter_fields(tree):
        if not (lazy and field in NOTES):
            for one in value if isinstance(value, list) else [value]:
                if isinstance(one, ast.AST):
                    yield from used(one, module, lazy, inner if field == "body" else known)


def own_names(function: ast.FunctionDef | ast.AsyncFunctionDef) -> frozenset[str]:
    """Return a function's arguments and what it assigns to, functions inside it left out."""
    arguments = [n.arg for n in ast.walk(function.args) if isinstance(n, ast.arg)]
    found, todo = set(arguments), list[ast.AST](function.body)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Global):
            return frozenset()
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        if not isinstance(node, SCOPES):
            todo += ast.iter_child_nodes(node)
    return frozenset(found)


def words_of(node: ast.AST, module: str) -> Iterable[str]:
    """Return the words that one node of a syntax tree means."""
    match node:
        case ast.Name(id=name):
            return [f"{module}.{name}"]
        case ast.Attribute(attr=name):
            return [f".{name}"]
        case ast.Constant(value=str(text)):
            return [text, f".{text}"]
        case ast.Import() | ast.ImportFrom():
            return [meant(node, alias, module) for alias in node.names]
    return []


def meant(statement: ast.Import | ast.ImportFrom, alias: ast.alias, module: str) -> str:
    """Return the word for one name of an import: a module, or something in a module."""
    if isinstance(statement, ast.Import):
        return alias.name
    package = module.rpartition(".")[0] or module if statement.level else ""
    return ".".join(filter(None, (package, statement.module, alias.name)))


def bound(alias: ast.alias) -> Iterator[str]:
    """Yield the name that an import gives; a star gives no one knows what."""
    if alias.name != "*":
        yield alias.asname or alias.name.split(".")[0]


def defined(node: ast.AST) -> Iterator[str]:
    """Yield the names that a statement defines or changes, those inside `if` and `try` too."""
    if isinstance(node, NAMED):
        yield node.name
    elif isinstance(node, IMPORTS):
        yield from (name for alias in node.names for name in bound(alias))
    elif isinstance(node, ast.Expr):
        called = node.value.func if isinstance(node.value, ast.Call) else None
        yield from changed(called) if isinstance(called, ast.Attribute) else ()
    else:
        for field, inside in FIELDS.items():
            found = getattr(node, field, None) or []
            for one in found if isinstance(found, list) else [found]:
                yield from inside(one)


def changed(target: ast.expr) -> Iterator[str]:
    """Yield the names that stand first in what is assigned to: that of x is in x.y[0]."""
    if isinstance(target, ast.Name):
        yield target.id
        return
    for one in getattr(target, "elts", [getattr(target, "value", None)]):
        if isinstance(one, ast.expr):
            yield from changed(one)


FIELDS: Mapping[str, Callable[[Any], Iterator[str]]] = {
    **dict.fromkeys(("target", "targets", "optional_vars"), changed),
    **dict.fromkeys(("body", "orelse", "finalbody", "handlers", "items"), defined),
}
"""What the fields of a statement define."""


def is_text(node: ast.AST) -> bool:
    """Whether a statement is a string that stands alone, such as a docstring."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def is_typed_dict(node: ast.AST) -> bool:
    """Whether a class is a TypedDict, which makes nothing but dicts and is slow to define."""
    return isinstance(node, ast.ClassDef) and any(
        isinstance(one, ast.Name) and one.id == "TypedDict" for one in node.bases
    )


def idle_lines(statement: ast.stmt) -> Iterator[int]:
    """Yield the indices of lines that hold only docstrings."""
    for node in ast.walk(statement):
        if isinstance(node, NAMED) and len(node.body) > 1 and is_text(node.body[0]):
            one, following = node.body[:2]
            if node.lineno < one.lineno and (one.end_lineno or 0) < first_line(following) + 1:
                yield from range(one.lineno - 1, one.end_lineno or 0)


def first_line(statement: ast.stmt) -> int:
    """Return the index of a statement's first line, its decorators included."""
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(one.lineno for one in decorators)]) - 1
