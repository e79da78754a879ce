"""InfiniBand, RoCE and EFA: what fails on the way and on the device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from preflight.triage.families.nccl_tests import ROW
from preflight.triage.family import Finding
from preflight.triage.rule import Kind, Rule
from preflight.triage.story import Seen, Story

STATUS = {
    "4": ("LOC_PROT_ERR", "rdma.gdr"),
    "5": ("WR_FLUSH_ERR", ""),
    "12": ("RETRY_EXC_ERR", ""),
    "9": ("REM_INV_REQ_ERR", "rdma.mtu"),
    "10": ("REM_ACCESS_ERR", "rdma.gdr"),
    "11": ("REM_OP_ERR", "rdma.mtu"),
    "13": ("RNR_RETRY_EXC_ERR", "rdma.qos"),
    "2": ("LOC_QP_OP_ERR", "rdma.mtu"),
    "1": ("LOC_LEN_ERR", "rdma.mtu"),
}
"""ibv_wc_status of libibverbs' verbs.h, and what to look at first; empty: a rule of its own."""
MEANS = {
    "rdma.gdr": "may not touch memory that it was given (status {status}, {name}): peer access is "
    "redirected (ACS, IOMMU) or the memory is not registered (nvidia_peermem)",
    "rdma.mtu": "and {peer} do not agree on a message (status {status}, {name}): their ports may "
    "have different MTUs",
    "rdma.qos": "sent to {peer} faster than it could take (status 13, RNR_RETRY_EXC_ERR)",
}
FIXES = {
    "rdma.gid": "unset NCCL_IB_GID_INDEX (NCCL from 2.21 on finds it), or set that of the RoCE v2 "
    "IPv4 GID (show_gids); see that ports and switches have one MTU",
    "rdma.gdr": "switch ACS off on the bridges above GPUs and NICs, or boot with iommu=pt; "
    "modprobe nvidia_peermem",
    "rdma.mtu": "give all RDMA ports and switches one MTU",
    "rdma.qos": "set NCCL_IB_TC to the lossless class of the switches",
}
PEER = r"(?P<address>[0-9a-zA-Z.:%_-]{1,80}?)(?:<\d{1,5}>)?"
WAYS = "ib_write_bw -d DEVICE -x GID_INDEX between the two nodes"
RDMA = ("rdma.gid", "rdma.port", "rdma.mtu", "rdma.pairs", "network.mtu")
ERRNO = {
    "110": (
        "rdma.pairs",
        "the other end's GID is not resolved (errno 110): it is on another rail, subnet or fabric",
    ),
    "101": ("rdma.gid", "there is no route from this GID"),
    "22": ("rdma.gid", "the GID index is of the wrong kind, or none is there"),
    "19": ("rdma.gid", "the interface of that GID is not in this container's network"),
    "12": ("host.limits", "memory cannot be locked (ulimit -l)"),
    "113": ("rdma.gid", "the other end's GID cannot be reached"),
}
NUMBERS = {
    "Connection timed out": "110",
    "Network is unreachable": "101",
    "Invalid argument": "22",
    "No such device": "19",
    "Cannot allocate memory": "12",
    "No route to host": "113",
}
MENDS = {
    "rdma.gid": "show_gids on both nodes; unset NCCL_IB_GID_INDEX, or set that of the RoCE v2 "
    "IPv4 GID; in containers --network=host",
    "rdma.pairs": "see how the ports are cabled, and that each reaches the other's subnet; on "
    "fabrics of separate rails NCCL_CROSS_NIC=0",
    "host.limits": "ulimit -l unlimited before the program is started; for docker "
    "--ulimit memlock=-1 --cap-add IPC_LOCK",
}


def completion(told: Mapping[str, str]) -> Mapping[str, str] | None:
    """Return what a completion error means; None: it is for another rule."""
    status = told["status"]
    name, cause = STATUS.get(status, (f"status {status}", "rdma.port"))
    if not cause:
        return None
    means = MEANS.get(cause, "failed to reach {peer} (status {status})")
    peer = told.get("address") or "another rank"
    means = means.format(peer=peer, status=status, name=name)
    return {"cause": cause, "means": means, "mend": FIXES.get(cause, FIXES["rdma.gid"])}


