from __future__ import annotations

import datetime as dt
import functools
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import hypothesis.strategies as st
import pytest
from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet
from hypothesis import example, given
from jsonschema import Draft202012Validator

from preflight import catalog
from preflight.api import Expect
from preflight.errors import ConfigError
from preflight.inventory import check_dirs, check_ids, load, load_text, schema, this_machine
from preflight.node_names import MAX_NODES, expand
from preflight.yaml_lines import MAX_BYTES, MAX_VALUES, parse, read_text
from tests.messages.aloud import Aloud
from tests.ordinary import ordinary_user

ROOT = Path(__file__).parents[1]
DATA = Path(__file__).parent / "inventory"
GOOD = sorted(DATA.glob("good/*.yaml"))
MOUNT = (
    Expect("path", str, required=True),
    Expect("type", str),
    Expect("source", str),
    Expect("options", str),
    Expect("writable", bool),
)
EXPECTS = (
    Expect("driver", str, about="version of the NVIDIA driver"),
    Expect("cuda", str),
    Expect("torch", str),
    Expect("nccl", str),
    Expect("python", str),
    Expect("kernel", str),
    Expect("gpu_model", str),
    Expect("mtu", int, "bytes", "MTU of the data plane"),
    Expect("nic_speed_gbps", float, "Gb/s"),
    Expect("tcp_gbps", float),
    Expect("iperf3", bool),
    Expect("all_reduce", dict, fields=(Expect("min_busbw_gbs", float, "GB/s"),)),
    Expect("mounts", list, about="file systems that must be there", fields=MOUNT),
    Expect("shm_gib", float, "GiB"),
    Expect("memlock_gib", float, "GiB"),
    Expect("nofile", int),
)


def message_of(text: str, source: str = "i.yaml") -> str:
    with pytest.raises(ConfigError) as caught:
        load_text(text, source, EXPECTS)
    return str(caught.value)


@pytest.fixture
def example_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The example where all that it names is."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh/id_ed25519").touch()
    (tmp_path / "site-checks").mkdir()
    shutil.copy(ROOT / "inventory.example.yaml", tmp_path / "inventory.yaml")
    return tmp_path / "inventory.yaml"


# Bad input: texts with their messages, in files that can be read aloud.


class Case(NamedTuple):
    """`=== name`, the inventory's text, and `>>> message`."""

    name: str
    text: str
    message: str


def cases(kind: str) -> list[Case]:
    written = (DATA / f"bad-{kind}.txt").read_text(encoding="utf-8")
    found = []
    for case in written.removeprefix("=== ").split("\n=== "):
        name, _, rest = case.partition("\n")
        text, _, message = rest.rpartition(">>> ")
        found.append(Case(name, text, message.strip()))
    return found


@pytest.mark.parametrize("kind", ["syntax", "shape", "meaning"])
def test_messages(
    kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, aloud: Aloud
) -> None:
    monkeypatch.chdir(DATA)
    found = [
        case._replace(message=message_of(case.text, f"{case.name}.yaml")) for case in cases(kind)
    ]
    if request.config.getoption("--update-golden"):
        (DATA / f"bad-{kind}.txt").write_text(
            "".join(f"=== {name}\n{text}>>> {message}\n" for name, text, message in found),
            encoding="utf-8",
        )
    assert found == cases(kind)
    for case in found:
        assert case.message.startswith(f"{case.name}.yaml:")
        assert case.message.isprintable()
        assert len(case.message) < 220
    aloud(*(case.message for case in found), about=kind)


def test_files_that_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, aloud: Aloud) -> None:
    monkeypatch.chdir(tmp_path)
    Path("huge.yaml").write_bytes(b"#" * (MAX_BYTES + 1))
    Path("line\nfeed.yaml").write_text("nodes: []")
    Path("latin.yaml").write_bytes(b"nodes:\n  - gpu01\n  - g\xfcnter")
    told = []
    for name in ("absent.yaml", ".", "huge.yaml", "line\nfeed.yaml", "a\0b", "latin.yaml"):
        with pytest.raises(ConfigError) as caught:
            load(Path(name))
        told.append(caught.value)
    aloud(*told)


def test_files_that_may_not_be_read(aloud: Aloud) -> None:
    secret = "/etc/shadow"
    with ordinary_user():
        told = [
            message_of(f"ssh: {{key: {secret}}}\nnodes: [a]"),
            message_of(f"nodes: [a]\nssh: {{known_hosts: {secret}}}"),
        ]
        with pytest.raises(ConfigError) as caught:
            load(Path(secret))
    aloud(*told, caught.value)


