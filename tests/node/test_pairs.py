from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preflight.node.pairs import (
    ALL_UP_TO,
    MEETS,
    Culprit,
    Pair,
    Placed,
    between,
    blame,
    disjoint,
    of_all,
    partners,
    rounds,
    some_rounds,
    stricken,
    told,
)


def names(count: int) -> list[str]:
    return [f"n{number:03}" for number in range(count)]


def mesh(nodes: list[str], bad: set[Pair]) -> dict[Pair, bool]:
    """All pairs that are tried."""
    return {(a, b): (a, b) not in bad for a, others in partners(nodes).items() for b in others}


def of(kind: str, who: tuple[str, ...], tried: dict[Pair, bool]) -> set[Pair]:
    """The pairs that are bad where somebody is at fault."""
    return {
        (a, b)
        for a, b in tried
        if {
            "node": who[0] in (a, b),
            "out": who[0] == a,
            "in": who[0] == b,
            "way": who == (a, b),
            "pair": {*who} == {a, b},
            "group": (a in who) != (b in who),
        }[kind]
    }


def found(tried: dict[Pair, bool]) -> list[tuple[str, tuple[str, ...]]]:
    return [(one.kind, one.nodes) for one in blame(tried)]


def test_nobody() -> None:
    assert blame(mesh(names(4), set())) == []
    assert blame({}) == []


@pytest.mark.parametrize(
    ("bad", "expected"),
    [
        ("ab ba", [("pair", ("a", "b"))]),
        ("ab", [("way", ("a", "b"))]),
        ("ab ba ac ca", [("node", ("a",))]),
        ("ab ac", [("out", ("a",))]),
        ("ba ca", [("in", ("a",))]),
        ("ab ba ac ca bc cb", [("cluster", ("a", "b", "c"))]),
        ("ab bc", [("way", ("a", "b")), ("way", ("b", "c"))]),
    ],
)
def test_three_nodes(bad: str, expected: list[tuple[str, tuple[str, ...]]]) -> None:
    assert found(mesh(["a", "b", "c"], {(p[0], p[1]) for p in bad.split()})) == expected


def test_of_two_nodes_neither_is_blamed() -> None:
    assert found({("a", "b"): False, ("b", "a"): False}) == [("pair", ("a", "b"))]
    assert found({("a", "b"): False, ("b", "a"): True}) == [("way", ("a", "b"))]


def test_two_halves() -> None:
    tried = mesh(list("abcd"), set())
    for pair in of("group", ("a", "b"), tried):
        tried[pair] = False
    (culprit,) = blame(tried)
    assert (culprit.kind, len(culprit.nodes), len(culprit.pairs)) == ("group", 2, 8)


@pytest.mark.parametrize(
    ("of_a", "of_b", "of_c", "expected"),
    [
        ("10.1.2.0/24", "10.1.2.0/24", "10.1.1.0/24", "a, b (the nodes of 10.1.2.0/24)"),
        ("10.1.2.0/24", "10.1.2.0/24", "", "a, b (the nodes of 10.1.2.0/24)"),
        ("10.1.2.0/24", "10.1.2.0/24", "10.1.2.0/24", "a, b"),
        ("10.1.2.0/24", "10.1.3.0/24", "10.1.1.0/24", "a, b"),
        ("10.1.2.0/24", "", "10.1.1.0/24", "a, b"),
        ("", "", "10.1.1.0/24", "a, b"),
    ],
)
def test_a_group_is_named_by_what_it_alone_has(
    of_a: str, of_b: str, of_c: str, expected: str
) -> None:
    tried = mesh(list("abcde"), set())
    for pair in of("group", ("a", "b"), tried):
        tried[pair] = False
    facts = {"a": Placed(subnet=of_a), "b": Placed(subnet=of_b), "c": Placed(subnet=of_c)}
    (culprit,) = blame(tried, {**facts, "d": Placed(), "e": facts["c"]})
    assert told(culprit, "a") == f"{expected} reach each other and none of the other nodes"
    assert between(culprit, "b") == f"between {expected} and the other nodes"


@pytest.mark.parametrize(
    ("of_a", "of_b", "of_c", "expected"),
    [
        ("leaf1", "leaf1", "leaf2", "a, b (the nodes of switch leaf1)"),
        ("leaf1", "leaf1", "leaf1", "a, b"),
        ("leaf1", "", "leaf2", "a, b"),
    ],
)
def test_a_group_of_one_subnet_is_named_by_its_switch(
    of_a: str, of_b: str, of_c: str, expected: str
) -> None:
    tried = mesh(list("abcde"), set())
    for pair in of("group", ("a", "b"), tried):
        tried[pair] = False
    wired = {"a": of_a, "b": of_b, "c": of_c, "d": of_c, "e": of_c}
    facts = {node: Placed(subnet="10.1.2.0/24", switch=one) for node, one in wired.items()}
    (culprit,) = blame(tried, facts)
    assert between(culprit, "b") == f"between {expected} and the other nodes"


def test_what_is_no_group_has_no_name() -> None:
    tried = mesh(list("abcd"), of("node", ("a",), mesh(list("abcd"), set())))
    (culprit,) = blame(tried, {"a": Placed(subnet="10.1.2.0/24")})
    assert (culprit.kind, culprit.place) == ("node", "")


