"""Variables of the environment that are looked at. Sent to nodes: stdlib only, Python 3.8."""

from __future__ import annotations

import re

NAMES = (
    "(NCCL|GLOO|UCX|TORCH|FI|OFI_NCCL)_[A-Za-z0-9_]+|MASTER_(ADDR|PORT)|TP_SOCKET_IFNAME"
    "|CUDA_DEVICE_MAX_CONNECTIONS"
)
"""Those that steer communication: FI_ is libfabric's, OFI_NCCL_ its plugin's, TP_ TensorPipe's."""
SECRETS = "KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?"
"""Words of a name that tell of a secret. As NAMES, an expression for grep -E too."""
PROXIES = "(no_)?(http|https|all|grpc)_proxy|no_proxy|(HTTP|HTTPS|ALL|NO)_PROXY"
"""Those that say by which proxy clients go, and what goes past it."""
PLAN = (
    *("RANK", "NODE_RANK", "GROUP_RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    *("SLURM_NTASKS_PER_NODE", "SLURM_NTASKS", "SLURM_JOB_NUM_NODES"),
    *("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"),
)
"""Those that say which ranks a node has, and which of its GPUs they see."""
PLANNED = "|".join(PLAN)
LOGIN, HIDDEN = re.compile(r"([A-Za-z0-9+.-]+://)?.*@", re.S), "(hidden)"
TAKEN, SECRET = re.compile(NAMES), re.compile(f"(^|_)({SECRETS})(_|$)")


def is_taken(name: str) -> bool:
    """Whether a variable steers communication, and holds no secret."""
    return bool(TAKEN.fullmatch(name)) and not SECRET.search(name)


def without_login(name: str, value: str) -> str:
    """Return a variable's value; of a proxy without user and password."""
    if not name.lower().endswith("_proxy"):
        return value
    return LOGIN.sub(lambda match: f"{match[1] or ''}{HIDDEN}@", value, count=1)
