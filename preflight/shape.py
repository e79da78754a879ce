"""Whether what a node answered is what the function that was asked there promises.

The promise is an annotation: of what the function returns, and where it stays that of its parameter
`opened: Opened[...]`. Whatever breaks it is the trouble of the node that said it, and not of the
check that reads it. Where nothing is annotated, any JSON will do of which a report can be written.
"""

from __future__ import annotations

import functools
import ipaddress
import json
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Union, get_args, get_origin, get_type_hints, is_typeddict

from preflight.api import Address, PortNumber, Reply
from preflight.errors import printable
from preflight.yaml_lines import shortened

LARGEST = 1 << 64
"""Numbers are smaller: the kernel's counters are, and what is computed of them stays finite."""
DEEPEST = 64
"""Levels of lists and objects where nothing is promised: pydantic writes no more than 255."""
MOST_PORT = 65535
KEPT = 4096
"""Addresses that need not be taken apart again: other nodes tell the same subnets."""
LONGEST = 160
"""Characters of what is wrong that are told; the last say most."""
WORDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
WORDS |= {type(None): "null"}

Reader = Callable[[Any], str]
"""Returns what is wrong with a value, behind where in it: `.a[0] is null, not text`."""


def garbled(value: Any, promise: Any) -> dict[str, str] | None:
    """Return the problem of an answer that is not as promised, None of one that is."""
    wrong = reader(promise)(value)
    if not wrong:
        return None
    what = wrong.lstrip(".") if wrong[0] in ".[" else f"it{wrong}"
    what = what if len(what) <= LONGEST else f"...{what[-LONGEST:]}"
    return {"kind": "garbled", "message": f"its answer cannot be understood: {what}"}


def understood(reply: Reply, promise: Any) -> Reply:
    """Return a reply, as a problem where its value is not as promised."""
    problem = None if reply.problem else garbled(reply.value, promise)
    return Reply(None, problem, reply.seconds) if problem else reply


def returned(function: Callable[..., Any]) -> Any:
    """Return what a function promises to return."""
    return hints(function).get("return", Any)


def readied(function: Callable[..., Any]) -> Any:
    """Return what a function that stays promises to tell once it is in place."""
    return next(iter(get_args(hints(function).get("opened"))), Any)


@functools.cache
def hints(annotated: Any) -> Mapping[str, Any]:
    """Return the annotations of a function or type, none where they cannot be read."""
    try:
        return get_type_hints(annotated)
    except (AttributeError, NameError, SyntaxError, TypeError):
        return {}


# ---- readers -------------------------------------------------------------------------------


@functools.cache
def reader(promise: Any) -> Reader:
    """Return the reader of an annotation; of those that are not known here it takes any JSON."""
    kind, inner = get_origin(promise) or promise, get_args(promise)
    if promise in (Address, PortNumber):
        return of_address if promise is Address else of_port
    if promise in WORDS:
        return functools.partial(of_plain, promise)
    if kind in (Union, types.UnionType):
        return functools.partial(of_either, [reader(one) for one in inner])
    if is_typeddict(kind):
        return functools.partial(of_fields, kind)
    if not isinstance(kind, type) or not issubclass(kind, Mapping | Sequence):
        return of_json
    if issubclass(kind, Mapping):
        return functools.partial(of_keys, reader((*inner, Any, Any)[1]))
    if issubclass(kind, tuple) and inner[1:] != (...,):
        of = inner or tuple(hints(kind).values())
        return functools.partial(of_places, [reader(one) for one in of])
    return functools.partial(of_items, reader((*inner, Any)[0]))


def of_plain(kind: Any, value: Any) -> str:
    """Read text, a number, true or false, or null."""
    if not isinstance(value, (int, float) if kind is float else kind):
        return f" is {described(value)}, not {WORDS[kind]}"
    return "" if kind is str or value is None or in_range(value) else out_of_range(value)


def of_port(value: Any) -> str:
    """Read the number of a port."""
    wrong = of_plain(int, value)
    return wrong if wrong or 0 <= value <= MOST_PORT else f" is {described(value)}, not a port"


def of_address(value: Any) -> str:
    """Read an address or subnet."""
    wrong = of_plain(str, value)
    return wrong if wrong or is_address(value) else f" is {described(value)}, not an IP address"


@functools.lru_cache(KEPT)
def is_address(text: str) -> bool:
    """Whether it is an address, a subnet, or nothing."""
    try:
        return not text or bool(ipaddress.ip_interface(text))
    except ValueError:
        return False


def of_either(readers: Sequence[Reader], value: Any) -> str:
    """Read what one of them takes."""
    wrong = [read(value) for read in readers]
    return "" if "" in wrong else wrong[0]


def of_fields(kind: Any, value: Any) -> str:
    """Read an object with promised keys; it may have others."""
    if not isinstance(value, dict):
        return f" is {described(value)}, not an object"
    for key, read in fields(kind).items():
        if key in value:
            if wrong := read(value[key]):
                return f".{key}{wrong}"
        elif key in kind.__required_keys__:
            return f" has no {key!r}"
    return ""


@functools.cache
def fields(kind: Any) -> Mapping[str, Reader]:
    """Return the readers of a TypedDict's keys; not before a value is read, for it may nest."""
    return {key: reader(of) for key, of in hints(kind).items()}


def of_keys(read: Reader, value: Any) -> str:
    """Read an object with any keys."""
    if not isinstance(value, dict):
        return f" is {described(value)}, not an object"
    for key, one in value.items():
        if wrong := read(one):
            return f".{shortened(printable(key))}{wrong}"
    return ""


def of_items(read: Reader, value: Any) -> str:
    """Read a list."""
    if not isinstance(value, list):
        return f" is {described(value)}, not a list"
    for place, one in enumerate(value):
        if wrong := read(one):
            return f"[{place}]{wrong}"
    return ""


def of_places(readers: Sequence[Reader], value: Any) -> str:
    """Read a list in which each place means something else."""
    if not isinstance(value, list) or len(value) != len(readers):
        return f" is {described(value)}, not a list of {len(readers)}"
    for place, (read, one) in enumerate(zip(readers, value, strict=True)):
        if wrong := read(one):
            return f"[{place}]{wrong}"
    return ""


def of_json(value: Any, depth: int = 0) -> str:
    """Read anything of which a report can be written."""
    if isinstance(value, (int, float)):
        return "" if in_range(value) else out_of_range(value)
    if not isinstance(value, (dict, list)):
        return ""
    if depth == DEEPEST:
        return " has too much nested in it"
    return (of_keys if isinstance(value, dict) else of_items)(
        lambda one: of_json(one, depth + 1), value
    )


def in_range(number: float) -> bool:
    """Whether a machine can count to it; what is not a number is no such one."""
    return -LARGEST < number < LARGEST


def out_of_range(number: float) -> str:
    """Return what is wrong with a number that no machine counts to."""
    return f" is {described(number)}, out of range"


def described(value: Any) -> str:
    """Return a value as a message repeats it."""
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else f"a list of {len(value)}"
    return shortened(json.dumps(value))
