"""The text of an inventory: what is read from it is what was written."""

from __future__ import annotations

import re
import string
from pathlib import Path

import hypothesis.strategies as st
import yaml
from hypothesis import given

from preflight import catalog
from preflight.inventory import Cluster, Launch, NodeSpec, SshSettings, load_text
from preflight.node_names import names as names_of
from preflight.sources import Found
from preflight.sources.draft import draft, folded
from preflight.sources.learnt import Learnt, Seen

ALL = "seen on all nodes"
NOTHING = Seen(None, "no node answered")
SILENCE = Learnt(NOTHING, NOTHING, NOTHING, Seen([], "seen on 0 of 2 nodes"))
FULL = Learnt(
    Seen(8, ALL),
    Seen("eth1", ALL),
    Seen(9000, ALL),
    Seen([{"path": "/data", "type": "nfs4", "source": "nas01:/export/data"}], ALL),
)
EXPECTS = catalog.load().expects


def found(*nodes: NodeSpec, gpus: int | None = None, notes: tuple[str, ...] = ()) -> Found:
    cluster = Cluster(name="x", source=None, nodes=nodes, launch=Launch(gpus_per_node=gpus))
    return Found(cluster, "the host file hosts", notes)


def plain(*names: str) -> list[NodeSpec]:
    return [NodeSpec(name=name) for name in names]


def test_all_of_it() -> None:
    ssh = SshSettings(user="ubuntu", become="sudo")
    nodes = [
        *(NodeSpec(name=name, ssh=ssh) for name in ("gpu01", "gpu02")),
        NodeSpec(name="gpu03", address="10.0.0.3", ssh=SshSettings(user="bob", become="sudo")),
    ]
    notes = ("gpu01: a password was not copied",)
    assert draft(found(*nodes, notes=notes), FULL, ["gpu03"], "pod.yaml") == (
        "# Written by preflight init, from the host file hosts.\n"
        "#\n"
        "#   preflight schema inventory > inventory.schema.json     completion in editors\n"
        "#   preflight run pod.yaml\n"
        "#\n"
        "# gpu01: a password was not copied\n"
        "#\n"
        "# gpu03 did not answer when this was written: nothing below was seen there\n"
        "\n"
        "# cluster: h100-pod-3               # the name in reports; left out: this file's name\n"
        "\n"
        "# How to log in. What is left out comes from ~/.ssh/config, then from OpenSSH.\n"
        "ssh:\n"
        "  # user: ubuntu\n"
        "  # key: ~/.ssh/id_ed25519\n"
        "  # jump: alice@bastion.example.org\n"
        "  become: sudo\n"
        "\n"
        "# Names and ranges as Slurm writes them, or mappings for nodes that differ.\n"
        "nodes:\n"
        '  - {name: "gpu[01-02]", ssh: {user: ubuntu}}\n'
        "  - {name: gpu03, address: 10.0.0.3, ssh: {user: bob}}\n"
        "\n"
        "# How the job will be started.\n"
        "launch:\n"
        "  gpus_per_node: 8                  # seen on all nodes\n"
        "  interface: eth1                   # seen on all nodes\n"
        "  # python: /opt/train/bin/python   # left out: the login shell's python3\n"
        "  # env: {NCCL_IB_HCA: mlx5}        # the job's environment\n"
        "\n"
        "# What every node must have. What is left out must only be the same everywhere.\n"
        "expect:\n"
        '  # driver: "550.54.15"             # versions in quotes\n'
        "  # mtu: 9000                       # seen on all nodes\n"
        "  mounts:                           # seen on all nodes\n"
        "    - path: /data\n"
        "      type: nfs4\n"
        '      source: "nas01:/export/data"\n'
    )


def test_what_is_promised_goes_before_what_is_seen() -> None:
    for seen, words in (
        (Seen(8, ALL), ""),
        (Seen(7, ALL), "; 7 seen on all nodes"),
        (NOTHING, ""),
    ):
        text = draft(found(*plain("a"), gpus=8), FULL._replace(gpus=seen), [], "i.yaml")
        assert f"  gpus_per_node: 8                  # by the host file hosts{words}\n" in text


def test_one_of_several_interfaces_is_not_promised() -> None:
    interface = Seen("eth0", "NCCL would pick eth0; eth1 is there too", is_sure=False)
    mtu = Seen(1500, "of eth0; eth1 is there too")
    text = draft(found(*plain("a")), FULL._replace(interface=interface, mtu=mtu), [], "i.yaml")
    line = "  # interface: eth0                 # NCCL would pick eth0; eth1 is there too\n"
    assert line in text
    assert "  # mtu: 1500                       # of eth0; eth1 is there too\n" in text
    assert load_text(text, "i.yaml", EXPECTS).launch.interface is None


