"""Options and fixtures of all tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.messages.aloud import TESTS, Aloud

# How long an example takes says how much else the machine does.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write the golden files instead of comparing"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--update-golden") and config.getoption("numprocesses", None):
        raise pytest.UsageError("--update-golden: all tests write one file; leave out -n")


@pytest.fixture
def aloud(request: pytest.FixtureRequest, tmp_path: Path) -> Aloud:
    """Compares messages with those of the golden file that holds them all."""
    name = request.node.originalname or request.node.name
    return Aloud(
        str(request.path.relative_to(TESTS.parent)),
        name.removeprefix("test_").replace("_", " "),
        {str(tmp_path): "TMP"},
        request.config.getoption("--update-golden"),
    )
