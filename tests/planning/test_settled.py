"""What a method is after some time: settings that gradients choose, and rounds of several kinds."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import thinwire as tw
from thinwire.cli.app import main
from thinwire.core.method import METHODS
from thinwire.planning.company import Company
from thinwire.planning.outlook import Outlook
from thinwire.planning.stage import Stage
from thinwire.planning.trial import Entry


class Uneven(nn.Module):
    """Layers whose gradients differ in size, so that bits are worth more in one than in the other."""

    def __init__(self) -> None:
        super().__init__()
        self.small, self.large = nn.Linear(256, 256), nn.Linear(256, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = 1e-3 * self.small(x) + self.large(x)
        return y


def planned(*methods: str) -> Outlook:
    torch.manual_seed(0)
    x = torch.randn(8, 256)
    return tw.plan(Uneven(), x, link=tw.Network("100mbit", "1ms"), hosts=2, methods=methods)


def test_adaptive_is_forecast_with_what_gradients_choose() -> None:
    adaptive = "adaptive:exchange=all-gather"  # of two ranks, each sends all of it
    found = planned(adaptive, "qsgd:bits=4", "laq")
    chosen, uniform = found.row(adaptive), found.row("qsgd:bits=4")
    assert chosen.sent_bytes < 0.95 * uniform.sent_bytes
    assert "what one step's gradients choose: 0." in chosen.note
    assert uniform.note == ""
    with pytest.raises(ValueError, match="there is no row of 'sgd'; write one of "):
        found.row("sgd")
    assert f"{adaptive} {chosen.note}.\n" in str(found)
    assert "laq is forecast to send every upload.\n" in str(found)


def test_from_shapes_alone_adaptive_keeps_its_uniform_setting(capsys: pytest.CaptureFixture[str]) -> None:
    model = ["--model", "resnet50", "--computing", "300ms", "--hosts", "2"]
    assert main(["plan", *model, "--method", "adaptive", "--json"]) == 0
    rows = {row["method"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert rows["adaptive"]["note"].startswith("is forecast with qsgd:bits=4 for all tensors")


def test_the_forecast_of_marina_is_the_mean_over_its_rounds() -> None:
    found = planned("marina:p=0.25", "marina:p=1.0", "marina:p=0.000001")
    mixed, whole, changes = (found.row(tw.method(f"marina:p={p}").id) for p in (0.25, 1.0, 0.000001))
    assert whole.sent_bytes > 10 * changes.sent_bytes
    assert mixed.sent_bytes == pytest.approx(0.25 * whole.sent_bytes + 0.75 * changes.sent_bytes, rel=1e-3)
    assert changes.step_ms < mixed.step_ms < whole.step_ms


def test_every_kind_of_round_is_among_those_that_are_tried_together() -> None:
    stage, methods = Stage(nn.Linear(2, 2), None, Company()), {name: tw.method(name) for name in ("marina", "qsgd")}  # type: ignore[arg-type]
    assert [Entry.of(name, stage, methods).block for name in methods] == [16, 1]
    for name in METHODS:
        shares = [share for share, _ in METHODS[name]().exchange.rounds()]
        assert sum(shares) == pytest.approx(1)
