"""YAML whose every value knows its line, so that an error can point at it.

A document is read once into plain JSON-able values; what was wrong on the way is collected,
since a person who mends a file wants to hear of everything in it. Scalars are read as YAML 1.2
reads them: `yes` and `022` are text here, not true and 18, and a date stays text. A text file
from a stranger is safe to read: size, depth and number of values are capped.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from preflight.errors import ConfigError

MAX_BYTES = 4 << 20
"""50 times what 1,000 nodes take that are written one by one."""
MAX_DEPTH = 20
"""The inventory's own keys are nested 5 deep."""
MAX_VALUES = 200_000
"""10,000 nodes, each with an address and SSH settings of its own, have 100,000."""
MAX_SHOWN = 60
"""Characters of an offending value that a message repeats."""
NEAR = 0.65
"""Of difflib's ratio: takes iface for interface and mut for mtu, and not colour for cluster."""

Where = tuple[str | int, ...]
"""The way to a value from the top: keys, and places in lists."""

_PARSER = (
    (
        r"undefined alias '(.*)'",
        "there is no '&{0}' for '*{0}'; put text that begins with * in quotes",
    ),
    (r"expected ',' or '([\]}])'", "a bracket of line {above} is not closed by '{0}'"),
    (r"end of stream", "a quote of line {above} is not closed"),
    (r"found character '(.*)' that cannot start", "'{0}' cannot begin a value; put it in quotes"),
    (r"expected the node content, but found '<stream end>'", "it ends before a bracket is closed"),
    (r"expected the node content, but found '(.*)'", "a value is missing before '{0}'"),
    (r"alphabetic or numeric", "'*' or '&' begins no value; put it in quotes"),
    (r"could not find expected ':'", "a ':' is missing after the key of line {above}"),
    (
        r"unknown escape character '(.*)'",
        "'\\{0}' means nothing in these quotes; use single quotes",
    ),
)
"""What PyYAML says, as patterns, and what it means."""
_TAG = "tag:yaml.org,2002:"
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_.:,/\[\]-]+")
# NUL and its like are in no name or path; a lone surrogate is not even text
_UNWELCOME = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")


class Problem(NamedTuple):
    """One thing that is wrong in a file."""

    line: int
    where: Where
    message: str


class Document:
    """A YAML file as plain values, with the line of each.

    Args:
        source: the file's name as the user gave it.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self.value: Any = None
        self.problems: list[Problem] = []
        self.empty: list[Where] = []
        """Keys that have no value."""
        self.lines: dict[Where, int] = {}
        self.written: dict[Where, str] = {}
        """Numbers as they are written, since 550.50 is not 550.5."""

    def line(self, where: Where) -> int:
        """Return the line of a value, or of the nearest thing around it that is in the file."""
        while where not in self.lines:
            where = where[:-1]
        return self.lines[where]

    def key(self, where: Where) -> str:
        """Return the way to a value in words: `nodes.gpu07.ssh.port`, `waivers[0].until`."""
        words, value = "", self.value
        for part in where:
            value = _inside(value, part)
            name = value.get("name") if isinstance(value, dict) else None
            if isinstance(part, int) and not isinstance(name, str):
                words += f"[{part}]"
            else:
                words += f".{_plain(name if isinstance(part, int) else part)}"
        return words.removeprefix(".")

    def blame(self, where: Where, message: str) -> None:
        """Note that a value is wrong."""
        self.problems.append(Problem(self.line(where), where, message))

    def refuse_problems(self) -> None:
        """Raise what was noted, if anything.

        Raises:
            ConfigError: the first problem by line, and how many others there are.
        """
        problems, self.problems = self.problems, []
        if not problems:
            return
        line, where, message = min(problems, key=lambda problem: problem.line)
        others = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        key = f"{self.key(where)}: " if where else ""
        raise _error(self.source, line, f"{key}{message}{others}")


def shown(value: object) -> str:
    """Return a value as a message repeats it: on one line, and not too long."""
    if isinstance(value, str):
        words = repr(value)
    elif isinstance(value, (bool, int, float)):
        words = json.dumps(value)
    else:
        words = "this list" if isinstance(value, list) else "this mapping"
    return shortened(words)


def shortened(words: str) -> str:
    """Return words, cut where they are too long for a message."""
    return words if len(words) <= MAX_SHOWN else f"{words[: MAX_SHOWN - 4]}...{words[-1]}"


def nearest(word: str, known: Iterable[str]) -> str:
    """Return `, did you mean 'port'?`, or nothing where no known word is near."""
    meant = near(word, known)
    return f", did you mean {meant!r}?" if meant else ""


def near(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that somebody may have meant."""
    return next(iter(difflib.get_close_matches(word, list(known), n=1, cutoff=NEAR)), None)


