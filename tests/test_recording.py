"""A recording gives the facts that the machine gave, also once names are replaced."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from preflight import catalog, inventory
from preflight.anonymise import anonymise
from preflight.api import Unobservable, Want
from preflight.catalog import Loaded
from preflight.errors import ConfigError
from preflight.inventory import Cluster, NodeSpec
from preflight.judge import asked
from preflight.node.replay import Replay
from preflight.recording import Recording, Taken, load, take
from preflight.run import NEEDS_ROOT
from preflight.transport import Transport
from preflight.transport.loopback import LocalTransport
from tests.checks_made import made
from tests.messages.aloud import Aloud

KEY = b"k" * 32
PROBES = [one for one in catalog.load().values() if one.check.probe]


def want_of(cluster: Cluster) -> Want:
    return Want(cluster.wanted_launch, cluster.expect, [node.name for node in cluster.nodes])


def taken_from(
    cluster: Cluster, spec: NodeSpec, transport: Transport, checks: Sequence[Loaded] = PROBES
) -> Taken:
    return take(spec, transport, checks, want_of(cluster), 60)


def as_replayed(one: Loaded, node: Any, want: Want) -> dict[str, Any]:
    """Return what a probe makes of a recording, in the form of `Taken.facts`."""
    assert one.check.probe
    args = asked(one, want)
    try:
        return {"value": json.loads(json.dumps(one.check.probe(Replay(node), *args)))}
    except Unobservable as statement:
        return {"problem": str(statement)}


def assert_replays(taken: Taken, want: Want, checks: Sequence[Loaded] = PROBES) -> Recording:
    """See that each probe finds the same in the recording, as it is and with names replaced."""
    assert {*taken.lost.values()} <= {NEEDS_ROOT}
    document = {
        "source": "a test",
        "want": {"launch": want.launch, "expect": want.expect},
        "node": taken.answers,
    }
    replaced = anonymise({**document, "facts": taken.facts}, KEY)
    facts = replaced.pop("facts")
    found = Recording.model_validate_json(Recording.model_validate(replaced).to_json())
    other = Want(found.want.launch, found.want.expect, want.nodes)
    for one in (one for one in checks if one.evidence not in taken.lost):
        assert as_replayed(one, taken.answers, want) == taken.facts[one.evidence], one.id
        node = found.node.model_dump()
        assert as_replayed(one, node, other) == facts[one.evidence], one.id
    return found


def test_this_machine() -> None:
    cluster = inventory.this_machine()
    found = assert_replays(
        taken_from(cluster, cluster.nodes[0], LocalTransport()), want_of(cluster)
    )
    assert found.node.environ[""].keys() <= {"HOME", "USER", "SSH_CONNECTION"} | {
        name for name in found.node.environ[""] if name.startswith(("NCCL_", "TORCH_", "UCX_"))
    }


def test_a_probe_that_hangs_or_crashes_costs_its_own_answers_only(tmp_path: Path) -> None:
    cluster = inventory.this_machine()
    code = """
        def probe(node):
            node.read("/proc/sys/kernel/hostname")
            {}

        CHECK = Check(probe=probe, judge=lambda facts, want: ok(""), timeout_s=0.5)
        """
    checks = [
        made(tmp_path, "site.bug", code.format("return 1 / 0")),
        made(tmp_path, "site.hangs", code.format("import signal; signal.pause()")),
        made(tmp_path, "site.well", code.format("return node.listdir('/no/such')")),
    ]
    taken = taken_from(cluster, cluster.nodes[0], LocalTransport(), checks)
    assert list(taken.lost.values()) == [
        "ZeroDivisionError: division by zero",
        "no answer in 0.5 s",
    ]
    assert taken.answers["listdir"] == {"/no/such": None}
    assert taken.facts == {checks[2].evidence: {"value": None}}


WHOLE = '{"source": "made up", "node": {"read": {"/a": "b"}}}'
BAD = [
    WHOLE[:30],
    "",
    "nodes:",
    "[]",
    "{}",
    '{"source": "", "node": {}}',
    '{"source": "x"}',
    '{"source": "x", "node": {"reed": {}}}',
    '{"source": "x", "node": {"run": {"a": 5}}}',
    '{"source": "x", "node": {"stat": {"/a": "b"}}}',
    '{"source": "x", "node": {"read": {"/a": 5}}}',
    '{"source": "x", "node": {"now": {"": "noon"}}}',
    '{"source": "x", "node": {"access": {"/a r": 3}}}',
]


@pytest.mark.parametrize("text", BAD)
def test_what_is_no_recording(tmp_path: Path, text: str, aloud: Aloud) -> None:
    path = tmp_path / "node.json"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(path)
    aloud(caught.value, about=repr(text))


def test_each_cut_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "node.json"
    for length in range(len(WHOLE)):
        path.write_text(WHOLE[:length])
        with pytest.raises(ConfigError):
            load(path)
    path.write_text(WHOLE)
    assert load(path).node.read == {"/a": "b"}


def test_no_file_and_no_text(tmp_path: Path, aloud: Aloud) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    told = []
    for name in ("none.json", "binary"):
        with pytest.raises(ConfigError) as caught:
            load(tmp_path / name)
        told.append(caught.value)
    aloud(*told)
