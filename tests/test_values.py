from __future__ import annotations

import pytest

from preflight.errors import ConfigError
from preflight.inventory import load_text


@pytest.mark.parametrize("path", ["/opt/it's/python3", "/a\\b", "/a!b", "/a\nb"])
def test_a_program_that_no_shell_can_be_given_is_refused_with_the_inventory(path: str) -> None:
    quoted = path.replace("\\", "\\\\").replace("\n", "\\n")
    with pytest.raises(ConfigError) as caught:
        load_text(f'nodes: [gpu01]\nssh:\n  python: "{quoted}"\n', "i.yaml")
    assert str(caught.value) == (
        f"i.yaml:3: ssh.python: {path!r} has a character that not every login shell passes on"
    )


def test_a_program_with_a_blank_is_fine() -> None:
    cluster = load_text("nodes: [gpu01]\nssh: {python: /opt/my python/bin/python3}\n", "i.yaml")
    assert cluster.nodes[0].ssh.python == "/opt/my python/bin/python3"
