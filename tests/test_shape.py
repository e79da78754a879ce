"""What a node answered is held to what the function that was asked promises, in plain words."""

from __future__ import annotations

import typing
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional, TypedDict

import pytest

from preflight.api import Address, Node, Opened, PortNumber, Reply
from preflight.shape import garbled, readied, returned, understood


class Port(TypedDict, total=False):
    number: int


class Inner(Port):
    name: str
    ports: list[Port]


class Nest(TypedDict):
    within: Optional[Nest]  # noqa: UP045 - as on nodes


class Span(NamedTuple):
    low: int
    high: int


def wrong(value: Any, promise: Any) -> str:
    problem = garbled(value, promise)
    if problem is None:
        return ""
    assert problem["kind"] == "garbled"
    return problem["message"].removeprefix("its answer cannot be understood: ")


def deep(levels: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(levels):
        found = [found]
    return found


@pytest.mark.parametrize(
    ("value", "promise"),
    [
        ("x", str),
        (1, int),
        (1, float),
        (1.5, float),
        (True, bool),
        (None, None),
        (None, str | None),
        ("x", str | None),
        ([], list[int]),
        ([1, 2], Sequence[int]),
        ([1, "a"], list),
        ({"a": 1}, dict[str, int]),
        ({"a": [1]}, Mapping[str, Any]),
        ({}, typing.Mapping),
        ([1, "a"], tuple[int, str]),
        ([1, 2, 3], tuple[int, ...]),
        ([1, 2], Span),
        ({"name": "a", "ports": [{"number": 1}, {}], "more": None}, Inner),
        ({"within": {"within": None}}, Nest),
        ({"a": [1, None, "x", 2.5]}, Any),
        ((1 << 64) - 1, int),
        (deep(63), Any),
        (65535, PortNumber),
        (0, PortNumber),
        ("", Address),
        ("10.0.0.1", Address),
        ("10.0.0.0/24", Address),
        ("fe80::1%eth0", Address),
        ("anything", object),
        ("anything", typing.Literal["x"]),
    ],
)
def test_what_is_as_promised(value: Any, promise: Any) -> None:
    assert wrong(value, promise) == ""


@pytest.mark.parametrize(
    ("value", "promise", "what"),
    [
        (None, str, "it is null, not text"),
        (7, str, "it is 7, not text"),
        ("7", int, 'it is "7", not a whole number'),
        (1.5, int, "it is 1.5, not a whole number"),
        ("1.5", float, 'it is "1.5", not a number'),
        (0, bool, "it is 0, not true or false"),
        ({}, type(None), "it is an object, not null"),
        ([1, 2], str, "it is a list of 2, not text"),
        ("x", list[int], 'it is "x", not a list'),
        ("x" * 99, int, f'it is "{"x" * 55}...", not a whole number'),
        ([0, "x"], list[int], '[1] is "x", not a whole number'),
        ([], dict[str, int], "it is a list of 0, not an object"),
        ({"a\n": None}, dict[str, int], "a\\n is null, not a whole number"),
        ([1], tuple[int, int], "it is a list of 1, not a list of 2"),
        ([1, "x"], Span, '[1] is "x", not a whole number'),
        (7, str | None, "it is 7, not text"),
        ({"a": 7}, Inner | None, "it has no 'name'"),
        ([], Inner, "it is a list of 0, not an object"),
        ({"name": "a", "ports": [{}, {"number": "x"}]}, Inner,
         'ports[1].number is "x", not a whole number'),
        ({"within": {"within": {}}}, Nest, "within.within has no 'within'"),
        (float("nan"), float, "it is NaN, out of range"),
        (float("-inf"), Any, "it is -Infinity, out of range"),
        (65536, PortNumber, "it is 65536, not a port"),
        (-1, PortNumber, "it is -1, not a port"),
        ("1", PortNumber, 'it is "1", not a whole number'),
        ("x", Address, 'it is "x", not an IP address'),
        ("10.0.0.300", Address, 'it is "10.0.0.300", not an IP address'),
        (["10.0.0.1", 7], list[Address], "[1] is 7, not text"),
        (1 << 64, int, "it is 18446744073709551616, out of range"),
        ({"a": [1e308]}, Any, "a[0] is 1e+308, out of range"),
        (deep(500), Any, "..." + ("[0]" * 64 + " has too much nested in it")[-160:]),
    ],
)  # fmt: skip
def test_what_is_not(value: Any, promise: Any, what: str) -> None:
    assert wrong(value, promise) == what


def told(node: Node, opened: Opened[Port], name: str) -> list[int]:
    raise NotImplementedError


def silent(node, opened):  # type: ignore[no-untyped-def]
    raise NotImplementedError


def mistaken(node: Node, opened: Opened) -> Nowhere:  # type: ignore[name-defined, type-arg] # noqa: F821
    raise NotImplementedError


def test_what_a_function_promises() -> None:
    assert (returned(told), readied(told)) == (list[int], Port)
    assert (returned(silent), readied(silent)) == (Any, Any)
    assert (returned(mistaken), readied(mistaken)) == (Any, Any)


def test_a_reply_that_is_not_as_promised_is_a_problem() -> None:
    late = Reply(None, {"kind": "timeout", "message": "late"})
    assert understood(late, int) is late
    assert understood(Reply(7, None, 0.5), int) == Reply(7, None, 0.5)
    message = 'its answer cannot be understood: it is "7", not a whole number'
    problem = {"kind": "garbled", "message": message}
    assert understood(Reply("7", None, 0.5), int) == Reply(None, problem, 0.5)
