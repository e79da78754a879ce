"""The nodes of a Slurm allocation."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet
from hypothesis import given

from preflight.errors import ConfigError
from preflight.sources import slurm
from tests.messages.aloud import Aloud


def listed(**environment: str) -> list[str]:
    found = slurm.read(environment)
    return [node.name for node in found.cluster.nodes] if found else []


@pytest.mark.parametrize("environment", [{}, {"SLURM_JOB_NODELIST": ""}, {"SLURM_JOB_ID": "1"}])
def test_outside_of_a_job_there_is_none(environment: dict[str, str]) -> None:
    assert slurm.read(environment) is None


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("gpu01", "gpu01"),
        ("gpu[09-11,20],login1", "gpu09 gpu10 gpu11 gpu20 login1"),
        ("gpu[9-11]", "gpu9 gpu10 gpu11"),
        ("r[1-2]n[01-02]", "r1n01 r1n02 r2n01 r2n02"),
        ("a-[1,3]-b,p4d-st-[1-2]", "a-1-b a-3-b p4d-st-1 p4d-st-2"),
    ],
)
def test_lists_as_slurm_writes_them(text: str, names: str) -> None:
    assert " ".join(listed(SLURM_JOB_NODELIST=text)) == names


def test_the_cluster_is_called_by_the_job() -> None:
    found = slurm.read({"SLURM_JOB_NODELIST": "a", "SLURM_JOB_ID": "4711"})
    assert found is not None
    assert (found.cluster.name, found.origin, found.cluster.source) == (
        "Slurm job 4711",
        "Slurm job 4711",
        None,
    )
    assert {node.transport for node in found.cluster.nodes} == {"ssh"}


def test_a_heterogeneous_job_has_the_nodes_of_all_its_parts() -> None:
    parts = {"SLURM_JOB_NODELIST_HET_GROUP_0": "a[1-2]", "SLURM_JOB_NODELIST_HET_GROUP_1": "b1"}
    assert listed(SLURM_JOB_NODELIST="a[1-2]", SLURM_HET_SIZE="2", **parts) == ["a1", "a2", "b1"]
    assert listed(SLURM_JOB_NODELIST="a1", SLURM_HET_SIZE="2") == ["a1"]


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("8", 8),
        ("h100:8", 8),
        ("a100:2,h100:2", 4),
        ("", None),
        ("all", None),
        ("0", None),
        ("999", None),
    ],
)
def test_gpus_that_the_job_asked_for_on_each_node(text: str, count: int | None) -> None:
    found = slurm.read({"SLURM_JOB_NODELIST": "a", "SLURM_GPUS_PER_NODE": text})
    assert found is not None
    assert found.cluster.launch.gpus_per_node == count


def test_gpus_of_this_node_alone_say_nothing_of_the_others() -> None:
    found = slurm.read({"SLURM_JOB_NODELIST": "a[1-2]", "SLURM_GPUS_ON_NODE": "8"})
    assert found is not None
    assert found.cluster.launch.gpus_per_node is None


@pytest.mark.parametrize("text", ["gpu[1-", "gpu[2-1]", "gpu[1-1000000]", "a,a", "(null)"])
def test_a_list_that_is_none_is_said_in_a_line(text: str, aloud: Aloud) -> None:
    with pytest.raises(ConfigError) as caught:
        slurm.read({"SLURM_JOB_NODELIST": text})
    aloud(caught.value, about=repr(text))


NAMES = st.builds(
    lambda prefix, rack, number, width, suffix: f"{prefix}{rack}{number:0{width}}{suffix}",
    st.sampled_from(["gpu", "n-", "a100-"]),
    st.sampled_from(["", "r1n", "r2n", "r10n"]),
    st.integers(0, 999),
    st.integers(1, 3),
    st.sampled_from(["", "-ib"]),
)


@given(st.sets(NAMES, min_size=1, max_size=40))
def test_a_compressed_list_expands_to_what_it_was(names: set[str]) -> None:
    text = str(NodeSet.fromlist(list(names), resolver=RESOLVER_NOGROUP))
    assert set(listed(SLURM_JOB_NODELIST=text)) == names


@given(st.text(alphabet="ab01[]-,x", max_size=20) | st.text(max_size=20))
def test_any_text_gives_nodes_or_one_line(text: str) -> None:
    try:
        slurm.read({"SLURM_JOB_NODELIST": text})
    except ConfigError as error:
        assert str(error).isprintable()  # noqa: PT017 - no error at all is fine too
