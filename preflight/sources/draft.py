"""An inventory's text, with comments, for a person to go on with."""

from __future__ import annotations

import itertools
import json
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from preflight.errors import printable
from preflight.inventory import NodeSpec
from preflight.node_names import is_address
from preflight.report.folding import some
from preflight.sources import Found
from preflight.sources.learnt import Learnt, Seen

COMMENTS = 36
"""The column at which they begin."""
WIDTH = 100
SSH_SAMPLES = {
    "user": ("user: ubuntu", ""),
    "key": ("key: ~/.ssh/id_ed25519", ""),
    "jump": ("jump: alice@bastion.example.org", ""),
    "become": ("become: sudo", "for checks that need root; left out: these are skipped"),
}
"""What is shown of keys that are not set."""

_PLAIN = re.compile(r"[A-Za-z~/][\w./~@-]*|[0-9]{1,3}(?:\.[0-9]{1,3}){3}", re.ASCII)
_RANGE = re.compile(r"[A-Za-z][\w.-]*\[[0-9,-]+\][\w.-]*", re.ASCII)
_WORDS = re.compile("true|false|yes|no|on|off|null|~|y|n", re.IGNORECASE)
"""YAML 1.1 and 1.2 do not take these for text."""
_NUMBERED = re.compile(r"(?P<before>[^.]*?)(?P<number>[0-9]{1,18})(?P<after>[^0-9.]*(?:\..*)?)")
_IPV4 = re.compile(r"(?P<before>(?:[0-9]+\.){3})(?P<number>[0-9]+)(?P<after>)")


def draft(found: Found, learnt: Learnt, silent: Sequence[str], name: str) -> str:
    """Return the text of an inventory.

    Args:
        found: the nodes, and where they come from.
        learnt: what those that answered have alike.
        silent: nodes that did not answer.
        name: the file's name, for the command that comes next.
    """
    nodes = found.cluster.nodes
    shared = _shared_ssh(nodes)
    parts = (
        _head(found, silent, name),
        ["", *_comment("cluster: h100-pod-3", "the name in reports; left out: this file's name")],
        ["", "# How to log in. What is left out comes from ~/.ssh/config, then from OpenSSH."],
        ["ssh:", *_ssh(shared)],
        ["", "# Names and ranges as Slurm writes them, or mappings for nodes that differ."],
        ["nodes:", *(f"  - {line}" for line in _nodes(nodes, shared))],
        ["", "# How the job will be started."],
        ["launch:", *_launch(found, learnt)],
        ["", "# What every node must have. What is left out must only be the same everywhere."],
        ["expect:", *_expect(learnt)],
    )
    return "\n".join(itertools.chain(*parts)) + "\n"


def _head(found: Found, silent: Sequence[str], name: str) -> Iterator[str]:
    yield f"# Written by preflight init, from {printable(found.origin)}."
    yield "#"
    yield "#   preflight schema inventory > inventory.schema.json     completion in editors"
    yield f"#   preflight run {printable(name)}"
    notes = [*found.notes]
    if silent:
        are = "did not answer when this was written"
        notes.append(f"{some(silent)} {are}: nothing below was seen there")
    for note in notes:
        yield "#"
        yield from textwrap.wrap(
            printable(note),
            WIDTH,
            initial_indent="# ",
            subsequent_indent="# ",
            break_long_words=False,
            break_on_hyphens=False,
        )


def _ssh(shared: Mapping[str, Any]) -> Iterator[str]:
    for key in dict.fromkeys((*SSH_SAMPLES, *shared)):
        if key in shared:
            yield f"  {key}: {_scalar(shared[key])}"
        else:
            yield from _comment(*SSH_SAMPLES[key], indent="  ")


def _launch(found: Found, learnt: Learnt) -> Iterator[str]:
    promised, gpus = found.cluster.launch.gpus_per_node, learnt.gpus
    if promised is not None:
        now = f"; {gpus.value} {gpus.why}" if gpus.value not in (None, promised) else ""
        yield _line(f"  gpus_per_node: {promised}", f"by {found.origin}{now}")
    else:
        yield from _learnt("gpus_per_node", gpus, "8")
    yield from _learnt("interface", learnt.interface, "eth1")
    yield from _comment(
        "python: /opt/train/bin/python", "left out: the login shell's python3", indent="  "
    )
    yield from _comment("env: {NCCL_IB_HCA: mlx5}", "the job's environment", indent="  ")


