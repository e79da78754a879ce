"""JSON Schemas of files that people write, fit for the editor they write them in."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

DRAFT = "https://json-schema.org/draft/2020-12/schema"
_NOTHING = {"type": "null"}


def editor_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return a model's JSON Schema as `wording.validated` reads the file.

    A section may be left empty, and a plain value may not: an editor that offered null for it,
    as pydantic's own schema does, would be wrong.
    """
    schema = {"$schema": DRAFT, **model.model_json_schema()}
    for shape in (schema, *schema["$defs"].values()):
        required = shape.get("required", ())
        for key, value in shape.get("properties", {}).items():
            shape["properties"][key] = _property(value, key in required)
    return schema


def _property(value: dict[str, Any], required: bool) -> dict[str, Any]:
    # titles are only the keys in capitals, and the defaults of sections those of their own keys
    value.pop("title", None)
    if isinstance(value.get("default", {}), (dict, list, type(None))):
        value.pop("default", None)
    about = {"description": value.pop("description")} if "description" in value else {}
    choices = [choice for choice in value.pop("anyOf", [value]) if choice != _NOTHING]
    if not required and ("$ref" in choices[0] or choices[0].get("type") in ("object", "array")):
        choices.append(_NOTHING)
    if len(choices) > 1:
        return {**about, "anyOf": choices}
    return {**about, **value, **choices[0]}
