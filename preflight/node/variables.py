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
TAKEN, SECRET = re.compile(NAMES), re.compile(f"(^|_)({SECRETS})(_|$)")


def is_taken(name: str) -> bool:
    """Whether a variable steers communication, and holds no secret."""
    return bool(TAKEN.fullmatch(name)) and not SECRET.search(name)
