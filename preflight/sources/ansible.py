"""The nodes of an Ansible inventory, INI or YAML: addresses, ports, users and key files.

Of variables only those of `TAKEN` are read: passwords and vaults stay where they are.
Source: Ansible's guide "How to build your inventory" and the plugins ini, yaml and ssh.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from preflight.errors import ConfigError
from preflight.inventory import Cluster, NodeSpec, SshSettings
from preflight.node_names import address_problem
from preflight.sources import Found, ansible_ini, ansible_yaml
from preflight.sources.ansible_groups import ALL, Groups, Variables, printed
from preflight.sources.ansible_variables import LEFT, TAKEN
from preflight.sources.hosts import LARGEST_PORT
from preflight.yaml_lines import nearest, read_text, shown

VAULT = "$ANSIBLE_VAULT"
SSH = ("ssh", "smart", "paramiko", "paramiko_ssh", "ansible.builtin.ssh")
LOCAL = ("local", "ansible.builtin.local")
SUDO = ("sudo", "ansible.builtin.sudo")
YES = ("true", "yes", "on", "1", "y", "t")
YAML_SUFFIXES = (".yaml", ".yml", ".json")
BESIDE = ("group_vars", "host_vars")


def read(path: Path, group: str | None) -> Found:
    """Return the cluster of an Ansible inventory, or of one of its groups.

    Raises:
        ConfigError: it cannot be read, is encrypted, or something in it is not right.
    """
    try:
        text = read_text(path)
    except ConfigError as error:
        if not isinstance(error.__cause__, IsADirectoryError):
            raise
        raise ConfigError(f"{path}: is a directory; {printed(str(path))}") from error
    beside = [name for name in BESIDE if (path.parent / name).is_dir()]
    return parsed(text, str(path), group, beside)


def parsed(
    text: str, source: str, group: str | None = None, beside: list[str] | None = None
) -> Found:
    """Return the cluster that the text of an Ansible inventory describes.

    Args:
        text: INI or YAML.
        source: the file's name.
        group: only its hosts; None for all.
        beside: folders of variables that are not read.

    Raises:
        ConfigError: as `read`.
    """
    if text.startswith(VAULT):
        raise ConfigError(
            f"{source}: is encrypted with Ansible Vault; give what `ansible-vault view` shows of it"
        )
    if text.startswith("#!"):
        raise ConfigError(f"{source}: is a program; {printed(source)}")
    groups = (ansible_yaml if _is_yaml(text, source) else ansible_ini).read(text, source)
    if group is not None and group not in groups:
        raise ConfigError(f"--group: {source} has no group {shown(group)}{nearest(group, groups)}")
    try:
        hosts = groups.variables(group or ALL)
    except ValueError as error:
        raise ConfigError(f"{source}: {error}") from error
    if not hosts:
        raise ConfigError(f"{source}: lists no host{f' in the group {group!r}' if group else ''}")
    notes = _Notes()
    nodes = tuple(_node(name, its, groups, notes) for name, its in hosts.items())
    lines = notes.lines()
    if beside:
        lines.append(
            f"{' and '.join(beside)} beside {source} are not read; to have what is in them too, "
            f"{printed(source)}"
        )
    cluster = Cluster(name=group or Path(source).stem or source, source=None, nodes=nodes)
    whole = f"the Ansible inventory {source}"
    return Found(cluster, f"{whole}, group {group}" if group else whole, tuple(lines))


def _is_yaml(text: str, source: str) -> bool:
    """Whether it is YAML: by its suffix, as Ansible does, or by a first line that is no host."""
    lines = (line.split("#")[0].rstrip() for line in text.split("\n"))
    first = next((line for line in lines if line), "")
    return Path(source).suffix in YAML_SUFFIXES or bool(re.fullmatch(r"---|[\w.-]+:|\{.*", first))


class _Notes:
    """What is not taken, each thing with the hosts that have it."""

    def __init__(self) -> None:
        self._hosts: dict[str, list[str]] = defaultdict(list)

    def add(self, what: str, host: str) -> None:
        """Note something of one host."""
        self._hosts[what].append(host)

    def lines(self) -> list[str]:
        """Return a line for each thing."""
        return [
            f"{hosts[0]}{f' and {len(hosts) - 1} more' if len(hosts) > 1 else ''}: {what}"
            for what, hosts in self._hosts.items()
        ]


def _node(name: str, variables: Variables, groups: Groups, notes: _Notes) -> NodeSpec:
    """Return one host as a node.

    Raises:
        ConfigError: its name or address is none.
    """
    taken = _taken(name, variables, notes)
    address = taken.get("address")
    place = f"{groups.source}:{groups.lines[name]}"
    if problem := address_problem(name):
        advice = printed(groups.source)
        raise ConfigError(f"{place}: {problem}; if this file is of another kind, {advice}")
    if address and (problem := address_problem(address)):
        raise ConfigError(f"{place}: host {name}: ansible_host: {problem}")
    if taken.get("connection") in LOCAL:
        return NodeSpec(name=name, transport="local")
    if taken.get("connection", "ssh") not in SSH:
        notes.add(f"ansible_connection is {shown(taken['connection'])}, preflight takes SSH", name)
    ssh = _ssh(name, taken, notes)
    return NodeSpec(
        name=name,
        address=None if address == name else address,
        ssh=SshSettings.model_validate(ssh),
    )


def _taken(name: str, variables: Variables, notes: _Notes) -> dict[str, str]:
    """Return the values that are of use, as text."""
    found = {}
    for what, aliases in TAKEN.items():
        variable = next(
            (alias for alias in aliases if variables.get(alias) not in (None, "")), None
        )
        if variable is None:
            continue
        value = variables[variable]
        if isinstance(value, (list, dict)):
            notes.add(f"{variable} is {shown(value)} and was left out", name)
        elif str(value).startswith(VAULT):
            notes.add(f"{variable} is encrypted with Ansible Vault and was left out", name)
        elif "{{" in str(value) or "{%" in str(value):
            notes.add(f"{variable} is a template and was left out", name)
        else:
            found[what] = str(value)
    for variable, why in LEFT.items():
        if variable in variables:
            notes.add(f"{variable}: {why}", name)
    return found


def _ssh(name: str, taken: Mapping[str, str], notes: _Notes) -> dict[str, Any]:
    """Return the SSH settings of a host."""
    found: dict[str, Any] = {}
    if user := taken.get("user"):
        found["user"] = user
    if port := taken.get("port"):
        if re.fullmatch("[0-9]{1,5}", port) and 0 < int(port) <= LARGEST_PORT:
            found["port"] = int(port)
        else:
            notes.add(f"ansible_port is {shown(port)}, which is no port, and was left out", name)
    if key := taken.get("key"):
        if _is_readable(key):
            # Ansible begins where it is started, an inventory of ours at its own folder
            found["key"] = Path(key) if key.startswith("~") else Path.cwd() / key
        else:
            notes.add(f"the key file {shown(key)} cannot be read here and was left out", name)
    if taken.get("python", "").startswith("/"):
        found["python"] = taken["python"]
    return found | _become(name, taken, notes)


def _become(name: str, taken: Mapping[str, str], notes: _Notes) -> dict[str, Any]:
    """Return how a host's user becomes root."""
    if taken.get("become", "").lower() not in YES:
        return {}
    method = taken.get("method", "sudo")
    if method in SUDO:
        return {"become": "sudo"}
    notes.add(f"ansible_become_method is {shown(method)}, preflight knows sudo", name)
    return {}


def _is_readable(key: str) -> bool:
    try:
        Path(key).expanduser().open("rb").close()
    except (OSError, ValueError, RuntimeError):  # the last is of a home that there is not
        return False
    return True
