"""From the grid to what explains it."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from preflight.api import Verdict
from preflight.catalog import Loaded
from preflight.causes import Cause, find
from preflight.judge import Cell
from tests.checks_made import simple


def cell(check: Loaded, node: str, status: str = "fail", **more: object) -> Cell:
    summary = str(more.pop("summary", f"{check.id} is wrong"))
    return Cell(check, node, Verdict(status, summary, **more))  # type: ignore[arg-type]


def short(causes: list[Cause]) -> list[tuple[str, list[str], str, list[tuple[str, str]]]]:
    return [
        (c.kind, c.nodes, c.check.id, [(e.check.id, e.node) for e in c.explains]) for c in causes
    ]


def test_a_failure_explains_those_that_follow_on_its_node(tmp_path: Path) -> None:
    mtu = simple(tmp_path, "network.mtu", "network.path_mtu")
    path = simple(tmp_path, "network.path_mtu")
    cells = [cell(mtu, "a"), cell(path, "a"), cell(path, "b")]
    assert short(find(cells)) == [
        ("node", ["a"], "network.mtu", [("network.path_mtu", "a")]),
        ("node", ["b"], "network.path_mtu", []),
    ]


def test_passes_and_warnings_are_no_causes(tmp_path: Path) -> None:
    one = simple(tmp_path, "network.mtu")
    assert find([cell(one, "a", s) for s in ("pass", "warn", "skip", "unknown")]) == []


def test_a_pair_is_explained_by_either_end(tmp_path: Path) -> None:
    mtu = simple(tmp_path, "network.mtu", "network.path_mtu")
    path = simple(tmp_path, "network.path_mtu")
    cells = [cell(mtu, "b"), cell(path, "a", scope="pair", peers=("b",))]
    assert short(find(cells)) == [("node", ["b"], "network.mtu", [("network.path_mtu", "a")])]


def test_an_unexplained_pair_blames_the_pair(tmp_path: Path) -> None:
    path = simple(tmp_path, "network.path_mtu")
    cells = [cell(path, "a", scope="pair", peers=("b",))]
    assert short(find(cells)) == [("pair", ["a", "b"], "network.path_mtu", [])]


def test_a_pair_explains_itself_and_its_ends_only(tmp_path: Path) -> None:
    path = simple(tmp_path, "network.path_mtu", "collective.pairs")
    pairs = simple(tmp_path, "collective.pairs")
    cells = [
        cell(path, "a", scope="pair", peers=("b",)),
        cell(pairs, "a", scope="pair", peers=("c",), summary="a to c"),
        cell(pairs, "b", scope="pair", peers=("a",), summary="b to a"),
        cell(pairs, "c", scope="pair", peers=("b",), summary="c to b"),
    ]
    assert short(find(cells)) == [
        ("pair", ["a", "b"], "network.path_mtu", [("collective.pairs", "b")]),
        ("pair", ["a", "c"], "collective.pairs", []),
        ("pair", ["c", "b"], "collective.pairs", []),
    ]
    cells[1:] = [cell(pairs, node, summary=node) for node in "abc"]
    assert short(find(cells)) == [
        ("pair", ["a", "b"], "network.path_mtu", [("collective.pairs", n) for n in "ab"]),
        ("node", ["c"], "collective.pairs", []),
    ]


def test_a_cluster_cause_is_one_and_explains_where_it_is_seen(tmp_path: Path) -> None:
    driver = simple(tmp_path, "software.driver", "software.cuda")
    cuda = simple(tmp_path, "software.cuda")
    cells = [
        cell(driver, "a", scope="cluster", observed="550"),
        cell(driver, "b", scope="cluster", observed="535"),
        cell(cuda, "b"),
        cell(cuda, "c"),
    ]
    assert short(find(cells)) == [
        ("cluster", ["a", "b"], "software.driver", [("software.cuda", "b")]),
        ("node", ["c"], "software.cuda", []),
    ]


def test_what_is_about_the_cluster_is_explained_by_one_node(tmp_path: Path) -> None:
    mtu = simple(tmp_path, "network.mtu", "collective.all_reduce")
    reduce = simple(tmp_path, "collective.all_reduce")
    cells = [cell(mtu, "b"), *(cell(reduce, node, scope="cluster") for node in "abc")]
    follows = [("collective.all_reduce", node) for node in "abc"]
    assert short(find(cells)) == [("node", ["b"], "network.mtu", follows)]


def test_a_failure_explains_only_what_it_says_it_can(tmp_path: Path) -> None:
    link = simple(tmp_path, "network.link", "network.port", "network.bandwidth")
    port, bandwidth = simple(tmp_path, "network.port"), simple(tmp_path, "network.bandwidth")
    cells = [
        cell(link, "a", summary="slow", explains=("network.bandwidth", "network.mtu")),
        cell(port, "a"),
        cell(bandwidth, "a"),
    ]
    assert short(find(cells)) == [
        ("node", ["a"], "network.link", [("network.bandwidth", "a")]),
        ("node", ["a"], "network.port", []),
    ]


def test_a_verdict_cannot_explain_more_than_its_check(tmp_path: Path) -> None:
    link, port = simple(tmp_path, "network.link"), simple(tmp_path, "network.port")
    cells = [cell(link, "a", explains=("network.port",)), cell(port, "a")]
    assert short(find(cells)) == [
        ("node", ["a"], "network.link", []),
        ("node", ["a"], "network.port", []),
    ]


def test_a_fault_of_its_own_stays_a_cause(tmp_path: Path) -> None:
    link = simple(tmp_path, "network.link", "network.port")
    port = simple(tmp_path, "network.port")
    cells = [cell(link, "a"), cell(port, "a", explained_by=())]
    assert short(find(cells)) == [
        ("node", ["a"], "network.link", []),
        ("node", ["a"], "network.port", []),
    ]


def test_a_failure_may_follow_from_some_checks_only(tmp_path: Path) -> None:
    user = simple(tmp_path, "storage.identity", "launch.paths")
    mounts = simple(tmp_path, "storage.mounts", "launch.paths")
    paths = simple(tmp_path, "launch.paths")
    cells = [cell(user, "a"), cell(mounts, "a"), cell(paths, "a", explained_by=("storage.mounts",))]
    assert short(find(cells)) == [
        ("node", ["a"], "storage.mounts", [("launch.paths", "a")]),
        ("node", ["a"], "storage.identity", []),
    ]


def test_nodes_that_say_the_same_are_one_cause(tmp_path: Path) -> None:
    mtu = simple(tmp_path, "network.mtu")
    cells = [
        cell(mtu, "a", observed=1500, expected=9000, summary="eth0 has 1500"),
        cell(mtu, "b", observed=1500, expected=9000, summary="eth1 has 1500"),
        cell(mtu, "c", observed=1400, expected=9000),
    ]
    assert short(find(cells)) == [
        ("node", ["a", "b"], "network.mtu", []),
        ("node", ["c"], "network.mtu", []),
    ]


def test_pairs_are_one_cause_by_the_other_end_or_by_both(tmp_path: Path) -> None:
    path = simple(tmp_path, "network.path_mtu")

    def pair(node: str, *peers: str) -> Cell:
        return cell(path, node, observed=1400, scope="pair", peers=peers)

    assert short(find([pair("a", "b"), pair("c", "a"), pair("d", "e"), pair("e", "d")])) == [
        ("pair", ["d", "e"], "network.path_mtu", []),
        ("pair", ["a", "b"], "network.path_mtu", []),
        ("pair", ["c", "a"], "network.path_mtu", []),
    ]
    assert short(find([pair("b", "a"), pair("c", "a"), pair("d", "c")])) == [
        ("pair", ["b", "c", "a"], "network.path_mtu", []),
        ("pair", ["d", "c"], "network.path_mtu", []),
    ]


def test_chains_end_at_their_start(tmp_path: Path) -> None:
    first = simple(tmp_path, "g.first", "g.second")
    second = simple(tmp_path, "g.second", "g.third")
    third = simple(tmp_path, "g.third")
    cells = [cell(third, "a"), cell(second, "a"), cell(first, "a")]
    assert short(find(cells)) == [("node", ["a"], "g.first", [("g.third", "a"), ("g.second", "a")])]


def test_what_explains_most_comes_first(tmp_path: Path) -> None:
    small = simple(tmp_path, "a.small")
    big = simple(tmp_path, "b.big", "c.follows")
    follows = simple(tmp_path, "c.follows")
    found = find([cell(small, "x"), cell(big, "y"), cell(follows, "y")])
    assert [c.check.id for c in found] == ["b.big", "a.small"]


GRIDS = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from("abc"), st.sampled_from(["fail", "pass"])),
    unique_by=lambda row: row[:2],
)


@given(GRIDS)
def test_every_failure_is_a_cause_or_explained_once(grid: list[tuple[int, str, str]]) -> None:
    cells = [cell(CHAIN[number], node, status) for number, node, status in grid]
    causes = find(cells)
    accounted = [c for cause in causes for c in (*cause.cells, *cause.explains)]
    assert sorted(map(id, accounted)) == sorted(id(c) for c in cells if c.failed)


def chain(folder: Path) -> list[Loaded]:
    last = 3
    return [
        simple(folder, f"g.c{n}", *(f"g.c{m}" for m in range(n + 1, last + 1)))
        for n in range(last + 1)
    ]


def _chain() -> list[Loaded]:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        return chain(Path(folder))


CHAIN = _chain()
