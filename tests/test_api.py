"""Parity: who is odd, who is blamed, and when nobody is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from preflight.api import Want, same_everywhere, some, warn


def said(values: dict[str, object], **more: object) -> dict[str, tuple[str, str, str]]:
    verdicts = same_everywhere(values, "NVIDIA driver", **more)  # type: ignore[arg-type]
    return {node: (v.status, v.summary, v.scope) for node, v in verdicts.items()}


def test_all_equal() -> None:
    assert said({"a": "550", "b": "550"}) == {
        "a": ("pass", "NVIDIA driver 550", "node"),
        "b": ("pass", "NVIDIA driver 550", "node"),
    }


def test_one_node_alone_passes() -> None:
    assert said({"a": "550"}) == {"a": ("pass", "NVIDIA driver 550", "node")}


def test_the_odd_one_is_named() -> None:
    found = said({"a": "550", "b": "550", "c": "535"})
    assert found["c"] == ("fail", "NVIDIA driver 535, the 2 others have 550", "node")
    assert found["a"] == ("pass", "NVIDIA driver 550", "node")


def test_two_odd_ones_of_five() -> None:
    found = said({"a": 1, "b": 1, "c": 1, "d": 2, "e": 3})
    assert found["d"] == ("fail", "NVIDIA driver 2, 3 of 5 nodes have 1", "node")
    assert found["e"] == ("fail", "NVIDIA driver 3, 3 of 5 nodes have 1", "node")


def test_without_a_majority_nobody_is_blamed() -> None:
    words = "differs: NVIDIA driver 550 on a; NVIDIA driver 535 on b"
    assert said({"a": "550", "b": "535"}) == {
        "a": ("fail", words, "cluster"),
        "b": ("fail", words, "cluster"),
    }


def test_half_is_no_majority() -> None:
    found = said({"a": 1, "b": 1, "c": 2, "d": 3})
    assert {scope for _, _, scope in found.values()} == {"cluster"}


def test_absence_is_a_value() -> None:
    assert said({"a": None, "b": None}) == {
        "a": ("skip", "no NVIDIA driver on any node", "node"),
        "b": ("skip", "no NVIDIA driver on any node", "node"),
    }
    found = said({"a": "550", "b": "550", "c": None})
    assert found["c"] == ("fail", "no NVIDIA driver, the 2 others have 550", "node")


def test_expected_overrules_the_majority() -> None:
    found = said({"a": "535", "b": "535", "c": "550"}, expected="550")
    assert found["a"] == ("fail", "NVIDIA driver 535, expected 550", "node")
    assert found["c"] == ("pass", "NVIDIA driver 550", "node")
    assert said({"a": None}, expected="550")["a"][1] == "no NVIDIA driver, expected 550"


def test_it_may_only_warn() -> None:
    assert said({"a": 1, "b": 1, "c": 2}, say=warn)["c"][0] == "warn"


@given(st.dictionaries(st.text("abcdef", min_size=1), st.sampled_from([1, 2, None]), min_size=1))
def test_never_more_blamed_than_not(values: dict[str, object]) -> None:
    found = same_everywhere(values, "x")
    assert set(found) == set(values)
    blamed = [v for v in found.values() if v.status == "fail" and v.scope == "node"]
    assert 2 * len(blamed) < len(values)


def test_want_by_dotted_key() -> None:
    want = Want({"port": 1, "container": {"engine": "docker"}}, {"mtu": None}, ["a"])
    assert want.get("launch.port") == 1
    assert want.get("launch.container.engine") == "docker"
    assert want.get("launch.port.x", 5) == 5
    assert want.get("expect.mtu", 7) == 7


def test_long_lists_of_names_are_cut() -> None:
    assert some(["a", "b"]) == "a, b"
    assert some(list("abcdefg")) == "a, b, c, d and 3 more"
