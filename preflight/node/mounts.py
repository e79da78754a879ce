"""Mounts of a node, and whether those that may hang do answer.

Sent to nodes: stdlib only, Python 3.8.
"""

from __future__ import annotations

import re
from typing import Any, Mapping, Sequence, TypedDict

from preflight.api import Node, Unobservable, Want

TABLE = "/proc/self/mountinfo"
NETWORK = frozenset(
    (
        *("nfs", "nfs4", "lustre", "beegfs", "gpfs", "ceph", "glusterfs", "cifs", "smb3", "9p"),
        *("virtiofs", "wekafs", "panfs", "orangefs", "afs", "fuse.ceph-fuse", "fuse.glusterfs"),
        *("fuse.juicefs", "fuse.gpfs", "fuse.weka"),
    )
)
TRANSIENT = (
    *("/run/user/", "/run/containerd/", "/var/lib/kubelet/", "/var/lib/docker/"),
    *("/var/lib/containers/", "/proc/", "/sys/"),
)
"""Below these, mounts belong to one session, container or pod of one node."""
MOST_VISITS = 32
"""Mounts that are visited, besides the expected ones: each visit costs a process."""


class Mount(TypedDict):
    """One line of the mount table."""

    path: str
    type: str
    source: str
    """With the directory inside it, where only a part of it is mounted."""
    options: list[str]
    device: str


class Place(TypedDict):
    """An expected path: where it leads, and the mount that it lies on."""

    real: str
    mount: Mount


class Answer(TypedDict):
    """A visit, see `preflight.api.Visit`."""

    error: str
    readable: bool
    writable: bool
    seconds: float


class Mounts(TypedDict):
    """What a node has mounted over the network, and where it was expected to have something."""

    user: str
    """The login user by its own word, $USER; empty if there is none."""
    network: list[Mount]
    automounts: list[str]
    """Paths at or below which something is mounted when somebody goes there."""
    expected: dict[str, Place]
    visits: dict[str, Answer]


def expected_paths(want: Want) -> tuple[list[str]]:
    """Return the arguments of `mounts`."""
    return (sorted({normal(entry["path"]) for entry in want.get("expect.mounts", ())}),)


def normal(path: str) -> str:
    """Return a path without a slash at its end."""
    return path.rstrip("/") or "/"


def mounts(node: Node, expected: Sequence[str]) -> Mounts:
    """Return what is mounted, and how each network mount and each expected path answers.

    The expected paths are visited first: an automounter mounts what is visited.
    Source: /proc/self/mountinfo (proc_pid_mountinfo(5)), stat(2), statvfs(3) and access(2).
    """
    visits = dict(node.visit(expected)) if expected else {}
    top = {mount["path"]: mount for mount in table(node)}
    shared = [mount for mount in top.values() if is_network(mount)]
    one_each = {mount["device"]: mount["path"] for mount in reversed(shared)}
    others = [path for path in one_each.values() if path not in visits][:MOST_VISITS]
    visits.update(node.visit(others) if others else {})
    return Mounts(
        user=node.environ().get("USER", ""),
        network=shared,
        automounts=[mount["path"] for mount in top.values() if mount["type"] == "autofs"],
        expected={
            path: Place(real=real, mount=top[holder(top, real)])
            for path, real in ((path, visits[path].real or path) for path in expected)
        },
        visits={
            path: Answer(
                error=visit.error,
                readable=visit.readable,
                writable=visit.writable,
                seconds=visit.seconds,
            )
            for path, visit in visits.items()
        },
    )


def table(node: Node) -> list[Mount]:
    """Return the mount table in its order; of several mounts on one path the last one is seen.

    Raises:
        Unobservable: there is none, or it is larger than what is read of a file.
    """
    text = node.read(TABLE)
    if not text:
        raise Unobservable(f"{TABLE} does not exist: is /proc mounted?")
    if not text.endswith("\n"):
        raise Unobservable(f"{TABLE} is too large to be read")
    return [parsed(line) for line in text.splitlines()]


def parsed(line: str) -> Mount:
    """Return one line of mountinfo; its last fields come behind a lone dash."""
    left, right = line.split(" - ", 1)
    _, _, device, root, path, options = left.split(" ")[:6]
    kind, source, more = right.split(" ")[:3]
    source = plain(source)
    if root not in {"/", source}:  # a bind mount, or a subdirectory of the file system
        source = f"{source}[{plain(root)}]"
    both = {*options.split(","), *more.split(",")}
    if "ro" in both:  # either one makes it read-only
        both.discard("rw")
    return Mount(
        path=plain(path), type=kind, source=source, options=sorted(both - {""}), device=device
    )


def plain(field: str) -> str:
    r"""Return a field with its octal escapes decoded: \040 is a space."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found.group(1), 8)), field)


def is_network(mount: Mapping[str, Any]) -> bool:
    """Whether several nodes may see the same files in it."""
    if mount["path"].startswith(TRANSIENT):
        return False
    fuse = mount["type"].startswith("fuse") and re.match(r"[^/\s]+:|//", mount["source"])
    return mount["type"] in NETWORK or bool(fuse)


def holder(paths: Mapping[str, Any], path: str) -> str:
    """Return the mount point that a path without links lies on.

    Raises:
        Unobservable: not even `/` is in the table, as after chroot(2).
    """
    place = path
    while place not in paths:
        if place in {"/", ""}:
            raise Unobservable(f"{TABLE} has no mount that holds {path!r}")
        place = place.rsplit("/", 1)[0] or "/"
    return place
