from __future__ import annotations

import sys

from preflight.api import Reply
from tests.agent_made import MODULE, agent, ask

SAYS_MUCH = """
def much(node, opened):
    opened.ready({"x": "y" * (5 << 20)})
    return 1


def echo(node): return "there"
"""


def test_an_open_call_that_says_too_much_costs_itself_only() -> None:
    with agent(SAYS_MUCH, python=sys.executable) as session:
        reply = session.start(MODULE, "much", [], 20)
        assert isinstance(reply, Reply)
        assert reply.problem == {
            "kind": "unobservable",
            "message": f"the facts take {(5 << 20) + 30} bytes",
        }
        assert ask(session, "echo").value == "there"
