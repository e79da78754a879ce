"""`preflight judge`: what was not asked for is no evidence, and no report makes it stumble."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from preflight.cli.judge import command as judge
from preflight.cli.run import command as run
from preflight.errors import ConfigError
from preflight.report import build, model
from tests.checks_made import probing, write
from tests.messages.aloud import Aloud

TODAY = dt.datetime.now(dt.timezone.utc).date()
HERE = {"name": "here", "transport": "local"}


def call(command: Any, *args: object) -> int:
    code = command.main([str(arg) for arg in args], standalone_mode=False)
    assert isinstance(code, int)
    return code


def inventory(path: Path, **parts: Any) -> Path:
    path.write_text(yaml.safe_dump({"nodes": [HERE], **parts}))
    return path


def rows(path: Path) -> dict[str, tuple[str, str]]:
    return {r.check: (r.status, r.summary) for r in model.read(path).results}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a run of all checks on this machine alone."""
    folder = tmp_path_factory.mktemp("recorded")
    source = inventory(folder / "i.yaml", launch={"port": 29517})
    call(run, source, "--json", folder / "report.json")
    return folder / "report.json"


def test_the_same_want_gives_the_same_report(recorded: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.json"
    code = call(judge, recorded, "--json", again)
    assert again.read_text() == recorded.read_text()
    same = inventory(tmp_path / "i.yaml", launch={"port": 29517})
    assert call(judge, recorded, "-i", same, "--json", again) == code
    assert again.read_text() == recorded.read_text()


# ---- checks that are not there -------------------------------------------------------------


def test_a_report_of_checks_that_are_not_known_is_refused(tmp_path: Path, aloud: Aloud) -> None:
    site, path = tmp_path / "checks", tmp_path / "r.json"
    for name in ("a", "b", "c", "d"):
        write(
            site,
            f"site.{name}",
            """
            def probe(node):
                return 1


            def judge(facts, want):
                return fail("it is wrong")


            CHECK = Check(probe=probe, judge=judge)
            """,
        )
    assert call(run, "--checks", site, "--only", "site,software.os", "--json", path) == 1
    with pytest.raises(ConfigError) as caught:
        call(judge, path)
    aloud(caught.value)
    assert call(judge, path, "--checks", site) == 1


# ---- require and skip ----------------------------------------------------------------------


def test_require_and_skip_are_those_of_the_run(tmp_path: Path) -> None:
    path, again = tmp_path / "r.json", tmp_path / "again.json"
    options = ["--only", "host", "--skip", "host.shm=not now", "--require", "host.shm,host.clock"]
    assert call(run, *options, "--json", path) == 3
    want = model.read(path).want
    assert want.require == ["host.clock", "host.shm"]
    assert want.skip == {"host.shm": "not now"}
    assert call(judge, path, "--json", again) == 3
    assert again.read_text() == path.read_text()


def test_what_counts_is_as_in_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site, path, again = tmp_path / "checks", tmp_path / "r.json", tmp_path / "again.json"
    write(site, "site.rack", probing("return 1", "return warn('a bit low')"))
    options = ["--checks", site, "--only", "site", "--json", path]
    assert call(run, *options) == 0
    assert call(judge, path, "--checks", site) == 0
    assert call(run, *options, "--fail-on", "warn") == 1
    capsys.readouterr()
    assert call(judge, path, "--checks", site, "--json", again) == 1
    assert "\nwarnings, which count as failures in this run\n" in capsys.readouterr().out
    assert again.read_text() == path.read_text()
    assert call(judge, path, "--checks", site, "--fail-on", "fail") == 0


def test_require_and_skip_of_another_inventory(tmp_path: Path) -> None:
    path, again = tmp_path / "r.json", tmp_path / "again.json"
    source = inventory(tmp_path / "i.yaml", checks={"skip": {"host.shm": "not now"}})
    code = call(run, source, "--only", "host", "--json", path)
    other = inventory(
        tmp_path / "other.yaml",
        checks={"skip": {"host.limits": "later"}, "require": ["host.limits"]},
    )
    assert call(judge, path, "-i", other, "--json", again) == 3
    found = rows(again)
    assert found["host.shm"] == ("unknown", "skipped when it was recorded: not now")
    assert found["host.limits"] == ("skip", "later")
    assert model.read(again).want.require == ["host.limits"]
    assert call(judge, path, "-i", source) == code
    assert call(judge, again) == 3  # what was not recorded does not come back


def test_judge_requires_as_run_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "r.json"
    code = call(run, "--only", "host.clock", "--json", path)
    assert call(judge, path, "--require", "host.clock") == code == 0
    capsys.readouterr()
    assert call(judge, path, "--require", "network.port") == 3
    assert capsys.readouterr().out.splitlines()[2] == (
        "UNDETERMINED  network.port, which is required, said nothing on localhost"
    )
    with pytest.raises(ConfigError) as caught:
        call(judge, path, "--require", "host.clok")
    assert str(caught.value) == (
        "--require: there is no check or group 'host.clok', did you mean 'host.clock'?"
    )


# ---- another launch ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (
            {"launch": {"port": 12345}},
            {"network.port": "recorded for another launch: port"},
        ),
        (
            {"launch": {"port": 29517, "interface": "eth9"}},
            {
                "network.port": "recorded for another launch: interface",
                "network.mtu": "recorded for another launch: interface",
                "network.link": "recorded for another launch: interface",
                "launch.env": "recorded for another launch: interface",
            },
        ),
        (
            {"launch": {"port": 29517, "python": "/opt/python"}},
            {
                "launch.paths": "recorded for another launch: python",
                "software.python": "recorded for another launch: python",
                "software.pytorch": "recorded for another launch: python",
                "software.nccl": "recorded for another launch: python",
                "software.cuda": "recorded for another launch: python",
            },
        ),
        (
            {"launch": {"port": 29517}, "expect": {"mounts": [{"path": "/data"}]}},
            {"storage.mounts": "recorded for another expect: mounts"},
        ),
    ],
    ids=["port", "interface", "python", "mounts"],
)
def test_what_was_asked_for_another_launch_is_no_evidence(
    recorded: Path, tmp_path: Path, parts: dict[str, Any], expected: dict[str, str]
) -> None:
    again = tmp_path / "again.json"
    other = inventory(tmp_path / "i.yaml", **parts)
    call(judge, recorded, "-i", other, "--json", again)
    before, after = rows(recorded), rows(again)
    changed = {check: said for check, said in after.items() if said != before[check]}
    unknown = {check: ("unknown", summary) for check, summary in expected.items()}
    # others may ask for the same; none of them asks for anything else that was changed
    assert changed == unknown | dict.fromkeys(changed, *set(unknown.values()))
    assert unknown.items() <= changed.items()
    # and the new report, which says that it is of the new launch, does not make it evidence
    call(judge, again, "-i", other, "--json", tmp_path / "third.json")
    assert (tmp_path / "third.json").read_text() == again.read_text()