def read_text(path: Path) -> str:
    """Return the text of a file the user named.

    Raises:
        ConfigError: there is no such file, it cannot be read, is too large or is not UTF-8.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise _error(str(path), None, (reason or str(error)).lower()) from error
    if len(data) > MAX_BYTES:
        raise _error(str(path), None, f"is larger than {MAX_BYTES >> 20} MiB")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise _error(
            str(path),
            line,
            f"byte 0x{data[error.start]:02x} is not UTF-8 text; save the file as UTF-8",
        ) from error


def parse(text: str, source: str) -> Document:
    """Read YAML.

    Problems that leave the rest readable, such as a key written twice, are in the document.

    Raises:
        ConfigError: it is not YAML, is empty, or is past a cap.
    """
    document = Document(source)
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        character = f"character U+{ord(text[error.position]):04X}"
        raise _error(source, line, f"{character} is not allowed in YAML; remove it") from error
    except yaml.MarkedYAMLError as error:
        raise _syntax_error(error, text, source) from error
    if root is None:
        raise _error(source, None, "is empty; begin with a line 'nodes:'")
    document.value = _Reader(document, loader).read(root, ())
    return document


class _Loader(yaml.SafeLoader):
    """Composes nodes, bounded in depth and number; scalars as in YAML 1.2's core schema."""

    yaml_implicit_resolvers = {}  # noqa: RUF012 - of the class, as PyYAML declares it
    depth = 0
    values = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self.depth += 1
        self.values += 1
        for number, most, words in (
            (self.depth, MAX_DEPTH, f"nested deeper than {MAX_DEPTH} levels"),
            (self.values, MAX_VALUES, f"holds more than {MAX_VALUES:,} values"),
        ):
            if number > most:
                raise _PastCap(None, None, words, self.peek_event().start_mark)  # type: ignore[no-untyped-call]
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


_FLOAT = r"[-+]?(?:0|[1-9][0-9]*)(?:\.[0-9]*(?:[eE][-+]?[0-9]+)?|[eE][-+]?[0-9]+)\Z"
for _kind, _pattern, _first in (
    ("null", r"(?:~|null|Null|NULL|)\Z", ["~", "n", "N", ""]),
    ("bool", r"(?:true|True|TRUE|false|False|FALSE)\Z", list("tTfF")),
    # longer than 18 digits is nothing that is counted here
    ("int", r"[-+]?(?:0|[1-9][0-9]{0,17})\Z", list("-+0123456789")),
    ("float", _FLOAT, list("-+0123456789")),
):
    _Loader.add_implicit_resolver(_TAG + _kind, re.compile(_pattern), _first)


class _PastCap(yaml.MarkedYAMLError):
    """Valid YAML, but more of it than anybody writes."""


