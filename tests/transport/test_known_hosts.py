from __future__ import annotations

import base64
import fcntl
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from preflight.errors import ConfigError
from preflight.transport.known_hosts import (
    Entry,
    HostKey,
    Known,
    KnownHosts,
    KnownHostsFile,
    fingerprint,
    host_name,
    same,
)
from tests.messages.aloud import Aloud
from tests.transport.servers import keygen, public


def key(text: str, kind: str = "ssh-ed25519") -> HostKey:
    """Return a key whose blob is as good as any."""
    name = kind.encode()
    return HostKey(kind, len(name).to_bytes(4, "big") + name + text.encode())


def line(names: str, of: HostKey) -> str:
    return f"{names} {of.type} {base64.b64encode(of.blob).decode()}\n"


ONE, TWO = key("one"), key("two", "ecdsa-sha2-nistp256")


def found(path: Path, name: str) -> list[tuple[str, HostKey]]:
    return [(entry.marker, entry.key) for entry in KnownHostsFile(path).entries(name)]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "known_hosts"


@pytest.mark.parametrize(
    ("names", "name", "matches"),
    [
        ("gpu01", "gpu01", True),
        ("GPU01", "gpu01", True),
        ("gpu01,10.0.0.1", "10.0.0.1", True),
        ("gpu01", "[gpu01]:2222", False),
        ("[gpu01]:2222", "[gpu01]:2222", True),
        ("[gpu01]:2222", "gpu01", False),
        ("gpu*", "gpu01", True),
        ("gpu??", "gpu01", True),
        ("gpu?", "gpu01", False),
        ("gpu*,!gpu01", "gpu01", False),
        ("!gpu01,gpu*", "gpu02", True),
        ("!gpu01", "gpu02", False),
        ("[gpu*]:22*", "[gpu7]:2222", True),
        ("gpu.1", "gpux1", False),
        ("fe80::1", "fe80::1", True),
    ],
)
def test_which_lines_speak_of_a_host(file: Path, names: str, name: str, matches: bool) -> None:
    file.write_text(line(names, ONE))
    assert found(file, name) == ([("", ONE)] if matches else [])


def test_all_lines_of_a_host_with_their_markers(file: Path) -> None:
    file.write_text(
        line("gpu01", ONE)
        + line("@revoked *", TWO)
        + line("@cert-authority gpu*", ONE)
        + line("gpu02", TWO)
        + line("gpu01", TWO)
    )
    assert found(file, "gpu01") == [
        ("", ONE),
        ("", TWO),
        ("@revoked", TWO),
        ("@cert-authority", ONE),
    ]
    assert KnownHosts(print).lookup([str(file)], "gpu01") == Known(
        (Entry(f"{file}:1", "", ONE), Entry(f"{file}:5", "", TWO)),
        (Entry(f"{file}:2", "@revoked", TWO),),
        (Entry(f"{file}:3", "@cert-authority", ONE),),
    )


def test_names_hashed_by_openssh(file: Path, tmp_path: Path) -> None:
    one, two = (public(keygen(tmp_path / name)) for name in ("one", "two"))
    file.write_text(f"gpu01,10.0.0.1 {one}[gpu01]:22022 {two}gpu2 {two}")
    command = ["ssh-keygen", "-q", "-H", "-f", str(file)]
    subprocess.run(command, check=True, capture_output=True)
    assert "gpu" not in file.read_text()
    known = KnownHostsFile(file)

    def keys(name: str) -> list[str]:
        blobs = [entry.key.blob for entry in known.entries(name)]
        return [base64.b64encode(blob).decode() for blob in blobs]

    assert keys("10.0.0.1") == [one.split()[1]]
    assert keys("gpu01") == keys("gpu01") == [one.split()[1]]
    assert keys("[gpu01]:22022") == [two.split()[1]]
    assert keys("gpu3") == []


