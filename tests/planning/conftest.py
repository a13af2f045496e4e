"""A machine that runs tests is busy, and waiting for others to end would take longer than what is tested."""

from __future__ import annotations

import pytest

from thinwire.planning import idle


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle, "PAUSES", (0.0,) * len(idle.PAUSES))
