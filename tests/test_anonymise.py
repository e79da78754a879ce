"""What says whose machine it is goes; what it says of the machine stays."""

from __future__ import annotations

import ipaddress
import json
import os
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.anonymise import anonymise

KEY = b"k" * 32
DOCUMENT: dict[str, Any] = {
    "want": {
        "launch": {"master": "acme-h100-01", "user": "mallory", "workdir": "/home/mallory/run"},
        "expect": {"mounts": [{"path": "/data", "source": "filer.acme.com:/export"}]},
    },
    "node": {
        "uname": {"": {"node": "acme-h100-07.pod3.acme.com", "release": "5.15.0-105-generic"}},
        "environ": {"": {"USER": "alice", "HOME": "/home/alice", "MASTER_ADDR": "acme-h100-01"}},
        "account": {
            "": {
                "name": "alice",
                "uid": 1001,
                "gid": 1001,
                "home": "/home/alice",
                "shell": "/bin/bash",
                "groups": {"alice": 1001, "moonshot": 2000, "docker": 999},
            },
            "root": {"name": "root", "uid": 0, "gid": 0, "groups": {"root": 0}},
        },
        "read": {
            "/proc/sys/kernel/random/boot_id": "6a6f1c1e-8a3c-4e0e-9d1a-0123456789ab\n",
            "/proc/self/mountinfo": (
                "30 1 0:40 / /data rw - nfs4 filer:/export/moonshot rw,vers=4.2,addr=10.7.8.9\n"
                "31 1 0:41 / /scratch rw - nfs4 filer:/scratch rw,addr=10.7.8.9\n"
                "32 1 0:42 / /share rw - cifs //smb/x rw,username=bob\n"
            ),
            "/home/alice/.nccl.conf": "NCCL_SOCKET_IFNAME=eth1\n",
            "/etc/machine-id": "0123456789abcdef0123456789abcdef\n",
            "/sys/class/dmi/id/product_serial": "J1009ZK4",
            "/sys/class/infiniband/mlx5_0/node_guid": "b83f:d203:0011:2233\n",
        },
        "nvml": {
            "nvmlDeviceGetUUID 0": "GPU-6a6f1c1e-8a3c-4e0e-9d1a-0123456789ab",
            "nvmlDeviceGetSerial 0": "1654322001234",
            "nvmlSystemGetDriverVersion": "550.54.15",
        },
        "resolve": {"acme-h100-01": ["10.7.1.1", "fd12:3456:789a:1::17"]},
        "run": {"ssh-keyscan": {"out": "ssh-ed25519 AAAA" + "C3NzaC1lZDI1NTE5" * 4}},
    },
}
PRIVATE = (
    *("acme", "alice", "mallory", "moonshot", "bob", "filer", "pod3", "6a6f1c1e", "J1009ZK4"),
    *("10.7.", "1654322001234", "0123456789ab", "0011:2233", "C3NzaC1", "fd12:3456:789a"),
)


def test_nothing_private_is_left() -> None:
    text = json.dumps(anonymise(DOCUMENT, KEY))
    assert [word for word in PRIVATE if word in text] == []


def test_what_is_no_secret_stays() -> None:
    node = anonymise(DOCUMENT, KEY)["node"]
    assert node["uname"][""]["release"] == "5.15.0-105-generic"
    assert node["nvml"]["nvmlSystemGetDriverVersion"] == "550.54.15"
    assert node["account"]["root"] == DOCUMENT["node"]["account"]["root"]
    assert "docker" in node["account"][""]["groups"]
    assert " - nfs4 " in node["read"]["/proc/self/mountinfo"]
    assert node["read"]["/sys/class/infiniband/mlx5_0/node_guid"].startswith("b83f:d203:00")


def test_a_word_has_one_replacement_wherever_it_stands() -> None:
    found = anonymise(DOCUMENT, KEY)
    node, launch = found["node"], found["want"]["launch"]
    user = node["environ"][""]["USER"]
    assert re.fullmatch("user[0-9a-f]{6}", user)
    assert node["account"][""]["name"] == user
    assert node["account"][""]["home"] == node["environ"][""]["HOME"] == f"/home/{user}"
    assert node["read"][f"/home/{user}/.nccl.conf"] == "NCCL_SOCKET_IFNAME=eth1\n"
    assert launch["workdir"] == f"/home/{launch['user']}/run"
    assert launch["master"] == node["environ"][""]["MASTER_ADDR"]
    assert list(node["resolve"]) == [launch["master"]]
    boot = node["read"]["/proc/sys/kernel/random/boot_id"].strip()
    assert node["nvml"]["nvmlDeviceGetUUID 0"] == f"GPU-{boot}"
    table = node["read"]["/proc/self/mountinfo"]
    assert len(set(re.findall("addr=[0-9.]+", table))) == 1
    server = found["want"]["expect"]["mounts"][0]["source"].split(".")[0]
    assert f"nfs4 {server}:/export" in table