def test_promises_are_judged_anew_from_the_same_facts(recorded: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.json"
    launch = {"port": 29517, "gpus_per_node": 8}
    other = inventory(tmp_path / "i.yaml", launch=launch, expect={"kernel": "1.2"})
    assert call(judge, recorded, "-i", other, "--json", again) == 1
    assert rows(again)["gpu.inventory"][0] == "fail"
    assert rows(again)["software.os"][0] == "fail"
    assert rows(again)["network.port"] == rows(recorded)["network.port"]


# ---- other nodes ---------------------------------------------------------------------------


def test_an_inventory_that_lacks_nodes_is_refused(
    recorded: Path, tmp_path: Path, aloud: Aloud
) -> None:
    other = inventory(tmp_path / "i.yaml", nodes=[{"name": "there", "transport": "local"}])
    with pytest.raises(ConfigError) as caught:
        call(judge, recorded, "-i", other)
    aloud(str(caught.value).replace(str(recorded), "REPORT"))


def test_an_inventory_with_more_nodes_is_cut_to_the_run_s(recorded: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.json"
    more = [{"name": "first", "transport": "local"}, HERE]
    other = inventory(tmp_path / "i.yaml", nodes=more, launch={"port": 29517})
    call(judge, recorded, "-i", other, "--json", again)
    assert again.read_text() == recorded.read_text()


# ---- waivers -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("days", "code", "words"),
    [
        (0, 0, "READY  here is ready, 1 failure waived"),
        (-1, 1, "NOT READY  here is not ready; 1 waiver has expired"),
    ],
)
def test_a_waiver_ends_by_the_day_of_judging(
    tmp_path: Path, capsys: pytest.CaptureFixture[str],
    days: int, code: int, words: str,
) -> None:  # fmt: skip
    path = tmp_path / "r.json"
    call(run, inventory(tmp_path / "i.yaml"), "--only", "software.os", "--json", path)
    report = json.loads(path.read_text())
    report["run"]["started_at"] = f"{TODAY - dt.timedelta(30)}T00:00:00Z"
    report["want"]["expect"] = {"kernel": "1.2"}
    until = TODAY + dt.timedelta(days)
    waiver = {"check": "software.os", "until": str(until), "owner": "ops", "reason": "RMA"}
    report["want"]["waivers"] = [waiver]
    path.write_text(json.dumps(report))
    capsys.readouterr()
    assert call(judge, path) == code
    out = capsys.readouterr().out
    assert out.splitlines()[2] == words
    assert ("\nexpired waivers, which waive nothing\n" in out) == (days < 0)
    assert f"until {until} by ops: RMA" in out


@pytest.mark.parametrize("by_run", [True, False])
def test_an_expired_waiver_counts_as_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], by_run: bool
) -> None:
    path, until = tmp_path / "r.json", TODAY - dt.timedelta(1)
    waiver = {"check": "host.shm", "until": str(until), "owner": "ops", "reason": "RMA"}
    source = inventory(tmp_path / "i.yaml", waivers=[waiver])
    options = ["--only", "host.clock", "--json", path]
    assert call(run, source, *options) == 0
    shown = capsys.readouterr().out
    assert "READY  here is ready; 1 waiver has expired\n" in shown
    assert "\nexpired waivers, which waive nothing\n" in shown
    again = [run, source, *options] if by_run else [judge, path]
    assert call(*again, "--fail-on", "warn") == 1
    shown = capsys.readouterr().out
    assert "NOT READY  here is not ready; 1 waiver has expired\n" in shown
    title = "\nexpired waivers, which waive nothing, and count as failures in this run\n"
    assert f"{title}-  here  until {until} by ops: RMA" in shown


