"""What the kernel says of the machine itself. Sent to nodes: stdlib only, Python 3.8."""

from __future__ import annotations

from typing import TypedDict

from preflight.api import Node


class Identity(TypedDict):
    """What tells two machines apart; the empty string where it can't be seen."""

    boot_id: str
    netns: str
    hostname: str
    server_address: str
    """The address that the SSH connection came to; empty without SSH."""


def identity(node: Node) -> Identity:
    """Return who this machine is.

    Source: /proc/sys/kernel/random/boot_id, the link /proc/self/ns/net, $SSH_CONNECTION (sshd(8)).
    """
    connection = node.environ().get("SSH_CONNECTION", "").split()
    return Identity(
        boot_id=(node.read("/proc/sys/kernel/random/boot_id") or "").strip(),
        netns=node.readlink("/proc/self/ns/net") or "",
        hostname=node.uname()["node"],
        server_address=connection[2] if len(connection) == 4 else "",
    )
