"""The golden file holds every message, in words that a beginner can use."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

from preflight.transport.dial import REASONS
from tests.messages.aloud import TESTS, read

PACKAGE = TESTS.parent / "preflight"
MESSAGE_AT = {
    "ConfigError": 0,
    "PreflightError": 0,
    "ValueError": 0,
    "BadParameter": 0,
    "UsageError": 0,
    "TransportError": 1,
    "AgentError": 1,
    "blame": 1,
    "_error": 2,
    "say": 0,
    "_warn": 0,
}
"""What is called with a message, and which of its arguments that is."""
OWN_WORDS = 8
"""Letters; a message with fewer of its own hands on another one, with a name in front."""
LINES = [line for file in read().values() for said in file.values() for line in said]
LEFT = {
    "no checks beside ...: the installation is incomplete; do it anew": "a broken installation",
    "...: not a Python file": "importlib's signature; the files are *.py",
    "the demo did not show the faults that it put in: please report this": "a bug of ours",
    "nan is not a valid number": "click hands it to cli/usage.py, which has other words",
    "not logged in": "a bug of ours",
    "... has no address": "a resolver that answers has one",
    "... was not resolved within ... s": "a resolver that is silent",
    "a key of kind ...": "no message: key_problem has the words",
    "not an OpenSSH key": "no message: key_problem has the words",
    "...: ... files are more than ...; name a part": "a folder of 100,000 logs",
    "cannot start a process: ...": "a machine without /bin/sh",
    "all is done, and nothing is told of it": "no message: ranks.SENSELESS has the words",
}
"""What no test can provoke, or nobody is shown; each with the reason."""
FOREIGN = re.compile(r"^\[bug\]|the node said: |not recorded: what ")
"""What begins so ends with the words of others."""
NOT_PLAIN = re.compile(
    r"Error\b|Exception|Traceback|input should|field required|pydantic|<[a-z_]+ |None\b|\.$|\(\)"
)


class Site(NamedTuple):
    """A place that says something, as a pattern of what it says."""

    file: str
    line: int
    pattern: str

    @property
    def words(self) -> str:
        return re.sub(r"\\(.)", r"\1", self.pattern.replace(".*", "..."))


def sites() -> Iterator[Site]:
    """Yield all messages of the package that have words of their own."""
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for around, call in calls(tree):
            name = getattr(call.func, "attr", getattr(call.func, "id", ""))
            at = MESSAGE_AT.get(name, len(call.args))
            for pattern in patterns(call.args[at], around) if at < len(call.args) else ():
                if len(re.sub(r"\.\*|\W", "", pattern)) >= OWN_WORDS:
                    yield Site(str(path.relative_to(PACKAGE)), call.lineno, pattern)


def calls(tree: ast.AST, around: ast.AST | None = None) -> Iterator[tuple[ast.AST, ast.Call]]:
    """Yield calls, each with the function around it."""
    around = around or tree
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Call):
            yield around, node
        yield from calls(node, node if isinstance(node, ast.FunctionDef) else around)


def patterns(value: ast.AST, around: ast.AST) -> list[str]:
    """Return a regular expression for each text that an expression may be."""
    if isinstance(value, ast.Constant):
        return [re.escape(str(value.value))]
    if isinstance(value, ast.JoinedStr):
        parts = [patterns(part, around)[0] for part in value.values]
        return ["".join(parts)]
    if isinstance(value, ast.IfExp):
        return patterns(value.body, around) + patterns(value.orelse, around)
    if isinstance(value, ast.BinOp):
        ends = patterns(value.right, around)
        return [start + end for start in patterns(value.left, around) for end in ends]
    if isinstance(value, ast.Name):
        return assigned(value.id, around) or [".*"]
    return [".*"]


def assigned(name: str, around: ast.AST) -> list[str]:
    """Return the patterns of all that a name stands for in a function."""
    values = [
        node.value
        for node in ast.walk(around)
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == name
    ]
    return [pattern for value in values for pattern in patterns(value, ast.Module([], []))]


SITES = list(sites())


def test_the_golden_file_has_every_message() -> None:
    missing = {
        site.words: f"{site.file}:{site.line}"
        for site in SITES
        if not any(re.search(site.pattern, line) for line in LINES)
    }
    assert {words: missing[words] for words in missing.keys() - LEFT} == {}
    assert LEFT.keys() - missing == set()


def test_the_golden_file_has_every_reason_of_a_connect() -> None:
    missing = [
        kind
        for kind, words, _ in REASONS.values()
        if not any(line.startswith(f"[{kind}] ") and words in line for line in LINES)
    ]
    assert missing == []


def test_the_golden_file_has_nothing_that_no_test_says() -> None:
    for name, sections in read().items():
        known = re.findall(r"^def test_(\w+)", (TESTS.parent / name).read_text("utf-8"), re.M)
        titles = {title.partition(": ")[0].replace(" ", "_") for title in sections}
        assert titles - set(known) == set(), name


def test_all_lines_are_plain() -> None:
    begins = re.compile(r"(?:\[[a-z -]+\] |> |preflight: )?[A-Z][a-z]")
    odd = [
        line
        for line in LINES
        if not FOREIGN.search(line)
        and (not line.isprintable() or NOT_PLAIN.search(line) or begins.match(line))
    ]
    assert odd == []


def test_what_a_node_is_blamed_for_has_a_next_step() -> None:
    every = [said for file in read().values() for said in file.values()]
    steps = [pair for said in every for pair in zip(said, [*said[1:], ""], strict=True)]
    assert [a for a, b in steps if a.startswith("[") and not b.startswith("> ")] == []
