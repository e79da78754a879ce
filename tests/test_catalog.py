"""Check files that are right, and the words for those that are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from preflight import catalog
from preflight.errors import ConfigError
from tests.checks_made import made, simple, write
from tests.messages.aloud import Aloud

GOOD = """
def probe(node):
    return 1


def judge(facts, want):
    return ok("fine")


CHECK = Check(probe=probe, judge=judge{more})
"""


EXITS = "class Leave(BaseException):\n    pass\n\n\nraise Leave('now')\n"


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
    "more",
    [
        *(", level='fast'", ", timeout_s=0", ", compare=judge", ", exercise=probe", ", colour=1"),
        *(
            ", timeout_s='5'",
            ", timeout_s=float('nan')",
            ", args=(1,)",
            ", explains='network.port'",
            ", lane='port'",
            ", lane=1",
            ", facts_of='network.port'",
            ", facts_of=['network.port']",
        ),
        *(", explains=(judge,)", ", expects=('x',)", ", expects=Expect('x', int)"),
        *(", expects=(Expect('_x', int),)", ", expects=(Expect('model_config', int),)"),
        *(", expects=(Expect('x', bytes),)", ", expects=(Expect('x', int, 5),)"),
        *(", expects=(Expect('x', int), Expect('x', str))",),
        *(", expects=(Expect('x', dict, fields=(Expect('Y', int),)),)",),
    ],
)
def test_a_check_built_wrongly(tmp_path: Path, more: str, aloud: Aloud) -> None:
    write(tmp_path, "site.rack", GOOD.format(more=more))
    aloud(problem(tmp_path), about=more)


@pytest.mark.parametrize(
    "wrong",
    ["functools.partial(probe)", "lambda node: 1", "Probe()", "print", "json.dumps", "outer()"],
)
def test_a_probe_that_no_node_can_find(tmp_path: Path, wrong: str, aloud: Aloud) -> None:
    code = GOOD.format(more="").replace("probe=probe", f"probe={wrong}")
    more = "class Probe:\n    __call__ = probe\n\n\ndef outer():\n    def inner(node):\n"
    more += "        return 1\n    return inner\n\n\n"
    code = code.replace("CHECK =", f"import functools, json\n\n\n{more}CHECK =")
    write(tmp_path, "site.rack", code)
    aloud(problem(tmp_path))


def test_a_probe_of_preflights_own(tmp_path: Path) -> None:
    code = GOOD.format(more="").replace("probe=probe", "probe=interfaces")
    write(tmp_path, "site.rack", f"from preflight.node.net import interfaces\n{code}")
    assert catalog.load([tmp_path])["site.rack"].evidence == "preflight.node.net:interfaces"


def test_a_file_of_another_encoding(tmp_path: Path) -> None:
    path = write(tmp_path, "site.rack", GOOD.format(more=""), claim="It h\u00e4lt.")
    path.write_bytes(b"# coding: latin-1\n" + path.read_text("utf-8").encode("latin-1"))
    one = catalog.load([tmp_path])["site.rack"]
    assert one.manual.claim == "It h\u00e4lt"
    assert "It h\u00e4lt." in one.text


def test_files_that_are_no_checks(tmp_path: Path, aloud: Aloud) -> None:
    path = write(tmp_path, "site.rack", "x = 1")
    told = [problem(tmp_path)]
    for text in (
        "def (",
        "import nosuchmodule",
        "x = {}['rack']",
        "raise SystemExit",
        "1 / 0",
        EXITS,
    ):
        path.write_text(text)
        told.append(problem(tmp_path))
    path.rename(path.with_name("Rack-1.py"))
    aloud(*told, problem(tmp_path))


@pytest.mark.parametrize("part", ["Why", "Facts", "Source", "Fix"])
def test_a_docstring_without_a_part(tmp_path: Path, part: str, aloud: Aloud) -> None:
    path = write(tmp_path, "site.rack", GOOD.format(more=""))
    path.write_text(path.read_text().replace(f"{part}: ", f"{part} is "))
    aloud(problem(tmp_path), about=part)


def test_two_checks_with_one_id(tmp_path: Path, aloud: Aloud) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    write(one, "site.rack", GOOD.format(more=""))
    write(two, "site.rack", GOOD.format(more=""))
    with pytest.raises(ConfigError) as caught:
        catalog.load([one, two])
    aloud(caught.value)


def test_an_expect_key_claimed_twice(tmp_path: Path, aloud: Aloud) -> None:
    more = ", expects=(Expect('rack', str),)"
    write(tmp_path, "site.one", GOOD.format(more=more))
    write(tmp_path, "site.two", GOOD.format(more=more))
    aloud(problem(tmp_path))


def test_a_circle_of_explanations(tmp_path: Path, aloud: Aloud) -> None:
    simple(tmp_path, "site.one", "site.two")
    simple(tmp_path, "site.two", "site.one")
    aloud(problem(tmp_path))


def test_a_missing_folder(tmp_path: Path, aloud: Aloud) -> None:
    aloud(problem(tmp_path / "nowhere"))


def test_selection(tmp_path: Path) -> None:
    made(tmp_path, "mine.slow", GOOD.format(more=", level='deep'"))
    made(tmp_path, "mine.quick", GOOD.format(more=""))
    known = catalog.load([tmp_path])

    def ids(only: list[str], level: str) -> set[str]:
        return {one.id for one in known.select(only, level)}

    access = {i for i in known if i.startswith("access.")}
    assert ids(["mine"], "standard") == access | {"mine.quick"}
    assert ids(["mine"], "deep") == access | {"mine.quick", "mine.slow"}
    assert ids(["mine.slow"], "quick") == access | {"mine.slow"}
    assert "mine.slow" not in ids([], "standard")


def test_an_unknown_id_has_a_nearest(aloud: Aloud) -> None:
    known = catalog.load()
    told = []
    for word, option in (("acess", "--only"), ("zzz", "--skip")):
        with pytest.raises(ConfigError) as caught:
            known.match(word, option)
        told.append(caught.value)
    aloud(*told)
