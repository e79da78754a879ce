"""The meeting of all ranks at rank 0's store, torch's TCPStore.

Ranks that are there before the store try again, and say so each time: that alone is no fault.
Shapes: torch c10d/socket.cpp and TCPStore.cpp of 1.9 to 2.13.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Mapping

from preflight.triage.family import Finding
from preflight.triage.rule import Kind, Rule
from preflight.triage.story import FURTHER, Seen, Story

PORT, PLAN, NAMES = "network.port", "launch.plan", "network.names"
EPHEMERAL = "network.ephemeral"
STAGE = "rendezvous"
CONFIRM = "preflight run --only network.port,network.firewall,network.names,launch.plan"
CHECKS = ("network.port", "network.firewall", "launch.plan", "network.names", "network.interface")
MASTER = "set MASTER_ADDR (torchrun: --rdzv-endpoint) to an address that rank 0's node has"
OPEN = "open that port on rank 0's node"
PICKED = range(32768, 61000)
"""What the kernel picks from (ip_local_port_range, if nobody has set it)."""
OPEN_HIGH = (
    "open all high ports between the nodes (sysctl net.ipv4.ip_local_port_range says which); "
    "Gloo and NCCL need them, too"
)
HOST = r"\[?(?P<host>[\w.:%-]{1,253}?)\]?:(?P<port>\d{1,5})"
ENDPOINT = r"\(?(?P<master>[\w.:%-]{1,253}?)(?:, |:)(?P<port>\d{1,5})\b"
LOOPBACK = {"localhost", "localhost.localdomain", "ip6-localhost"}


def impossible(host: str) -> str:
    """Return why no other node can be at an address; empty: one can."""
    if host in LOOPBACK:
        return "on every node that is the node itself"
    try:
        found = ipaddress.ip_address(host.removeprefix("::ffff:").partition("%")[0])
    except ValueError:
        return ""
    if found.is_loopback:
        return "on every node that is the node itself"
    if found.is_unspecified:
        return "that is no address of a node"
    if found.is_multicast or str(found).startswith("255."):
        return "that is no address of a node: it looks like a netmask"
    return ""


def digits(host: str) -> int | None:
    """Return the name, all of digits, that was taken for an address (0.104.99.143); else None."""
    try:
        found = ipaddress.IPv4Address(host.removeprefix("::ffff:"))
    except ValueError:
        return None
    return int(found) if 0 < int(found) < 1 << 24 else None


def addressed(told: Mapping[str, str]) -> Mapping[str, str] | None:
    """Return what is to be said of a store that was not reached, by its address; None: not yet."""
    return None if "again" in told else meaning(told)


def meaning(told: Mapping[str, str]) -> Mapping[str, str]:
    """Return what it means that a store was not reached, by its address."""
    master, port = told["master"], told["port"]
    if why := impossible(master):
        return {"cause": PLAN, "means": f"{master}: {why}", "mend": MASTER}
    if (name := digits(master)) is not None:
        return {
            "cause": NAMES,
            "means": f"{master}: a host name of digits only ({name}) is taken for an address",
            "mend": "give the node a name with a letter in it, or set MASTER_ADDR to its address",
        }
    if int(port) in PICKED:
        return {
            "cause": EPHEMERAL,
            "means": f"{master} port {port}, one of the high ports, of which torchrun takes one: "
            "they are closed by a firewall, or rank 0 has ended",
            "mend": OPEN_HIGH,
        }
    return {
        "cause": PORT,
        "means": f"{master} port {port}: it is closed by a firewall, rank 0 was not started, or "
        "that is not its address",
        "mend": f"{OPEN}; {MASTER}",
    }


UNANSWERED = re.compile(r"refused|timed out|[Nn]o route|unreachable")


def validated(told: Mapping[str, str]) -> Mapping[str, str]:
    """Return what it means that what answered at the store's port was no store."""
    if (
        "client socket" in told["why"]
        or "refused" in told["why"]
        or "timed out" in told["why"]
        or "route" in told["why"]
    ):
        return meaning(told)
    return {
        "cause": PORT,
        "means": f"{told['master']} port {told['port']}: something else answers there, such as a "
        "proxy, another job, or another torch",
        "mend": "ss -ltnp on that node says who has the port; take another, and one torch for all",
    }


