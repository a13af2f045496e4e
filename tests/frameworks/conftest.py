"""Frameworks say much in warnings about themselves and each other, which are not ours to answer for."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec

import pytest

# Set before a framework is imported, here and in every process that a test starts.
os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "WANDB_MODE": "offline",
    "WANDB_SILENT": "true",
    "TOKENIZERS_PARALLELISM": "false",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "/frameworks/" in item.path.as_posix():
            item.add_marker(pytest.mark.filterwarnings("ignore"))
            item.add_marker(pytest.mark.timeout(600))  # a mark of the test itself comes first


@pytest.fixture
def needs() -> Callable[[str], None]:
    """`needs("lightning")` skips a test whose framework is not installed."""

    def check(package: str) -> None:
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed; `make test-frameworks` installs it")

    return check
