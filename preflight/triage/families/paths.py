"""What launchers do not find on a node, and nodes that they do not reach or may not enter."""

from __future__ import annotations

from preflight.triage.launched import cause
from preflight.triage.rule import Kind

PATHS = "launch.paths"
SAME_PATHS = "install or mount it there as on the other nodes, or name the right path"
RULES = (
    cause(
        r"bash: (?:line \d{1,6}: )?cd: (?P<path>/[^:\r]{1,300}): No such file or directory",
        PATHS,
        "{node} has no directory {path}, in which the launcher starts the ranks",
        SAME_PATHS,
        "bash, started by pdsh or ssh",
        confidence=0.85,
        kind=Kind.SYMPTOM,
        checks=("storage.mounts",),
    ),
    cause(
        r"(?:bash|sh|env|srun|slurmstepd|exec): .{0,40}?"
        r"(?P<path>[\w./-]{0,250}/(?:python[\d.]{0,6}|torchrun|deepspeed|accelerate))[^\w\r].{0,3}"
        r"No such file or directory",
        PATHS,
        "{node} has no {path}, with which the ranks are started",
        SAME_PATHS,
        "bash, Slurm",
        checks=("storage.mounts", "access.python"),
    ),
    cause(
        r"(?:bash|sh|env|execve|exec)\b.{0,40}?\b(?P<program>python3?|torchrun|deepspeed|accelerate"
        r"|orted|prted|ray)\W{1,4}(?:command not found|not found|No such file or directory"
        r"|executable file not found)",
        PATHS,
        "{node} has no {program} on its PATH",
        SAME_PATHS + "; a non-interactive shell does not read all of ~/.bashrc",
        "shells, Slurm, container runtimes",
        checks=("access.python",),
    ),
    cause(
        r"can't open file '(?P<path>[^'\r]{1,300})': \[Errno 2\]",
        PATHS,
        "{node} has no {path}",
        SAME_PATHS,
        "Python",
        checks=("storage.mounts",),
    ),
    cause(
        r"ssh exited with exit code 127",
        PATHS,
        "a node did not find the program that the launcher started there",
        SAME_PATHS,
        "pdsh",
        confidence=0.8,
        checks=("access.ssh", "access.python"),
    ),
    # SSH
    cause(
        r"ssh: connect to host (?P<host>[\w.:-]{1,253}) port \d{1,5}: (?P<why>[A-Z][\w ]{4,60})",
        "access.ssh",
        "the launcher did not reach {host} by SSH: {why}",
        "ssh {host} true has to work without a password from where it is launched",
        "OpenSSH",
        confidence=0.9,
        checks=("network.firewall", "network.route"),
    ),
    cause(
        r"Host key verification failed\.|[\w.-]{1,80}: Permission denied \(publickey",
        "access.ssh",
        "the launcher may not log in to a node by SSH",
        "ssh NODE true has to work without a password or a question from where it is launched",
        "OpenSSH",
        confidence=0.9,
    ),
)
