"""The variables of Ansible that preflight knows; no other is even kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TAKEN = {
    "address": ("ansible_host", "ansible_ssh_host"),
    "port": ("ansible_port", "ansible_ssh_port"),
    "user": ("ansible_user", "ansible_ssh_user"),
    "key": ("ansible_ssh_private_key_file", "ansible_private_key_file"),
    "python": ("ansible_python_interpreter",),
    "become": ("ansible_become", "ansible_sudo"),
    "method": ("ansible_become_method",),
    "connection": ("ansible_connection",),
}
"""Of several names for one thing the first that is set counts."""
LEFT = {
    **dict.fromkeys(
        ("ansible_password", "ansible_ssh_pass", "ansible_ssh_password"),
        "passwords are not copied, preflight logs in with keys",
    ),
    **dict.fromkeys(
        ("ansible_become_password", "ansible_become_pass", "ansible_sudo_pass"),
        "passwords are not copied, ssh.become works only where sudo asks for none",
    ),
    **dict.fromkeys(
        ("ansible_ssh_common_args", "ansible_ssh_extra_args"),
        "not copied; a jump host goes under ssh.jump, all else into ~/.ssh/config",
    ),
}
"""What people miss if nobody tells them that it was not taken."""
_KNOWN = {*LEFT, *(alias for aliases in TAKEN.values() for alias in aliases)}


def known(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return those that are of any use."""
    return {name: value for name, value in variables.items() if name in _KNOWN}
