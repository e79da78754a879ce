"""The inventory: what the user says about the cluster, as one validated `Cluster`.

The file's own shape is `_file_model`; its JSON Schema is derived from it, so that what an
editor completes is what `load` accepts. Docstrings of fields are the schema's descriptions.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PrivateAttr, create_model, model_validator

from preflight.api import Expect
from preflight.json_schema import editor_schema
from preflight.node_names import MAX_NODES, address_problem, is_range, names
from preflight.secrecy import masked
from preflight.values import Amount, Day, Fanout, Jump, Model, Number, Port, Program, Seconds, Text
from preflight.wording import validated
from preflight.yaml_lines import Document, Where, nearest, parse, read_text, shown

_CONTAINER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
"""As docker and podman have it; an ID too. Nothing of it means anything to a shell."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _numbers_too(env: dict[str, Any]) -> None:
    env["additionalProperties"] = {"type": ["string", "number"]}


def _container_name(name: str) -> str:
    if not _CONTAINER.fullmatch(name):
        letters = "letters, digits, '_', '.' and '-', a letter or digit first"
        raise ValueError(f"{shown(name)} is no name of a container: it has {letters}")
    return name


class SshSettings(Model):
    """How to log in. What is left out comes from `~/.ssh/config`, then from OpenSSH's defaults."""

    user: Text | None = None
    """Who logs in."""
    port: Port | None = None
    key: Path | None = None
    """The private key; `~` is expanded, a relative path begins at the inventory's folder."""
    jump: Jump | None = None
    """`[user@]host[:port]`, several with commas, as OpenSSH's ProxyJump; `none` for none."""
    become: Literal["sudo"] | None = None
    """How to become root for the checks that need it; left out: they are skipped."""
    known_hosts: Path | None = None
    host_keys: Literal["strict", "accept-new"] = "strict"
    """What happens to a host key that is not in known_hosts: refused, or added."""
    python: Program | None = None
    """The interpreter that runs the checks, 3.8 or newer; left out: the first `python3*`."""
    connect_timeout_s: Seconds = 10
    login_timeout_s: Seconds = 20


class NodeSpec(Model):
    """One node: its own settings, merged with those of the whole inventory."""

    name: Text
    """A name, or, without an address, a range of them such as `gpu[01-07]`."""
    address: Text | None = None
    """Where to connect; left out: the name, looked up in `~/.ssh/config` and then by DNS."""
    transport: Literal["ssh", "local"] = "ssh"
    """`local`: the machine that preflight is started on."""
    ssh: SshSettings = SshSettings()
    """What differs from the inventory's own `ssh`."""


class Container(Model):
    """Where the job's training environment is, when it is in a container."""

    engine: Literal["docker", "podman", "enroot", "apptainer"] = "docker"
    image: Text | None = None
    """The image that the job starts."""
    name: Annotated[str, AfterValidator(_container_name)] | None = None
    """A container that runs already."""

    @model_validator(mode="after")
    def _either(self) -> Container:
        if (self.image is None) == (self.name is None):
            raise ValueError("give either its image, or the name of one that runs")
        return self


class AllReduce(Model):
    """What does the all_reduce of the checks of collectives."""

    engine: Literal["auto", "nccl-tests", "torch"] = "auto"
    """`auto`: nccl-tests where every node has GPUs and it, and it can be started, else torch."""
    program: Text | None = None
    """The all_reduce_perf of nccl-tests: a path, or a name on PATH; left out: looked for."""


class Launch(Model):
    """How the job will be started."""

    master: Text | None = None
    """The node of rank 0; left out: the first node."""
    port: Port = 29500
    """MASTER_PORT."""
    user: Text | None = None
    """Who runs the job; left out: who logs in."""
    gpus_per_node: Annotated[int, Field(ge=0, le=64)] | None = None
    interface: Text | None = None
    """The network interface of the data plane; left out: what NCCL would choose."""
    python: Text | None = None
    """The job's interpreter; left out: the login shell's `python3`."""
    workdir: Text | None = None
    container: Container | None = None
    all_reduce: AllReduce | None = None
    env: dict[str, str] = Field({}, json_schema_extra=_numbers_too)
    """The job's environment; it goes before the node's own."""


class Waiver(Model):
    """A failure that someone answers for until a day."""

    check: Text
    node: Text | None = None
    """Left out: on every node."""
    until: Day
    """The last day on which it holds."""
    owner: Text
    reason: Text


class Checks(Model):
    """Which checks run."""

    skip: dict[str, Text] = Field({})
    """Checks that do not run here, each with the reason that the report shows."""
    dirs: tuple[Path, ...] = ()
    """Folders with checks of your own; a relative path begins at the inventory's folder."""
    require: tuple[Text, ...] = ()
    """Checks that must say something: where one is skipped, the node is undetermined."""


