"""The inventory: what the user says about the cluster, as one validated `Cluster`."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Port = Annotated[int, Field(ge=1, le=65535)]
Seconds = Annotated[float, Field(gt=0, le=3600)]


class Model(BaseModel):
    """Frozen, and refuses keys it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class SshSettings(Model):
    """How to log in. What is None comes from `~/.ssh/config`, then from OpenSSH's defaults."""

    user: str | None = None
    port: Port | None = None
    key: Path | None = None
    jump: str | None = None
    """`[user@]host[:port]`, several with commas, as OpenSSH's ProxyJump; `none` for none."""
    become: Literal["sudo"] | None = None
    known_hosts: Path | None = None
    host_keys: Literal["strict", "accept-new"] = "strict"
    python: str | None = None
    connect_timeout_s: Seconds = 10
    login_timeout_s: Seconds = 20


class NodeSpec(Model):
    """One node: its own settings, merged with those of the whole inventory."""

    name: str
    address: str | None = None
    """Where to connect; None: the name, looked up in `~/.ssh/config` and then by DNS."""
    transport: Literal["ssh", "local"] = "ssh"
    ssh: SshSettings = SshSettings()


class Container(Model):
    """Where the job's training environment is, when it is in a container."""

    engine: Literal["docker", "podman", "enroot", "apptainer"] = "docker"
    image: str | None = None
    name: str | None = None


class Launch(Model):
    """How the job will be started."""

    master: str | None = None
    """A node's name; None: the first node."""
    port: Port = 29500
    user: str | None = None
    gpus_per_node: Annotated[int, Field(ge=0, le=64)] | None = None
    interface: str | None = None
    python: str | None = None
    workdir: str | None = None
    container: Container | None = None
    env: dict[str, str] = {}


class Waiver(Model):
    """A failure that someone answers for until a day."""

    check: str
    node: str | None = None
    until: dt.date
    owner: str
    reason: str


class Checks(Model):
    """Which checks run."""

    skip: dict[str, str] = {}
    dirs: tuple[Path, ...] = ()
    require: tuple[str, ...] = ()


class Cluster(Model):
    """The whole inventory, ranges expanded and per-node settings merged."""

    name: str
    source: str | None
    """The inventory's path as the user gave it; None when there is none."""
    nodes: tuple[NodeSpec, ...]
    fanout: Annotated[int, Field(ge=1, le=1024)] = 64
    launch: Launch = Launch()
    expect: dict[str, Any] = {}
    checks: Checks = Checks()
    waivers: tuple[Waiver, ...] = ()

    @property
    def master(self) -> str:
        """The node that rank 0 runs on."""
        return self.launch.master or self.nodes[0].name


def this_machine() -> Cluster:
    """The cluster of one node that `preflight run` checks when it is given no inventory."""
    return Cluster(
        name="this machine", source=None, nodes=(NodeSpec(name="localhost", transport="local"),)
    )