def failed_call(told: Mapping[str, str]) -> Mapping[str, str]:
    """Return what it means that a verb failed."""
    why = told.get("why", "it failed")
    number = told.get("errno") or NUMBERS.get(why, "")
    if told["verb"] != "modify_qp" and number in {"", "12"}:
        number = "12"  # what these ask for is locked memory
    cause, means = ERRNO.get(number, ("rdma.devices", why))
    if told["verb"] != "modify_qp" and cause in {"rdma.gid", "rdma.pairs"}:
        cause, means = "rdma.devices", why
    mend = MENDS.get(cause, "see ibv_devinfo and the kernel's log (dmesg) on that node")
    return {"cause": cause, "means": means, "mend": mend}


COMPLETION = (
    r"NET/IB ?(?:/GIN)?: Got completion (?:from peer " + PEER + r" )?with (?:error |status=)"
    r"(?:IBV_WC_\w{1,30}\()?"
)
UNACKNOWLEDGED = Rule(
    COMPLETION + r"12\b",
    Kind.SYMPTOM,
    says="{who} got no acknowledgement",
    stage="collective",
    source="NCCL transport/net_ib.cc, 2.4 to 2.30",
)
RULES = (
    UNACKNOWLEDGED,
    Rule(
        COMPLETION + r"(?P<status>\d{1,2})\b",
        Kind.SYMPTOM,
        cause="{cause}",
        says="{who} {means}",
        confidence=0.75,
        fix="{mend}",
        confirm=WAYS,
        checks=RDMA,
        stage="collective",
        refine=completion,
        source="NCCL transport/net_ib.cc, 2.4 to 2.30; opcode and len are not set there",
    ),
    Rule(
        r"NET/IB ?: Got completion .{0,80}(?:error |status=)(?:IBV_WC_WR_FLUSH_ERR\()?5\b",
        Kind.CONSEQUENCE,
        says="{who} flushed what was left of a broken queue pair",
        source="NCCL transport/net_ib.cc",
    ),
    Rule(
        r"NCCL WARN Call to ibv_(?P<verb>modify_qp|create_cq|create_qp|reg_mr|reg_mr_iova2"
        r"|reg_dmabuf_mr|alloc_pd) failed(?: with(?: error)?)?(?: (?P<errno>\d{1,3}))? ?"
        r"(?P<why>[A-Z][a-z]+(?: [a-z]+){0,4})?",
        Kind.SYMPTOM,
        cause="{cause}",
        says="{who} cannot use its RDMA device (ibv_{verb}): {means}",
        confidence=0.75,
        fix="{mend}",
        confirm=WAYS,
        checks=("rdma.gid", "rdma.devices", "host.limits"),
        stage="transport setup",
        refine=failed_call,
        source="NCCL misc/ibvwrap.cc, 2.4 to 2.30",
    ),
    Rule(
        r"NCCL WARN NET/IB ?: (?:read failed in ncclIbRoceGetVersionNum|Unable to find a valid "
        r"GID)",
        Kind.SYMPTOM,
        cause="rdma.gid",
        says="{who} finds no GID that it can use: the GID table of {node} has gaps, as in "
        "containers",
        confidence=0.75,
        fix="NCCL 2.26 or newer with NCCL_IB_GID_INDEX unset, or --network=host",
        confirm="show_gids on each node",
        stage="transport setup",
        source="NCCL transport/net_ib.cc since 2.23.4; NVIDIA/nccl#1573",
    ),
    Rule(
        r"NET/IB ?: (?P<port>[\w:.-]{1,40} )?(?:Got async (?:error )?event ?: ?|Got non-fatal "
        r"async event: |async fatal event:? )(?P<event>port error|[a-z ]{3,60})",
        Kind.SYMPTOM,
        cause="rdma.port",
        says="the RDMA link of {node} went down ({event})",
        confidence=0.7,
        fix="reseat or replace cable and optic; until then leave the node out",
        confirm="link_downed and symbol_error in /sys/class/infiniband/*/ports/*/counters",
        checks=("rdma.counters",),
        source="NCCL transport/net_ib.cc, 2.4 to 2.30",
    ),
    Rule(
        r"NET/IB ?: (?P<port>\S{1,40}) speed change detected: (?P<before>\d{1,9}) -> "
        r"(?P<after>\d{1,9}) Mbps",
        Kind.SYMPTOM,
        cause="rdma.port",
        says="the RDMA link {port} of {node} went from {before} to {after} Mb/s",
        confidence=0.5,
        fix="reseat or replace cable and optic",
        confirm="cat /sys/class/infiniband/*/ports/*/rate",
        checks=("network.link",),
        source="NCCL transport/net_ib.cc, 2.30.7",
    ),
    Rule(
        r"mlx5_core \S{1,40}: (?:\S{1,40}: )?(?:Link down|Port module event\[error\]: "
        r"(?P<event>.{1,80}))",
        Kind.SYMPTOM,
        cause="rdma.port",
        says="a link of {node} went down",
        confidence=0.55,
        fix="reseat or replace cable and optic; until then leave the node out",
        confirm="link_downed in /sys/class/infiniband/*/ports/*/counters, ethtool -S",
        checks=("network.errors", "network.link"),
        source="Linux drivers/net/ethernet/mellanox",
    ),
    Rule(
        r"mlx5_core \S{1,40}: .{0,60}Detected insufficient power on the PCIe slot",
        Kind.SYMPTOM,
        cause="rdma.devices",
        says="a network card of {node} has too little power",
        confidence=0.3,
        fix="see the card's power connector and slot",
        source="Linux drivers/net/ethernet/mellanox",
    ),
    Rule(
        r"NCCL WARN (?:NET/IB ?: Unable to open device (?P<device>\S{1,40})|Call to "
        r"ibv_open_device failed)",
        Kind.SYMPTOM,
        cause="rdma.devices",
        says="{who} may not open its RDMA device: the container lacks /dev/infiniband",
        confidence=0.85,
        fix="docker run --device=/dev/infiniband --cap-add=IPC_LOCK --ulimit memlock=-1",
        confirm="ls /dev/infiniband in the container",
        checks=("host.limits",),
        stage="bootstrap",
        source="NCCL transport/net_ib.cc; NVIDIA/nccl#451",
    ),
    Rule(
        r"NET/IB ?: req \d{1,9}/\d{1,9} tag \d{1,9} peer \S{1,80} collective mismatch error, "
        r"local size (?P<local>\d{1,18}) remote size (?P<remote>\d{1,18})",
        Kind.CAUSE,
        cause="job.mismatched_collective",
        says="{who} sent {local} bytes where another rank awaited {remote}: the ranks do not do "
        "the same collective",
        confidence=0.9,
        fix="see that all ranks issue the same collectives, in the same order, of the same size",
        stage="collective",
        source="NCCL transport/net_ib.cc until 2.19",
    ),
    Rule(
        r"SHARP coll init error: Cannot create SHARP job|SHARP group create: Streaming Tree lock "
        r"failed|Cannot initialize CollNet, using point-to-point network instead",
        Kind.SYMPTOM,
        cause="rdma.sharp",
        says="{who} asked for SHARP, which this fabric does not offer: NCCL does without it, "
        "slower",
        confidence=0.35,
        fix="unset NCCL_COLLNET_ENABLE, or run sharp_am beside the master subnet manager",
        confirm="sharp_hello on the node",
        checks=("launch.env",),
        source="NCCL transport.cc since 2.9; NVIDIA/nccl#1050",
    ),
    Rule(
        r"NET/OFI (?:Unable to insert remote address into address vector|Couldn't open AV"
        r"|Unable to register memory|Only EFA provider is supported)",
        Kind.SYMPTOM,
        cause="rdma.efa",
        says="{who} does not reach its peers by EFA: the security group must allow all traffic to "
        "and from itself, in both directions",
        confidence=0.8,
        fix="add rules to the security group that name the group itself, inbound and outbound; "
        "use one version of aws-ofi-nccl",
        confirm="fi_pingpong -p efa between two nodes",
        checks=("rdma.pairs", "software.nccl"),
        stage="transport setup",
        source="aws-ofi-nccl; aws/aws-ofi-nccl#663",
    ),
    Rule(
        r"Detected mixed local Net device counts across ranks \(min (?P<least>\d{1,4}), "
        r"max (?P<most>\d{1,4})\)",
        Kind.SYMPTOM,
        cause="rdma.devices",
        says="ranks have {least} to {most} network devices: some node lacks one",
        confidence=0.7,
        fix="see which node lacks a device; NCCL_IGNORE_NET_MISMATCH=1 goes on without it",
        confirm="ibv_devices on each node",
        stage="bootstrap",
        source="NCCL since 2.30.3",
    ),
)


