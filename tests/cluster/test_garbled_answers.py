"""An agent that answers at the right time, in the right frames, and makes no sense.

It costs the node itself; the pairs of the other nodes are judged as ever.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.cluster.testbed import Testbed

# Runs the agent, and rewrites what it says once it has taken its modules.
GARBLER = """\
#!/usr/bin/python3
import json, subprocess, sys
def every(kind, change, value):
    if isinstance(value, dict):
        value = {key: every(kind, change, one) for key, one in value.items()}
    elif isinstance(value, list):
        value = [every(kind, change, one) for one in value]
    return change(value) if type(value) in kind else value
def nested(value):
    for _ in range(500):
        value = [value]
    return value
def fewer(value):
    return value[:2] if len(value) == 3 and type(value[0]) is int else value
def renamed(value):
    return {"x" if key.startswith("tb") else key: value[key] for key in value}
def garbled(value):
    return LIE
agent = subprocess.Popen(["/usr/bin/python3", *sys.argv[1:]], stdout=subprocess.PIPE)
answers = 0
for line in agent.stdout:
    tag, colon, text = line.partition(b":")
    if tag.startswith(b"preflight-"):
        answers += 1
        frame = json.loads(text)
        for key in {"value", "ready"} & set(frame) if answers > 3 else ():
            frame[key] = garbled(frame[key])
        line = tag + colon + json.dumps(frame).encode() + b"\\n"
    sys.stdout.buffer.write(line)
    sys.stdout.flush()
"""
LIES = {
    "null": "None",
    "text": "'x'",
    "nested": "nested(value)",
    "lists": "every((dict,), lambda one: list(one.values()), value)",
    "objects": "every((list,), lambda one: {str(at): one[at] for at in range(len(one))}, value)",
    "less": "every((dict,), lambda one: dict(list(one.items())[:-1]), value)",
    "empty": "every((dict, list), lambda one: type(one)(), value)",
    "numbers_as_text": "every((int, float), str, value)",
    "words_as_numbers": "every((str,), len, value)",
    "other_words": "every((str,), lambda one: 'x', value)",
    "no_words": "every((str,), lambda one: '', value)",
    "not_numbers": "every((int, float), lambda one: float('nan'), value)",
    "huge": "every((int, float), lambda one: 10 ** 30, value)",
    "large": "every((int, float), lambda one: 70000, value)",
    "negative": "every((int, float), lambda one: -1 - one, value)",
    "fewer_numbers": "every((list,), fewer, value)",
    "other_names": "every((dict,), renamed, value)",
    "nought": "every((int, float), lambda one: 0, value)",
}

BROKEN = ("null", "text", "nested", "less", "numbers_as_text", "not_numbers", "huge")
"""Those of which nothing that others would go by is left as it should be."""
MESHES = [
    f"network.{name}" for name in ("ephemeral", "path_mtu", "latency", "bandwidth", "foreign")
]


def garble(bed: Testbed, node: str, lie: str) -> list[dict[str, Any]]:
    """Return the nodes of an inventory in which one has an agent that garbles."""
    bed.change_file(node, "/opt/garbler", GARBLER.replace("LIE", lie), 0o755)
    python = {node: {"ssh": {"python": "/opt/garbler"}}}
    return [bed.spec(name, **python.get(name, {})) for name in bed.names]


@pytest.mark.parametrize("kind", LIES)
def test_an_agent_that_garbles(bed: Testbed, kind: str) -> None:
    _, node, *rest = bed.names
    nodes = garble(bed, node, LIES[kind])
    args = ("--only", "access,network,collective,host", "--level", "deep")
    _, report = bed.report("run", str(bed.inventory(nodes=nodes)), *args)
    rows = [(r["check"], r["node"], r["status"], r["summary"]) for r in report["results"]]
    assert [row for row in rows if row[1] in rest and row[2] not in ("pass", "skip")] == []
    met = {(check, name): said for check, name, _, said in rows if check in MESHES}
    for check in MESHES if kind in BROKEN else ():
        assert met[check, node].startswith("its answer cannot be understood: ")
    who = [name for name in bed.names[:-1] if name != node or kind == "fewer_numbers"]
    words = f"meets {', '.join(who)} on random ports, both ways"
    assert met["network.ephemeral", rest[-1]] == words
