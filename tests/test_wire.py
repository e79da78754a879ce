"""Frames survive whatever surrounds them and however they are cut."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight import wire

TAG = "preflight-0123456789abcdef:"
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner),
    max_leaves=8,
)
FRAMES = st.dictionaries(st.sampled_from(["id", "value", "problem", "ready"]), VALUES)
NOISE = st.binary(max_size=60).filter(lambda noise: TAG.encode() not in noise)


def sent(frame: Any) -> bytes:
    """Return a frame as the agent writes it."""
    return b"\n" + TAG.encode() + json.dumps(frame).encode() + b"\n"


def fed(pieces: Sequence[bytes]) -> tuple[list[dict[str, Any]], wire.Decoder]:
    decoder = wire.Decoder(TAG)
    frames = [frame for piece in pieces for frame in decoder.feed(piece)]
    decoder.rest()
    return frames, decoder


def cut(data: bytes, at: Sequence[int]) -> list[bytes]:
    places = sorted({0, len(data), *(place % (len(data) + 1) for place in at)})
    return [data[a:b] for a, b in itertools.pairwise(places)]


@given(st.lists(st.tuples(NOISE, FRAMES)), NOISE, st.lists(st.integers(0, 10_000)))
def test_any_cut_any_noise(
    parts: list[tuple[bytes, dict[str, Any]]], last: bytes, at: list[int]
) -> None:
    data = b"".join(noise + sent(frame) for noise, frame in parts) + last
    frames, decoder = fed(cut(data, at))
    assert frames == [frame for _, frame in parts]
    whole, other = fed([data])
    assert (frames, decoder.noise) == (whole, other.noise)


@given(st.binary())
def test_anything_behind_the_tag(data: bytes) -> None:
    frames, _ = fed([TAG.encode() + data + b"\n"])
    assert all(isinstance(frame, dict) for frame in frames)


@given(FRAMES)
def test_requests_are_one_line(frame: dict[str, Any]) -> None:
    line = wire.encode(frame)
    assert line.count(b"\n") == 1
    assert line.isascii()
    assert json.loads(line) == frame


def test_noise_is_kept_and_capped() -> None:
    frames, decoder = fed([b"Last login: today\r\n\n   \nmotd " + TAG.encode() + b"{}\nhalf"])
    assert frames == [{}]
    assert decoder.noise == b"Last login: today\nmotd \nhalf\n"
    _, decoder = fed([b"noise\n"] * 10_000)
    assert len(decoder.noise) == wire.NOISE_CAP


@pytest.mark.parametrize(
    "garbage",
    [b"", b"{", b"[1]", b"7", b'"x"', b"null", b"{}{}", b"\xff\xfe", b"[" * 100_000,
     b'{"id": ' + b"9" * 5000 + b"}"],
)  # fmt: skip
def test_garbage_behind_the_tag(garbage: bytes) -> None:
    line = TAG.encode() + garbage + b"\n"
    frames, decoder = fed([line + sent({"id": 1})])
    assert frames == [{"id": 1}]
    assert decoder.noise == line[: wire.NOISE_CAP]


def test_a_wrong_tag_is_noise() -> None:
    wrong = b'preflight-fedcba9876543210:{"id": 1, "value": 2}\n'
    frames, decoder = fed([wrong])
    assert frames == []
    assert decoder.noise == wrong


def test_halves_of_pairs() -> None:
    frames, _ = fed([sent({"a\udc80": ["\ud800", "\U0001f680", "\\ud800"]})])
    assert frames == [{"a?": ["?", "\U0001f680", "\\ud800"]}]


def test_flood() -> None:
    decoder = wire.Decoder(TAG)
    piece = b"x" * (1 << 20)
    for _ in range(wire.LINE_CAP >> 20):
        assert list(decoder.feed(piece)) == []
    with pytest.raises(wire.Flood):
        list(decoder.feed(b"x"))