def test_bombs(aloud: Aloud) -> None:
    doubling = "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 19))
    aloud(
        message_of(f"a0: &a0 [x, x]\n{doubling}nodes: [a]"),
        message_of("nodes: [" + "a," * MAX_VALUES + "]"),
    )


def test_characters_that_yaml_has_not(aloud: Aloud) -> None:
    aloud(message_of("nodes: [gpu01]\ncluster: a\ab"))


def test_two_ways_to_be_wrong_are_counted() -> None:
    assert message_of("nodes: [a]\nlaunch: {prt: 1}\nnodes: [b]\nexpect:\n  mtu:\n") == (
        "i.yaml:2: launch.prt: unknown key, did you mean 'port'? (and 2 more)"
    )


# Good input.


@pytest.mark.parametrize("path", GOOD, ids=lambda path: path.stem)
def test_good_files_load_and_fit_the_schema(path: Path) -> None:
    load(path, EXPECTS)
    validator().validate(parse(path.read_text(encoding="utf-8"), "").value)


def test_smallest() -> None:
    cluster = load(DATA / "good/smallest.yaml")
    assert cluster.model_dump() == {
        "name": "smallest",
        "source": str(DATA / "good/smallest.yaml"),
        "nodes": (this_machine().nodes[0].model_dump() | {"name": "gpu01", "transport": "ssh"},),
        "fanout": 64,
        "launch": this_machine().launch.model_dump(),
        "expect": {},
        "checks": {"skip": {}, "dirs": (), "require": ()},
        "waivers": (),
    }
    assert cluster.master == "gpu01"


def test_ranges() -> None:
    names = [node.name for node in load(DATA / "good/ranges.yaml").nodes]
    assert " ".join(names) == (
        "gpu01 gpu02 gpu03 gpu08 gpu09 gpu10 gpu11 "
        "rack1-node1 rack1-node3 rack2-node1 rack2-node3 login 10.0.0.9 fe80::1 "
        "n1 n5 n9 w01 w34 w67 w100"
    )


def test_ssh_of_a_node_goes_before_the_shared_one() -> None:
    cluster = load(DATA / "good/merged-ssh.yaml")
    shared = {"user": "ubuntu", "port": 22, "host_keys": "accept-new", "connect_timeout_s": 2}
    assert cluster.fanout == 8
    assert {node.name: node.ssh.model_dump(exclude_unset=True) for node in cluster.nodes} == {
        "gpu01": shared,
        "gpu02": shared | {"port": 2222, "host_keys": "strict"},
        "gpu03": shared | {"user": "root", "jump": "alice@bastion:22,10.0.0.1"},
        "gpu04": shared | {"user": "root", "jump": "alice@bastion:22,10.0.0.1"},
        "here": shared,
    }
    assert [(n.address, n.transport) for n in cluster.nodes if n.name in ("gpu02", "here")] == [
        ("10.0.0.2", "ssh"),
        (None, "local"),
    ]


def test_sections_may_be_empty() -> None:
    cluster = load(DATA / "good/empty-sections.yaml", EXPECTS)
    smallest = load(DATA / "good/smallest.yaml", EXPECTS)
    assert cluster.model_dump(exclude={"name", "source"}) == smallest.model_dump(
        exclude={"name", "source"}
    )


def test_scalars_are_taken_as_they_are_written() -> None:
    cluster = load(DATA / "good/as-written.yaml", EXPECTS)
    assert [node.name for node in cluster.nodes] == ["a", "0123", "yes", "022"]
    assert cluster.launch.env == {
        "NCCL_IB_DISABLE": "1",
        "NCCL_X": "1.50",
        "NCCL_Y": "022",
        "NCCL_Z": "yes",
        "EMPTY": "",
        "TIME": "22:30",
        "on": "off",
        "DAY": "2026-01-02",
    }
    assert repr(cluster.expect) == (
        "{'driver': '550.54.15', 'nic_speed_gbps': 100, "
        "'mounts': [{'path': '/data', 'writable': True}], 'shm_gib': 62.5}"
    )
    assert cluster.waivers[0].until == dt.date(2026, 12, 31)


def test_paths_begin_at_the_inventory_or_at_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "key").touch()
    (tmp_path / "site").mkdir()
    text = "ssh: {key: ~/key, known_hosts: none_yet}\nnodes: [a, {name: b, ssh: {key: key}}]\n"
    cluster = load_text(text + "checks: {dirs: [site]}", str(tmp_path / "i.yaml"))
    assert [(node.ssh.key, node.ssh.known_hosts) for node in cluster.nodes] == [
        (tmp_path / "key", tmp_path / "none_yet")
    ] * 2
    assert cluster.checks.dirs == (tmp_path / "site",)


