"""Check files that are right, and the words for those that are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from preflight import catalog
from preflight.errors import ConfigError
from tests.checks_made import made, simple, write

GOOD = """
def probe(node):
    return 1


def judge(facts, want):
    return ok("fine")


CHECK = Check(probe=probe, judge=judge{more})
"""


def problem(folder: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        catalog.load([folder])
    message = str(caught.value)
    assert "\n" not in message
    return message.replace(str(folder), "DIR")


def test_the_built_in_checks_load() -> None:
    found = catalog.load()
    assert "access.ssh" in found
    assert all(one.manual.fix for one in found.values())


def test_a_folder_of_the_sites_own(tmp_path: Path) -> None:
    write(tmp_path, "site.rack", GOOD.format(more=""))
    one = catalog.load([tmp_path])["site.rack"]
    assert (one.group, one.manual.claim, one.manual.fix) == ("site", "It holds", "mend it.")
    assert one.evidence == "preflight.checks.site.rack:probe"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (", level='fast'", "level is 'fast', not one of quick, standard, deep"),
        (", timeout_s=0", "timeout_s is 0, not above 0"),
        (", compare=judge", "CHECK needs exactly one of judge= and compare="),
        (", exercise=probe", "CHECK needs exactly one of probe= and exercise="),
        (", colour=1", "does not import: TypeError: Check.__init__() got an unexpected keyword"),
    ],
)
def test_a_check_built_wrongly(tmp_path: Path, more: str, words: str) -> None:
    write(tmp_path, "site.rack", GOOD.format(more=more))
    assert problem(tmp_path).startswith(f"DIR/site/rack.py: {words}")


def test_files_that_are_no_checks(tmp_path: Path) -> None:
    path = write(tmp_path, "site.rack", "x = 1")
    assert problem(tmp_path) == "DIR/site/rack.py: has no CHECK = Check(...)"
    path.write_text("def (")
    assert problem(tmp_path).startswith("DIR/site/rack.py:1: does not import: SyntaxError: ")
    path.write_text("import nosuchmodule")
    assert problem(tmp_path) == (
        "DIR/site/rack.py: does not import: ModuleNotFoundError: No module named 'nosuchmodule'"
    )
    path.rename(path.with_name("Rack-1.py"))
    assert problem(tmp_path) == (
        "DIR/site/Rack-1.py: folder and file names must be like network/mtu.py"
    )


@pytest.mark.parametrize("part", ["Why", "Facts", "Source", "Fix"])
def test_a_docstring_without_a_part(tmp_path: Path, part: str) -> None:
    path = write(tmp_path, "site.rack", GOOD.format(more=""))
    path.write_text(path.read_text().replace(f"{part}: ", f"{part} is "))
    assert problem(tmp_path) == f"DIR/site/rack.py: the docstring lacks its part {part!r}"


def test_two_checks_with_one_id(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    write(one, "site.rack", GOOD.format(more=""))
    write(two, "site.rack", GOOD.format(more=""))
    with pytest.raises(ConfigError) as caught:
        catalog.load([one, two])
    assert str(caught.value) == (
        f"{two}/site/rack.py: the id site.rack is taken by {one}/site/rack.py"
    )


def test_an_expect_key_claimed_twice(tmp_path: Path) -> None:
    more = ", expects=(Expect('rack', str),)"
    write(tmp_path, "site.one", GOOD.format(more=more))
    write(tmp_path, "site.two", GOOD.format(more=more))
    assert problem(tmp_path) == "DIR/site/two.py: expect.rack is claimed by DIR/site/one.py too"


def test_a_circle_of_explanations(tmp_path: Path) -> None:
    simple(tmp_path, "site.one", "site.two")
    simple(tmp_path, "site.two", "site.one")
    assert "checks explain each other in a circle: site." in problem(tmp_path)


def test_a_missing_folder(tmp_path: Path) -> None:
    assert problem(tmp_path / "nowhere") == "DIR: no such folder of checks"


def test_selection(tmp_path: Path) -> None:
    made(tmp_path, "site.slow", GOOD.format(more=", level='deep'"))
    made(tmp_path, "site.quick", GOOD.format(more=""))
    known = catalog.load([tmp_path])

    def ids(only: list[str], level: str) -> set[str]:
        return {one.id for one in known.select(only, level)}

    access = {i for i in known if i.startswith("access.")}
    assert ids(["site"], "standard") == access | {"site.quick"}
    assert ids(["site"], "deep") == access | {"site.quick", "site.slow"}
    assert ids(["site.slow"], "quick") == access | {"site.slow"}
    assert "site.slow" not in ids([], "standard")


def test_an_unknown_id_has_a_nearest() -> None:
    known = catalog.load()
    with pytest.raises(ConfigError, match=r"^--only: .* 'acess', did you mean 'access'\?$"):
        known.match("acess", "--only")
    with pytest.raises(ConfigError, match=r"^--skip: .* 'zzz', `preflight checks` lists them$"):
        known.match("zzz", "--skip")