def test_a_broken_line_costs_only_itself(file: Path, aloud: Aloud) -> None:
    good = line("gpu01", ONE).encode()
    bad = [
        b"gpu01",
        b"gpu01 ssh-ed25519",
        b"gpu01 ssh-ed25519 ????",
        b"gpu01 ssh-rsa " + base64.b64encode(ONE.blob),
        b"@what gpu01 ssh-ed25519 AAAA",
        b"|1|x ssh-ed25519 " + base64.b64encode(ONE.blob),
        b"|2|AAAA|AAAA ssh-ed25519 " + base64.b64encode(ONE.blob),
        b"\xff\xfe\x00",
    ]
    file.write_bytes(b"\r\n# comment\n  # too\n\n" + b"\n".join(bad) + b"\n  " + good)
    warnings: list[str] = []
    files = KnownHosts(warnings.append)
    assert [e.where for e in files.lookup([str(file)] * 2, "gpu01").keys] == [f"{file}:13"] * 2
    aloud(*warnings)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(noise=st.binary(max_size=200))
def test_no_bytes_before_a_line_can_hide_it(file: Path, noise: bytes) -> None:
    file.write_bytes(noise + b"\n" + line("gpu01", ONE).encode())
    assert ("", ONE) in found(file, "gpu01")


def test_several_files_and_none(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    second.write_text(line("gpu01", TWO))
    files = KnownHosts(print)
    known = files.lookup([str(first), str(second), "/dev/null"], "gpu01")
    assert [entry.key for entry in known.keys] == [TWO]
    assert same(known.keys, TWO) == Entry(f"{second}:1", "", TWO)
    assert same(known.keys, ONE) is None


def test_a_file_that_cannot_be_read(tmp_path: Path, aloud: Aloud) -> None:
    with pytest.raises(ConfigError) as caught:
        KnownHosts(print).file(str(tmp_path))
    aloud(caught.value)


def test_append_keeps_every_byte_and_is_seen_at_once(file: Path) -> None:
    before = b"@revoked odd \xff\n" + line("gpu01", ONE).encode() + b"no newline"
    file.write_bytes(before)
    opened = KnownHostsFile(file)
    assert opened.append("[gpu02]:22022", TWO) is True
    assert opened.append("[gpu02]:22022", TWO) is False
    assert file.read_bytes() == before + b"\n" + line("[gpu02]:22022", TWO).encode()
    assert [entry.key for entry in opened.entries("[gpu02]:22022")] == [TWO]


def test_append_makes_the_folder_and_the_file_private(tmp_path: Path) -> None:
    file = tmp_path / ".ssh" / "known_hosts"
    assert KnownHostsFile(file).append("gpu01", ONE)
    assert (file.parent.stat().st_mode & 0o777, file.stat().st_mode & 0o777) == (0o700, 0o600)
    assert file.read_text() == line("gpu01", ONE)


def test_append_waits_for_a_lock_of_another_process(file: Path) -> None:
    file.write_text("")
    with ThreadPoolExecutor(1) as pool, file.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        waiting = pool.submit(KnownHostsFile(file).append, "gpu01", ONE)
        assert file.read_text() == ""
        fcntl.flock(held, fcntl.LOCK_UN)
        assert waiting.result()
    assert file.read_text() == line("gpu01", ONE)


def test_many_threads_append_whole_lines(file: Path) -> None:
    opened = [KnownHostsFile(file) for _ in range(4)]
    with ThreadPoolExecutor(8) as pool:
        jobs = [pool.submit(opened[n % 4].append, f"gpu{n}", ONE) for n in range(40)]
        assert all(job.result() for job in jobs)
    assert sorted(file.read_text().splitlines(True)) == sorted(
        line(f"gpu{n}", ONE) for n in range(40)
    )


def test_names_and_fingerprints_as_openssh_writes_them(tmp_path: Path) -> None:
    assert host_name("GPU01", 22) == "gpu01"
    assert host_name("fe80::1", 2222) == "[fe80::1]:2222"
    path = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
    shown = subprocess.run(["ssh-keygen", "-lf", str(path)], check=True, capture_output=True)
    blob = base64.b64decode(Path(f"{path}.pub").read_text().split()[1])
    assert fingerprint(blob) == shown.stdout.decode().split()[1]
