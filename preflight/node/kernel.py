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


def is_virtual(node: Node) -> bool:
    """Whether this is a virtual machine, whose share of the host's link is not told.

    Source: the flag `hypervisor` of /proc/cpuinfo (x86 only: CPUID leaf 1, ECX bit 31).
    """
    return " hypervisor " in (node.read("/proc/cpuinfo") or "").replace("\n", " ")
