"""Cuts sources down to what is used of them on a node.

Compiling costs a node more than running: psutil takes it 20 ms, of which a run calls two
functions; pynvml has 440 functions, and what judges is needed on the controller only. Annotations
would be compiled into text. Lines keep their numbers: a traceback from a node fits the file.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from itertools import pairwise
from typing import Any

IMPORTS = (ast.Import, ast.ImportFrom)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
NAMED = (*FUNCTIONS, ast.ClassDef)
CONTEXT = "ctx"
"""Field of a syntax tree with one of three nodes that say nothing."""
SCOPES = (*NAMED, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
NOTES: tuple[str, ...] = ("annotation", "returns")
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
    modules: dict[str, Module | None] = {}
    loose: set[str] = set()
    opened: list[Module] = []
    todo, known = list(wanted), set[str]()
    while todo:
        word = todo.pop()
        if word in known:
            continue
        known.add(word)
        place, _, name = word.rpartition(".")
        for one in (word, place):
            if one not in modules:
                text = read(one)
                modules[one] = module = None if text is None else Module(one, text)
                todo += module.take(None) if module else ()
        whole, module = modules[word], modules[place]
        if whole:
            opened.append(whole)
            todo += (used for name in whole.names & loose for used in whole.take(name))
        if module:
            todo += module.take(name)
        elif not place:
            loose.add(name)
            todo += (used for one in opened if name in one.names for used in one.take(name))
    return {name: module.kept() for name, module in modules.items() if module}


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
        self._left: dict[str | None, list[Part]] = {}
        self._taken: dict[Part, None] = {}
        for one in body:
            for alias in one.names if isinstance(one, IMPORTS) else [None]:
                if not is_text(one):
                    part = Part(one, alias)
                    for defined in ("*", *part.defines) if part.defines else (None,):
                        self._left.setdefault(defined, []).append(part)

    @property
    def names(self) -> Set[str | None]:
        """What it defines and was not taken yet."""
        return self._left.keys()

    def take(self, name: str | None) -> Iterator[str]:
        """Keep what defines a name, or nothing; yield the words that this uses, if it is new."""
        for part in self._left.pop(name, ()):
            if part not in self._taken:
                self._taken[part] = None
                yield from part.uses(self._name, self._lazy)

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
            elif quicker := shortened(one):
                lines[first] = quicker + "\n"
            else:
                lines[first:end] = self._lines[first:end]
                for line in idle_lines(one):
                    lines[line] = "\n"
                for line, begin, end in notes(one, lines) if self._lazy else ():
                    lines[line] = lines[line][:begin] + lines[line][end:]
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
        quicker = shortened(self.statement)
        return used(ast.parse(quicker) if quicker else self.statement, module, lazy)


def used(tree: ast.AST, module: str, lazy: bool) -> set[str]:
    """Return the words that a tree means; if `lazy`, annotations are left out."""
    found: set[str] = set()
    names = looked_up([tree], module, lazy, found, set())
    return found | {f"{module}.{name}" for name in names}


def looked_up(
    nodes: Iterable[ast.AST], module: str, lazy: bool, words: set[str], own: set[str]
) -> set[str]:
    """Return the names that one scope looks up outside.

    Args:
        nodes: what stands in it.
        module: where it stands.
        lazy: whether annotations are left out.
        words: other words that it means, to be added to.
        own: its own names so far, to be added to.
    """
    names, shared = set[str](), set[str]()
    todo = [(node, True) for node in nodes]
    while todo:
        node, direct = todo.pop()
        skipped = (*NOTES, CONTEXT) if lazy else (CONTEXT,)
        if isinstance(node, ast.Name):
            (own if direct and isinstance(node.ctx, ast.Store) else names).add(node.id)
            continue
        if isinstance(node, FUNCTIONS):
            inner = {one.arg for one in ast.walk(node.args) if isinstance(one, ast.arg)}
            names |= looked_up(node.body, module, lazy, words, inner) - inner
            skipped = ("body", *skipped)
        elif isinstance(node, ast.Global):
            shared.update(node.names)
        else:
            words.update(words_of(node, module))
        direct = direct and not isinstance(node, SCOPES)
        for field in node._fields:
            value = None if field in skipped else getattr(node, field, None)
            if isinstance(value, ast.AST):
                todo.append((value, direct))
            elif isinstance(value, list):
                todo += [(one, direct) for one in value if isinstance(one, ast.AST)]
    own -= shared
    return names | shared


def words_of(node: ast.AST, module: str) -> Iterable[str]:
    """Return the words that one node means, besides names."""
    match node:
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


def shortened(node: ast.AST) -> str | None:
    """Return a quicker definition of a TypedDict, NamedTuple or NewType, None for anything else.

    `typing` takes 3 ms to import, and compiles each of their annotations.
    """
    match node:
        case ast.Assign([ast.Name(name)], ast.Call(ast.Name("NewType"), [_, kind])):
            return f"{name} = {ast.unparse(kind)}"
    if not isinstance(node, ast.ClassDef):
        return None
    bases = {one.id for one in node.bases if isinstance(one, ast.Name)}
    # Only a TypedDict has that keyword: it may be of another one, which is just `dict` by then.
    if "TypedDict" in bases or [one.arg for one in node.keywords] == ["total"]:
        return f"{node.name} = dict"
    fields = [one for one in node.body if isinstance(one, ast.AnnAssign)]
    if bases != {"NamedTuple"} or not all(one in fields or is_text(one) for one in node.body):
        return None
    names = " ".join(ast.unparse(one.target) for one in fields)
    defaults = ", ".join(ast.unparse(one.value) for one in fields if one.value)
    make = '__import__("collections").namedtuple'
    return f'{node.name} = {make}("{node.name}", "{names}", defaults=[{defaults}])'


def idle_lines(statement: ast.stmt) -> Iterator[int]:
    """Yield the indices of lines that hold only docstrings."""
    todo = [statement]
    while todo:
        node = todo.pop()
        if isinstance(node, NAMED):
            todo += node.body
            one, following = node.body[0], node.body[1] if len(node.body) > 1 else None
            if following and is_text(one) and node.lineno < one.lineno:
                end = one.end_lineno or 0
                yield from range(one.lineno - 1, end if end <= first_line(following) else 0)


def notes(statement: ast.stmt, lines: Sequence[str]) -> list[tuple[int, int, int]]:
    """Return where annotations of functions stand, the last first: line, begin and end.

    Those of several lines or in brackets, and of lines with foreign letters, are left out.
    """
    found = []
    for node in ast.walk(statement):
        note = getattr(node, "annotation" if isinstance(node, ast.arg) else "returns", None)
        if note and note.lineno == note.end_lineno and lines[note.lineno - 1].isascii():
            before = lines[note.lineno - 1][: note.col_offset].rstrip()
            begin = len(before.removesuffix(":").removesuffix(" ->"))
            if begin < len(before):
                found.append((note.lineno - 1, begin, note.end_col_offset))
    return sorted(found, reverse=True)


def first_line(statement: ast.stmt) -> int:
    """Return the index of a statement's first line, its decorators included."""
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(one.lineno for one in decorators)]) - 1
