"""Collectives that differ, or to which a rank did not come, as libraries themselves say it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from preflight.triage.family import Finding
from preflight.triage.rule import Kind, Rule
from preflight.triage.story import Story
from preflight.triage.words import (
    DETAIL,
    MISMATCHED,
    SAME_CALLS,
    STALLED,
    absent,
    counted,
    rank_of,
    ranked,
    shown,
)

DID_NOT_JOIN = Rule(
    r"\[(?P<late>\d[\d, ]{0,400})\] finished collective #\d{1,18}, "
    r"but didn't join collective #(?P<seq>\d{1,18})",
    Kind.SYMPTOM,
    says="ranks [{late}] did not join collective {seq}",
    stage="collective {seq}",
    source="torch TraceUtils.h, TORCH_NCCL_DESYNC_DEBUG",
)
NEVER_JOINED = Rule(
    r"ranks \[(?P<late>\d[\d, ]{0,400})\] are the lagging ranks that caused this timeout",
    Kind.SYMPTOM,
    says="ranks [{late}] never joined any collective",
    stage="collective",
    source="torch TraceUtils.h, TORCH_NCCL_DESYNC_DEBUG",
)
BARRIER = Rule(
    r"Ranks? (?P<late>\d[\d, ]{0,400}) failed to pass monitoredBarrier in",
    Kind.SYMPTOM,
    says="ranks [{late}] did not come to the barrier",
    stage="collective",
    source="torch ProcessGroupGloo.cpp",
)
FINGERPRINTS = Rule(
    r"Detected mismatch between collectives on ranks\. Rank (?P<one>\d{1,7}) is running "
    r"collective: (?P<prints>.*)",
    Kind.CAUSE,
    says="the ranks issue different collectives",
    stage="collective",
    source="torch ProcessGroupWrapper.cpp, TORCH_DISTRIBUTED_DEBUG=DETAIL",
)
GLOO = Rule(
    r"gloo/transport/\w+/unbound_buffer\.cc:\d{1,5}\] Timed out waiting (?P<timeout_ms>\d{1,12})ms "
    r"for (?:send|recv) operation to complete",
    Kind.SYMPTOM,
    says="{who} waited in vain for another rank",
    stage="collective",
    source="gloo transport/tcp/unbound_buffer.cc",
)


def differs(pattern: str, says: str, source: str, confidence: float = 0.85) -> Rule:
    """Return a rule of a line by which sizes differ between ranks."""
    return Rule(
        pattern,
        Kind.CAUSE,
        cause=MISMATCHED,
        says=says,
        confidence=confidence,
        fix=SAME_CALLS + ", or data of another shape",
        confirm=DETAIL,
        stage="collective",
        source=source,
    )


def unclear(pattern: str, cause: str, says: str, fix: str, checks: tuple[str, ...]) -> Rule:
    """Return a rule of an error that alone says little: any other that is told comes before it."""
    return Rule(
        pattern,
        Kind.SYMPTOM,
        cause=cause,
        says=says,
        confidence=0.2,
        fix=fix,
        checks=checks,
        source="torch NCCLUtils.cpp, ProcessGroupNCCL.cpp",
    )


MORE = "run again with NCCL_DEBUG=INFO: NCCL's own warning says what failed"
RULES = (
    DID_NOT_JOIN,
    NEVER_JOINED,
    BARRIER,
    FINGERPRINTS,
    GLOO,
    differs(
        r"collective mismatch error, local size (?P<local>\d{1,18}) remote size (?P<far>\d{1,18})",
        "{who} sends {local} bytes where its peer expects {far}: their collectives differ",
        "NCCL transport/net_ib.cc up to 2.19",
    ),
    differs(
        r"message truncated : receiving (?P<got>\d{1,18}) bytes instead of (?P<wanted>\d{1,18})",
        "{who} received {got} bytes where it expected {wanted}: collectives or NCCL settings "
        "of the ranks differ",
        "NCCL transport/net_socket.cc",
        0.7,
    ),
    differs(
        r"op\.preamble\.length <= op\.nbytes\. (?P<got>\d{1,18}) vs (?P<wanted>\d{1,18})",
        "{who} received {got} bytes where it expected {wanted}: the ranks issue collectives of "
        "different size",
        "gloo transport/tcp/pair.cc",
    ),
    unclear(
        r"Heartbeat monitor timed out!|watchdog got stuck for \d{1,9} seconds without making",
        "gpu.health",
        "a thread of {who} hung in a call of CUDA or NCCL",
        "see the kernel log of {node} for Xid errors; else take a stack: py-spy dump --native",
        ("host.kernel_log", "collective.local"),
    ),
    unclear(
        r"ncclSystemError: System call|unhandled system error",
        STALLED,
        "a system call of NCCL failed on {who}; its log does not say which",
        MORE,
        ("network.interface", "host.limits", "rdma.devices"),
    ),
    unclear(
        r"ncclInternalError: Internal check failed",
        STALLED,
        "NCCL failed within itself on {who}; its log does not say where",
        MORE,
        ("software.nccl", "launch.env"),
    ),
    unclear(
        r"ncclUnhandledCudaError: Call to CUDA function failed|unhandled cuda error",
        "gpu.health",
        "a CUDA call of NCCL failed on {who}; its log does not say which",
        MORE,
        ("host.kernel_log", "software.driver", "gpu.processes"),
    ),
    unclear(
        r"ncclInvalidUsage: This usually reflects invalid usage",
        "launch.plan",
        "NCCL was used wrongly by {who}; its log does not say how",
        MORE,
        ("gpu.inventory",),
    ),
)


def find(story: Story) -> Iterator[Finding]:
    """Find whom these lines name."""
    yield from fingerprints(story)
    yield from reported(story)
    yield from gloo(story)


def fingerprints(story: Story) -> Iterator[Finding]:
    """Tell of collectives that differ, as torch compared them itself."""
    own: dict[int, tuple[str, str]] = {}
    others: dict[int, tuple[str, str]] = {}
    lines = sorted(story.of_rule(FINGERPRINTS), key=lambda seen: seen.order)
    for seen in lines:
        one = int(seen.told["one"])
        said = printed(f"{one} is running collective: {seen.told['prints']}")
        own |= {one: said.pop(one)} if one in said else {}
        others |= said
    calls = others | own  # torch 2.13 tells of the other rank an operation that it has not run
    if not lines:
        return
    usual = Counter(calls.values()).most_common(1)
    odd = sorted(rank for rank, one in calls.items() if usual and one != usual[0][0])
    says = "the ranks issue different collectives at the same time"
    if odd:
        says = (
            f"{ranked(story, odd)} issued {shown(*calls[odd[0]])} while others issued "
            f"{shown(*usual[0][0])}"
        )
    yield Finding(
        cause=MISMATCHED,
        kind=Kind.CAUSE,
        says=says,
        confidence=0.95,
        fix=SAME_CALLS,
        evidence=tuple(lines),
        ranks=tuple(odd),
    )


PRINT = re.compile(
    r"(\d{1,7}) is running collective: CollectiveFingerPrint\((?:SequenceNumber=\d+,? ?)?"
    r"OpType=(\w+)(?:, TensorShape=\[([\d, ]*)\])?"
)


def printed(text: str) -> dict[int, tuple[str, str]]:
    """Return which rank ran what, as a mismatch tells it."""
    return {int(rank): (op, size) for rank, op, size in PRINT.findall(text[:20_000])}


def reported(story: Story) -> Iterator[Finding]:
    """Tell of ranks that torch itself names."""
    for rule in (DID_NOT_JOIN, NEVER_JOINED, BARRIER):
        lines = story.of_rule(rule)
        late = sorted({int(n) for seen in lines for n in re.findall(r"\d{1,7}", seen.told["late"])})
        if not late:
            continue
        seq = lines[0].told.get("seq")
        what = (
            f"collective {seq}" if seq else "the barrier" if rule is BARRIER else "any collective"
        )
        who = ranked(story, late)
        yield Finding(
            cause=MISMATCHED,
            kind=Kind.SYMPTOM,
            says=f"{who} did not come to {what}, in which the others waited",
            confidence=0.75,
            fix=f"see what {who} did then, in its own log or by py-spy dump --pid PID",
            evidence=tuple(lines),
            ranks=tuple(late),
        )


def gloo(story: Story) -> Iterator[Finding]:
    """Tell of Gloo's time-outs, which do not say for whom."""
    lines = story.of_rule(GLOO)
    if not lines or story.of_rule(BARRIER):
        return
    waited = sorted({rank for seen in lines if (rank := rank_of(story, seen)) >= 0})
    silent = absent(story, waited) if waited else []
    who = counted(waited) if waited else "a rank"
    if silent:
        says = f"{ranked(story, silent)} did not come to a collective in which {who} waited"
    else:
        whose = " of each other" if len(waited) > 1 else ""
        says = f"{who} waited for data{whose} that did not come"
    yield Finding(
        cause=MISMATCHED if silent else STALLED,
        kind=Kind.SYMPTOM,
        says=says,
        confidence=0.5 if silent else 0.35,
        fix=DETAIL + ", or shows that the network is at fault",
        evidence=tuple(lines),
        ranks=tuple(silent or waited),
        checks=() if silent else ("network.ephemeral", "network.path_mtu", "network.interface"),
    )
