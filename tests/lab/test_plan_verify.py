"""`thinwire plan --verify`: forecasts and steps between hosts of a lab, of the best two and DDP."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from thinwire.lab.plan_models import Wanted
from thinwire.lab.plan_verify import verify


@dataclass
class Named:
    method: str


@dataclass
class Found:
    """What verify reads of an outlook."""

    hosts: int = 2
    rows: list[Named] = field(default_factory=lambda: [Named("ddp"), Named("bf16"), Named("int8")])


@pytest.mark.long
def test_the_best_two_and_ddp_take_steps(root: None) -> None:
    heard: list[tuple[str, str]] = []
    rows = verify(Found(), Wanted("mlp", params=4096, batch=1), "100mbit", heard.append, budget=0.05)  # type: ignore[arg-type]
    assert [row["method"] for row in rows] == ["ddp", "bf16"]
    for row in rows:
        assert (row["hosts"], row["rate"], row["params"]) == (2, "100mbit", 4096)
        assert row["steps"] >= 2
        assert row["error"] == pytest.approx(row["predicted_ms"] / row["step_ms"] - 1)
    assert ("measuring", "the link at 100mbit") in heard
    assert ("steps, turn 1 of 6", "bf16") in heard