class _Reader:
    """Turns composed nodes into values, and notes their lines in the document."""

    def __init__(self, document: Document, loader: _Loader) -> None:
        self.document = document
        self.loader = loader
        self.values = 0

    def read(self, node: yaml.Node, where: Where) -> Any:
        # aliases: a few lines can stand for any number of values, or for themselves
        self.values += 1
        if self.values > MAX_VALUES or len(where) > MAX_DEPTH:
            raise _error(
                self.document.source,
                self.document.line(where[:1]),
                "aliases make it too large; write the values out",
            )
        self.document.lines.setdefault(where, node.start_mark.line + 1)
        if isinstance(node, yaml.ScalarNode):
            return self.scalar(node, where)
        if node.tag not in (_TAG + "map", _TAG + "seq"):
            self.document.blame(where, f"tag {_tag(node)} is not read here; remove it")
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, where)
        return [self.read(item, (*where, place)) for place, item in enumerate(node.value)]

    def mapping(self, node: yaml.MappingNode, where: Where) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self.document.blame(where, "a key must be a word, not a list or a mapping")
                continue
            key, line = key_node.value, key_node.start_mark.line + 1
            inside = (*where, key)
            if key in found:
                self.twice(inside, line)
                continue
            self.document.lines[inside] = line
            if key == "<<":
                self.document.blame(inside, "merge keys are not read here; write the keys out")
                continue
            found[key] = self.read(value_node, inside)
            if found[key] is None:
                self.document.empty.append(inside)
        return found

    def twice(self, where: Where, line: int) -> None:
        message = f"is there twice, first on line {self.document.lines[where]}; remove one"
        self.document.problems.append(Problem(line, where, message))

    def scalar(self, node: yaml.ScalarNode, where: Where) -> Any:
        text, kind = node.value, node.tag.removeprefix(_TAG)
        if kind != "str" and not self.fits(node):
            self.document.blame(where, f"tag {_tag(node)} does not fit {shown(text)}; remove it")
            return text
        if kind in ("int", "float"):
            number = int(text) if kind == "int" else float(text)
            if not math.isfinite(number):
                return text
            self.document.written[where] = text
            return number
        if kind == "str":
            if bad := _UNWELCOME.search(text):
                self.document.blame(
                    where, f"has the unprintable character U+{ord(bad[0]):04X}; remove it"
                )
            return _UNWELCOME.sub("?", text)
        return None if kind == "null" else text.lower() == "true"

    def fits(self, node: yaml.ScalarNode) -> bool:
        """Whether an explicit tag is the one that the text would have without it."""
        plain = self.loader.resolve(yaml.ScalarNode, node.value, (True, False))  # type: ignore[no-untyped-call]
        return bool(plain == node.tag)


def _tag(node: yaml.Node) -> str:
    return shown(node.tag.replace(_TAG, "!!"))


def _inside(value: Any, part: str | int) -> Any:
    if isinstance(value, dict):
        return value.get(part)
    if isinstance(value, list) and isinstance(part, int) and part < len(value):
        return value[part]
    return None


def _plain(key: object) -> str:
    words = str(key)
    return shortened(words) if _PLAIN_KEY.fullmatch(words) else shown(words)


def _error(source: str, line: int | None, message: str) -> ConfigError:
    file = source if source.isprintable() else shown(source)
    return ConfigError(f"{file}:{line}: {message}" if line else f"{file}: {message}")


def _syntax_error(error: yaml.MarkedYAMLError, text: str, source: str) -> ConfigError:
    mark = error.problem_mark or error.context_mark
    line = mark.line + 1 if mark else 1
    words = error.problem or str(error.context)
    above = error.context_mark.line + 1 if error.context and error.context_mark else None
    if isinstance(error, _PastCap):
        message = words
    elif "another document" in words:
        message = "a second document begins here, only one is read; remove the line '---'"
    elif re.match(r" *\t", (text.splitlines() + [""] * line)[line - 1]):
        message = "indented with a tab; use spaces"
    elif words.startswith("mapping values"):
        message = "not valid YAML: ': ' is not allowed here; indent it, or put the value in quotes"
    elif words.startswith("expected <block end>"):
        message = f"not valid YAML: this does not continue line {above}; check its indentation"
    else:
        message = f"not valid YAML: {_plain_words(words, above)}"
    return _error(source, line, message)


def _plain_words(words: str, above: int | None) -> str:
    """Return the parser's words as somebody says them who wrote the file."""
    for pattern, meaning in _PARSER:
        if match := re.search(pattern, words):
            return meaning.format(*match.groups(), above=above)
    return words
