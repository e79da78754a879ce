"""The demo's nodes: one healthy recording, six machines made of it, three of them with a fault."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from preflight.recording import Answers, Recording, load

HEALTHY = Path(__file__).with_name("healthy.json")
"""The recording of `gpu01`."""
COUNT = 6
OF_THE_NODE = (
    (re.compile(r"\bgpu01\b"), "gpu{:02}"),
    (re.compile(r"\b00000001(?=-)"), "{:08}"),
    (re.compile(r"(?<=\b10\.20\.0\.)11\b"), "1{}"),
    (re.compile(r"(?<=\b02:00:0a:14:00:)11\b"), "1{}"),
)
"""What in the recording is of the first node alone, and how another one's is written: its name,
the UUIDs, the last part of its addresses and MACs."""


class Fault(NamedTuple):
    """Something wrong with one node."""

    check: str
    """Whose failure it is."""
    words: str
    put: Callable[[Answers], None]


def smaller_mtu(node: Answers) -> None:
    """Leave a NIC as it comes from the factory."""
    node.psutil["net_if_stats"]["eth0"]["mtu"] = 1500


def older_driver(node: Answers) -> None:
    """Leave a node out of an upgrade."""
    old = "535.161.08"
    node.nvml["nvmlSystemGetDriverVersion"] = old
    node.read["/proc/driver/nvidia/version"] = (
        f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {old}  Sat Feb 24 22:55:51 UTC 2024\n"
    )
    for ran in node.run.values():  # the training interpreter, which asks libcuda
        ran["out"] = ran["out"].replace('"driver_cuda": 12040', '"driver_cuda": 12020')


def no_mount(node: Answers) -> None:
    """Lose the file system that all nodes share."""
    table = node.read["/proc/self/mountinfo"]
    node.read["/proc/self/mountinfo"] = re.sub(r".* /data .*\n", "", str(table))


FAULTS: Mapping[str, Fault] = {
    "gpu02": Fault("software.driver", "an older NVIDIA driver", older_driver),
    "gpu04": Fault("network.mtu", "a network interface with MTU 1500", smaller_mtu),
    "gpu05": Fault("storage.mounts", "/data not mounted", no_mount),
}


def nodes() -> dict[str, Recording]:
    """Return the recordings of all nodes, by name."""
    healthy = load(HEALTHY).to_json()
    found = {}
    for number in range(1, COUNT + 1):
        text = healthy
        for pattern, own in OF_THE_NODE:
            text = pattern.sub(own.format(number), text)
        name, recording = f"gpu{number:02}", Recording.model_validate_json(text)
        if name in FAULTS:
            FAULTS[name].put(recording.node)
        found[name] = recording
    return found
