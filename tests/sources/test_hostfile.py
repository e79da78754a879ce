"""Host files of people and of other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import example, given

from preflight.errors import ConfigError
from preflight.node_names import MAX_NODES
from preflight.sources import Found
from preflight.sources.hostfile import MOST_LINE, parsed, read
from tests.messages.aloud import Aloud


def nodes(found: Found) -> list[tuple[str, dict[str, Any]]]:
    return [(n.name, n.ssh.model_dump(exclude_unset=True)) for n in found.cluster.nodes]


def gpus(text: str) -> int | None:
    return parsed(text, "hosts").cluster.launch.gpus_per_node


def test_all_that_may_stand_in_one() -> None:
    found = parsed(
        "# a comment\r\n"
        "// another\n"
        "\r\n"
        "   \t\n"
        "gpu01\r\n"
        "\tgpu02\tslots = 4\tmax_slots=8\t# the second\n"
        "gpu[03-04]\n"
        "fd00::5\n"
        "[fd00::6]\n"
        "[fd00::7]:2222\n"
        "alice@gpu05\n"
        "gpu06:2222\n"
        "gpu07:8\n"
        "bob@10.0.0.8:2222 slots=8\n"
        "gpu09 user-name=carol port=2022 sockets=2\n"
        "a,b",
        "hosts.txt",
    )
    assert nodes(found) == [
        ("gpu01", {}),
        ("gpu02", {}),
        ("gpu03", {}),
        ("gpu04", {}),
        ("fd00::5", {}),
        ("fd00::6", {}),
        ("fd00::7", {"port": 2222}),
        ("gpu05", {"user": "alice"}),
        ("gpu06", {"port": 2222}),
        ("gpu07", {}),
        ("10.0.0.8", {"user": "bob", "port": 2222}),
        ("gpu09", {"user": "carol", "port": 2022}),
        ("a", {}),
        ("b", {}),
    ]
    assert (found.cluster.name, found.origin, found.notes) == (
        "hosts",
        "the host file hosts.txt",
        ("hosts.txt: slots differ (gpu01 has none, gpu02 has 4) and are not taken for GPUs",),
    )
    assert found.cluster.launch.gpus_per_node is None


@pytest.mark.parametrize(
    "text",
    [
        "worker-0 slots=8\nworker-1 slots=8\n",
        "a slots=8 max-slots=16\nb SLOTS = 8\n",
        "a:8\nb:8\n",
        "a count=8\nb cpu=8",
    ],
)
def test_slots_that_are_equal_are_gpus(text: str) -> None:
    assert gpus(text) == 8


AGAIN = "slots of nodes that are named again are not taken for GPUs"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a\na\na\nb\nb\nb", None),
        ("a slots=0", None),
        ("a max_slots=8", None),
        ("a slots=96\nb slots=96\n", "96 slots a node are taken for CPU cores, not for GPUs"),
        ("a slots=8\nb slots=4", "slots differ (a has 8, b has 4) and are not taken for GPUs"),
        ("a slots=8\nb", "slots differ (a has 8, b has none) and are not taken for GPUs"),
        ("a slots=8\nb slots=8\na slots=8\nb slots=8", AGAIN),
        ("a slots=8\na slots=8  # more\nb slots=8", AGAIN),
        ("a slots=8\nb slots=8\nb max_slots=8 slots=8", AGAIN),
        (
            "a slots=4\nb slots=8\na slots=4\n",
            "slots differ (a has 4, b has 8) and are not taken for GPUs",
        ),
    ],
)
def test_slots_that_do_not_say_it_are_not(text: str, why: str | None) -> None:
    assert gpus(text) is None
    notes = [note for note in parsed(text, "f").notes if "is taken once" not in note]
    assert notes == ([f"f: {why}"] if why else [])


def test_a_node_named_again_is_taken_once() -> None:
    found = parsed("gpu02\ngpu01\ngpu02\ngpu01\ngpu02", "nodefile")
    assert [name for name, _ in nodes(found)] == ["gpu02", "gpu01"]
    assert found.notes == (
        "nodefile: 3 lines name nodes for the second time or more; each node is taken once",
    )
    assert parsed("a\na", "f").notes == (
        "f: 1 line names a node for the second time or more; each node is taken once",
    )
    assert parsed("a,a", "f").notes == parsed("a\na", "f").notes


def test_repeats_are_many_only_where_they_cost_nothing(aloud: Aloud) -> None:
    whole = f"n[1-{MAX_NODES}]\n"
    assert len(parsed(whole * 100, "f").cluster.nodes) == MAX_NODES
    told = []
    for text in (whole + "n1 slots=8", "n1\n" + f"n[1-{MAX_NODES - 1}]\nn2 slots=8"):
        with pytest.raises(ConfigError) as caught:
            parsed(text, "f")
        told.append(caught.value)
    aloud(*told)


BAD = [
    "",
    "# only this\n\n",
    "a\ngpu[01-\n",
    "gpu[1-1000000]",
    f"n[1-{MAX_NODES}]\nm",
    "a\na:2222",
    "a slots=x",
    "a slots=",
    "a\nb port=99999",
    "10.0.0.1 gpu01",
    "a\n\x00\x01\x02",
    "[gpus]\na",
    "[gpus:vars]",
    "a ansible_host=10.0.0.1",
    "nodes:\n- a",
    "rank 0=gpu1 slot=0:0-3\nrank 1=gpu2 slot=0\n",
    "rank 0 = gpu1 slot=0\n",
]


@pytest.mark.parametrize("text", BAD)
def test_what_is_wrong_is_said_with_its_line(text: str, aloud: Aloud) -> None:
    with pytest.raises(ConfigError) as caught:
        parsed(text, "f")
    aloud(caught.value, about=repr(text))


def test_a_line_is_only_so_long(aloud: Aloud) -> None:
    assert gpus("a" + " " * 200_000 + "slots = 8") == 8
    with pytest.raises(ConfigError) as caught:
        parsed("a\nb" + " " * MOST_LINE, "f")
    aloud(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path, aloud: Aloud) -> None:
    (tmp_path / "binary").write_bytes(b"gpu01\n\x80\x81")
    told = []
    for name in ("none", ".", "binary"):
        with pytest.raises(ConfigError) as caught:
            read(tmp_path / name)
        told.append(caught.value)
    aloud(*told)


def test_a_byte_order_mark_is_no_part_of_a_name(tmp_path: Path) -> None:
    path = tmp_path / "hosts.txt"
    path.write_bytes(b"\xef\xbb\xbfgpu01\r\ngpu02\r\n")
    assert [name for name, _ in nodes(read(path))] == ["gpu01", "gpu02"]


LINES = st.lists(
    st.lists(
        st.sampled_from(
            [
                *("gpu01", "gpu[01-03]", "gpu[", "fd00::1", "[fd00::1]:22", "a@b", "a:8", "a:2222"),
                *("slots=8", "slots", "=", "=8", "max_slots=9", "#", "//", "port=1", "user=", "\r"),
            ]
        )
    ).map(" ".join)
).map("\n".join)


@given(LINES | st.text())
@example("a slots=²")
@example("a:²")
def test_any_text_gives_nodes_or_one_line(text: str) -> None:
    try:
        assert parsed(text, "f").cluster.nodes
    except ConfigError as error:
        assert str(error).isprintable()  # noqa: PT017 - no error at all is fine too
