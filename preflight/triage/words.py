"""How ranks and collectives are called in what is told to people."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from preflight.triage.story import Seen, Story

MISMATCHED = "job.mismatched_collective"
STALLED = "collective.all_reduce"
SAME_CALLS = "let all ranks issue the same collectives in the same order: look for a branch on rank"
DETAIL = "run once with TORCH_DISTRIBUTED_DEBUG=DETAIL: it stops at the first difference"
RECORDER = "TORCH_NCCL_TRACE_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1"
"""Since torch 2.9 the first is also called TORCH_FR_BUFFER_SIZE."""
NAMED = 8
"""Ranks that are named one by one."""
MOST_RANKS = 100_000


def ranked(story: Story, ranks: Sequence[int]) -> str:
    """Return ranks in words, with the node of a single one."""
    if len(ranks) > 1:
        few = ", ".join(map(str, ranks[:NAMED]))
        return f"ranks {few}{f' and {len(ranks) - NAMED} more' if len(ranks) > NAMED else ''}"
    told = story.ranks().get(ranks[0])
    node = story.node_of(told.who) if told else ""
    return f"rank {ranks[0]}{f' on {node}' if node else ''}"


def counted(ranks: Sequence[int]) -> str:
    """Return how many ranks."""
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"{len(ranks)} ranks"


def shown(op: str, size: str) -> str:
    """Return an operation and its size in words."""
    of = f" of {size.strip('[]')} elements" if size.strip("[]") else ""
    return f"{op or 'an operation'}{of}"


def rank_of(story: Story, seen: Seen) -> int:
    """Return whose line it is; -1 if that is not known."""
    rank = story.whose(seen.who).rank
    return -1 if rank is None else rank


def absent(story: Story, there: Collection[int]) -> list[int]:
    """Return the few ranks that are not among those that did something, which most did."""
    world = max(story.world, max(there) + 1, max(story.known, default=0) + 1)
    silent = [rank for rank in range(min(world, MOST_RANKS)) if rank not in there]
    return silent if len(silent) <= max(1, len(there) // 4) else []
