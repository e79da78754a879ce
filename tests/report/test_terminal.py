"""The terminal report: golden files for situations, and what must hold in all of them."""

from __future__ import annotations

import datetime as dt
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.cells import cell_len

from preflight.api import FAIL, SKIP, UNKNOWN, WARN
from preflight.report import model
from preflight.report.build import Policy
from preflight.report.terminal import render
from tests.report.made import EIGHT, MANUALS, SITUATIONS, Grid, gpus, hundreds, mtu, ready, waived

TODAY = dt.date(2026, 11, 30)
GOLDEN = Path(__file__).parent / "golden"
ROOT = Path(__file__).parents[2]
COMMAND = "mount -t nfs4 -o rw,hard,vers=4.2,nconnect=8,rsize=1048576,wsize=1048576 nas01"
HOSTILE = "\x1b[2J\x1b]0;own\x07[red]x[/red] [link=e]\u202egpj.exe\u2066\r\nREADY\x00 \ud800\x9b1m"
HOSTILE_SHOWN = HOSTILE.encode("unicode_escape").decode()


def lines(report: model.Report, width: int = 80, verbose: bool = False) -> list[str]:
    return render(report, width, verbose, MANUALS, TODAY).plain.split("\n")


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("name", SITUATIONS)
def test_golden(name: str, width: int, request: pytest.FixtureRequest) -> None:
    text = "\n".join(lines(SITUATIONS[name](), width)) + "\n"
    path = GOLDEN / f"{name}.{width}.txt"
    if request.config.getoption("--update-golden"):
        path.write_text(text)
    assert text == path.read_text()


def test_golden_verbose(request: pytest.FixtureRequest) -> None:
    text = "".join("\n".join(lines(SITUATIONS[n](), verbose=True)) for n in ("mtu", "undetermined"))
    path = GOLDEN / "verbose.txt"
    if request.config.getoption("--update-golden"):
        path.write_text(text + "\n")
    assert text + "\n" == path.read_text()


@pytest.mark.parametrize("verbose", [False, True])
@pytest.mark.parametrize("width", [40, 80, 120])
@pytest.mark.parametrize("name", SITUATIONS)
def test_no_line_is_wider_than_the_page_but_commands(name: str, width: int, verbose: bool) -> None:
    wide = [line for line in lines(SITUATIONS[name](), width, verbose) if cell_len(line) > width]
    commands = {r.fix for r in SITUATIONS[name]().results} | {
        r.reproduce for r in SITUATIONS[name]().results
    }
    assert [line for line in wide if line.strip() not in commands] == []


@pytest.mark.parametrize("name", SITUATIONS)
def test_all_is_ascii_and_no_line_ends_in_blanks(name: str) -> None:
    found = lines(SITUATIONS[name](), verbose=True)
    assert [line for line in found if not line.isascii() or line != line.rstrip()] == []


def test_a_ready_cluster_is_said_in_a_few_lines() -> None:
    assert len(lines(ready())) < 12


def test_hundreds_of_nodes_are_not_a_row_each() -> None:
    assert len(lines(hundreds())) < 80


def test_a_long_command_is_one_line_from_the_margin() -> None:
    assert any(line.startswith(COMMAND) for line in lines(hundreds()))


def test_a_fix_of_several_commands_is_a_line_each() -> None:
    grid = Grid(EIGHT)
    fix = "ip link set dev eth1 mtu 9000\nip link set dev eth1 up"
    grid.say("network.mtu", ["gpu03"], FAIL, "eth1 has MTU 1500", fix=fix)
    grid.cause("network.mtu", ["gpu03"])
    found = lines(grid.report())
    at = found.index("   fix:")
    assert found[at + 1 : at + 3] == [
        "        ip link set dev eth1 mtu 9000",
        "        ip link set dev eth1 up",
    ]


def test_a_login_is_mended_on_this_machine() -> None:
    grid = Grid(EIGHT)
    grid.lose(EIGHT[:2])
    grid.say("access.ssh", EIGHT[:2], FAIL, "key has a passphrase", fix="ssh-add ~/.ssh/id")
    grid.cause("access.ssh", EIGHT[:2])
    grid.say("host.shm", EIGHT[2:], FAIL, "too small", fix="mount -o remount /dev/shm")
    grid.cause("host.shm", EIGHT[2:])
    found = [line.strip() for line in lines(grid.report())]
    assert "fix: ssh-add ~/.ssh/id" in found
    assert found[found.index("fix: on each of these nodes:") + 1] == "mount -o remount /dev/shm"


