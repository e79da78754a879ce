"""Frames between the controller and an agent: one JSON line each. Pure: no I/O, no threads.

Lines from a node count only behind the run's tag, so banners, shell start files and stray prints
are told apart from answers, wherever in the stream they fall.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

NOISE_CAP = 4096
"""Bytes of noise that are kept, for the message when no agent answers."""
LINE_CAP = 4 << 20
"""Bytes of one line: an agent caps its answers at 1 MiB, so more is not an agent's."""
FLOOD_SHOWN = 60
"""Bytes of it that are told: enough to know what wrote it."""


class Flood(Exception):
    """A node sends a line without end; its stream cannot be read further. Says how it begins."""


def encode(frame: Mapping[str, Any]) -> bytes:
    """Return one frame as a line."""
    return json.dumps(frame, separators=(",", ":")).encode("ascii") + b"\n"


class Decoder:
    """Cuts a node's output into frames.

    Args:
        tag: what precedes each frame's JSON.
    """

    def __init__(self, tag: str) -> None:
        self._tag = tag.encode("ascii")
        self._buffer = bytearray()
        self.noise = b""

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """Yield the frames that these bytes complete.

        Raises:
            Flood: a line past `LINE_CAP`.
        """
        self._buffer += data
        if b"\n" not in data:
            if len(self._buffer) > LINE_CAP:
                raise Flood(self._buffer[:FLOOD_SHOWN].decode("utf-8", "replace"))
            return
        *lines, rest = self._buffer.split(b"\n")
        self._buffer = rest
        for line in lines:
            frame = self._frame(bytes(line))
            if frame is not None:
                yield frame

    def rest(self) -> None:
        """Count an unfinished last line as noise; called at the end of the stream."""
        self._hear(bytes(self._buffer))
        self._buffer.clear()

    def _frame(self, line: bytes) -> dict[str, Any] | None:
        at = line.find(self._tag)
        if at < 0:
            self._hear(line)
            return None
        self._hear(line[:at])
        try:
            frame = json.loads(line[at + len(self._tag) :])
            if b"\\ud" in line.lower():
                frame = json.loads(without_surrogates(frame))
        except (ValueError, RecursionError):
            frame = None
        if not isinstance(frame, dict):
            self._hear(line)
            return None
        return frame

    def _hear(self, line: bytes) -> None:
        if line.strip() and len(self.noise) < NOISE_CAP:
            self.noise = (self.noise + line.rstrip(b"\r") + b"\n")[:NOISE_CAP]


def without_surrogates(frame: Any) -> bytes:
    """Return a frame as JSON with a `?` for each half of a pair that has lost its other half.

    `os.fsdecode` makes them of file names that are no UTF-8; no report could be written with them.
    """
    return json.dumps(frame, ensure_ascii=False).encode("utf-8", "replace")