TRIED = Rule(
    r"The client socket has failed to connect to " + HOST + r" \(errno: (?P<errno>\d{1,4}) - "
    r"(?P<why>[A-Z][\w ]{2,60})",
    Kind.FACT,
    says="{who} cannot connect to {host} port {port}: {why}",
    source="torch c10d/socket.cpp; it tries again, and says so each time",
)
UNREACHED = tuple(
    Rule(
        pattern,
        Kind.SYMPTOM,
        cause="{cause}",
        says="{who} did not reach the store of rank 0 at {means}",
        confidence=0.6,
        fix="{mend}",
        confirm=CONFIRM,
        checks=CHECKS,
        stage=STAGE,
        refine=refine,
        source=source,
    )
    for pattern, refine, source in (
        (
            r"(?P<again>- retrying \(.*)?The client socket has (?:failed to connect to any network "
            r"address of|timed out after \d{1,12}m?s while trying to connect to) " + ENDPOINT,
            addressed,
            "torch c10d/socket.cpp since 1.10; without brackets in 2.0",
        ),
        (
            r"TCP client failed to connect/validate to host " + ENDPOINT + r" - timed out "
            r"\(try=\d{1,6}, timeout=\d{1,12}ms\): (?P<why>.{0,80})",
            validated,
            "torch c10d/TCPStore.cpp since 2.6",
        ),
    )
)
OLD = Rule(
    r"RuntimeError: connect\(\) timed out\. Original timeout was \d{1,12} ms",
    Kind.SYMPTOM,
    cause=PORT,
    says="{who} did not reach the store of rank 0: its port is closed, rank 0 was not started, or "
    "MASTER_ADDR is not its address",
    confidence=0.6,
    fix=f"{OPEN}; {MASTER}",
    confirm=CONFIRM,
    checks=CHECKS,
    stage=STAGE,
    source="torch up to 1.10",
)
JOINED = Rule(
    r"Timed out after (?P<seconds>\d{1,9}) seconds waiting for (?:clients|workers)\. "
    r"(?P<joined>\d{1,7})/(?P<clients>\d{1,7}) (?:clients|workers) joined",
    Kind.SYMPTOM,
    cause=PLAN,
    says="only {joined} of {clients} ranks came to the store of rank 0 within {seconds} s",
    confidence=0.55,
    fix="start all ranks, each with its own RANK from 0 on; torchrun and srun do so if their "
    "numbers of nodes and of processes a node are right",
    confirm=CONFIRM,
    checks=CHECKS,
    stage=STAGE,
    source="torch c10d/TCPStore.cpp since 2.1, on rank 0",
)
WAITED = Rule(
    r"wait timeout after \d{1,12}ms, keys: /\S{0,200}//cpu//\d{1,9}/(?P<awaited>\d{1,7})\b",
    Kind.CONSEQUENCE,
    says="{who} waited for rank {awaited} in vain",
    stage=STAGE,
    source="torch c10d/TCPStore.cpp since 2.6: the last number of Gloo's keys is the rank",
)
BOUND = Rule(
    r"The server socket has failed to bind to \S{1,80}?:(?P<port>\d{1,5}) \(errno: 98 - ",
    Kind.FACT,
    says="{who} could not listen on port {port}: another program has it",
    source="torch c10d/socket.cpp; of two torchruns on a node one goes on as a client",
)
END_IT = (
    "end what has it, most often an older run, or choose another port: MASTER_PORT, "
    "torchrun --master-port"
)
RULES = (
    TRIED,
    *UNREACHED,
    OLD,
    JOINED,
    WAITED,
    BOUND,
    Rule(
        r"Error: The server socket has failed to (?:listen|bind).*?(?:port: |[\]0]:)"
        r"(?P<port>\d{1,5}).*?(?:Address already in use|EADDRINUSE)",
        Kind.CAUSE,
        cause=PORT,
        says="{who} could not listen for the others on port {port}: another program has it",
        confidence=0.93,
        fix=END_IT,
        confirm="on {node}: ss -ltnp 'sport = :{port}' tells which program, and whose",
        checks=("gpu.processes",),
        stage=STAGE,
        source="torch c10d/socket.cpp, 1.10 to 2.13",
    ),
    Rule(
        r"(?:RuntimeError|OSError|ZMQError): (?:\[Errno 98\] )?Address already in use",
        Kind.CAUSE,
        cause=PORT,
        says="{who} could not listen for others: another program has its port",
        confidence=0.85,
        fix=END_IT,
        confirm="on {node}: ss -ltnp tells which program has which port",
        checks=("gpu.processes",),
        stage=STAGE,
        source="torch up to 1.9, Python, ZeroMQ",
    ),
    Rule(
        r"use_libuv was requested but PyTorch was buil[dt] without libuv support",
        Kind.CAUSE,
        cause="software.pytorch",
        says="torch of {who} was built without libuv, and its store was to use it",
        confidence=0.95,
        fix="export USE_LIBUV=0 on all nodes, or install a torch that has it",
        confirm="preflight run --only software.pytorch",
        stage=STAGE,
        source="torch c10d/TCPStore.cpp since 2.1",
    ),
)
ROUTE, FIREWALL = "network.route", "network.firewall"
ERRNO = {
    "101": (ROUTE, "there is no route to it", "ip route get ADDRESS on the node that says so"),
    "113": (
        FIREWALL,
        "no route to host: a firewall rejects it (as firewalld does), or nobody has that address",
        f"{OPEN} (nft list ruleset there); {MASTER}",
    ),
    "110": (
        PORT,
        "no answer: a firewall drops it, or nobody has that address",
        f"{OPEN}; {MASTER}",
    ),
    "111": (
        PORT,
        "it answered, but nothing listens there: rank 0 was not started there, or has ended",
        f"see the log of rank 0; {MASTER}",
    ),
}
"""What an errno of connect(2) means, the more telling first. 97 and 99 are of an address of the
other kind (IPv4 or IPv6), after which torch takes the next one."""


