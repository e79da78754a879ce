"""The rendezvous of torchrun's agents, one a node: who holds its store, who came, who lost it.

Shapes: torch distributed/elastic/rendezvous of 1.9 to 2.13.
"""

from __future__ import annotations

from collections.abc import Iterator

from preflight.triage.family import Finding
from preflight.triage.rule import Kind, Rule
from preflight.triage.story import FURTHER, Seen, Story

STAGE = "rendezvous"
CONFIRM = "preflight run --only network.names,network.port,network.firewall,launch.plan"
CHECKS = ("network.names", "network.port", "network.firewall", "launch.plan")
AGENTS = Rule(
    r"RendezvousConnectionError: The connection to the C10d store has failed",
    Kind.CONSEQUENCE,
    says="torchrun of {who} did not reach, or lost, the store of the rendezvous",
    source="torch distributed/elastic/rendezvous/c10d_rendezvous_backend.py",
)
TIMED_OUT = Rule(
    r"rendezvous\.api\.RendezvousTimeoutError\b",
    Kind.SYMPTOM,
    cause="launch.plan",
    says="torchrun waited in vain: fewer nodes came to the rendezvous than its --nnodes says",
    confidence=0.6,
    fix="start it on all nodes, with the same --nnodes, --rdzv-id and --rdzv-endpoint",
    confirm=CONFIRM,
    checks=CHECKS,
    stage=STAGE,
    source="torch distributed/elastic/rendezvous/dynamic_rendezvous.py",
)
RULES = (
    AGENTS,
    TIMED_OUT,
    Rule(
        r"has failed to send a keep-alive heartbeat to the rendezvous",
        Kind.CONSEQUENCE,
        says="torchrun of {who} lost the store of the rendezvous",
        source="torch distributed/elastic/rendezvous/dynamic_rendezvous.py",
    ),
)
SEVERAL = 2
"""Nodes that all failed, from which on none of them holds the store."""


def find(story: Story) -> Iterator[Finding]:
    """Yield that torchruns did not find the store of their rendezvous: if all did not, it is none.

    The node whose own name leads to the address of --rdzv-endpoint is to hold it.
    """
    lines = [seen for seen in story.of_rule(AGENTS) if never_met(story, seen)]
    if not lines:
        return
    several = len({(seen.file, seen.who.node) for seen in lines}) >= SEVERAL
    several |= sum(map(story.count, lines)) >= SEVERAL
    several &= not story.of_rule(TIMED_OUT)  # whoever waits for others has reached the store
    yield Finding(
        cause="network.names",
        kind=Kind.SYMPTOM,
        says="no node took the store of torchrun's rendezvous upon itself: none has a name that "
        "leads to the address of --rdzv-endpoint"
        if several
        else "torchrun did not reach the store of its rendezvous",
        confidence=0.68 if several else 0.5,
        fix="have all nodes' names lead to their addresses on all nodes (DNS or /etc/hosts), or "
        "use --rdzv-backend=static --master-addr=ADDRESS --node-rank=N",
        evidence=tuple(lines),
        confirm="getent hosts $(hostname) on the endpoint's node: is it the endpoint's address?",
        checks=CHECKS,
    )
    yield Finding(
        cause="network.port",
        kind=Kind.SYMPTOM,
        says="torchrun did not reach the store of its rendezvous: its port is closed, or the node "
        "of --rdzv-endpoint was not started",
        confidence=0.55,
        fix="open the port of --rdzv-endpoint on its node, and start torchrun there, too",
        evidence=tuple(lines),
        confirm=CONFIRM,
        checks=CHECKS,
    )


LOST = ("Broken pipe", "Connection reset", "Connection was likely closed", "got 0 bytes")


def never_met(story: Story, line: Seen) -> bool:
    """Whether a torchrun had no connection to the store before a line: else it only lost it."""
    for seen in story.events(Kind.FACT, Kind.CONSEQUENCE):
        if seen.file != line.file or seen.order >= line.order:
            continue
        if seen.rule.stage in FURTHER and seen.rule.kind is Kind.FACT:
            return False
        if any(words in seen.text for words in LOST):
            return False
    return True