def test_a_thousand_nodes_written_one_by_one() -> None:
    lines = [f"  - {{name: n{i}, address: 10.1.{i // 250}.{i % 250}}}" for i in range(1000)]
    cluster = load_text("\n".join(["nodes:", *lines, "launch: {master: n999}"]), "i.yaml")
    assert len(cluster.nodes) == 1000
    assert cluster.nodes[-1].address == "10.1.3.249"
    assert cluster.master == "n999"
    assert len(load_text(f"nodes: ['n[1-{MAX_NODES}]']", "i.yaml").nodes) == MAX_NODES


def test_check_dirs_are_told_before_the_rest_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "site").mkdir()
    path = tmp_path / "i.yaml"
    found = {}
    for dirs in ("[site, ~/site, none, ~nobody-of-that-name/x, 5]", "5", "site", "", "{a: b}"):
        path.write_text(f"expect: {{new: 1}}\nchecks:\n  dirs: {dirs}\n")
        found[dirs] = check_dirs(path.read_text(), str(path))
    assert list(found.values()) == [(tmp_path / "site",) * 2, (), (), (), ()]


# The example, and the schema.


def test_example(example_file: Path) -> None:
    known = catalog.load()
    cluster = load(example_file, known.expects)
    check_ids(cluster, known, "access.ssh")
    home = example_file.parent
    assert [node.name for node in cluster.nodes] == [*expand("gpu[01-04,06-08]"), "here"]
    assert cluster.nodes[0].ssh.key == home / ".ssh/id_ed25519"
    assert cluster.nodes[6].ssh.port == 2222
    assert cluster.launch.env["NCCL_IB_TIMEOUT"] == "22"
    assert cluster.checks.dirs == (home / "site-checks",)
    assert set(cluster.expect) == {expect.key for expect in known.expects}


def test_example_has_every_key(example_file: Path) -> None:
    shape = schema(EXPECTS)
    written = set(parse(example_file.read_text(encoding="utf-8"), "").lines)
    missing = {
        (*where, key)
        for where, keys in keys_of(shape, shape, ())
        for key in keys
        if not any(_same(place, (*where, key)) for place in written)
    }
    per_node = {("nodes", "*", "ssh", key) for key in shape["$defs"]["SshSettings"]["properties"]}
    in_place_of_image = {("launch", "container", "name")}
    assert missing == per_node - {("nodes", "*", "ssh", "port")} | in_place_of_image


def keys_of(
    shape: dict[str, Any], root: dict[str, Any], where: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    """Give every place of the schema with its keys."""
    if "$ref" in shape:
        shape = root["$defs"][shape["$ref"].rpartition("/")[2]]
    for choice in shape.get("anyOf", ()):
        yield from keys_of(choice, root, where)
    if "items" in shape:
        yield from keys_of(shape["items"], root, (*where, "*"))
    if "properties" in shape:
        yield where, list(shape["properties"])
        for key, value in shape["properties"].items():
            yield from keys_of(value, root, (*where, key))


def _same(place: tuple[str | int, ...], pattern: tuple[str, ...]) -> bool:
    return tuple("*" if isinstance(part, int) else part for part in place) == pattern


@functools.cache
def validator() -> Draft202012Validator:
    return Draft202012Validator(schema(EXPECTS))


def test_schema_is_one_and_takes_the_example() -> None:
    found = schema(EXPECTS)
    Draft202012Validator.check_schema(found)
    assert found["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert found["$defs"]["Expect"]["properties"]["mtu"] == {
        "description": "MTU of the data plane (bytes)",
        "minimum": 0,
        "type": "integer",
    }
    text = (ROOT / "inventory.example.yaml").read_text(encoding="utf-8")
    validator().validate(parse(text, "").value)


def test_schema_describes_what_it_completes() -> None:
    found = schema(())
    places = {name: shape for name, shape in found["$defs"].items() if name != "Expect"}
    assert [name for name, shape in places.items() if "description" not in str(shape)] == []


@pytest.mark.parametrize(("kind", "valid"), [("shape", False), ("meaning", True)])
def test_schema_refuses_a_bad_shape_and_no_more(kind: str, valid: bool) -> None:
    told = {
        case.name: validator().is_valid(parse(case.text, "").value) == valid for case in cases(kind)
    }
    assert [name for name, right in told.items() if not right] == []


# Ids of checks.


def test_check_ids(aloud: Aloud) -> None:
    text = (
        "nodes: [a]\n"
        "checks:\n"
        "  require: [network.port, network.prot]\n"
        "  skip:\n"
        "    colour: red\n"
        "waivers:\n"
        "  - {until: 2026-12-31, check: gpu.fabrik, owner: ops, reason: x}\n"
    )
    cluster = load_text(text, "i.yaml")
    known = ["network.port", "gpu.fabric"]
    told = []
    for allowed in ([], ["network.prot"], ["network.prot", "colour"]):
        with pytest.raises(ConfigError) as caught:
            check_ids(cluster, known + allowed, "access.ssh")
        told.append(caught.value)
    aloud(*told)
    every = [*known, "network.prot", "colour", "gpu.fabrik"]
    check_ids(cluster, every, "access.ssh")
    check_ids(cluster.model_copy(update={"fanout": 2}), every, "access.ssh")


def test_this_machine_names_no_checks() -> None:
    check_ids(this_machine(), (), "access.ssh")
    assert [node.name for node in this_machine().nodes] == ["localhost"]


# Expressions of node names.


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ("gpu01", "gpu01"),
        ("gpu[01-03]", "gpu01 gpu02 gpu03"),
        ("gpu[3,1-2]", "gpu3 gpu1 gpu2"),
        ("b, a", "b a"),
        ("gpu[09-10].example.org", "gpu09.example.org gpu10.example.org"),
        ("[1-2]a[1-2]", "1a1 1a2 2a1 2a2"),
    ],
)
def test_expand(expression: str, names: str) -> None:
    assert " ".join(expand(expression)) == names