class Cluster(Model):
    """The whole inventory, ranges expanded and per-node settings merged."""

    name: str
    source: str | None
    """The inventory's path as the user gave it; None when there is none."""
    nodes: tuple[NodeSpec, ...]
    fanout: Fanout = 64
    launch: Launch = Launch()
    expect: dict[str, Any] = Field({})
    checks: Checks = Checks()
    waivers: tuple[Waiver, ...] = ()
    _document: Document | None = PrivateAttr(None)

    @property
    def master(self) -> str:
        """The node that rank 0 runs on."""
        return self.launch.master or self.nodes[0].name

    @property
    def wanted_launch(self) -> dict[str, Any]:
        """What judges and probes are told of the launch: JSON-able, with the master filled in."""
        launch = self.launch.model_dump(mode="json", exclude_none=True)
        return launch | {"master": self.master, "env": masked(self.launch.env)}


class FileSsh(SshSettings):
    """How to log in to every node; a node's own `ssh` goes before it, key by key."""

    fanout: Fanout = 64
    """Logins at the same time."""


class File(Model):
    """What preflight is told about a cluster."""

    cluster: Text | None = None
    """The cluster's name in reports; left out: the file's name."""
    ssh: FileSsh = FileSsh()
    nodes: Annotated[tuple[NodeSpec, ...], Field(min_length=1)]
    """Names, ranges as Slurm writes them, or mappings for nodes that differ."""
    launch: Launch = Launch()
    expect: Model = Model()
    """What every node must have; what is left out must be the same everywhere."""
    checks: Checks = Checks()
    waivers: tuple[Waiver, ...] = ()
    """Failures that do not count for now."""


def this_machine() -> Cluster:
    """The cluster of one node that `preflight run` checks when it is given no inventory."""
    return Cluster(
        name="this machine", source=None, nodes=(NodeSpec(name="localhost", transport="local"),)
    )


def check_dirs(text: str, source: str) -> tuple[Path, ...]:
    """Return the folders under `checks: {dirs: ...}`, for they say which keys `expect:` may have.

    Only a first look: whatever is wrong is said by `load_text`.

    Raises:
        ConfigError: it is not YAML.
    """
    value = parse(text, source).value
    checks = value.get("checks") if isinstance(value, dict) else None
    dirs = checks.get("dirs") if isinstance(checks, dict) else None
    texts = [text for text in dirs if isinstance(text, str)] if isinstance(dirs, list) else []
    # not expanduser, which raises for a user there is not
    places = [Path(source).parent / os.path.expanduser(text) for text in texts]  # noqa: PTH111
    return tuple(place for place in places if _is_folder(place))


def _is_folder(path: Path) -> bool:
    try:
        next(path.iterdir(), None)
    except (OSError, ValueError):
        return False
    return True


def load(path: Path, expects: Sequence[Expect] = ()) -> Cluster:
    """Return the cluster that a file describes.

    Args:
        path: the file.
        expects: the keys that checks declare under `expect:`.

    Raises:
        ConfigError: on one line, what is wrong first in the file, and how much more is.
    """
    return load_text(read_text(path), str(path), expects)


def load_text(text: str, source: str, expects: Sequence[Expect] = ()) -> Cluster:
    """Return the cluster that the text of a file describes.

    Args:
        text: YAML.
        source: the file's name; what is relative in the text begins at its folder.
        expects: the keys that checks declare under `expect:`.

    Raises:
        ConfigError: as `load`.
    """
    document = parse(text, source)
    if not isinstance(document.value, dict):
        document.blame((), "an inventory is keys with values; begin with a line 'nodes:'")
        document.refuse_problems()
    _unify(document.value, document.written)
    file = validated(document, _file_model(expects))
    nodes = _nodes(file, document)
    _check_launch(file.launch, document, nodes)
    for place, waiver in enumerate(file.waivers):
        _check_node(waiver.node, ("waivers", place, "node"), document, nodes)
    dirs = tuple(
        _found(path, ("checks", "dirs", place), document, folder=True)
        for place, path in enumerate(file.checks.dirs)
    )
    document.refuse_problems()
    cluster = Cluster(
        name=file.cluster or Path(source).stem,
        source=source,
        nodes=tuple(nodes.values()),
        fanout=file.ssh.fanout,
        launch=file.launch,
        expect=file.expect.model_dump(exclude_unset=True),
        checks=file.checks.model_copy(update={"dirs": dirs}),
        waivers=file.waivers,
    )
    cluster._document = document
    return cluster


def check_ids(cluster: Cluster, known: Collection[str], kept: str) -> None:
    """Refuse checks that the inventory names and that are not known.

    Args:
        cluster: from a file.
        known: ids and groups.
        kept: the check that no run leaves out.

    Raises:
        ConfigError: as `load`.
    """
    document = cluster._document
    if document is None:
        return
    named: list[tuple[Where, str]] = [
        *((("checks", "skip", name), name) for name in cluster.checks.skip),
        *((("checks", "require", i), name) for i, name in enumerate(cluster.checks.require)),
        *((("waivers", i, "check"), waiver.check) for i, waiver in enumerate(cluster.waivers)),
    ]
    for where, name in named:
        if name not in known:
            advice = nearest(name, known) or "; `preflight checks` lists them"
            document.blame(where, f"there is no check {shown(name)}{advice}")
        elif where[1] == "skip" and f"{kept}.".startswith(f"{name}."):
            document.blame(where, f"{shown(name)} includes {kept}, which cannot be left out")
    document.refuse_problems()