def test_what_a_node_says_is_text() -> None:
    grid = Grid(EIGHT)
    more = {"fix": HOSTILE.replace("\n", ""), "reproduce": HOSTILE.replace("\n", "")}
    grid.say("network.mtu", ["gpu03"], FAIL, HOSTILE, **more)
    grid.cause("network.mtu", ["gpu03"])
    grid.say("host.shm", ["gpu04"], WARN, HOSTILE, details=[HOSTILE], observed=HOSTILE)
    grid.say("host.clock", ["gpu05"], UNKNOWN, HOSTILE)
    grid.say("host.limits", ["gpu06"], SKIP, HOSTILE)
    report = grid.report(cluster=HOSTILE)
    for verbose in (False, True):
        text = render(report, 4000, verbose, MANUALS, TODAY)
        assert [c for c in text.plain if not c.isprintable() and c != "\n"] == []
        assert text.plain.count(HOSTILE_SHOWN) == (10 if verbose else 5)
        assert {str(span.style) for span in text.spans} <= {
            "bold", "dim", "cyan", "green", "yellow", "magenta", "bold red", "bold magenta", ""
        }  # fmt: skip


def test_a_node_s_name_of_a_foreign_report_is_text() -> None:
    report = Grid(["a\x1b[2Jb", "@all", "x[1-99999999]"]).report()
    assert lines(report)[2] == "READY  all 3 nodes are ready"
    broken = Grid(["a\x1b[2Jb", "@all"])
    broken.say("host.shm", ["@all"], FAIL, "too small")
    broken.cause("host.shm", ["@all"])
    assert lines(broken.report())[2] == r"NOT READY  1 of 2 nodes is ready: a\x1b[2Jb"


def test_long_text_is_cut() -> None:
    grid = Grid(EIGHT)
    grid.say("host.shm", ["gpu04"], WARN, "x" * 10_000)
    found = lines(grid.report())
    assert len(found) < 20
    assert [line[-5:] for line in found if line.endswith("...")] == ["xx..."]


def test_wide_characters_count_twice() -> None:
    grid = Grid(EIGHT)
    grid.say("host.shm", ["gpu04"], WARN, "\u6f22\u5b57" * 60)
    assert max(map(cell_len, lines(grid.report()))) <= 80


def test_an_output_without_unicode_gets_escapes() -> None:
    grid = Grid(EIGHT)
    grid.say("host.shm", ["gpu04"], WARN, "caf\xe9 \u6f22")
    text = render(grid.report(), 80, False, MANUALS, TODAY, "ascii").plain
    assert "-  gpu04  caf\\xe9 \\u6f22" in text
    assert text.isascii()


def test_many_causes_are_cut_unless_verbose() -> None:
    names = gpus(*range(1, 61))
    grid = Grid(names)
    for node in names:
        grid.say("host.shm", [node], FAIL, f"/dev/shm of {node} is small", fix="mount it")
        grid.cause("host.shm", [node])
    found = lines(grid.report())
    assert "and 40 more causes; -v shows them" in found
    assert "   host.shm on gpu[21-60] (40 nodes)" in found
    assert any(line.startswith("60 gpu60") for line in lines(grid.report(), verbose=True))


def test_many_warnings_are_cut_unless_verbose() -> None:
    grid = Grid(gpus(*range(1, 31)))
    for node in grid.names:
        grid.say("host.shm", [node], WARN, f"/dev/shm of {node} is small")
    assert "   and 20 more; -v shows them" in lines(grid.report())
    assert "-  gpu30  /dev/shm of gpu30 is small" in "\n".join(lines(grid.report(), verbose=True))


def test_a_scattered_set_is_cut_and_counted() -> None:
    names = gpus(*range(1, 400, 2), width=3)
    grid = Grid([*names, "login"])
    grid.say("host.shm", names, FAIL, "too small", fix="mount -o remount,size=8g /dev/shm")
    grid.cause("host.shm", names)
    text = "\n".join(lines(grid.report()))
    assert ",... (200 nodes)" in text
    assert "NOT READY  1 of 201 nodes is ready: login" in text


def test_warnings_that_count_are_said_to() -> None:
    grid = Grid(EIGHT)
    grid.say("host.shm", ["gpu03"], WARN, "/dev/shm is small", fix="mend it")
    found = lines(grid.report(Policy(fail_on_warn=True)))
    assert found[2] == "NOT READY  7 of 8 nodes are ready: gpu[01-02,04-08]"
    assert found[4] == "warnings, which count as failures in this run"


