"""Lines of a width."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from preflight.report.page import Page, is_command, wrapped


@given(st.text(), st.integers(8, 60))
def test_wrapping_keeps_all_but_blanks_and_the_width(text: str, width: int) -> None:
    found = wrapped(text, width)
    assert "".join("".join(found).split()) == "".join(text.split())
    assert max(map(cell_len, found)) <= width


def test_a_command_in_backticks_is_not_broken() -> None:
    assert wrapped("run `ip link set dev eth1 up`, then again", 28) == [
        "run",
        "`ip link set dev eth1 up`,",
        "then again",
    ]


def test_a_set_of_nodes_is_broken_after_a_comma() -> None:
    assert wrapped("on gpu[001,003,005-007,100]", 12) == ["on", "gpu[001,003,", "005-007,100]"]


@given(st.text())
def test_no_text_reaches_the_terminal_as_control(text: str) -> None:
    page = Page(80)
    page.line((text, ""))
    page.wrap(text, text)
    page.keep(text, 3)
    page.heading("1", text, text, text)
    page.title(text)
    page.command(text, "fix:", text)
    shown = page.text().plain
    assert [c for c in shown if not c.isprintable() and c != "\n"] == []


@pytest.mark.parametrize(
    "text",
    [
        "ip link set dev eth1 mtu 9000",
        "mount -t nfs4 -o rw,hard nas01:/export/data /data",
        "kill 4711",
        "sysctl -w net.core.somaxconn=4096 && systemctl restart sshd",
    ],
)
def test_commands_are_told_from_prose(text: str) -> None:
    assert is_command(text)


@pytest.mark.parametrize(
    "text",
    [
        "install driver 550.54.15 and reboot",
        "see that the port is sshd's",
        "take one of the two names out of the inventory",
        "name the right key: ssh.key, or IdentityFile in ~/.ssh/config",
    ],
)
def test_prose_is_told_from_commands(text: str) -> None:
    assert not is_command(text)
