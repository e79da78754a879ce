"""Folders of calls: theirs alone, and gone whoever is killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from preflight.api import Unobservable
from preflight.node import scratch


def test_it_is_ours_alone_and_goes_with_all_that_is_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scratch, "root", str(tmp_path / "root"))
    with scratch.folder() as one, scratch.folder() as other:
        assert one != other
        assert one.stat().st_mode & 0o777 == 0o700
        (one / "below").mkdir()
        (one / "below" / "file").write_text("text")
    assert list((tmp_path / "root").iterdir()) == []
    scratch.clear()
    assert list(tmp_path.iterdir()) == []
    scratch.clear()


def test_without_an_agent_it_is_in_memory() -> None:
    with scratch.folder() as one:
        assert one.parent == Path(scratch.MEMORY)
    assert not one.exists()


def test_where_none_can_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(scratch, "root", str(tmp_path / "file"))
    with (
        pytest.raises(Unobservable, match="no folder can be made in /dev/shm: Not a directory"),
        scratch.folder(),
    ):
        pass
    scratch.clear()
    assert (tmp_path / "file").exists()