def test_why_a_node_is_undetermined_without_an_unknown() -> None:
    grid = Grid(EIGHT)
    grid.say("host.shm", ["gpu03"], SKIP, "skipped by --skip")
    for check in grid.checks[1:]:
        grid.say(check, ["gpu05"], SKIP, "needs root")
    found = lines(grid.report(Policy(require=frozenset({"host.shm"}))))
    assert " ".join(" ".join(found[2:4]).split()) == (
        "UNDETERMINED host.shm, which is required, said nothing on gpu03; no check judged gpu05; "
        "6 of 8 nodes are ready: gpu[01-02,04,06-08]"
    )
    found = lines(grid.report())
    assert found[2] == (
        "UNDETERMINED  no check judged gpu05; 7 of 8 nodes are ready: gpu[01-04,06-08]"
    )


def test_one_node_that_is_not_ready_or_undetermined() -> None:
    grid = Grid(["gpu01"])
    grid.say("host.shm", ["gpu01"], UNKNOWN, "no answer within 10 s")
    assert lines(grid.report())[2] == "UNDETERMINED  host.shm could not be told of gpu01"
    grid.say("host.shm", ["gpu01"], FAIL, "too small")
    grid.cause("host.shm", ["gpu01"])
    assert lines(grid.report())[2] == "NOT READY  gpu01 is not ready"


def test_coverage_that_differs_much_is_a_range() -> None:
    grid = Grid(EIGHT)
    for number, node in enumerate(EIGHT):
        for check in grid.checks[3 : 3 + number]:
            grid.say(check, [node], SKIP, "not here")
    assert "23 to 30 of 30 checks ran on 8 nodes" in lines(grid.report())


def test_what_is_left_of_two_nodes_is_named() -> None:
    grid = Grid(["gpu01", "gpu02"], ["access.ssh", "host.shm"])
    grid.lose(["gpu02"])
    grid.say("access.ssh", ["gpu02"], FAIL, "timed out", fix="switch it on")
    grid.cause("access.ssh", ["gpu02"])
    assert lines(grid.report())[-5:] == [
        "       access host",
        "gpu02  FAIL   -",
        "gpu01  ok     ok",
        "",
        "all 2 checks ran on gpu01",
    ]


def test_the_grid_of_many_groups_is_two_tables() -> None:
    checks = ["access.ssh", *(f"group_number_{n}.check" for n in range(8))]
    found = lines(Grid(EIGHT, checks).report())
    assert sum(line.startswith("all 8 nodes  ok") for line in found) == 2


SHOW = """
import datetime as dt
import sys
from preflight.report.terminal import show
from tests.report.made import MANUALS, SITUATIONS
today = dt.date(2026, 11, 30)
show(SITUATIONS[sys.argv[1]](), sys.argv[2] == "color", False, MANUALS, today)
"""


def environment(**more: str) -> dict[str, str]:
    inherited = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "FORCE_COLOR")}
    return inherited | {"TERM": "xterm-256color"} | more


def piped(*args: str, **more: str) -> str:
    argv = [sys.executable, "-c", SHOW, *args]
    env = environment(**more)
    return subprocess.run(
        argv, cwd=ROOT, env=env, check=True, capture_output=True, text=True
    ).stdout


def on_terminal(*args: str, **more: str) -> str:
    """Return what a terminal of 100 columns gets."""
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as screen:
        size = "import fcntl, struct, sys, termios\n"
        size += "fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack('HHHH', 50, 100, 0, 0))\n"
        argv = [sys.executable, "-c", size + SHOW, *args]
        process = subprocess.Popen(argv, cwd=ROOT, env=environment(**more), stdout=theirs)
        os.close(theirs)
        got = b""
        try:
            while piece := screen.read(4096):
                got += piece
        except OSError:  # Linux: the other end is closed
            pass
        assert process.wait() == 0
    return got.decode().replace("\r\n", "\n")


def test_a_file_gets_80_columns_and_no_colour() -> None:
    assert piped("mtu", "color") == (GOLDEN / "mtu.80.txt").read_text()


def test_columns_in_the_environment_win() -> None:
    assert piped("mtu", "color", COLUMNS="120") == (GOLDEN / "mtu.120.txt").read_text()


def test_an_ascii_output_does_not_break() -> None:
    assert piped("mtu", "color", PYTHONIOENCODING="ascii") == (GOLDEN / "mtu.80.txt").read_text()


def test_a_terminal_gets_its_width_and_colour() -> None:
    got = on_terminal("mtu", "color")
    assert "\x1b[1;31mNOT READY  \x1b[0m" in got
    assert re.sub(r"\x1b\[[0-9;]*m", "", got) == "\n".join(lines(mtu(), 100)) + "\n"


def test_without_colour_a_terminal_gets_no_escapes() -> None:
    assert on_terminal("waived", "plain") == "\n".join(lines(waived(), 100)) + "\n"
