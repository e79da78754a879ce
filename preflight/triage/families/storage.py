"""Files that are not there, not everywhere the same, or on a share that does not answer."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.triage.family import Finding
from preflight.triage.rule import Kind, Rule
from preflight.triage.story import Story

CACHES = (
    "give each node caches of its own: TRITON_CACHE_DIR, TORCHINDUCTOR_CACHE_DIR, "
    "TORCH_EXTENSIONS_DIR below /tmp"
)

RULES = (
    Rule(
        r"nfs: server (?P<server>\S{1,80}) not responding",
        Kind.SYMPTOM,
        cause="storage.mounts",
        says="the NFS server {server} did not answer {node}",
        confidence=0.6,
        fix="see the server and the way to it; what waits for it hangs until it answers",
        confirm="preflight run --only storage.mounts",
        checks=("network.link",),
        source="Linux net/sunrpc/clnt.c",
    ),
    Rule(
        r"\[Errno 116\] Stale file handle(?:: '(?P<path>[^']{1,200})')?|: Stale file handle",
        Kind.CAUSE,
        cause="storage.cache_dirs",
        says="{who} had a file open on a share that another node has replaced (stale file handle)",
        confidence=0.8,
        fix=CACHES,
        confirm="findmnt -T on the caches: is it a share?",
        checks=("storage.mounts",),
        source="errno 116, ESTALE",
    ),
    Rule(
        r"Using (?P<cache>/\S{1,200}) as PyTorch extensions root",
        Kind.FACT,
        says="{who} builds an extension below {cache}",
        stage="launch",
        source="torch/utils/cpp_extension.py",
    ),
    Rule(
        r"(?:enroot-mount|enroot|mount\.nfs\d?): .{0,100}(?:Permission denied|access denied)"
        r"|failed to mount: .{1,200}: Permission denied",
        Kind.CAUSE,
        cause="storage.identity",
        says="{node} may not enter what it mounts: root is nobody there (root_squash)",
        confidence=0.85,
        fix="run as the owner, or export it with no_root_squash for the nodes",
        confirm="preflight run --only storage.identity,storage.mounts",
        checks=("storage.mounts",),
        stage="launch",
        source="enroot, mount.nfs(8)",
    ),
    Rule(
        r"PermissionError: \[Errno 13\] Permission denied: '(?P<path>[^']{1,200})'",
        Kind.SYMPTOM,
        cause="storage.identity",
        says="{who} may not open {path} on {node}",
        confidence=0.75,
        fix="id on each node, ls -ln of the path: have one uid everywhere, and the right to it",
        confirm="preflight run --only storage.identity",
        source="errno 13, EACCES",
    ),
    Rule(
        r"FileNotFoundError: \[Errno 2\] No such file or directory: '(?P<path>/?[^']{1,300})'",
        Kind.FACT,
        says="{who} lacks {path}",
        source="errno 2, ENOENT",
    ),
)
EXTENSIONS, MISSING = RULES[2], RULES[-1]


def find(story: Story) -> Iterator[Finding]:
    """Yield files that only the ranks of some nodes lack, and builds that wait for a stale lock."""
    yield from missing_somewhere(story)
    yield from stale_lock(story)


def missing_somewhere(story: Story) -> Iterator[Finding]:
    """Yield it if a file is missing on some nodes while others went on."""
    lines = story.of_rule(MISSING)
    nodes = {story.node_of(seen.who) for seen in lines} - {""}
    ranks = {story.whose(seen.who).rank for seen in lines} - {None}
    others = {story.node_of(rank.who) for rank in story.ranks().values()} - {""}
    if not lines or not (nodes < others or (ranks and len(ranks) < story.world)):
        return
    seen = lines[0]
    where = ", ".join(sorted(nodes)) or f"{len(ranks)} of {story.world} ranks"
    yield Finding(
        cause="storage.mounts",
        kind=Kind.CAUSE,
        says=f"{seen.told['path']} is missing on {where}, and not on the others: it is on no share",
        confidence=0.85,
        fix="put it on a file system that all nodes mount, or make it on each node",
        evidence=tuple(lines),
        confirm="preflight run --only storage.mounts",
        checks=("storage.mounts", "storage.same_data"),
    )


def stale_lock(story: Story) -> Iterator[Finding]:
    """Yield it if the last words of a log are that an extension is built."""
    lines = [seen for seen in story.of_rule(EXTENSIONS) if story.is_last(seen)]
    if not lines or any(True for _ in story.events(Kind.SYMPTOM, Kind.CAUSE)):
        return
    yield Finding(
        cause="storage.cache_dirs",
        kind=Kind.SYMPTOM,
        says=f"it stopped where an extension is built in {lines[0].told['cache']}: a build that "
        f"was "
        "killed leaves a lock there, and all wait for it",
        confidence=0.7,
        fix=f"find {lines[0].told['cache']} -name lock -delete; {CACHES}",
        evidence=tuple(lines),
        confirm=f"find {lines[0].told['cache']} -name lock -mmin +10",
    )
