"""What frames of LLDP call their senders, however they are cut."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.node.switch import named

ETHERNET = bytes.fromhex("0180c200000e 0c42a1000001 88cc")


def field(kind: int, value: bytes) -> bytes:
    return struct.pack(">H", kind << 9 | len(value)) + value


def frame(*fields: bytes, header: bytes = ETHERNET) -> bytes:
    """Return a frame as systemd-networkd writes it."""
    data = header + b"".join(fields) + field(0, b"")
    return struct.pack("<Q", len(data)) + data


CHASSIS = field(1, b"\x04\x0c\x42\xa1\x00\x00\x01")
PORT, TTL = field(2, b"\x05Ethernet1"), field(3, b"\x00\x78")
LEAF = frame(CHASSIS, PORT, TTL, field(5, b"leaf1"), field(6, b"of a rack"))
BARE = frame(CHASSIS, PORT, TTL)


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (LEAF, ["leaf1"]),
        (BARE, []),
        (BARE + LEAF, ["leaf1"]),
        (LEAF + frame(field(5, b"leaf2")), ["leaf1", "leaf2"]),
        (frame(field(5, b"")), []),
        (frame(field(0, b""), field(5, b"behind the end")), []),
        (frame(field(5, b"of IP"), header=ETHERNET[:-2] + b"\x08\x00"), []),
        (b"", []),
    ],
)
def test_names(data: bytes, found: list[str]) -> None:
    assert list(named(data)) == found


@given(st.binary(max_size=99), st.integers(0, len(LEAF)))
def test_rubbish_has_an_end(data: bytes, kept: int) -> None:
    assert next(named(LEAF + data)) == "leaf1"
    assert all(isinstance(name, str) for name in named(LEAF[:kept] + data))
