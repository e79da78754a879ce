"""Ansible inventories, INI and YAML."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import example, given

from preflight.errors import ConfigError
from preflight.node_names import MAX_NODES
from preflight.sources import Found
from preflight.sources.ansible import parsed, read
from preflight.sources.ansible_groups import MOST_WRITTEN, expanded
from preflight.sources.ansible_ini import MOST_LINE
from tests.messages.aloud import Aloud


def nodes(found: Found) -> dict[str, Any]:
    return {
        node.name: node.ssh.model_dump(exclude_unset=True)
        | ({"address": node.address} if node.address else {})
        | ({"transport": node.transport} if node.transport != "ssh" else {})
        for node in found.cluster.nodes
    }


INI = """\
# a comment
; another
lonely:2200 ansible_host=10.0.0.7

[rack1]
gpu[01:03] ansible_port=2222   # a comment
db-[a:c].example.org
[rack2]
gpu[08:10:2]:2022 ansible_user='carol'

[gpus:children]
rack1
rack2   # too

[gpus:vars]
ansible_user = alice
ansible_become=yes

[all:vars]
ansible_user=ubuntu
colour=red

[rack2:vars]
ansible_user=bob
ansible_become=false
ansible_python_interpreter=/usr/bin/python3.11
"""


def test_ini() -> None:
    alice, bob = {"user": "alice", "become": "sudo"}, {"python": "/usr/bin/python3.11"}
    found = parsed(INI, "hosts")
    assert nodes(found) == {
        "lonely": {"user": "ubuntu", "port": 2200, "address": "10.0.0.7"},
        "gpu01": alice | {"port": 2222},
        "gpu02": alice | {"port": 2222},
        "gpu03": alice | {"port": 2222},
        "db-a.example.org": alice,
        "db-b.example.org": alice,
        "db-c.example.org": alice,
        "gpu08": {"user": "carol", "port": 2022} | bob,
        "gpu10": {"user": "carol", "port": 2022} | bob,
    }
    assert (found.cluster.name, found.origin, found.notes) == (
        "hosts",
        "the Ansible inventory hosts",
        (),
    )


def test_one_group_with_all_that_are_in_it() -> None:
    assert list(nodes(parsed(INI, "hosts", "gpus")))[:4] == [
        "gpu01",
        "gpu02",
        "gpu03",
        "db-a.example.org",
    ]
    assert list(nodes(parsed(INI, "hosts", "ungrouped"))) == ["lonely"]
    found = parsed(INI, "hosts", "rack2")
    assert list(nodes(found)) == ["gpu08", "gpu10"]
    assert (found.cluster.name, found.origin) == (
        "rack2",
        "the Ansible inventory hosts, group rack2",
    )


YAML = """\
---
all:
  vars: {ansible_user: ubuntu, ansible_become: true}
  hosts:
    localhost: {ansible_connection: local}
  children:
    gpus:
      vars:
        ansible_port: 2222
      children:
        inner:
          hosts:
            web[01:02].example.org:
            fd00::5: {ansible_user: !unsafe bob}
    others:
      hosts:
        web01.example.org: {ansible_host: 10.0.0.1}
