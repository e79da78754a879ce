"""Where one login goes and how: inventory over `ssh_config` over OpenSSH's defaults."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from preflight.errors import ConfigError
from preflight.inventory import NodeSpec, SshSettings
from preflight.node_names import is_address
from preflight.transport.dial import endpoint
from preflight.transport.known_hosts import DEFAULT_PORT, host_name
from preflight.transport.ssh_config import Settings, SshConfig, expand, home, local_user

DEFAULT_KEYS = ("id_rsa", "id_ecdsa", "id_ecdsa_sk", "id_ed25519", "id_ed25519_sk")
"""Under ~/.ssh, in the order of ssh(1)."""
MAX_HOPS = 8
"""Jump hosts in a row; more are taken for a loop."""

_JUMP = re.compile(r"(?:ssh://)?(?:(.+)@)?(\[[^\[\]]+\]|[^:\[\]]+|[0-9a-fA-F:]{3,})(?::(\d+))?")
_PORT = re.compile("[0-9]{1,5}")


@dataclass(frozen=True)
class Destination:
    """One server to log in to, and the one it is reached through, if any."""

    host: str
    port: int
    user: str
    names: tuple[str, ...]
    """What it may be called in known_hosts; a key under any but the first can only confirm."""
    keys: tuple[Path, ...]
    """Key files that the user named."""
    only_keys: bool
    """Whether keys that the user did not name are left alone."""
    certificates: tuple[Path, ...]
    agent: str | None
    via: Destination | None
    proxy_command: str | None
    known_hosts: tuple[str, ...]
    """The user's own files; a new key goes to the first."""
    global_known_hosts: tuple[str, ...]
    accept_new: bool
    connect_timeout_s: float
    login_timeout_s: float

    @property
    def address(self) -> str:
        """`host:port`."""
        return endpoint(self.host, self.port)

    @property
    def default_keys(self) -> tuple[Path, ...]:
        """The key files that ssh tries when none is named."""
        return () if self.keys else tuple(home() / ".ssh" / name for name in DEFAULT_KEYS)


def destination(spec: NodeSpec, config: SshConfig) -> Destination:
    """Return where the login on a node goes; its `address` is used as one would with `ssh`.

    But an IP address goes before HostName: the inventory has said where the node is.

    Raises:
        ConfigError: a setting that cannot be used.
    """
    fixed = spec.address is not None and is_address(spec.address)
    return _Route(spec.ssh, config).to(spec.address or spec.name, fixed)


