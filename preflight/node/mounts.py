"""Mounts of a node, and whether those that may hang do answer.

Sent to nodes: stdlib only, Python 3.8.
"""

from __future__ import annotations

import contextlib
import fnmatch
import re
from collections import Counter
from shlex import quote
from typing import Any, Collection, Mapping, Sequence, TypedDict

from preflight.api import Node, Unobservable, Want

TABLE = "/proc/self/mountinfo"
FAMILIES = ("AF_INET", "AF_INET6")
LOOPBACK = ("127.", "::1", "localhost")
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
COMPARED = frozenset(
    (
        *("vers", "proto", "hard", "soft", "softerr", "sec", "rsize", "wsize", "nconnect", "noac"),
        *("nolock", "local_lock", "flock", "localflock", "noflock", "nobrl", "cache"),
        *("forcedirect", "coherent", "writecache", "readcache"),
    )
)
"""Options that change speed, safety or locks: nfs(5), mount.lustre(8), mount.cifs(8), and the
modes of WekaFS. addr and clientaddr differ rightly."""
NODE = "<node>"
"""Stands for a node's own name in the source of a mount that each node has for itself."""
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
    own: list[str]
    """Its host name and addresses: what others call it as a server."""
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
        own=own_names(node),
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


def own_names(node: Node) -> list[str]:
    """Return the node's host name, in full and in short, and its addresses, but not loopback's."""
    host = node.uname()["node"]
    found = [host, host.split(".")[0]]
    with contextlib.suppress(Unobservable):  # it decides nothing about the node's own mounts
        for addresses in node.psutil("net_if_addrs").values():
            found += [one["address"] for one in addresses if one["family"] in FAMILIES]
    return [name for name in dict.fromkeys(found) if not name.startswith(LOOPBACK)]


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


# ---- several nodes -------------------------------------------------------------------------


def serves(own: Collection[str], mount: Mount) -> bool:
    """Whether a node of these names is the server of a mount, and holds its files itself.

    One of many servers of a scale-out file system holds but a part.
    """
    server = split(mount["source"])[0]
    names = {server, server.split(".")[0], address(mount)} - {""}
    return mount["type"] not in SCALE_OUT and not names.isdisjoint(own)


def exported(
    node: str, facts: Mapping[str, Mounts], entries: Mapping[str, Mapping[str, Any]]
) -> dict[str, Mount]:
    """Return what a node serves itself, by the path where most others have it, or should."""
    here = {mount["path"] for mount in facts[node]["network"]}
    found: dict[str, Mount] = {}
    for path in {mount["path"] for fact in facts.values() for mount in fact["network"]} - here:
        mounted = {n: m for n, m in mounted_at(facts, path).items() if m}
        usual = common({n: m["source"] for n, m in mounted.items()})
        found[path] = next(m for m in mounted.values() if m["source"] == usual)
    for path in {*entries} - here - {*found}:
        source, kind = entries[path].get("source", ""), entries[path].get("type", "")
        found[path] = Mount(path=path, type=kind, source=source, options=[], device="")
    return {
        path: mount for path, mount in found.items() if serves({node, *facts[node]["own"]}, mount)
    }


def mounted_at(facts: Mapping[str, Mounts], path: str) -> dict[str, Mount | None]:
    """Return what each node has mounted on a path."""
    return {
        node: next((m for m in fact["network"] if m["path"] == path), None)
        for node, fact in facts.items()
    }


def common(kinds: Mapping[str, str]) -> str:
    """Return what most nodes have."""
    return Counter(kinds.values()).most_common(1)[0][0]


def is_private(mount: Mount) -> bool:
    """Whether only the user who mounted it may enter it: fuse(8), allow_other."""
    return mount["type"].startswith("fuse") and "allow_other" not in mount["options"]


def waits(fact: Mounts, path: str) -> bool:
    """Whether an automounter will mount something there when it is needed."""
    return any((path + "/").startswith(normal(p) + "/") for p in fact["automounts"])


def is_nested(fact: Mounts, path: str, servers: Collection[str]) -> bool:
    """Whether a path lies in a mount of the server that it comes from on other nodes.

    An export within an export is mounted by the kernel when somebody goes there.
    """
    tops = {mount["path"]: mount for mount in fact["network"]}
    above = [top for top in tops if path.startswith(top.rstrip("/") + "/")]
    return bool(above) and split(tops[max(above, key=len)]["source"])[0] in servers


def one_name(
    mounted: Mapping[str, Mount], own: Mapping[str, Collection[str]], expected: str | None
) -> dict[str, str]:
    """Return each mount's source; one name for what is expected, and for servers of one address.

    The most common spelling goes first. A directory for each node, which bears its name, has one
    name too: `nas01:/scratch/<node>`.
    """
    general = {node: with_node(mount["source"], own[node]) for node, mount in mounted.items()}
    each = Counter(source for source in general.values() if NODE in source)
    sources = {
        node: general[node] if each[general[node]] > 1 else mount["source"]
        for node, mount in mounted.items()
    }
    often = Counter(sources.values())
    names: dict[tuple[str, str], str] = {}
    found = {}
    for node, mount in sorted(mounted.items(), key=lambda item: -often[sources[item[0]]]):
        source, known = sources[node], address(mount)
        same = (known, split(source)[1]) if known else (source, "")
        if mount["type"] in SCALE_OUT:
            same = mount["type"], file_system(source)
        found[node] = names.setdefault(same, source)
        if expected is not None and same_source(mount, expected):
            found[node] = expected
    return found


def with_node(source: str, own: Collection[str]) -> str:
    """Return a source with the node's own name in its path, if it is there, as `<node>`."""
    path = split(source)[1]
    words = "|".join(re.escape(name) for name in sorted(own, key=len, reverse=True))
    general = re.sub(rf"(?<![A-Za-z0-9])({words})(?![A-Za-z0-9])", NODE, path)
    if not path:
        return source
    before, _, after = source.rpartition(path)
    return before + general + after


def compared(option: str) -> bool:
    """Whether an option should be the same everywhere."""
    return option.split("=")[0] in COMPARED


def remount(mount: Mount, name: str) -> str:
    """Return the command that mounts what most nodes have."""
    words = ["mount", "-t", mount["type"]]
    words += [
        o for option in mount["options"] if option.startswith("vers=") for o in ("-o", option)
    ]
    return joined([*words, name if NODE in name else mount["source"], mount["path"]])


def joined(words: Sequence[str]) -> str:
    """Return words as a shell would take them."""
    return " ".join(map(quote, words))
