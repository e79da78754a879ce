"""Whether a server's host key is the one that is known, and what to say when it is not."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence

from preflight.errors import TransportError
from preflight.transport.destination import Destination
from preflight.transport.known_hosts import DEFAULT_PORT, Entry, HostKey, Known, KnownHosts, same


class Trust:
    """The known hosts of a run, asked about one server at a time."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._files = KnownHosts(warn)

    def types(self, there: Destination) -> frozenset[str]:
        """Return the key types known of a host, those to ask the server for first.

        Raises:
            ConfigError: a known_hosts file cannot be read.
        """
        keys = next((known.keys for known in self._known(there) if known.keys), ())
        return frozenset(entry.key.type for entry in keys)

    def check(self, there: Destination, key: HostKey) -> None:
        """Accept the key, remember it where that was asked for, or refuse.

        Raises:
            TransportError: unknown, changed or revoked.
        """
        authorities: list[Entry] = []
        for position, known in enumerate(self._known(there)):
            revoked = same(known.revoked, key)
            if revoked:
                raise _revoked(there, key, revoked)
            if same(known.keys, key):
                return
            if known.keys and position == 0:
                raise _changed(there, key, known.keys)
            authorities += known.authorities
        if not there.accept_new or not there.known_hosts:
            raise _unknown(there, key, authorities)
        self._remember(there, key)

    def _known(self, there: Destination) -> Iterator[Known]:
        files = (*there.known_hosts, *there.global_known_hosts)
        return (self._files.lookup(files, name) for name in there.names)

    def _remember(self, there: Destination, key: HostKey) -> None:
        file = self._files.file(there.known_hosts[0])
        try:
            added = file.append(there.names[0], key)
        except OSError as error:
            reason = (error.strerror or "").lower()
            self._warn(f"{file.path}: host key of {there.names[0]} not added: {reason}")
            return
        if added:
            self._warn(f"{file.path}: new host key of {there.names[0]} added: {key}")


def _revoked(there: Destination, key: HostKey, line: Entry) -> TransportError:
    return TransportError(
        "host key revoked",
        f"{there.address}: host key {key} is revoked by {line.where}",
        "do not log in: give the machine a new host key, and find out why this one was revoked",
    )


def _changed(there: Destination, key: HostKey, lines: tuple[Entry, ...]) -> TransportError:
    old = ", ".join(f"{line.key} ({line.where})" for line in lines)
    file = shlex.quote(lines[0].where.rpartition(":")[0])
    name = shlex.quote(there.names[0])
    return TransportError(
        "host key changed",
        f"{there.address}: host key changed: known {old}, but the server shows {key}",
        f"if the machine was reinstalled: ssh-keygen -f {file} -R {name}; if not, do not log in",
    )


def _unknown(there: Destination, key: HostKey, authorities: Sequence[Entry]) -> TransportError:
    port = "" if there.port == DEFAULT_PORT else f" -p {there.port}"
    kind = "host key unknown" if there.known_hosts else "no known_hosts"
    if not there.known_hosts:
        then = "set ssh.known_hosts, for there is no file to add it to: UserKnownHostsFile is none"
    elif there.via or there.proxy_command:
        then = f"ssh{port} {there.host}; or set ssh.host_keys: accept-new"
    else:
        file = shlex.quote(there.known_hosts[0])
        then = f"ssh-keyscan{port} {there.host} >> {file}; or set ssh.host_keys: accept-new"
    note = ""
    if authorities:
        note = (
            f"; {authorities[0].where} trusts a certificate authority for it, "
            "but host certificates cannot be verified here"
        )
    return TransportError(
        kind,
        f"{there.address}: host key {key} is not known{note}",
        f"compare it with the machine's own, then: {then}",
    )
