"""What pydantic finds wrong with a document, in words for the person who wrote it."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from preflight.yaml_lines import Document, Where, near, nearest, shortened, shown

M = TypeVar("M", bound=BaseModel)

_WANTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "float_parsing": "a number",
    "int_parsing": "a whole number",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a mapping (key: value)",
    "model_type": "a mapping (key: value)",
}
_BROKEN: Mapping[str, Callable[[str, Mapping[str, Any]], str]] = {
    "date_type": lambda value, _: f"{value} is not a date; write it as 2026-12-31",
    "greater_than": lambda value, than: f"{value} is too small, it must be above {than['gt']:g}",
    "greater_than_equal": lambda value, than: f"{value} is too small, {than['ge']:g} is the least",
    "less_than_equal": lambda value, than: f"{value} is too large, {than['le']:g} is the most",
    "literal_error": lambda value, one: f"{value} is not {one['expected']}",
    "string_too_short": lambda *_: "is empty; give a value, or remove the key",
    "too_short": lambda *_: "is empty; give at least one",
    "value_error": lambda _, why: str(why["error"]),
}
_YES_NO = {"yes": "true", "on": "true", "no": "false", "off": "false"}


def validated(document: Document, model: type[M]) -> M:
    """Return the document as a model.

    Raises:
        ConfigError: it does not have the model's shape, or had problems before.
    """
    for where in document.empty:
        # a section whose keys are all commented out is an empty section
        if _is_section(_annotation(model, where)):
            _drop(document.value, where)
    try:
        # as JSON, pydantic's strict mode takes a list for a tuple and text for a path or a date
        found = model.model_validate_json(json.dumps(document.value), strict=True)
    except ValidationError as error:
        _blame_empty(document, model, _blame_all(document, model, error))
        document.refuse_problems()
        raise
    _blame_empty(document, model, set())
    document.refuse_problems()
    return found


def json_problem(said: str) -> str:
    """Return where JSON ends or breaks, from what pydantic says of it."""
    what, at, where = said.rpartition(" at line ")
    line, _, column = where.partition(" column ")
    if not at:
        return said
    if what.startswith("EOF"):
        return f"it ends too early, in line {line} at column {column}"
    return f"line {line}, column {column} cannot be read"


def first_problem(error: ValidationError, around: Where = (), most: int | None = None) -> str:
    """Return what is wrong first with a value that nobody wrote by hand, and where it is.

    Args:
        error: of its validation.
        around: the way to the value, where it is a part of another.
        most: how many words of the way are said; pydantic adds which kind it had in mind.
    """
    detail = error.errors(include_url=False)[0]
    where, words = (*around, *detail["loc"][:most]), _words(detail, None)
    if detail["type"] == "missing":
        where, words = where[:-1], f"the key {where[-1]!r} is missing"
    elif detail["type"] == "extra_forbidden":
        words = "unknown key"
    words = words.partition("; ")[0]  # advice is for those who wrote it
    return ": ".join(filter(None, (".".join(map(str, where)), words)))


def _blame_all(document: Document, model: type[BaseModel], error: ValidationError) -> set[Where]:
    blamed = {problem.where for problem in document.problems}
    details = error.errors(include_url=False)
    meant = {
        (*where[:-1], near(str(where[-1]), _keys_around(model, where)))
        for where in (detail["loc"] for detail in details if detail["type"] == "extra_forbidden")
    }
    for detail in details:
        where = detail["loc"]
        # pydantic counts only the items that are right
        if where in blamed or (detail["type"] == "too_short" and detail["input"]):
            continue
        blamed.add(where)
        if detail["type"] == "missing" and where in meant:
            continue  # it is there, misspelt
        if detail["type"] == "missing" and where in document.empty:
            document.blame(where, "has no value; give one")
        elif detail["type"] == "missing":
            document.blame(where[:-1], f"the key {where[-1]!r} is missing; add it")
        elif detail["type"] == "extra_forbidden":
            document.blame(where, _unknown_key(model, where))
        else:
            document.blame(where, _words(detail, document.written.get(where)))
    return blamed


def _blame_empty(document: Document, model: type[BaseModel], blamed: set[Where]) -> None:
    for where in document.empty:
        if where not in blamed and not _is_section(_annotation(model, where)):
            document.blame(where, "has no value; give one, or remove it")


def _words(detail: ErrorDetails, written: str | None) -> str:
    kind, value = detail["type"], detail["input"]
    if value is None:
        return "has no value; give one, or remove it"
    value_words = shortened(written) if written else shown(value)
    if kind in _BROKEN:
        return _BROKEN[kind](value_words, detail.get("ctx", {}))
    if kind not in _WANTED:
        return f"{value_words}: {detail['msg'].lower().replace('input should be', 'it must be')}"
    wanted = _WANTED[kind]
    if isinstance(value, float) and wanted == "a whole number":
        return f"{value_words} is not a whole number"
    if isinstance(value, (list, dict)):
        return f"this is {_kind(value)}, {wanted} is wanted"
    advice = _advice(value_words, value, wanted)
    return f"{value_words} is {_kind(value)}, {wanted} is wanted{advice}"


def _kind(value: object) -> str:
    for kind, words in (
        (bool, "a yes/no value"),
        (str, "text"),
        (list, "a list"),
        (dict, "a mapping"),
    ):
        if isinstance(value, kind):
            return words
    return "a number"


def _advice(words: str, value: object, wanted: str) -> str:
    if wanted == "text" and isinstance(value, (bool, int, float)):
        return f'; write it in quotes: "{words}"'
    if wanted.endswith("number") and isinstance(value, str) and value.strip().isdecimal():
        return f"; write {int(value)}"
    if wanted == "a list":
        return f"; write [{json.dumps(value)}]"
    if wanted == "true or false" and str(value).lower() in _YES_NO:
        return f"; write {_YES_NO[str(value).lower()]}"
    return ""


def _unknown_key(model: type[BaseModel], where: Where) -> str:
    known = _keys_around(model, where)
    advice = nearest(str(where[-1]), known)
    return f"unknown key{advice or '; known are ' + (', '.join(known) or 'none')}"


def _keys_around(model: type[BaseModel], where: Where) -> Collection[str]:
    """Return the keys that there can be beside one."""
    return next(_models(_annotation(model, where[:-1]))).model_fields


def _annotation(model: type[BaseModel], where: Where) -> Any:
    """Return the type of the value at a place, None if the model has no such place."""
    found: Any = model
    for part in where:
        if isinstance(part, str):
            around = next(_models(found), None)
            if around is None or part not in around.model_fields:
                return None
            found = around.model_fields[part].annotation
    return found


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models(argument)


def _is_section(annotation: Any) -> bool:
    """Whether the values of a type are mappings or lists."""
    kind = get_origin(annotation) or annotation
    if isinstance(kind, type) and issubclass(kind, (BaseModel, dict, list, tuple)):
        return True
    return any(map(_is_section, get_args(annotation)))


def _drop(value: Any, where: Where) -> None:
    for part in where[:-1]:
        value = value[part]
    value.pop(where[-1], None)
