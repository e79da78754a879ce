"""Types of the values that people write into files, for pydantic models."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WrapValidator

from preflight.yaml_lines import shown

_HOP = r"(?:ssh://)?(?:[^@\s,]+@)?(?:[A-Za-z0-9][A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?"


def _jump(text: str) -> str:
    if not re.fullmatch(rf"{_HOP}(?:,{_HOP})*", text):
        raise ValueError(f"{shown(text)} is not [user@]host[:port]")
    for port in re.findall(r":([0-9]+)(?:,|$)", text):
        if not 0 < int(port) < 65536:
            raise ValueError(f"{shown(text)}: port {port} is not from 1 to 65535")
    return text


def _program(text: str) -> str:
    # sh, bash, csh, tcsh and fish have no common way to write these within quotes
    if set(text) & set("'\\!\n"):
        raise ValueError(f"{shown(text)} has a character that not every login shell passes on")
    return text


def _day(value: object) -> object:
    # read here because pydantic takes other text for seconds since 1970
    if not isinstance(value, str):
        return value
    try:
        return dt.date.fromisoformat(value)
    except ValueError:
        raise ValueError(f"{shown(value)} is not a date; write it as 2026-12-31") from None


def _as_written(value: object, check: Callable[[object], object]) -> object:
    check(value)
    return value


Port = Annotated[int, Field(ge=1, le=65535)]
Seconds = Annotated[float, Field(gt=0, le=3600)]
Fanout = Annotated[int, Field(ge=1, le=1024)]
Jump = Annotated[str, AfterValidator(_jump)]
Program = Annotated[str, Field(min_length=1), AfterValidator(_program)]
Day = Annotated[dt.date, BeforeValidator(_day)]
Text = Annotated[str, Field(min_length=1)]
Amount = Annotated[int, Field(ge=0)]
Number = Annotated[float, Field(ge=0), WrapValidator(_as_written)]
"""A whole number stays one: `100 Gb/s`, not `100.0 Gb/s`."""


class Model(BaseModel):
    """Frozen, and refuses keys it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)
