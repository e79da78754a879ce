"""Mounts of a node, and whether those that may hang do answer.

Sent to nodes: stdlib only, Python 3.8.
"""

from __future__ import annotations

import fnmatch
import re
from typing import Any, Mapping, Sequence, TypedDict

from preflight.api import Node, Unobservable, Want

TABLE = "/proc/self/mountinfo"
NETWORK = frozenset(
    (
        *("nfs", "nfs4", "lustre", "beegfs", "gpfs", "ceph", "glusterfs", "cifs", "smb3", "9p"),
        *("virtiofs", "wekafs", "panfs", "orangefs", "afs", "fuse.ceph-fuse", "fuse.glusterfs"),
        *("fuse.juicefs", "fuse.JuiceFS", "fuse.gpfs", "fuse.weka", "fuse.gcsfuse", "fuse.s3fs"),
        *("fuse.mountpoint-s3", "fuse.goofys", "fuse.geesefs", "fuse.blobfuse", "fuse.blobfuse2"),
        *("fuse.dfuse", "fuse.daos", "fuse.hf3fs", "fuse.quobyte", "fuse.mfs", "fuse.seaweedfs"),
        *("fuse.alluxio-fuse", "fuse.orangefs", "fuse.cvmfs2", "cvmfs", "pvfs2", "gfs2", "ocfs2"),
    )
)
SCALE_OUT = frozenset(
    (
        *("wekafs", "fuse.weka", "lustre", "ceph", "fuse.ceph-fuse", "beegfs", "gpfs", "panfs"),
        *("glusterfs", "fuse.glusterfs"),
    )
)
"""Of these any of many servers leads to the file system, and clients name them as it comes."""
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


def split(source: str) -> tuple[str, str]:
    """Return server and path of a source such as `nas01:/export` or `//nas01/share`."""
    if source.startswith("//"):
        server, _, path = source[2:].partition("/")
    else:
        server, _, path = source.rpartition(":/")
    return server, path.rstrip("/")


def address(mount: Mount) -> str:
    """Return the server's address as the mount's options have it, empty if they do not."""
    found = [option[5:] for option in mount["options"] if option.startswith("addr=")]
    return found[0] if found else ""


def file_system(source: str) -> str:
    """Return what a source of a scale-out file system names, whichever servers lead there.

    The root of one has no name of its own: then it is known by all its servers, in any order.
    Source: mount.lustre(8) `NID[:NID]:/fsname`, mount.ceph(8) `monitors:/path`, mount.glusterfs(8)
    `server:/volume`, WekaFS `backends/name`.
    """
    servers, colon, name = source.rpartition(":/")
    if not colon:
        servers, _, name = source.partition("/")
    return name.rstrip("/") or " ".join(sorted(re.split(r"[,:]", servers)))


def same_type(mount: Mount, expected: str | None) -> bool:
    """Whether a mount is of the type, or of the pattern of types; `nfs` is of any version."""
    if expected is None or fnmatch.fnmatchcase(mount["type"], expected):
        return True
    versions = [option for option in mount["options"] if option.startswith("vers=4")]
    return {mount["type"], expected} == {"nfs", "nfs4"} and (expected == "nfs" or bool(versions))


def same_source(mount: Mount, expected: str | None) -> bool:
    """Whether it comes from there: by name, by pattern, or by the server's address."""
    if expected is None or fnmatch.fnmatchcase(mount["source"], expected):
        return True
    if mount["type"] in SCALE_OUT:
        return file_system(expected) == file_system(mount["source"])
    server, export = split(expected)
    ours, path = split(mount["source"])
    return path == export and server in {ours, address(mount)}


def server_of(mount: Mount) -> str:
    """Return the server of a mount, or what stands for it."""
    return split(mount["source"])[0] or mount["source"]


def kind(mount: Mount) -> str:
    """Return type and source of a mount in words."""
    return "{} {}".format(mount["type"], mount["source"])


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
