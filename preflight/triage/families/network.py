"""Connections that do not come to be: closed ports, firewalls, wrong addresses."""

from __future__ import annotations

from preflight.triage.rule import Kind, Rule

ADDRESS = r"\[?(?P<address>[0-9a-fA-F.:%\w-]+?)\]?(?:<(?P<port>\d{1,5})>|:(?P<port2>\d{1,5}))"
PORTS = "open all TCP ports between the nodes: NCCL and torch listen on random high ports, too"

RULES = (
    Rule(
        r"(?:[Cc]onnect to )" + ADDRESS + r" (?:failed : |returned (?:\d+\()?)Connection refused",
        Kind.SYMPTOM,
        cause="network.ephemeral",
        says="{who} reached {address}, but nothing listened there on port {port}",
        confidence=0.5,
        fix=PORTS,
        confirm="preflight run --only network.ephemeral,network.interface",
        checks=("network.interface", "network.firewall"),
        stage="bootstrap",
        source="NCCL misc/socket.cc, 2.4 to 2.30",
    ),
)