class _Route:
    """The destinations of one node: the last is the node, the others its jump hosts."""

    def __init__(self, ssh: SshSettings, config: SshConfig) -> None:
        self._ssh = ssh
        self._config = config

    def to(self, name: str, fixed: bool) -> Destination:
        ssh = self._ssh
        found = self._config.lookup(name, ssh.user)
        if fixed:
            found = {**found, "hostname": ["%h"]}
        there = self._server(name, found, ssh.user, ssh.port)
        if ssh.key:
            there = replace(there, keys=(ssh.key.expanduser(),), only_keys=True)
        if ssh.jump:
            return replace(there, via=self._hops(ssh.jump, 1), proxy_command=None)
        return self._through(there, name, found, 1)

    def _hop(self, text: str, depth: int) -> tuple[Destination, str, Settings]:
        match = _JUMP.fullmatch(text.strip())
        if match is None:
            raise ConfigError(f"~/.ssh/config: ProxyJump {text!r} is not [user@]host[:port]")
        if depth > MAX_HOPS:
            raise ConfigError(
                f"~/.ssh/config: more than {MAX_HOPS} jump hosts in a row, the last is {text!r}"
            )
        user, host, port = match.groups()
        host = host.strip("[]")
        found = self._config.lookup(host, user)
        user = user and _name("ProxyJump", user)
        there = self._server(host, found, user, _port(f"ProxyJump {text!r}: port", port))
        if self._ssh.key:
            # ssh(1) keeps -i from jump hosts, but the inventory has no other place to say it
            there = replace(there, keys=(*there.keys, self._ssh.key.expanduser()))
        return there, host, found

    def _hops(self, jump: str, depth: int) -> Destination | None:
        if jump.lower() == "none":
            return None
        first, *others = jump.split(",")
        hop, name, found = self._hop(first, depth)
        hop = self._through(hop, name, found, depth + 1)
        for number, text in enumerate(others, depth + 1):
            hop = replace(self._hop(text, number)[0], via=hop, proxy_command=None)
        return hop

    def _through(self, there: Destination, name: str, found: Settings, depth: int) -> Destination:
        """Add the proxy that ssh_config names; of the two kinds the one that comes first counts."""
        first = next((word for word in found if word in {"proxyjump", "proxycommand"}), None)
        if first == "proxyjump":
            jump = expand(found[first][0], _tokens(there, name))
            return replace(there, via=self._hops(jump, depth))
        if first == "proxycommand" and found[first][0].lower() != "none":
            command = expand(found[first][0], _tokens(there, name))
            return replace(there, proxy_command=command)
        return there

    def _server(
        self, name: str, found: Settings, user: str | None, port: int | None
    ) -> Destination:
        def one(keyword: str) -> str | None:
            return found.get(keyword, [None])[0]

        host = _name("HostName", expand(one("hostname") or "%h", {"h": name}))
        number = port or _port("Port", one("port")) or DEFAULT_PORT
        alias = _name("HostKeyAlias", one("hostkeyalias") or "")
        files = home() / ".ssh"
        agent = one("identityagent") or "SSH_AUTH_SOCK"
        ssh = self._ssh
        there = Destination(
            host=host,
            port=number,
            user=user or _name("User", one("user") or local_user()),
            names=(alias.lower(),) if alias else _names(host, number),
            keys=(),
            only_keys=_yes(one("identitiesonly")),
            certificates=(),
            agent=None,
            via=None,
            proxy_command=None,
            known_hosts=(),
            global_known_hosts=(),
            accept_new=ssh.host_keys == "accept-new",
            connect_timeout_s=ssh.connect_timeout_s,
            login_timeout_s=ssh.login_timeout_s,
        )
        tokens = _tokens(there, name)
        users = found.get("userknownhostsfile", [f"{files}/known_hosts", f"{files}/known_hosts2"])
        machines = found.get(
            "globalknownhostsfile", ["/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2"]
        )
        return replace(
            there,
            keys=tuple(_paths(found.get("identityfile", []), tokens)),
            certificates=tuple(_paths(found.get("certificatefile", []), tokens)),
            agent=_agent(agent, tokens),
            known_hosts=(str(ssh.known_hosts.expanduser()),)
            if ssh.known_hosts
            else tuple(map(str, _paths(users, tokens))),
            global_known_hosts=tuple(map(str, _paths(machines, tokens))),
        )


def _names(host: str, port: int) -> tuple[str, ...]:
    # off port 22, OpenSSH falls back on the name without the port
    return tuple(dict.fromkeys((host_name(host, port), host_name(host, DEFAULT_PORT))))


def _tokens(there: Destination, name: str) -> dict[str, str]:
    return {
        "h": there.host,
        "n": name,
        "p": str(there.port),
        "r": there.user,
        "k": there.names[0],
        "d": str(home()),
        "u": local_user(),
        "i": str(os.getuid()),
        "l": os.uname().nodename,
        "L": os.uname().nodename.split(".")[0],
    }


def _paths(values: list[str], tokens: dict[str, str]) -> Iterator[Path]:
    for value in values:
        if value.lower() != "none":
            yield Path(expand(value, tokens))


def _agent(value: str, tokens: dict[str, str]) -> str | None:
    if value.lower() == "none":
        return None
    if value == "SSH_AUTH_SOCK" or (value.startswith("$") and "{" not in value):
        return os.environ.get(value.removeprefix("$")) or None
    return expand(value, tokens)


def _name(keyword: str, value: str) -> str:
    """Return a name that stands in reports and goes over the wire: it must be text."""
    if not value.isprintable():
        raise ConfigError(f"~/.ssh/config: {keyword} {value!r}: has a character that no name has")
    return value


def _port(what: str, value: str | None) -> int | None:
    if value is None:
        return None
    if not _PORT.fullmatch(value) or not 0 < int(value) < 65536:
        raise ConfigError(f"~/.ssh/config: {what} {value!r} is not a port from 1 to 65535")
    return int(value)


def _yes(value: str | None) -> bool:
    return value is not None and value.lower() in {"yes", "true"}
