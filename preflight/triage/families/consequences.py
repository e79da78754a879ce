"""What ranks say because another one has ended: never the headline, or innocent ranks are blamed.

The exceptions of this kind are in `rule.BY_OTHERS`.
"""

from __future__ import annotations

from preflight.triage.rule import Kind, Rule

PEER = r"\[?(?P<peer>[\w.:%-]+?)\]?(?:<\d{1,5}>|:\d{1,5})"


def consequence(pattern: str, says: str, source: str) -> Rule:
    """Return a rule of a line that follows from another rank's end."""
    return Rule(pattern, Kind.CONSEQUENCE, says=says, source=source)


WARNED_OF = r"(?:recvValue|recvVector|recvBytes|sendBytes) failed on SocketImpl"
ENDS_ITSELF = consequence(
    r"we are taking the entire process down|"
    r"watchdog thread terminated with exception|"
    r"Some NCCL operations have failed or timed out",
    "{who} ends itself after an error",
    "torch ProcessGroupNCCL.cpp",
)
RULES = (
    consequence(
        r"ncclRemoteError|remote process exited or there was a network error",
        "{who} found that another rank was gone",
        "NCCL result 6, as torch prints it",
    ),
    consequence(
        r"Connection closed by (?:remote )?peer(?: " + PEER + r")?",
        "{peer} closed its connection to {who}",
        "NCCL misc/socket.cc, 2.4 to 2.30; gloo transport/tcp/pair.cc",
    ),
    consequence(
        r"(?:Read|Write|writev) error " + PEER,
        "{who} lost its connection to {peer}",
        "gloo transport/tcp/pair.cc",
    ),
    consequence(
        r"Call to (?:recv from|send to|recv|send) (?:" + PEER + r" )?failed : "
        r"(?:Connection reset by peer|Broken pipe|Software caused connection abort)",
        "{who} lost its connection to {peer}",
        "NCCL misc/socket.cc, 2.4 to 2.30",
    ),
    Rule(
        WARNED_OF,
        Kind.FACT,
        says="the store that {who} used was gone",
        source="torch c10d/TCPStore.cpp since 2.6; torchruns that end together say so, too",
    ),
    Rule(
        r"(?P<warned>" + WARNED_OF + r"[^\r]*)?"
        r"(?:Broken pipe|Connection was likely closed\. Did the remote server shutdown or crash)",
        Kind.CONSEQUENCE,
        says="what {who} spoke to was gone",
        refine=lambda told: None if "warned" in told else told,
        source="torch c10d/TCPStore, Python",
    ),
    consequence(
        r"store->get\('\d+'\) got error",
        "{who} waited for rank 0, which did not answer",
        "torch ProcessGroupNCCL.cpp since 2.1",
    ),
    consequence(
        r"NCCL communicator was aborted on rank \d",
        "{who} gave up what it was doing",
        "torch ProcessGroupNCCL.cpp",
    ),
    ENDS_ITSELF,
    consequence(
        r"Proxy Call to rank \d+ failed|Socket recv failed while polling for opId|"
        r"Failed to execute operation \w+ from rank \d",
        "a thread of {who} was gone",
        "NCCL proxy.cc since 2.12",
    ),
    consequence(
        r"[Ss]ending process \d+ closing signal SIG|closing signal SIGTERM|"
        r"Received (?:Signals\.)?(?:SIGTERM|15) death signal|got signal: 15|"
        r"Unable to shutdown process \d+ via",
        "the launcher ends the ranks that are left",
        "torchrun",
    ),
    consequence(r"exitcode  : -15 ", "the launcher ended it", "torchrun"),
    consequence(
        r"Killing subprocess \d+",
        "the launcher ends the ranks that are left",
        "DeepSpeed launch.py",
    ),
    consequence(
        r"srun: (?:Job step aborted: Waiting up to|[Tt]erminating (?:StepId=|[Jj]ob step)|"
        r"Force Terminated|error: [\w.-]+: tasks? [\d,-]+: Terminated)",
        "Slurm ends the tasks that are left",
        "srun --kill-on-bad-exit",
    ),
    consequence(
        r"\*\*\* STEP \S{1,40} ON \S{1,80} CANCELLED AT \S{1,40} \*\*\*",
        "Slurm ends the tasks that are left",
        "slurmstepd",
    ),
    consequence(
        r"Primary job +terminated normally, but \d+ process",
        "mpirun ends the ranks that are left",
        "Open MPI",
    ),
    consequence(
        r"successfully reached monitoredBarrier, but received errors while waiting",
        "{who} was in the barrier, rank 0 gave it up",
        "torch ProcessGroupGloo.cpp",
    ),
)
