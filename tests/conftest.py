"""Options and fixtures of all tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.messages.aloud import TESTS, Aloud


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write the golden files instead of comparing"
    )


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
