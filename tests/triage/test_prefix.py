"""Whose a line is and when it was written, by what stands before it."""

from __future__ import annotations

import pytest

from preflight.triage import prefix
from preflight.triage.prefix import NOBODY, Who

WORDS = "NVRM: Xid (PCI:0000:04:00): 79, GPU has fallen off the bus."


@pytest.mark.parametrize(
    ("before", "time", "who"),
    [
        ("[Mon Nov 30 10:11:12 2026] ", "2026-11-30T10:11:12", NOBODY),
        ("[Tue Dec  1 10:11:12 2026] ", "2026-12-01T10:11:12", NOBODY),
        ("[Nov 30 2026 10:11:12] ", "2026-11-30T10:11:12", NOBODY),
        ("Nov 30 10:11:12 node3 kernel: ", "0000-11-30T10:11:12", Who(node="node3")),
        ("Nov 30 10:11:12 node3 kernel: [ 45.678901] ", "0000-11-30T10:11:12", Who(node="node3")),
        (
            "2026-11-30T10:11:12.5+01:00 node3 kernel: ",
            "2026-11-30T09:11:12.500",
            Who(node="node3"),
        ),
        ("2026-11-30T10:11:12.123456789Z stderr F ", "2026-11-30T10:11:12.123", NOBODY),
        ("[ 45.678901] ", "", NOBODY),
        ("[Foo 30 2026 10:11:12] ", "", NOBODY),
        ("[Feb 30 2026 10:11:12] ", "", NOBODY),
        ("10: ", "", Who(10)),
        ("[1,10]<stderr>:", "", Who(10)),
        ("node2: [rank9]: ", "", Who(9, "node2")),
        ("[default2]:", "", Who(2)),
        ("(Worker pid=42, ip=10.0.0.2) ", "", Who(None, "10.0.0.2", 42)),
        ("[2024-09-05 09:40:49,421] [INFO] ", "2024-09-05T09:40:49.421", NOBODY),
    ],
)
def test_prefix(before: str, time: str, who: Who) -> None:
    found = prefix.read(before + WORDS)
    assert (found.time, found.who) == (time, who)
    assert found.text == WORDS


@pytest.mark.parametrize(
    ("name", "who"),
    [
        ("logs/dmesg-node3.log", Who(node="node3")),
        ("logs/gpu-07.dmesg", Who(node="gpu-07")),
        ("logs/node3_kern.log.gz", Who(node="node3")),
        ("logs/dmesg.log", NOBODY),
        ("logs/dmesg-20261130.log", NOBODY),
        ("logs/rank_3.log", Who(3)),
        ("logs/nccl.node1.42", Who(None, "node1", 42)),
    ],
)
def test_name_of_a_file(name: str, who: Who) -> None:
    assert prefix.of_file(name) == who