def test_a_node_that_fails_most_of_the_time() -> None:
    nodes = names(12)
    tried = mesh(nodes, set())
    for pair in of("node", ("n003",), tried):
        tried[pair] = pair == ("n003", "n007")
    assert found(tried) == [("node", ("n003",))]
    tried["n001", "n003"] = tried["n002", "n003"] = tried["n004", "n003"] = True
    assert ("node", ("n003",)) not in found(tried)


@st.composite
def planted(draw: st.DrawFn) -> tuple[list[str], list[tuple[str, tuple[str, ...]]]]:
    """Nodes, and one or two culprits that have no pair in common with one another's nodes."""
    nodes = names(draw(st.integers(7, 90)))
    culprits: list[tuple[str, tuple[str, ...]]] = []
    free = draw(st.permutations(nodes))
    for _ in range(draw(st.integers(1, 2))):
        kind = draw(st.sampled_from(["node", "out", "in", "pair", "way"]))
        take = 2 if kind in ("pair", "way") else 1
        who, free = tuple(free[:take]), free[take:]
        if kind in ("pair", "way"):
            there = [b for b in partners(nodes)[who[0]] if b in free or b == who[1]]
            who = (who[0], there[0] if who[1] not in there else who[1])
            free = [one for one in free if one not in who]
        culprits.append((kind, tuple(sorted(who)) if kind == "pair" else who))
    return nodes, culprits


@settings(max_examples=300)
@given(planted())
def test_whoever_is_planted_is_found(
    made: tuple[list[str], list[tuple[str, tuple[str, ...]]]],
) -> None:
    nodes, culprits = made
    tried = mesh(nodes, set())
    for kind, who in culprits:
        for pair in of(kind, who, tried):
            tried[pair] = False
    expected = set()
    for kind, who in culprits:
        # in a sample a pair may be tried one way only
        one_way = kind == "pair" and len(of(kind, who, tried)) == 1
        (way,) = of(kind, who, tried) if one_way else {who}
        expected.add(("way" if one_way else kind, way))
    assert set(found(tried)) == expected


@settings(max_examples=100)
@given(st.integers(5, 64), st.data())
def test_a_group_that_is_cut_off_is_found(count: int, data: st.DataObject) -> None:
    nodes = names(count)
    size = data.draw(st.integers(2, (count - 1) // 2))
    members = tuple(sorted(data.draw(st.permutations(nodes))[:size]))
    tried = mesh(nodes, set())
    for pair in of("group", members, tried):
        tried[pair] = False
    assert found(tried) == [("group", members)]


@settings(max_examples=200)
@given(st.integers(2, 9), st.data())
def test_all_bad_pairs_are_explained_once(count: int, data: st.DataObject) -> None:
    nodes = names(count)
    tried = {pair: data.draw(st.booleans()) for pair in permutations(nodes, 2)}
    culprits = blame(tried)
    explained = [pair for one in culprits for pair in one.pairs]
    assert len(explained) == len(set(explained))
    assert set(explained) == {pair for pair, good in tried.items() if not good}


@settings(max_examples=60)
@given(st.integers(1, 1000))
def test_partners(count: int) -> None:
    nodes = names(count)
    master = nodes[count // 2]
    found = partners(nodes, master)
    assert list(found) == nodes
    for node, others in found.items():
        assert node not in others
        assert len(others) == len(set(others))
        met = {*others, *(one for one in found if node in found[one])}
        assert len(met) >= min(count - 1, MEETS)
        assert node == master or (master in others and node in found[master])
    if count <= ALL_UP_TO:
        assert all(len(others) == count - 1 for others in found.values())


@given(st.integers(0, 40))
def test_rounds(count: int) -> None:
    nodes = names(count)
    found = rounds(nodes)
    assert len(found) == (max(0, count - 1) if count % 2 == 0 else count)
    for pairs in found:
        there = [node for pair in pairs for node in pair]
        assert len(there) == len(set(there))
    met = [frozenset(pair) for pairs in found for pair in pairs]
    assert len(met) == len(set(met)) == count * (count - 1) // 2


@settings(max_examples=60)
@given(st.integers(0, 300))
def test_some_rounds(count: int) -> None:
    nodes = names(count)
    found = some_rounds(nodes)
    if count <= ALL_UP_TO:
        assert found == rounds(nodes)
        return
    assert MEETS <= len(found) <= MEETS + 1
    for node in nodes:
        assert sum(node in pair for pairs in found for pair in pairs) >= MEETS


def test_disjoint() -> None:
    pairs = [("a", "b"), ("b", "a"), ("c", "d"), ("b", "c"), ("e", "f")]
    assert disjoint(pairs) == [[("a", "b"), ("c", "d"), ("e", "f")], [("b", "a")], [("b", "c")]]


def test_rows_and_words() -> None:
    culprits = [
        Culprit("node", ("b",), frozenset()),
        Culprit("pair", ("a", "c"), frozenset()),
        Culprit("way", ("d", "b"), frozenset()),
        Culprit("way", ("d", "a"), frozenset()),
        Culprit("way", ("d", "e"), frozenset()),
    ]
    rows = stricken(culprits, list("abcde"))
    assert {node: told(culprit, node) for node, culprit in rows.items()} == {
        "a": "it and c do not reach each other",
        "b": "it and the other nodes do not reach each other",
        "d": "it does not reach b",
        "e": "d does not reach it",
    }
    assert between(rows["d"], "d") == "from it to b"
    assert between(rows["e"], "e") == "from d to it"


def test_a_sample_is_said_to_be_one() -> None:
    assert of_all(9, 66) == " (a sample of 65)"
    assert of_all(65, 66) == of_all(40, ALL_UP_TO) == ""