def test_nothing_learnt_still_loads() -> None:
    text = draft(found(*plain("a", "b")), SILENCE, ["a", "b"], "i.yaml")
    assert "  # gpus_per_node: 8                # not learnt: no node answered\n" in text
    assert "# a,b did not answer when this was written: nothing below was seen there\n" in text
    cluster = load_text(text, "i.yaml", EXPECTS)
    assert cluster.model_dump() == load_text("nodes: [a, b]", "i.yaml", EXPECTS).model_dump()


def test_all_that_is_commented_out_is_right_too(tmp_path: Path) -> None:
    text = draft(found(*plain("a")), FULL, [], "i.yaml")
    woken = re.sub(r"^( *)# (?=[a-z_]+: (?!.*\.json))", r"\1", text, flags=re.MULTILINE)
    woken = woken.replace("~/.ssh/id_ed25519", str(tmp_path / "key"))
    (tmp_path / "key").touch()
    cluster = load_text(woken, "i.yaml", EXPECTS)
    assert cluster.name == "h100-pod-3"
    assert cluster.expect["mtu"] == 9000
    assert cluster.nodes[0].ssh.become == "sudo"
    assert cluster.launch.env == {"NCCL_IB_HCA": "mlx5"}


def test_foreign_words_cannot_break_out_of_a_comment() -> None:
    evil = found(*plain("a"), notes=("x\nnodes: [b]\r\x1b[31m",))._replace(origin="f\nlaunch: 5")
    text = draft(evil, FULL, [], "i\nssh: 1")
    assert [node.name for node in load_text(text, "i.yaml", EXPECTS).nodes] == ["a"]


NUMBERED = st.builds(
    lambda prefix, number, width, end: f"{prefix}{number:0{width}}{end}",
    st.sampled_from(["gpu", "n1-", "10.0.0.", ""]),
    st.integers(1, 120),
    st.integers(1, 3),
    st.sampled_from(["", "-ib", ".x2.org"]),
)
WORDS = st.text(string.ascii_letters + string.digits, min_size=1, max_size=4)
ADDRESSES = st.ip_addresses().map(str)
NAMES = st.lists(NUMBERED | WORDS | ADDRESSES | st.sampled_from(["on", "No", "1e3", "0x1f", "022"]),
                 min_size=1, max_size=12, unique=True)  # fmt: skip


@given(NAMES)
def test_folded_names_expand_in_their_order(names: list[str]) -> None:
    assert [name for expression in folded(names) for name in names_of(expression)] == names


def test_folding() -> None:
    names = [*(f"gpu{n:02}" for n in (1, 2, 3, 9)), "login", "10.0.0.5", "10.0.0.6", "gpu10"]
    assert [*folded(names)] == ["gpu[01-03,09]", "login", "10.0.0.[5-6]", "gpu10"]
    assert [*folded([f"n{n}" for n in range(8, 12)])] == ["n[8-11]"]
    assert [*folded(["n08", "n9", "n7", "n10"])] == ["n[08,9,7,10]"]


TEXTS = st.sampled_from(["ubuntu", "a b", "true", "x: y", "#", "'", '"', "über", "1", "~"])
SSH = st.fixed_dictionaries(
    {},
    optional={
        "user": TEXTS,
        "port": st.integers(1, 65535),
        "become": st.just("sudo"),
        "python": st.sampled_from(["/usr/bin/python3", "/opt/my python"]),
    },
)


@given(NAMES, st.data())
def test_what_is_written_is_read_again(names: list[str], data: st.DataObject) -> None:
    nodes = [
        NodeSpec(
            name=name,
            address=data.draw(st.none() | ADDRESSES),
            ssh=SshSettings.model_validate(data.draw(SSH)),
        )
        for name in names
    ]
    text = draft(found(*nodes, gpus=data.draw(st.none() | st.integers(1, 16))), FULL, [], "i.yaml")
    cluster = load_text(text, "i.yaml", EXPECTS)
    assert cluster.nodes == tuple(nodes)
    assert cluster.expect["mounts"] == [{**FULL.mounts.value[0]}]
    # other tools read YAML 1.1
    assert [*map(str, yaml.safe_load(text))] == ["ssh", "nodes", "launch", "expect"]
