"""Ansible inventories as YAML: groups with `hosts`, `vars` and `children`.

Source: Ansible's plugin `yaml`.
"""

from __future__ import annotations

from typing import Any

from preflight.errors import ConfigError
from preflight.sources.ansible_groups import Groups, printed
from preflight.sources.ansible_variables import known
from preflight.yaml_lines import Document, Where, parse, shown

KEYS = ("hosts", "vars", "children")


def read(text: str, source: str) -> Groups:
    """Return the groups of an inventory.

    Raises:
        ConfigError: it is not YAML, or has another shape.
    """
    if not any(line.strip() and not line.startswith(("#", "---")) for line in text.split("\n")):
        raise ConfigError(f"{source}: is empty; it needs groups with hosts")
    document = parse(text, source)
    # tags such as !vault and !unsafe are Ansible's; what is encrypted shows itself by its text
    document.problems = [one for one in document.problems if not one.message.startswith("tag ")]
    groups = Groups(source)
    _refuse_other_kinds(document.value, source)
    for name, inside in _mapping(document, (), document.value).items():
        _group(document, (name,), name, inside, groups)
    document.refuse_problems()
    return groups


def _refuse_other_kinds(value: Any, source: str) -> None:
    """Refuse files that look like an inventory and are none.

    Raises:
        ConfigError: says what it is, and what to give.
    """
    if not isinstance(value, dict):
        return
    if isinstance(plugin := value.get("plugin"), str):
        what = f"is the configuration of the plugin {shown(plugin)}, which finds hosts elsewhere"
        raise ConfigError(f"{source}: {what}; {printed(source)}")
    if "_meta" in value:
        raise ConfigError(f"{source}: is what --list prints without --yaml; {printed('INVENTORY')}")


def _group(document: Document, where: Where, name: str, value: Any, groups: Groups) -> None:
    """Read a group and all that are in it."""
    try:
        group = groups.group(name)
    except ValueError as error:
        document.blame(where, str(error))
        return
    written = _mapping(document, where, value)
    for key in written.keys() - set(KEYS):
        document.blame((*where, key), f"unknown key; a group has only {', '.join(KEYS)}")
    inside = {key: _mapping(document, (*where, key), written.get(key)) for key in KEYS}
    for host, variables in inside["hosts"].items():
        place = (*where, "hosts", host)
        try:
            groups.add(name, host, _mapping(document, place, variables), document.line(place))
        except ValueError as error:
            document.blame(place, str(error))
    group.variables |= known(inside["vars"])
    for child, more in inside["children"].items():
        group.children[child] = None
        _group(document, (*where, "children", child), child, more, groups)


def _mapping(document: Document, where: Where, value: Any) -> dict[str, Any]:
    """Return a mapping; nothing is an empty one."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        document.blame(
            where, f"{shown(value)} is not a mapping (key: value); end each name with a colon"
        )
        return {}
    return value