"""


@pytest.mark.parametrize("source", ["hosts.yml", "hosts.yaml", "hosts"])
def test_yaml(source: str) -> None:
    usual = {"user": "ubuntu", "become": "sudo", "port": 2222}
    assert nodes(parsed(YAML, source)) == {
        "localhost": {"transport": "local"},
        "web01.example.org": usual | {"address": "10.0.0.1"},
        "web02.example.org": usual,
        "fd00::5": usual | {"user": "bob"},
    }
    assert list(nodes(parsed(YAML, source, "gpus"))) == [
        "web01.example.org",
        "web02.example.org",
        "fd00::5",
    ]


def test_the_innermost_group_goes_first_then_the_last_by_name() -> None:
    text = "\n".join(
        [
            *(
                "[b]",
                "n",
                "[a]",
                "n",
                "[outer:children]",
                "b",
                "[outer:vars]",
                "ansible_user=outer",
            ),
            *("[a:vars]", "ansible_user=a", "ansible_port=1", "[b:vars]", "ansible_port=2"),
        ]
    )
    # b is within outer, so deeper than a
    assert nodes(parsed(text, "hosts")) == {"n": {"user": "outer", "port": 2}}


def test_secrets_are_not_copied() -> None:
    text = (
        "[all:vars]\nansible_password=hunter2\nansible_become_pass=hunter3\n"
        "ansible_ssh_common_args='-o ProxyCommand=\"sshpass -p hunter4 ssh -W %h:%p b\"'\n"
        "[x]\na ansible_ssh_pass=hunter5\nb api_token=hunter6\n"
    )
    found = parsed(text, "hosts")
    assert "hunter" not in repr(found)
    assert found.notes == (
        "a and 1 more: ansible_password: passwords are not copied, preflight logs in with keys",
        "a: ansible_ssh_pass: passwords are not copied, preflight logs in with keys",
        "a and 1 more: ansible_become_pass: passwords are not copied, "
        "ssh.become works only where sudo asks for none",
        "a and 1 more: ansible_ssh_common_args: not copied; a jump host goes under ssh.jump, "
        "all else into ~/.ssh/config",
    )


VAULT = """\
all:
  vars:
    ansible_user: !vault |
      $ANSIBLE_VAULT;1.1;AES256
      6231336539
    token: !vault |
      $ANSIBLE_VAULT;1.1;AES256
      6666
  hosts:
    a: {ansible_port: "{{ port }}", ansible_host: [1, 2]}
    b:
