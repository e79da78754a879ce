"""Training loads the same NCCL, and the same net plugin, on all nodes.

Why: ranks with other versions of NCCL, or with and without a net plugin, do not speak the same
    protocol: they hang in the first collective, often without an error. What is installed is not
    always what is loaded: LD_PRELOAD or LD_LIBRARY_PATH may put another one before the wheel's.
Facts: the library that would be loaded, by which rule, and its version; versions of the wheels;
    the system's library; the net plugin that is found.
Source: the dynamic section of torch/lib/libtorch_cuda.so, torch/_C*.so and the interpreter, and
    the search order of ld.so(8): LD_PRELOAD, DT_RPATH (which counts only without DT_RUNPATH),
    LD_LIBRARY_PATH, DT_RUNPATH, /etc/ld.so.cache. The version: the words "NCCL version" in the
    library, else the file name libnccl.so.2.x.y, else *.dist-info beside it. NCCL_NET_PLUGIN of
    launch.env or the shell (what nccl.conf sets is not followed: see launch.env).
    https://github.com/NVIDIA/nccl/issues/1634.
Fix: use one environment or image, and the same LD_LIBRARY_PATH, on all nodes; for a net plugin,
    install the same everywhere or set NCCL_NET_PLUGIN=none.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Mapping

from preflight.api import Check, Expect, Verdict, Want, same_everywhere, unknown
from preflight.node.software import (
    Inside,
    Training,
    asked,
    believed,
    by_hand,
    opened,
    together,
    training,
    versions,
)

PLUGIN_FIX = "install the same net plugin on all nodes, or set NCCL_NET_PLUGIN=none in launch.env"


def compare(facts: Mapping[str, Training], want: Want) -> dict[str, Verdict]:
    return believed(facts, compared(facts, want), want, "nccl")


def compared(facts: Mapping[str, Training], want: Want) -> dict[str, Verdict]:
    said, verdicts = opened(facts)
    for node in list(said):
        if doubt := unclear(said[node], want.get("expect.nccl")):
            verdicts[node] = unknown(doubt)
            del said[node]
    loaded = {node: version(inside) for node, inside in said.items()}
    by_hand_version = by_hand(want, '-c "import torch; print(torch.cuda.nccl.version())"')
    found = versions(loaded, "NCCL", want.get("expect.nccl"), reproduce=by_hand_version)
    if not any(loaded.values()):
        return {**verdicts, **found}
    plugins = same_everywhere(
        {node: plugin(inside) for node, inside in said.items()},
        "net plugin",
        fix=PLUGIN_FIX,
        reproduce="ldconfig -p | grep libnccl-net; echo $LD_LIBRARY_PATH $NCCL_NET_PLUGIN",
        explained_by=("software.container",),  # it is no part of what pip installs
    )
    for node, verdict in together(found, plugins).items():
        details = (*verdict.details, *origin(said[node]))
        verdicts[node] = replace(verdict, details=details)
    return verdicts


def unclear(inside: Inside, expected: str | None) -> str:
    """Return why it cannot be told which NCCL is loaded, empty if it can or there is none."""
    torch, nccl = inside["torch"], inside["nccl"]
    if nccl is None:
        lost = torch and torch["path"] and torch["cuda"]
        return "PyTorch has CUDA, but the NCCL that it loads is not found" if lost else ""
    if nccl["by"] == "built in":
        told = f"NCCL is {version(inside)}: its version cannot be told, expected {expected}"
        return told if expected else ""
    return "" if nccl["version"] else "{} does not tell its version".format(nccl["path"])


def version(inside: Inside) -> str | None:
    """Return the version of the NCCL that is loaded; None: there is none."""
    nccl, torch = inside["nccl"], inside["torch"]
    if nccl and nccl["by"] == "built in":
        return "built into PyTorch {}".format(torch["version"] if torch else "")
    return nccl and nccl["version"]


def wheels(inside: Inside) -> list[str]:
    """Return the versions of NCCL's wheels; cu12 and cu13 put the same file."""
    packages = inside["packages"]
    return [packages[name] for name in sorted(packages) if name.startswith("nvidia-nccl-")]


def plugin(inside: Inside) -> str | None:
    """Return what tells one net plugin from another: the end of its path, and its size."""
    found = inside["net_plugin"]
    if found is None:
        return None
    return "{} of {:,} bytes".format(found["path"].rsplit("/", 1)[-1], found["bytes"])


def origin(inside: Inside) -> list[str]:
    """Return where things come from."""
    nccl, net = inside["nccl"], inside["net_plugin"]
    lines = ["{path} (by {by})".format(**nccl)] if nccl else []
    own = wheels(inside)
    if nccl and own and nccl["version"] not in {*own, " or ".join(own)}:
        lines.append("not the wheel's {}".format(" or ".join(own)))
    if nccl and inside["system_nccl"] not in {None, nccl["path"]}:
        lines.append("not the system's {}".format(inside["system_nccl"]))
    return [*lines, *(["net plugin {}".format(net["path"])] if net else [])]


CHECK = Check(
    probe=training,
    args=asked,
    compare=compare,
    expects=(Expect("nccl", str, "", "NCCL that training loads, such as 2.21.5"),),
    explains=("collective.local", "collective.all_reduce", "collective.pairs"),
)
