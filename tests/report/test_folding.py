"""Sets of node names in few words."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from preflight.node_names import expand
from preflight.report.folding import folded, out_of, some

NAMES = st.lists(
    st.from_regex(r"[a-z]{1,3}[0-9]{0,3}(-[a-z]?[0-9]{1,2})?", fullmatch=True), min_size=1
)


@given(NAMES)
def test_folding_loses_no_name(names: list[str]) -> None:
    assert set(expand(folded(names))) == set(names)


def test_words() -> None:
    four = ["gpu01", "gpu02", "gpu04", "login"]
    assert folded(four) == "gpu[01-02,04],login"
    assert some(four) == "gpu[01-02,04],login"
    assert some([f"n{i}" for i in range(6)]) == "n[0-5] (6 nodes)"
    assert out_of(["a1", "a2"], 2) == "both nodes"
    assert out_of(["a1", "a2", "a3"], 3) == "all 3 nodes"
    assert out_of(["a1"], 1) == "a1"
    assert out_of(["a1", "a3"], 3) == "a[1,3]"


def test_groups_of_clustershell_are_not_asked() -> None:
    assert folded(["@all", "b1"]) == "@all,b1"