# ---- strange reports -----------------------------------------------------------------------


def places(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the way to everything in a report."""
    inside = value.items() if isinstance(value, dict) else ()
    for key, part in enumerate(value) if isinstance(value, list) else inside:
        yield (*way, key)
        yield from places(part, (*way, key))


TEXT = st.text(max_size=5)
OTHER = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inside: st.lists(inside, max_size=2) | st.dictionaries(TEXT, inside, max_size=2),
    max_leaves=3,
)


def mutated(text: str, data: st.DataObject) -> str:
    """Return a report cut off, or with a few values gone or replaced."""
    if data.draw(st.integers(0, 9)) == 0:
        return text[: data.draw(st.integers(0, len(text)))]
    report = json.loads(text)
    for _ in range(data.draw(st.integers(1, 3))):
        way = data.draw(st.sampled_from([(key,) for key in report]))
        inside = list(places(report[way[0]], way))
        *before, last = data.draw(st.sampled_from([way, *inside]))
        around = report
        for key in before:
            around = around[key]
        if data.draw(st.booleans()):
            del around[last]
        else:
            around[last] = data.draw(OTHER)
    return json.dumps(report)


@settings(max_examples=200)
@given(data=st.data())
def test_no_report_makes_it_stumble(
    recorded: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.getbasetemp()
    path, again = folder / "mutated.json", folder / "again.json"
    path.write_text(mutated(recorded.read_text(), data))
    said = ""
    try:
        code = call(judge, path, "--json", again)
    except ConfigError as error:
        code, said = 2, str(error)
    assert said.startswith(f"{path}: " if code == 2 else "")
    assert "\n" not in said
    if code != 2:
        assert code == build.EXIT_CODES[model.read(again).verdict]