def _expect(learnt: Learnt) -> Iterator[str]:
    yield from _comment('driver: "550.54.15"', "versions in quotes", indent="  ")
    if learnt.mtu.value is not None:
        yield from _comment(f"mtu: {learnt.mtu.value}", learnt.mtu.why, indent="  ")
    if learnt.mounts.value:
        yield _line("  mounts:", learnt.mounts.why)
    for mount in learnt.mounts.value:
        for place, (key, value) in enumerate(mount.items()):
            yield f"    {'  ' if place else '- '}{key}: {_scalar(value)}"


def _learnt(key: str, seen: Seen, sample: str) -> Iterator[str]:
    if seen.value is None:
        yield from _comment(f"{key}: {sample}", f"not learnt: {seen.why}", indent="  ")
    elif not seen.is_sure:
        yield from _comment(f"{key}: {_scalar(seen.value)}", seen.why, indent="  ")
    else:
        yield _line(f"  {key}: {_scalar(seen.value)}", seen.why)


def _comment(text: str, why: str, indent: str = "") -> Iterator[str]:
    """Yield a line that is there to be made use of."""
    yield _line(f"{indent}# {text}", why)


def _line(text: str, why: str) -> str:
    return f"{text:<{COMMENTS - 1}} # {printable(why)}" if why else text


def _shared_ssh(nodes: Sequence[NodeSpec]) -> dict[str, Any]:
    """Return the SSH settings that all nodes have."""
    written = [_own_ssh(node) for node in nodes if node.transport == "ssh"]
    first = written[0] if written else {}
    return {k: v for k, v in first.items() if all(ssh.get(k) == v for ssh in written)}


def _own_ssh(node: NodeSpec) -> dict[str, Any]:
    return node.ssh.model_dump(exclude_unset=True)


def _nodes(nodes: Sequence[NodeSpec], shared: Mapping[str, Any]) -> Iterator[str]:
    """Yield the entries; neighbours that differ by their number only share one."""
    for settings, group in itertools.groupby(nodes, lambda node: _settings(node, shared)):
        alone = "address" in settings
        names = [node.name for node in group]
        for name in names if alone else folded(names):
            yield _flow({"name": name, **settings}) if settings else _scalar(name, block=True)


def _settings(node: NodeSpec, shared: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a node's entry says beside its name."""
    found: dict[str, Any] = {}
    if node.address is not None:
        found["address"] = node.address
    if node.transport != "ssh":
        found["transport"] = node.transport
    if ssh := {k: v for k, v in _own_ssh(node).items() if k not in shared}:
        found["ssh"] = ssh
    return found


def folded(names: Sequence[str]) -> Iterator[str]:
    """Yield expressions that expand to the names, in their order: the first node is the master."""
    for (before, after), group in itertools.groupby(names, _around):
        of_group = [*group]
        if len(of_group) == 1 or before is None:
            yield from of_group
            continue
        digits = [name[len(before) : len(name) - len(after)] for name in of_group]
        yield f"{before}[{','.join(_ranges(digits))}]{after}"


def _around(name: str) -> tuple[str, str] | tuple[None, str]:
    """Return what stands before and behind a name's number; where it has none, None and itself."""
    found = _IPV4.fullmatch(name) if is_address(name) else _NUMBERED.fullmatch(name)
    return (found["before"], found["after"]) if found else (None, name)


def _ranges(digits: Sequence[str]) -> Iterator[str]:
    first = last = digits[0]
    for number in (*digits[1:], ""):
        if number and number == f"{int(last) + 1:0{len(first)}}":
            last = number
            continue
        yield first if first == last else f"{first}-{last}"
        first = last = number


def _flow(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_flow(inside)}" for key, inside in value.items()) + "}"
    return _scalar(value)


def _scalar(value: Any, block: bool = False) -> str:
    """Return a value as YAML; text is quoted unless every reader takes it for text."""
    if isinstance(value, (bool, int, float)):
        return json.dumps(value)
    text = str(value) if isinstance(value, Path) else value
    plain = _PLAIN.fullmatch(text) or (block and _RANGE.fullmatch(text))
    return text if plain and not _WORDS.fullmatch(text) else json.dumps(text, ensure_ascii=False)