def schema(expects: Sequence[Expect] = ()) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of an inventory, for editors.

    Args:
        expects: the keys that checks declare under `expect:`.
    """
    found = editor_schema(_file_model(expects))
    found["$defs"]["NodeSpec"] = {"anyOf": [{"type": "string"}, found["$defs"]["NodeSpec"]]}
    return found


def _file_model(expects: Sequence[Expect]) -> type[File]:
    expect = _fields_model("Expect", expects)
    about = Field(expect(), description=File.model_fields["expect"].description)
    return create_model("Inventory", __base__=File, __doc__=File.__doc__, expect=(expect, about))


def _fields_model(name: str, expects: Sequence[Expect]) -> type[Model]:
    fields: dict[str, Any] = {}
    for expect in expects:
        about = " ".join(filter(None, (expect.about, expect.unit and f"({expect.unit})")))
        default = ... if expect.required else None
        kind = _kind(f"{name}_{expect.key}", expect)
        fields[expect.key] = (kind, Field(default, description=about or None))
    return create_model(name, __base__=Model, **fields)


def _kind(name: str, expect: Expect) -> Any:
    inside: Any = _fields_model(name, expect.fields) if expect.fields else None
    if expect.type is list:
        return list[inside or str]  # type: ignore[misc]
    if expect.type is dict:
        return inside or dict[str, Any]
    return {float: Number, int: Amount}.get(expect.type, expect.type)


def _unify(value: dict[str, Any], written: dict[Where, str]) -> None:
    """Make each node a mapping, and numbers in the environment the text they are written as."""
    nodes = value.get("nodes")
    if isinstance(nodes, list):
        value["nodes"] = [
            {"name": node} if isinstance(node, (str, int, float)) else node for node in nodes
        ]
    launch = value.get("launch")
    env = launch.get("env") if isinstance(launch, dict) else None
    if isinstance(env, dict):
        env.update({name: written.get(("launch", "env", name), env[name]) for name in env})


def _nodes(file: File, document: Document) -> dict[str, NodeSpec]:
    """Return the nodes by name; what is wrong with them is noted in the document."""
    shared = _settings(file.ssh, ("ssh",), document)
    nodes: dict[str, NodeSpec] = {}
    lines: dict[str, int] = {}
    for place, entry in enumerate(file.nodes):
        where = ("nodes", place)
        ssh = SshSettings(**(shared | _settings(entry.ssh, (*where, "ssh"), document)))
        for name in _names(entry, where, document):
            if name in nodes:
                document.blame(
                    where, f"{name!r} is there already, on line {lines[name]}; remove one"
                )
                break
            nodes[name] = entry.model_copy(update={"name": name, "ssh": ssh})
            lines[name] = document.line(where)
        if len(nodes) > MAX_NODES:
            document.blame(where, f"more than {MAX_NODES:,} nodes up to here, which is the most")
            break
    return nodes


def _names(entry: NodeSpec, where: Where, document: Document) -> tuple[str, ...]:
    if entry.address is not None:
        if problem := address_problem(entry.address):
            document.blame((*where, "address"), problem)
        if is_range(entry.name):
            document.blame(
                (*where, "address"), "is one address for several nodes; write each node by itself"
            )
    try:
        return names(entry.name)
    except ValueError as error:
        document.blame(where, str(error))
        return ()


def _settings(ssh: SshSettings, where: Where, document: Document) -> dict[str, Any]:
    """Return what is written under an `ssh:`, its files found."""
    found = ssh.model_dump(exclude_unset=True, exclude={"fanout"})
    for name in {"key", "known_hosts"} & found.keys():
        found[name] = _found(found[name], (*where, name), document, absent=name == "known_hosts")
    return found


def _found(
    path: Path, where: Where, document: Document, folder: bool = False, absent: bool = False
) -> Path:
    """Return the path as seen from the inventory's folder; it must be readable."""
    try:
        path = Path(document.source).parent / path.expanduser()
        if folder:
            next(path.iterdir(), None)
        else:
            path.open("rb").close()
    except FileNotFoundError:
        if not absent:
            kind = "folder" if folder else "file"
            document.blame(where, f"there is no {kind} {shown(str(path))}")
    except OSError as error:
        why = str(error.strerror).lower()
        document.blame(where, f"{shown(str(path))} cannot be read: {why}")
    except RuntimeError:  # a home that cannot be determined
        document.blame(where, f"{shown(str(path))}: there is no such home folder")
    return path


def _check_launch(launch: Launch, document: Document, nodes: Collection[str]) -> None:
    _check_node(launch.master, ("launch", "master"), document, nodes)
    for name in launch.env:
        if not _VARIABLE.fullmatch(name):
            document.blame(
                ("launch", "env", name),
                "is not the name of a variable (letters, digits, underscores)",
            )


def _check_node(name: str | None, where: Where, document: Document, nodes: Collection[str]) -> None:
    if name is not None and name not in nodes:
        document.blame(where, f"{shown(name)} is not one of the nodes{nearest(name, nodes)}")
