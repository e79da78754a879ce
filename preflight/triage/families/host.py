"""What a node lacks: shared memory, locked memory, threads, time that is right."""

from __future__ import annotations

from preflight.triage.rule import Kind, Rule

SHM = "docker run --shm-size=16g or --ipc=host, in Kubernetes an emptyDir of medium Memory at "
"/dev/shm; "
STALE = "remove stale files: rm /dev/shm/nccl-*"

RULES = (
    Rule(
        r"NCCL WARN Call to posix_fallocate failed : No space left on device"
        r"|NCCL WARN Error: failed to extend /dev/shm/nccl-\S{1,40}(?: to \d{1,18} bytes)?"
        r"|NCCL WARN Error while creating shared memory segment \S{1,80}",
        Kind.CAUSE,
        cause="host.shm",
        says="{who} finds no room in /dev/shm of {node}",
        confidence=0.93,
        fix=SHM + STALE,
        confirm="df -h /dev/shm; ls /dev/shm | wc -l in the job's container on {node}",
        stage="transport setup",
        source="NCCL include/shm.h until 2.11, misc/shmutils.cc since",
    ),
    Rule(
        r"NCCL WARN Call to shm_open failed : Permission denied",
        Kind.CAUSE,
        cause="host.shm",
        says="{who} may not write to /dev/shm of {node}",
        confidence=0.93,
        fix="chmod 1777 /dev/shm",
        confirm="ls -ld /dev/shm on {node}",
        stage="transport setup",
        source="NCCL include/shm.h",
    ),
    Rule(
        r"Error while attaching to shared memory segment \S{1,80}.{0,20}"
        r"No such file or directory",
        Kind.CAUSE,
        cause="host.shm",
        says="{who} and another rank have the same host name, and not the same /dev/shm",
        confidence=0.9,
        fix="give the containers of one node one /dev/shm (--ipc=host), or names of their own and "
        "NCCL_HOSTID",
        confirm="hostname in each container",
        stage="transport setup",
        source="NCCL misc/shmutils.cc",
    ),
    Rule(
        r"unable to (?:write to|open|mmap|allocate) (?:a )?(?:shared memory|file </torch_\S{1,60}>)"
        r"|DataLoader worker \(pid[^)]{0,30}\) is killed by signal: Bus error"
        r"|Unexpected bus error encountered in worker\. This might be caused by insufficient "
        r"shared memory",
        Kind.CAUSE,
        cause="host.shm",
        says="{who}: a data loader finds no room in /dev/shm of {node}",
        confidence=0.93,
        fix=SHM + STALE,
        confirm="df -h /dev/shm in the job's container on {node}",
        source="torch/utils/data/_utils/worker.py, signal_handling.py",
    ),
    Rule(
        r"RuntimeError: can't start new thread|pthread_create failed.{0,40}Resource temporarily "
        r"unavailable|fork: retry: Resource temporarily unavailable|BlockingIOError: \[Errno 11\]",
        Kind.CAUSE,
        cause="host.limits",
        says="{who} may start no more threads or processes on {node}",
        confidence=0.9,
        fix="ulimit -u 65536, or TasksMax= and pids.max of its cgroup",
        confirm="preflight run --only host.limits",
        source="errno 11, EAGAIN, of pthread_create(3) and fork(2)",
    ),
    Rule(
        r"negative travel times were observed across \d{1,9} connection",
        Kind.SYMPTOM,
        cause="host.clock",
        says="the clocks of the nodes differ, as NCCL's RAS has measured",
        confidence=0.6,
        fix="have chrony or timesyncd run on all nodes",
        confirm="preflight run --only host.clock",
        source="NCCL src/ras, since 2.24",
    ),
    Rule(
        r"\[Errno 28\] No space left on device(?:: '(?P<file>[^']{1,200})')?"
        r"|^(?:[\w.-]{1,40}: ){1,3}.{0,200}: No space left on device",
        Kind.CAUSE,
        cause="storage.space",
        says="{who} finds no space left to write to on {node}",
        confidence=0.85,
        fix="df -h and df -i on {node}; free some, or write elsewhere",
        checks=("host.shm", "host.disk"),
        source="errno 28, ENOSPC",
    ),
)
