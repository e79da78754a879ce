from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from preflight.errors import ConfigError
from preflight.transport.ssh_config import SshConfig, expand
from tests.messages.aloud import Aloud

Read = Callable[[str], SshConfig]


@pytest.fixture
def warnings() -> list[str]:
    return []


@pytest.fixture
def read(tmp_path: Path, warnings: list[str]) -> Read:
    """A function that writes a user's file and reads it."""

    def one(text: str) -> SshConfig:
        (tmp_path / "config").write_text(text)
        return SshConfig(warnings.append, tmp_path / "config", tmp_path / "system")

    return one


def test_the_first_value_counts_and_key_files_add_up(read: Read) -> None:
    config = read(
        "user first\nIdentityFile ~/a\n"
        'Host gpu* !gpu09\n  User second\n  Port=2222\n\tIdentityFile = "~/b c" # why not\n'
        "Host *\n  Port 1\n  IdentityFile ~/d\n"
    )
    assert config.lookup("gpu01") == {
        "user": ["first"],
        "identityfile": ["~/a", "~/b c", "~/d"],
        "port": ["2222"],
    }
    assert config.lookup("gpu09") == {
        "user": ["first"],
        "identityfile": ["~/a", "~/d"],
        "port": ["1"],
    }


def test_the_machines_file_comes_after_the_users(tmp_path: Path, read: Read) -> None:
    (tmp_path / "system").write_text("User other\nPort 7\n")
    assert read("User mine\n").lookup("x") == {"user": ["mine"], "port": ["7"]}


def test_a_proxy_command_is_the_rest_of_the_line(read: Read) -> None:
    config = read('ProxyCommand nc -X "5" %h %p # not a comment here\n')
    assert config.lookup("x") == {"proxycommand": ['nc -X "5" %h %p # not a comment here']}


def test_a_list_keeps_its_words_and_unknown_keywords_are_skipped(read: Read) -> None:
    config = read(
        "UserKnownHostsFile ~/a ~/b\nSendEnv LANG LC_*\nNonsense\n=\nUser\n\x00\xff\nPort 5\n"
    )
    assert config.lookup("x") == {"userknownhostsfile": ["~/a", "~/b"], "port": ["5"]}


def test_includes_by_glob_relative_nested_and_conditional(tmp_path: Path, read: Read) -> None:
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d" / "1").write_text("Host gpu01\n  User one\n")
    (tmp_path / "conf.d" / "2").write_text(f"Include {tmp_path}/deep\nPort 2\n")
    (tmp_path / "deep").write_text("HostKeyAlias deep\n")
    config = read("Host gpu*\n  Include conf.d/* none\n  User after\nHost *\n  Port 3\n")
    assert config.lookup("gpu01") == {
        "user": ["one"],
        "hostkeyalias": ["deep"],
        "port": ["2"],
    }
    assert config.lookup("gpu02") == {"hostkeyalias": ["deep"], "port": ["2"], "user": ["after"]}
    assert config.lookup("other") == {"port": ["3"]}


def test_an_include_of_itself_ends(read: Read, aloud: Aloud) -> None:
    with pytest.raises(ConfigError) as caught:
        read("Include config\n")
    aloud(caught.value)


def test_match_sections(read: Read, warnings: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "me")
    config = read(
        "Host pod\n  HostName gpu01.pod\n"
        "Match host *.pod !user root\n  Port 1\n"
        "Match originalhost pod user bob\n  HostKeyAlias bob\n"
        "Match localuser me\n  User local\n"
        "Match all\n  IdentitiesOnly yes\n"
    )
    assert config.lookup("pod", "bob") == {
        "hostname": ["gpu01.pod"],
        "port": ["1"],
        "hostkeyalias": ["bob"],
        "user": ["local"],
        "identitiesonly": ["yes"],
    }
    assert config.lookup("pod", "root") == {
        "hostname": ["gpu01.pod"],
        "user": ["local"],
        "identitiesonly": ["yes"],
    }
    assert warnings == []


def test_match_sections_that_are_not_evaluated_are_told(
    read: Read, warnings: list[str], aloud: Aloud
) -> None:
    config = read('Match host a exec "test -f x"\n  User no\nMatch final all\n  Port 1\n')
    assert config.lookup("a") == {}
    aloud(*warnings)


def test_a_file_that_cannot_be_read(tmp_path: Path, aloud: Aloud) -> None:
    with pytest.raises(ConfigError) as caught:
        SshConfig(print, tmp_path)
    aloud(caught.value)


def test_no_files_at_all(tmp_path: Path) -> None:
    config = SshConfig(print, tmp_path / "none", tmp_path / "config" / "none")
    assert config.lookup("gpu01") == {}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100)
@given(
    text=st.lists(
        st.sampled_from(
            ["Host", "Match", "User", "!", "*", "=", '"', "#", "host", " ", "\n", "\xe9"]
        )
    ).map("".join)
)
def test_no_text_stops_the_reader(read: Read, text: str) -> None:
    assert set(read(text).lookup("gpu01")) <= {"user"}


def test_expand(monkeypatch: pytest.MonkeyPatch, aloud: Aloud) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("PLACE", "there")
    assert expand("~/%h/${PLACE}/100%%", {"h": "gpu01"}) == "/home/me/gpu01/there/100%"
    with pytest.raises(ConfigError) as caught:
        expand("%x", {})
    aloud(caught.value)
