"""The demo's cluster: a folder with inventory and keys, and while it is up a server a node."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shlex
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import yaml

from preflight import catalog, inventory
from preflight.api import Want
from preflight.demo import stand_in
from preflight.demo.answered import unanswered
from preflight.demo.server import HOST, Server, new_key
from preflight.errors import ConfigError
from preflight.recording import Recording

INVENTORY, KEY, KNOWN_HOSTS = "inventory.yaml", "id_ed25519", "known_hosts"
MARK = "# Written anew by each `preflight demo`: to change it, change a copy."
"""First line of the inventory: by it a folder is known as the demo's own."""
HEAD = f"""{MARK}
# The nodes are simulated: behind each port is an SSH server whose Python answers from a recording.
cluster: demo (simulated nodes)
ssh: {{user: alice, key: {KEY}, known_hosts: {KNOWN_HOSTS}, jump: none}}
nodes:
"""
PYTHON = """#!/bin/sh
exec {python} -E -s -S -B {script} "$@"
"""
"""The only program of a simulated node besides its shell."""


@contextlib.contextmanager
def up(folder: Path, nodes: Mapping[str, Recording]) -> Iterator[Path]:
    """Have the nodes up for the length of a `with` block; gives the inventory.

    Args:
        folder: keeps inventory and keys afterwards.
        nodes: recordings by name; the first one's `want` is the inventory's.

    Raises:
        ConfigError: the folder is another's, or cannot be written.
    """
    logging.getLogger("paramiko").setLevel(logging.CRITICAL + 1)  # it would write on the terminal
    client, client_text = new_key()
    host_key, _ = new_key()
    with claimed(folder), tempfile.TemporaryDirectory(prefix="preflight-demo-") as made:
        programs = furnished(Path(made))
        entries: list[dict[str, object]] = []
        with contextlib.ExitStack() as ending:
            for name, recording in nodes.items():
                file = Path(made, f"{name}.json")
                file.write_text(recording.to_json(), encoding="utf-8")
                environment = {"PATH": str(programs), "HOME": made, stand_in.RECORDING: str(file)}
                server = Server(host_key, client, {**os.environ, **environment})
                ending.callback(server.close)
                entries.append({"name": name, "address": HOST, "ssh": {"port": server.port}})
            # whatever a HostKeyAlias of the user's makes of the name
            known = f"* {host_key.get_name()} {host_key.get_base64()}\n"
            first = next(iter(nodes.values()))
            write(
                folder, {INVENTORY: written(entries, first), KNOWN_HOSTS: known, KEY: client_text}
            )
            if skips := unanswered_by(nodes, folder / INVENTORY):
                write(folder, {INVENTORY: written(entries, first, skips)})
            yield folder / INVENTORY


def unanswered_by(nodes: Mapping[str, Recording], path: Path) -> dict[str, str]:
    """Return the checks to be left out where an inventory's nodes are recordings, with reasons.

    Raises:
        ConfigError: what the first recording's inventory wants is wrong.
    """
    known = catalog.load()
    cluster = inventory.load(path, known.expects)
    want = Want(cluster.wanted_launch, cluster.expect, list(nodes))
    return unanswered(known.values(), nodes.values(), want)


@contextlib.contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Make a folder, or take the demo's own of an earlier time; no two demos have one at a time.

    Raises:
        ConfigError: it is another's, in use, or cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder, os.O_RDONLY)
    except FileExistsError as error:
        raise ConfigError(f"{folder}: is a file; name a folder with --folder") from error
    except OSError as error:
        why = str(error.strerror).lower()
        raise ConfigError(f"{folder}: cannot be made: {why}; name another with --folder") from error
    try:
        see_own(folder, lock)
        yield
    finally:
        os.close(lock)


def see_own(folder: Path, lock: int) -> None:
    """Take the lock, and see that nothing of another's would be overwritten.

    Raises:
        ConfigError: no lock, or files that are not the demo's.
    """
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise ConfigError(
            f"{folder}: another `preflight demo` uses it; end that one, or name another --folder"
        ) from error
    if not is_own(folder):
        raise ConfigError(
            f"{folder}: is not empty, and not of an earlier demo; name another with --folder"
        )


def is_own(folder: Path) -> bool:
    """Whether a folder is empty, or the demo's of an earlier time."""
    try:
        with (folder / INVENTORY).open(encoding="utf-8") as file:
            return file.readline().rstrip() == MARK
    except (OSError, UnicodeDecodeError):
        return next(folder.iterdir(), None) is None


def furnished(folder: Path) -> Path:
    """Return a folder of programs, which is the whole PATH of a node.

    So the agent cannot come to see this machine, even where this script may not be executed.
    """
    programs = folder / "bin"
    programs.mkdir()
    (programs / "sh").symlink_to("/bin/sh")
    python = programs / "python3"
    words = {"python": shlex.quote(sys.executable), "script": shlex.quote(stand_in.__file__)}
    python.write_text(PYTHON.format(**words), encoding="utf-8")
    python.chmod(0o755)
    return programs


def written(
    entries: list[dict[str, object]], first: Recording, skips: Mapping[str, str] | None = None
) -> str:
    """Return the inventory's text."""
    lines = [
        "  - " + yaml.safe_dump(entry, default_flow_style=True, sort_keys=False, width=200)
        for entry in entries
    ]
    launch = {name: value for name, value in first.want.launch.items() if name != "master"}
    checks = {"skip": skips} if skips else {}
    more = {"launch": launch, "expect": first.want.expect, "checks": checks}
    said = {name: value for name, value in more.items() if value}
    return (
        HEAD + "".join(lines) + (yaml.safe_dump(said, sort_keys=False, width=200) if said else "")
    )


def write(folder: Path, files: Mapping[str, str]) -> None:
    """Write the demo's files, for this user's eyes only.

    Raises:
        ConfigError: one cannot be written.
    """
    for name, text in files.items():
        path = folder / name
        try:
            path.unlink(missing_ok=True)
            path.touch(mode=0o600)
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            why = str(error.strerror).lower()
            raise ConfigError(f"{path}: cannot write: {why}; name another with --folder") from error
