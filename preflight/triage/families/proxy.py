"""Proxies that stand between the nodes."""

from __future__ import annotations

from preflight.triage.launched import cause
from preflight.triage.rule import Kind

PROXY = "launch.proxy"
DIRECT = (
    "put the nodes' names and addresses into no_proxy and NO_PROXY, or unset http_proxy, "
    "https_proxy and all_proxy for the job"
)
RULES = (
    cause(
        r"redis\.exceptions\.ConnectionError: Connection closed by server",
        PROXY,
        "{who} reached something else than Ray's store: most often a proxy",
        DIRECT,
        "redis-py; ray-project/ray#6990",
        confidence=0.6,
        kind=Kind.SYMPTOM,
        checks=("network.port",),
    ),
    cause(
        r"HTTP proxy returned response code \d{3}",
        PROXY,
        "{who} sent what is for another node to a proxy, which refused it",
        DIRECT,
        "gRPC core/handshaker/http_connect",
    ),
    cause(
        r"(?:Tunnel connection failed: |Cannot connect to proxy)(?P<why>.{0,60})",
        PROXY,
        "{who} did not come through the proxy",
        DIRECT,
        "urllib3",
        confidence=0.7,
        kind=Kind.SYMPTOM,
    ),
    cause(
        r"failed to connect to all addresses[;\"' ](?:.{0,120}?(?P<why>Connection refused"
        r"|Connection timed out|No route to host))?",
        PROXY,
        "{who} did not reach another node by gRPC",
        "see whether http_proxy or https_proxy is set and no_proxy has the nodes; else open the "
        "port it names",
        "gRPC, Ray",
        confidence=0.5,
        kind=Kind.SYMPTOM,
        checks=("network.port", "network.firewall"),
    ),
)