def find(story: Story) -> Iterator[Finding]:
    """Yield what only several lines tell."""
    yield from unreached(story)
    yield from missing(story)
    yield from awaited(story)
    yield from taken(story)


def unreached(story: Story) -> Iterator[Finding]:
    """Yield why the store was not reached, by what was said at each try."""
    given_up = [seen for rule in (*UNREACHED, OLD) for seen in story.of_rule(rule)]
    tried = [seen for seen in story.of_rule(TRIED) if told_errno(seen)]
    if not tried or not (given_up or any(map(story.stuck, tried))):
        return
    tried.sort(key=lambda seen: [*ERRNO].index(seen.told["errno"]))
    where = given_up[0].told if given_up and "master" in given_up[0].told else tried[0].told
    master, port = where.get("master", where.get("host", "")), where["port"]
    plain = meaning({"master": master, "port": port})
    cause, why, mend = ERRNO[tried[0].told["errno"]]
    if plain["cause"] not in (PORT, EPHEMERAL):
        cause, why, mend = plain["cause"], "", plain["mend"]
    whose = [story.whose(seen.who) for seen in (*given_up, *tried)]
    who = next((one for one in whose if one.rank is not None), whose[0])
    yield Finding(
        cause=cause,
        kind=Kind.SYMPTOM,
        says=f"{story.called(who)} did not reach the store of rank 0 at "
        + (f"{master} port {port}: {why}" if why else plain["means"]),
        confidence=0.75 if given_up else 0.55,
        fix=mend,
        evidence=(*tried, *given_up),
        confirm=CONFIRM,
        checks=CHECKS,
    )