def find(story: Story) -> Iterator[Finding]:
    """Yield why there was no acknowledgement: by who did not answer, and what had worked before."""
    lines = story.of_rule(UNACKNOWLEDGED)
    if not lines:
        return
    first = lines[0]
    lost = (
        f"{story.called(first.who)} sent to {first.told.get('address', 'another rank')} and got no "
        "acknowledgement (status 12, RETRY_EXC_ERR)"
    )
    better = [*by_one_node(story, lines), *after_a_while(story, lines, lost)]
    yield from better
    told = any(seen.told.get("cause", seen.rule.cause) == "rdma.port" for seen in story.faults())
    yield Finding(
        cause="rdma.gid",
        kind=Kind.SYMPTOM,
        says=f"{lost}: a GID that is not routed, or ports and switches with different MTUs",
        confidence=0.35 if better or told else 0.7,
        fix=FIXES["rdma.gid"],
        evidence=tuple(lines),
        confirm=WAYS,
        checks=RDMA,
    )


def by_one_node(story: Story, lines: list[Seen]) -> Iterator[Finding]:
    """Yield the one node that does not answer several others: they reach each other."""
    addresses = {seen.told.get("address", "") for seen in lines}
    others = {story.node_of(seen.who) for seen in lines} - {""}
    if len(addresses) == 1 and "" not in addresses and len(others) > 1:
        node = story.node_at(*addresses)
        yield Finding(
            cause="rdma.port",
            kind=Kind.SYMPTOM,
            says=f"{len(others)} nodes got no acknowledgement from {node} (status 12, "
            "RETRY_EXC_ERR), and from it alone: its RDMA link is broken",
            confidence=0.85,
            fix=f"see cable, optic and ibv_devinfo of {node}; until then leave it out",
            evidence=tuple(lines),
            nodes=(node,),
            confirm=f"ibv_devinfo on {node}: are all its ports PORT_ACTIVE?",
            checks=("rdma.counters", "rdma.gid"),
        )


