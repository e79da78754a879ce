"""Proxies that stand between the nodes."""

from __future__ import annotations

from collections.abc import Mapping

from preflight.triage.launched import cause
from preflight.triage.rule import Kind

PROXY = "launch.proxy"
DIRECT = (
    "put the nodes' names and addresses into no_proxy and NO_PROXY, or unset http_proxy, "
    "https_proxy and all_proxy for the job"
)


def unconnected(told: Mapping[str, str]) -> Mapping[str, str]:
    """Return why gRPC did not connect: if the other node refused it, no proxy was between."""
    if why := told.get("why"):
        return {
            "blamed": "network.port",
            "means": f": {why}",
            "mend": "see whether the program there has ended; open its port",
        }
    return {"blamed": PROXY, "means": ": most often a proxy is between", "mend": DIRECT}


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
        r"ProxyError: .*(?P<why>Tunnel connection failed: [\w ]{3,60}|Cannot connect to proxy)",
        PROXY,
        "{who} did not come through the proxy: {why}",
        DIRECT,
        "urllib3",
        confidence=0.7,
        kind=Kind.SYMPTOM,
    ),
    cause(
        r"(?:Error: .*|details = \")failed to connect to all addresses(?:.*(?P<why>Connection "
        r"refused|Connection timed out|No route to host))?",
        "{blamed}",
        "{who} did not reach another node by gRPC{means}",
        "{mend}",
        "gRPC, Ray",
        confidence=0.55,
        kind=Kind.SYMPTOM,
        checks=(PROXY, "network.port", "network.firewall"),
        confirm="env | grep -i proxy on each node; preflight run --only launch.proxy,network.port",
        refine=unconnected,
    ),
)