def test_names_are_still_a_range() -> None:
    node = anonymise(DOCUMENT, KEY)["node"]
    own, master = node["uname"][""]["node"].split(".")[0], next(iter(node["resolve"]))
    assert (own[-3:], master[-3:], own[:-2]) == ("-07", "-01", master[:-2])


def test_the_same_key_gives_the_same_and_another_one_another() -> None:
    assert anonymise(DOCUMENT, KEY) == anonymise(DOCUMENT, KEY)
    assert anonymise(DOCUMENT, KEY) != anonymise(DOCUMENT, b"other")


def one(text: str, key: bytes = KEY) -> str:
    return str(anonymise({"text": text}, key)["text"])


@pytest.mark.parametrize(
    "text",
    [
        *("127.0.0.1", "169.254.1.2", "0.0.0.0", "255.255.255.0", "224.0.0.1", "::1", "::"),
        *("00:00:00:00:00:00", "ff:ff:ff:ff:ff:ff", "0000:9b:00.0", "12:34:56", "ff02::1"),
        *("550.54.15", "libcudnn.so.9.1.0.70", "cudnn-9.1.0.70", "300.1.1.1", "2.5.1+cu124"),
        *("net:[4026531840]", "/dev/nvidia0", "mlx5_0:1", "sys.path[:]=[p]", "AAAA"),
    ],
)
def test_no_identity(text: str) -> None:
    assert one(text) == text


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("addr=10.7.8.9,rw", r"addr=10\.\d+\.\d+\.9,rw"),
        ("10.7.8.9:/export", r"10\.\d+\.\d+\.9:/export"),
        ("192.168.7.9/24", r"192\.168\.\d+\.9/24"),
        ("::ffff:10.7.8.9", r"::ffff:10\.\d+\.\d+\.9"),
        ("172.20.7.9", r"172\.(1[6-9]|2\d|3[01])\.\d+\.9"),
        ("fe80::5054:ff:fe12:3456%eth0", r"fe80::[0-9a-f:]+%eth0"),
        ("2001:db8:1:2::17", r"2001:[0-9a-f]+:[0-9a-f]+:[0-9a-f]+::17"),
        ("52:54:00:12:34:56", r"52:54:00(:[0-9a-f]{2}){3}"),
        ("enx525400123456", r"enx525400[0-9a-f]{6}"),
        ("SHA256:" + "aB3/" * 10 + "xyz", r"SHA256:[A-Za-z0-9/]{43}"),
        ("https://bob:secret@git.example.org/x", r"https://\(hidden\)@git\.example\.org/x"),
        ("-----BEGIN A KEY-----\nabc\n-----END A KEY-----", r"\(hidden\)"),
        ("Serial Number: 4J9X2", r"Serial Number: \d[A-Z]\d[A-Z]\d"),
    ],
)
def test_structure_stays(text: str, shape: str) -> None:
    found = one(text)
    assert found != text
    assert re.fullmatch(shape, found), found


networks = st.sampled_from(["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"])


@given(st.data(), networks)
def test_subnets_stay_subnets(data: st.DataObject, network: str) -> None:
    """However many bits two addresses begin with in common, their replacements do too."""
    addresses = st.ip_addresses(network=network)
    pair = [data.draw(addresses), data.draw(addresses)]
    other = [ipaddress.ip_address(one(str(address))) for address in pair]
    assert (int(pair[0]) ^ int(pair[1])).bit_length() == (
        int(other[0]) ^ int(other[1])
    ).bit_length()
    assert all(address in ipaddress.ip_network(network) for address in other)


@given(st.ip_addresses(v=6))
def test_an_address_stays_one(address: ipaddress.IPv6Address) -> None:
    assert ipaddress.ip_address(one(str(address))).is_link_local == address.is_link_local


def test_names_that_tell_of_nobody_stay() -> None:
    environ = {"USER": "ubuntu", "HOME": "/home/ubuntu"}
    document = {"node": {"environ": {"": environ}, "read": {"/dev/data": "ubuntu"}}}
    assert anonymise(document, KEY) == document


def test_a_hidden_file_is_no_user() -> None:
    document = {"node": {"read": {"/srv/home/.nccl.conf": "a home of nobody, .nccl.conf"}}}
    assert anonymise(document, KEY) == document


def test_half_a_recording_is_no_trouble() -> None:
    refused = {"unobservable": "no"}
    node = {"read": {"/proc/self/mountinfo": refused}, "account": {"": None}}
    assert anonymise({"node": node}, os.urandom(32)) == {"node": node}