def test_expand_says_what_is_wrong(aloud: Aloud) -> None:
    told = []
    for expression in ("", ",", "gpu[2-1]", "gpu[1-10001]", "a,a", "gpu[1-9]&gpu[3-4]"):
        with pytest.raises(ConfigError) as caught:
            expand(expression)
        told.append(caught.value)
    aloud(*told)


def ranges(starts: list[int]) -> str:
    """Give ranges that do not meet: `001-004,010-010`."""
    return ",".join(f"{start * 10:03}-{start * 10 + start % 10:03}" for start in starts)


PIECES = st.lists(
    st.tuples(
        st.lists(st.integers(0, 99), min_size=1, max_size=3, unique=True).map(ranges),
        st.sampled_from(["", "-ib0", ".example.org", "n[1-2]", "n[2,1]-[08-11]"]),
    ),
    min_size=1,
    max_size=3,
)


@given(PIECES)
def test_expand_agrees_with_clustershell(pieces: list[tuple[str, str]]) -> None:
    expression = ",".join(f"gpu{place}-[{r}]{end}" for place, (r, end) in enumerate(pieces))
    expected = NodeSet(expression, resolver=RESOLVER_NOGROUP)
    assert sorted(expand(expression)) == sorted(expected)


# Whatever is fed in, the only error is a ConfigError of one line.


WORDS = st.sampled_from(
    [
        *("nodes", "ssh", "launch", "expect", "checks", "waivers", "name", "address", "port"),
        *("env", "mtu", "driver", "mounts", "path", "until", "key", "jump", "skip", "dirs"),
        *("gpu[01-07]", "gpu[", "022", "yes", "null", "~", "1.5", "2026-12-31", "<<"),
    ]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | WORDS | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=20,
)
SYNTAX = st.lists(WORDS | st.sampled_from(list(":-[]{},&*!|>'\"%@`#?\n\t \0")) | st.just("\n  "))


def refuses_or_loads(text: str) -> None:
    try:
        load_text(text, "i.yaml", EXPECTS)
    except ConfigError as error:
        assert str(error).isprintable()  # noqa: PT017 - no error at all is fine too


@given(st.dictionaries(WORDS, VALUES, max_size=6) | VALUES)
def test_any_value(value: Any) -> None:
    refuses_or_loads(repr(value).replace("None", "null"))


@given(SYNTAX.map("".join) | st.text())
@example("? ")
@example("!!int")
@example("nodes: &a [*a]")
@example("%YAML 9.9")
def test_any_text(text: str) -> None:
    refuses_or_loads(text)


def dirs_in(path: Path) -> object:
    return check_dirs(read_text(path), str(path))


@given(st.binary(max_size=200), st.sampled_from([load, dirs_in]))
def test_any_bytes(data: bytes, read: Callable[[Path], object]) -> None:
    with tempfile.NamedTemporaryFile() as file:
        Path(file.name).write_bytes(data)
        try:
            read(Path(file.name))
        except ConfigError as error:
            assert str(error).isprintable()  # noqa: PT017 - no error at all is fine too
