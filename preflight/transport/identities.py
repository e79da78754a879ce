"""Which keys are offered to a server, in which order, and why others are not."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from preflight.errors import ConfigError, TransportError, printable
from preflight.transport.agent import Agent, AgentKey
from preflight.transport.destination import Destination
from preflight.transport.key_files import (
    CERTIFICATE,
    KeyFile,
    PublicKey,
    Sign,
    certified_key,
    read_key,
    read_public,
)
from preflight.transport.known_hosts import fingerprint
from preflight.transport.ssh_config import home

OTHER_KEY = "name another in ssh.key, or by IdentityFile in ~/.ssh/config"


class Identity(NamedTuple):
    """One offer: a key, or a certificate for it, and the file's or the agent's signature."""

    label: str
    public: PublicKey
    sign: Sign


class Offer(NamedTuple):
    """What is tried, and the reasons for which more is not."""

    identities: tuple[Identity, ...]
    problems: tuple[TransportError, ...]


class Offers:
    """The offers of a run: key files and the agent's list are read once, not once a node."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: dict[object, Offer] = {}

    def to(self, there: Destination) -> Offer:
        """Return the keys for a destination: those the user named, the agent's, the default files.

        Unlike ssh(1), a named key goes before the agent's others: a server takes six at most.
        """
        source = (there.keys, there.only_keys, there.certificates, there.agent)
        with self._lock:
            if source not in self._made:
                self._made[source] = _Making(there).all()
            return self._made[source]


def see_key(path: Path | None) -> None:
    """See that the key that the inventory names is one.

    Raises:
        ConfigError: it is not there, or no key.
    """
    if path is None:
        return
    path = path.expanduser()
    problem: OSError | ValueError | None = None
    try:
        file = read_key(path)
        if file.private or file.public:
            return
    except (OSError, ValueError) as error:
        problem = error
    raise ConfigError(f"ssh.{key_problem(path, problem).message.replace(' ', ': ', 1)}")


def tilde(path: Path) -> str:
    """Return a path as the user would write it."""
    return f"~/{path.relative_to(home())}" if path.is_relative_to(home()) else str(path)


def key_problem(path: Path, error: OSError | ValueError | None) -> TransportError:
    """Return why a key file is of no use."""
    name = repr(tilde(path))
    if isinstance(error, FileNotFoundError):
        return TransportError("key missing", f"key {name} does not exist", OTHER_KEY)
    if isinstance(error, OSError):
        reason = (error.strerror or "").lower()
        return TransportError("key unreadable", f"key {name} cannot be read: {reason}", OTHER_KEY)
    message = f"key {name} is not a private key that ssh can use"
    return TransportError("not a private key", message, OTHER_KEY)


class _Making:
    def __init__(self, there: Destination) -> None:
        self._there = there
        self._agent = Agent(there.agent) if there.agent else None
        self._problems: list[TransportError] = []
        self._held = tuple(self._agent_keys())

    def all(self) -> Offer:
        there = self._there
        found = [identity for path in there.keys for identity in self._file(path)]
        if not there.only_keys:
            found += [self._of_agent(key) for key in self._held]
        for path in there.default_keys:
            if path.exists():
                found += self._file(path)
        once = {identity.public.blob: identity for identity in reversed(found)}
        return Offer(tuple(reversed(once.values())), tuple(self._problems))

    def _agent_keys(self) -> Iterable[AgentKey]:
        try:
            return self._agent.keys() if self._agent else ()
        except OSError as error:
            message = f"the ssh-agent cannot be used: {(error.strerror or str(error)).lower()}"
            hint = "see `ssh-add -l`; SSH_AUTH_SOCK may lead to one that has ended"
            self._problems.append(TransportError("agent", message, hint))
            return ()

    def _file(self, path: Path) -> Iterator[Identity]:
        try:
            file = read_key(path)
        except (OSError, ValueError) as error:
            self._problems.append(key_problem(path, error))
            return
        if not file.private and not file.public:
            self._problems.append(key_problem(path, None))
            return
        held = [key for key in self._held if file.public and key.blob == file.public.blob]
        sign = file.sign or (self._signing(held[0].blob) if held else None)
        if not sign or not file.public:
            self._problems.append(self._locked(file))
            return
        for name, certificate in self._certificates(file.path, file.public):
            yield Identity(f"certificate {name}", certificate, sign)
        yield Identity(f"publickey {tilde(path)}", file.public, sign)

    def _certificates(self, path: Path, public: PublicKey) -> Iterator[tuple[str, PublicKey]]:
        beside = path.with_name(f"{path.name.removesuffix('.pub')}-cert.pub")
        for candidate in (beside, *self._there.certificates):
            found = read_public(candidate)
            if found and certified_key(found) == public.blob:
                yield tilde(candidate), found

    def _of_agent(self, key: AgentKey) -> Identity:
        kind = key.blob[4 : 4 + int.from_bytes(key.blob[:4], "big")].decode("ascii", "replace")
        public = PublicKey(kind, key.blob)
        plain = certified_key(public) if kind.endswith(CERTIFICATE) else None
        name = printable(f"{kind} {fingerprint(plain or key.blob)} {key.comment}")
        return Identity(f"agent {name}", public, self._signing(key.blob))

    def _signing(self, blob: bytes) -> Sign:
        agent = self._agent

        def sign(data: bytes, algorithm: str) -> bytes:
            return agent.sign(blob, data, algorithm) if agent else b""

        return sign

    def _locked(self, file: KeyFile) -> TransportError:
        name = tilde(file.path)
        reason = "the ssh-agent does not hold it" if self._agent else "there is no ssh-agent"
        if not file.private:
            message = f"{name!r} is the public half of a key, and {reason}"
            hint = f"give ssh.key the private half, {name.removesuffix('.pub')}"
            return TransportError("not a private key", message, hint)
        start = "" if self._agent else 'eval "$(ssh-agent)" && '
        kind, why = "key with a passphrase", "has a passphrase"
        if not file.encrypted:
            kind, why = "key needs an agent", "is of a kind that only an ssh-agent can use"
        return TransportError(kind, f"key {name!r} {why}, and {reason}", f"{start}ssh-add {name}")