def told_errno(seen: Seen) -> bool:
    """Whether a try failed for a reason that tells; hosts without a route for IPv6 take IPv4."""
    return seen.told["errno"] in ERRNO and not (
        seen.told["errno"] == "101" and ":" in seen.told["host"].removeprefix("::ffff:")
    )


def missing(story: Story) -> Iterator[Finding]:
    """Yield who did not come to rank 0's store, and whether they tried."""
    lines = story.of_rule(JOINED)
    if not lines:
        return
    told = lines[0].told
    joined, clients = int(told["joined"]), int(told["clients"])
    tried = [seen for rule in (*UNREACHED, OLD) for seen in story.of_rule(rule)]
    there = story.ranks()
    silent = [rank for rank in range(min(clients, MOST)) if rank not in there]
    if tried:
        yield Finding(
            cause=EPHEMERAL if tried[0].told.get("cause") == EPHEMERAL else PORT,
            kind=Kind.SYMPTOM,
            says=f"rank 0's store was there, but {clients - joined} of {clients} ranks did not "
            "reach it: a firewall closes its port, or they were given another address",
            confidence=0.8,
            fix=f"{OPEN}; {MASTER}",
            evidence=(*tried, *lines),
            confirm=CONFIRM,
            checks=CHECKS,
        )
    elif there and len(silent) == clients - joined:
        yield Finding(
            cause=PLAN,
            kind=Kind.SYMPTOM,
            says=f"{ranked(silent)} of {clients} did not come to the store of rank 0, and said "
            "nothing: not started, or with another RANK or MASTER_ADDR",
            confidence=0.65,
            fix="see that the launcher starts them: torchrun --nnodes and --nproc-per-node, Slurm "
            "--nodes and --ntasks-per-node with srun",
            evidence=tuple(lines),
            ranks=tuple(silent),
            confirm=CONFIRM,
            checks=CHECKS,
        )


MOST = 100_000
"""Ranks that are counted."""
NAMED = 8
"""Ranks that are named."""


def ranked(ranks: list[int]) -> str:
    """Return ranks in words."""
    few = ", ".join(map(str, ranks[:NAMED]))
    more = f" and {len(ranks) - NAMED} more" if len(ranks) > NAMED else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {few}{more}"


def awaited(story: Story) -> Iterator[Finding]:
    """Yield for whom the others waited, if nothing else is known."""
    lines = story.of_rule(WAITED)
    if not lines or any(seen.rule.cause for seen in story.events(Kind.SYMPTOM, Kind.CAUSE)):
        return
    rank = int(lines[0].told["awaited"])
    yield Finding(
        cause=PLAN,
        kind=Kind.SYMPTOM,
        says=f"rank {rank} did not come to set up a group with the others",
        confidence=0.4,
        fix=f"the log of rank {rank} says why: it was not started, ended, or is slower",
        evidence=tuple(lines),
        ranks=(rank,),
        confirm=CONFIRM,
        checks=("network.interface", "network.names"),
    )


def taken(story: Story) -> Iterator[Finding]:
    """Yield that a port was in use, where the job went wrong after that."""
    for seen in story.of_rule(BOUND):
        after = [one for one in story.events() if one.file == seen.file and one.order > seen.order]
        further = any(one.rule.stage in FURTHER for one in after if one.rule.kind is Kind.FACT)
        if not further and any(one.rule.kind > Kind.FACT for one in after):
            yield Finding(
                cause=PORT,
                kind=Kind.SYMPTOM,
                says=f"port {seen.told['port']} was in use when rank 0 was to listen on it",
                confidence=0.65,
                fix=END_IT,
                evidence=(seen,),
                confirm=f"ss -ltnp 'sport = :{seen.told['port']}' tells which program, and whose",
                checks=("gpu.processes",),
            )
            return
