"""Tests with several processes each run one at a time, in two groups of pytest-xdist: those that compute, and those
that mostly wait until a rank is missed."""

from __future__ import annotations

from pathlib import Path

import pytest

WAITING = {"test_async_pairs.py", "test_faults.py", "test_leaving.py", "test_misuse.py", "test_refusals.py"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            group = "waiting" if item.path.name in WAITING else "processes"
            item.add_marker(pytest.mark.xdist_group(group))
