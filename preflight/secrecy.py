"""Keeps secrets of an inventory's `launch.env` out of reports, and off the nodes."""

from __future__ import annotations

import re
from collections.abc import Mapping

from preflight.node.variables import HIDDEN, without_login

SECRET_NAME = re.compile(
    r"(^|_)(API_?KEY|KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASS|CREDENTIALS?|AUTH|COOKIE)(_|$)", re.I
)
"""Words of names such as WANDB_API_KEY or HF_TOKEN; UCX_IB_PKEY is none."""
SECRET_IN_URL = re.compile(r"(?<=://)[^/@\s]+@")


def masked(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with secret values, and logins within URLs, taken out."""
    return {
        name: HIDDEN
        if SECRET_NAME.search(name)
        else SECRET_IN_URL.sub(f"{HIDDEN}@", without_login(name, value))
        for name, value in env.items()
    }
