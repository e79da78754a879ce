"""Commands that are followed, and ended; files in memory that nobody finds afterwards."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from preflight.node.followed import Followed
from preflight.node.toolbox import started

SAYS = re.compile("^writes ", re.MULTILINE)
BOX = "-" * 74


def shell(script: str, limit_s: float = 20) -> Followed:
    return Followed(started(["/bin/sh", "-c", script], {}), limit_s)


def whole(run: Followed) -> list[str]:
    with run:
        return list(run.texts())


def test_what_it_writes_is_seen_as_it_comes(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    with shell(f"echo one; until [ -e {seen} ]; do :; done; echo two") as run:
        texts = run.texts()
        assert next(texts) == "one\n"
        seen.touch()
        assert list(texts) == ["one\ntwo\n"]
    assert (run.code, run.killed) == (0, False)


def test_past_its_time() -> None:
    run = shell("echo one; exec sleep 60", 0.5)
    assert whole(run) == ["one\n"]
    assert (run.code, run.killed) == (-15, True)


def test_one_that_is_deaf_to_sigterm() -> None:
    ignore = "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True)"
    process = started([sys.executable, "-c", f"{ignore}; time.sleep(60)"], {})
    with Followed(process, 20) as run:
        next(run.texts())
    assert (run.code, run.killed) == (-9, False)


def test_somebody_else_has_its_streams() -> None:
    run = shell("echo one; sleep 60 & echo $!")
    (text,) = whole(run)[-1:]
    os.kill(int(text.split()[1]), 9)
    assert (run.code, run.killed) == (0, False)


@pytest.mark.parametrize(
    ("errors", "why"),
    [
        ("", "it ended with code 3"),
        ("Good bye", "Good bye"),
        ("Welcome to node1\nPermission denied (publickey).", "Permission denied (publickey)."),
        (f"{BOX}\nan error\n{BOX}\nsh: 1: orted: not found", "sh: 1: orted: not found"),
        (f"{BOX}\nORTE was unable to start.\n{BOX}\n[a:7] an error", "ORTE was unable to start."),
    ],
)
def test_why_it_did_not_end_well(errors: str, why: str) -> None:
    run = shell(f"cat >&2 <<'END'\n{errors}\nEND\nexit 3")
    whole(run)
    assert run.why() == why
