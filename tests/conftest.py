from __future__ import annotations

import pytest
from hypothesis import settings

settings.register_profile("thinwire", deadline=None, derandomize=True, max_examples=30)
settings.load_profile("thinwire")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-golden", action="store_true", help="rewrite the committed wire bytes")


@pytest.fixture
def write_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--write-golden"))