def after_a_while(story: Story, lines: list[Seen], lost: str) -> Iterator[Finding]:
    """Yield what loses packets where others had arrived: a wrong GID lets none through."""
    numbers = story.stated("last_completed").values()
    done = any(int(seen.told["last_completed"]) > 0 for seen in numbers)
    if not done and not any(row.order < lines[0].order for row in story.of_rule(ROW)):
        return
    roce = any("/RoCE" in seen.told["hcas"] for seen in story.stated("hcas").values())
    yield Finding(
        cause="rdma.port",
        kind=Kind.SYMPTOM,
        says=f"{lost}, though it had worked before: a link that goes up and down",
        confidence=0.5 if roce else 0.65,
        fix="reseat or replace the cable or optic whose counters grow; until then leave the node "
        "out",
        evidence=tuple(lines),
        confirm="link_downed and symbol_error in /sys/class/infiniband/*/ports/*/counters",
        checks=("rdma.counters",),
    )
    if roce:
        yield Finding(
            cause="rdma.qos",
            kind=Kind.SYMPTOM,
            says=f"{lost}, though smaller messages arrived: RoCE loses packets under load",
            confidence=0.65,
            fix="have the switches and NICs lossless for one class (PFC, ECN), and set NCCL_IB_TC "
            "to it; give all ports one MTU",
            evidence=tuple(lines),
            confirm="mlnx_qos -i INTERFACE; ethtool -S INTERFACE | grep -E 'discard|pause|out_of'",
            checks=("rdma.counters", "rdma.mtu", "network.mtu"),
        )