"""


def test_what_is_encrypted_or_a_template_is_left_out() -> None:
    found = parsed(VAULT, "hosts.yml")
    assert nodes(found) == {"a": {}, "b": {}}
    assert "6231" not in repr(found)
    assert "6666" not in repr(found)
    assert found.notes == (
        "a: ansible_host is this list and was left out",
        "a: ansible_port is a template and was left out",
        "a and 1 more: ansible_user is encrypted with Ansible Vault and was left out",
    )


def test_values_that_preflight_has_no_use_for() -> None:
    text = (
        "a ansible_port=ssh\nb ansible_ssh_private_key_file=/no/such/key\n"
        "c ansible_become=true ansible_become_method=doas\nd ansible_connection=docker\n"
        "e ansible_python_interpreter=auto_silent"
    )
    found = parsed(text, "hosts")
    assert nodes(found) == {"a": {}, "b": {}, "c": {}, "d": {}, "e": {}}
    assert found.notes == (
        "a: ansible_port is 'ssh', which is no port, and was left out",
        "b: the key file '/no/such/key' cannot be read here and was left out",
        "c: ansible_become_method is 'doas', preflight knows sudo",
        "d: ansible_connection is 'docker', preflight takes SSH",
    )


def test_key_files_begin_where_ansible_would_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    Path("id").touch()
    values = {"a": "id", "b": "~/id", "c": f"{tmp_path}/id"}
    lines = [f"{host} ansible_ssh_private_key_file={key}" for host, key in values.items()]
    text = "\n".join(lines)
    keys = [str(node.ssh.key) for node in parsed(text, "hosts").cluster.nodes]
    assert keys == [f"{tmp_path}/id", "~/id", f"{tmp_path}/id"]


def test_variables_in_files_of_their_own_are_missed_aloud(tmp_path: Path) -> None:
    (tmp_path / "group_vars").mkdir()
    path = tmp_path / "hosts"
    path.write_text("a")
    assert read(path, None).notes == (
        f"group_vars beside {path} are not read; to have what is in them too, "
        f"give what `ansible-inventory -i {path} --list --yaml` prints",
    )


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("web[01:03]", "web01 web02 web03"),
        ("web[1:3]", "web1 web2 web3"),
        ("web[:2]", "web0 web1 web2"),
        ("web[9:11]", "web9 web10 web11"),
        ("web[09:11:2]", "web09 web11"),
        ("db-[a:c]", "db-a db-b db-c"),
        ("r[1:2]-[a:b]", "r1-a r1-b r2-a r2-b"),
    ],
)
def test_ranges(pattern: str, names: str) -> None:
    assert " ".join(expanded(pattern)) == names


BAD = [
    "",
    "[gpus]\n",
    "[a:x]\nb",
    "[a\n",
    "a\ngpu[3:1]",
    "gpu[1-3]",
    "gpu[1:1000000]",
    "g[1:200][1:200]",
    "g[1:9999]\nh[1:9]",
    "a ansible_password=hunter2 hunter3",
    "a x='",
    "[a]\nn\n[a:vars]\nhunter2",
    "a,b",
    "a ansible_host=x@y",
    "n\n[a:children]\nb\n[b:children]\na",
    "$ANSIBLE_VAULT;1.1;AES256\n6231",
    "---\n",
    "all:\n  hosts: [a]",
    "all:\n  hots: {a: }",
    "all:\n  hosts:\n    g[1:: }",
    "all:\n  hosts:\n    a: {ansible_host: 10.0.0.1}\n    a b:\n",
    "import os\n",
    "#!/usr/bin/env python3\nprint({})\n",
    '{"_meta": {"hostvars": {}}, "all": {"children": ["gpus"]}, "gpus": {"hosts": ["a"]}}',
]


@pytest.mark.parametrize("text", BAD)
def test_what_is_wrong_is_said_in_a_line(text: str, aloud: Aloud) -> None:
    with pytest.raises(ConfigError) as caught:
        parsed(text, "hosts")
    assert "hunter" not in str(caught.value)
    aloud(caught.value, about=repr(text))


def test_the_configuration_of_a_plugin(aloud: Aloud) -> None:
    with pytest.raises(ConfigError) as caught:
        parsed("plugin: amazon.aws.aws_ec2\nregions: [eu-west-1]\n", "my hosts.aws_ec2.yml")
    aloud(caught.value)


def test_a_folder(tmp_path: Path, aloud: Aloud) -> None:
    (tmp_path / "my hosts").mkdir()
    with pytest.raises(ConfigError) as caught:
        read(tmp_path / "my hosts", None)
    aloud(caught.value)


def circle(groups: int) -> str:
    return "n\n" + "".join(f"[g{i}:children]\ng{(i + 1) % groups}\n" for i in range(groups))


MUCH = {
    "a long line": "n\nm x=" + "y" * MOST_LINE,
    "the same hosts again and again": f"n[1:{MAX_NODES}]\n" * 11,
    "many groups": "n\n" + "".join(f"[g{i}]\n" for i in range(MOST_WRITTEN)),
    "a large circle": circle(1000),
    "many ranges in one": "n" + "[1:100]" * 1000,
}


@pytest.mark.parametrize("what", MUCH)
def test_too_much(what: str, aloud: Aloud) -> None:
    with pytest.raises(ConfigError) as caught:
        parsed(MUCH[what], "hosts")
    aloud(caught.value, about=what)


def test_too_much_as_yaml(aloud: Aloud) -> None:
    groups = "".join(f"g{i}: {{hosts: {{'n[1:{MAX_NODES}]': }}}}\n" for i in range(11))
    with pytest.raises(ConfigError) as caught:
        parsed(groups, "hosts.yml")
    aloud(caught.value)


def test_groups_may_be_as_deep_as_they_like() -> None:
    chain = [f"[g{i}:children]\ng{i + 1}\n[g{i}:vars]\nansible_user=u{i}\n" for i in range(5000)]
    text = "".join(chain) + "[g5000]\nn ansible_port=22\n[g1:vars]\nansible_become=yes\n"
    assert nodes(parsed(text, "hosts", "g2500")) == {
        "n": {"user": "u4999", "port": 22, "become": "sudo"}
    }


def test_a_group_that_there_is_not(aloud: Aloud) -> None:
    with pytest.raises(ConfigError) as caught:
        parsed(INI, "hosts", "rakc1")
    aloud(caught.value)


LINES = st.lists(
    st.sampled_from(
        [
            *("[a]", "[a:children]", "[b:children]", "[a:vars]", "b", "a", "n[1:2]", "n[", "n:22"),
            *(
                "n ansible_port=x",
                "ansible_user=y",
                "n 'x",
                "#",
                "n=1",
                "all:",
                "  hosts:",
                "    h:",
            ),
        ]
    )
).map("\n".join)


@given(LINES | st.text(), st.sampled_from(["hosts", "hosts.yml"]))
@example("a ansible_port=²", "hosts")
@example("a ansible_ssh_private_key_file='\0'", "hosts")
@example("[a:children]\nall", "hosts")
@example("all: {children: {all: {hosts: {a: }}}}", "hosts.yml")
def test_any_text_gives_nodes_or_one_line(text: str, source: str) -> None:
    try:
        assert parsed(text, source).cluster.nodes
    except ConfigError as error:
        assert str(error).isprintable()  # noqa: PT017 - no error at all is fine too
