"""What `tw.plan` cannot plan is refused in one sentence, and planning draws none of the script's random numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import thinwire as tw
from thinwire.engine.plan import Item
from thinwire.planning import alone
from thinwire.planning.alone import ENGINE, overheads
from thinwire.planning.asked import drawing_nothing
from thinwire.planning.company import Company
from thinwire.planning.computing import measure
from thinwire.planning.device import Host
from thinwire.planning.planner import steps_of
from thinwire.planning.rivals import RIVALS, possible, width_of

X = torch.ones(3, 4)
ITEMS = [Item("weight", (512, 512), torch.device("cpu"))]


class Pair(nn.Module):
    """Its outputs are a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.linear(x), x


class TwoTypes(nn.Module):
    """DDP packs each type of parameter into buckets of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 2).bfloat16()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.second(self.first(x).bfloat16())
        return found


def one_step(net: nn.Module, loss: Any = None, optimizer: Any = None) -> None:
    steps_of(X, loss, optimizer)(net)[0]()


@pytest.mark.parametrize(
    ("net", "loss", "optimizer", "sentence"),
    [
        (Pair(), None, None, r"the outputs are of type tuple; write tw\.plan\(model, batch, loss=lambda"),
        (nn.Linear(4, 2), lambda out: out, None, r"one number that has a gradient; got a tensor of shape \(3, 2\)"),
        (nn.Linear(4, 2), lambda _: 1.0, None, "one number that has a gradient; got float"),
        (nn.Linear(4, 2), lambda out: out.detach().sum(), None, "got a tensor without a gradient"),
        (nn.Linear(4, 2).requires_grad_(False), None, None, r"write model\.requires_grad_\(True\)"),
        (
            nn.Linear(4, 2),
            None,
            torch.optim.Adam([X.clone()]),
            r"write optimizer=lambda parameters: torch\.optim\.Adam",
        ),
        (nn.Linear(4, 2), None, lambda _: None, "optimizer returned NoneType; write optimizer=lambda"),
    ],
)
def test_what_is_no_step_is_refused(net: nn.Module, loss: Any, optimizer: Any, sentence: str) -> None:
    with pytest.raises((ValueError, TypeError), match=sentence):
        one_step(net, loss, optimizer)


@pytest.mark.parametrize(
    ("arguments", "more", "sentence"),
    [
        (("mlp", X), {}, r"plan takes a torch\.nn\.Module; got str"),
        ((nn.ReLU(), X), {}, "the model has no parameters"),
        ((nn.Linear(4, 2), X), {"loss": "mse"}, r"write loss=torch\.nn\.functional\.cross_entropy"),
        ((nn.Linear(4, 2), X), {"hosts": "4"}, r"write tw\.plan\(model, batch, hosts=16\)"),
        ((nn.Linear(4, 2), X), {"methods": "qsgd"}, r"write methods=\['qsgd'\]"),
        ((nn.Linear(4, 2), X), {"methods": None}, r'write methods=\["qsgd", "topk"\]'),
        ((nn.Linear(4, 2), X), {"optimizer": 0.1}, "write optimizer=lambda"),
        ((nn.Linear(4, 2), X), {"say": None}, "write say=print"),
        ((nn.Linear(4, 2), X), {"tries": 2.5}, "write tries=4"),
        ((nn.Linear(4, 2), X), {"tries": "2"}, "write tries=4"),
        ((nn.Linear(4, 2), X), {"methods": ["one-shot"]}, "one-shot exchanges once, when training ends"),
        ((nn.Linear(4, 2), X), {"link": tw.Network(slow={1: "1mbit"})}, "plan takes hosts that are equal"),
        ((nn.Linear(4, 2), X), {"link": tw.Network(racks=2)}, "plan takes hosts that are equal"),
        ((nn.Linear(4, 2), X), {"link": tw.Network(None)}, r'write link=tw\.Network\("100gbit", "10us"\)'),
    ],
)
def test_bad_input_is_refused_before_anything_is_measured(
    arguments: tuple[Any, ...], more: dict[str, Any], sentence: str
) -> None:
    with pytest.raises((ValueError, TypeError), match=sentence):
        tw.plan(*arguments, **{"link": "1gbit", "hosts": 2, "methods": ["sgd"], **more})


def test_batches_that_the_model_does_not_take() -> None:
    with pytest.raises(TypeError, match=r"missing a required argument: 'input'; where the model takes the dict"):
        steps_of({"x": X}, None, None)(nn.Linear(4, 2))
    with pytest.raises(TypeError, match=r"got a tuple of 3: write tw\.plan.* or a dict where there are several"):
        steps_of((X, X, X), None, None)
    steps_of({"input": X}, lambda out: out.sum(), None)(nn.Linear(4, 2))[0]()


def test_hooks_cost_no_less_than_ddp(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a machine says on which something else ran while DDP alone was timed."""
    found = iter([3e-3, 1e-3, 2e-3])
    monkeypatch.setattr(alone, "_difference", lambda *_: next(found))
    spent = overheads(nn.Linear(4, 2), steps_of(X, None, None), Company(), ["ddp", "ddp fp16"])
    assert spent == {"ddp": 3e-3, "ddp fp16": 3e-3, ENGINE: 2e-3}


def test_sparse_gradients_are_refused_as_attach_refuses_them() -> None:
    makes = steps_of(torch.tensor([1, 2]), None, None)
    with pytest.raises(
        ValueError, match=r"weight has a sparse gradient; write nn\.Embedding\(\.\.\., sparse=False\)"
    ):
        measure(nn.Embedding(5, 3, sparse=True), makes, company=Company(), device=Host(), steps=1)


def test_the_powersgd_hook_is_left_out_where_ddp_has_several_buckets() -> None:
    """It waits for a sum in the thread that should make it: with two buckets on gloo it never ends."""
    assert possible(nn.Linear(4, 2), list(RIVALS)) == list(RIVALS)
    assert possible(TwoTypes(), list(RIVALS)) == ["ddp", "ddp fp16"]
    found = overheads(TwoTypes(), steps_of(X, None, None), Company(), ["ddp powersgd-4"])
    assert list(found) == [ENGINE]


def test_random_numbers_stay_as_they_are() -> None:
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    with drawing_nothing():
        nn.Dropout()(X)
    assert torch.equal(torch.rand(1), expected)


def test_gradients_of_two_bytes_are_summed_in_two_bytes() -> None:
    assert [width_of(net) for net in (nn.Linear(4, 2), nn.Linear(4, 2).bfloat16(), TwoTypes())] == [4, 2, 4]
    wide, narrow = (
        {name: one.contestant(name, ITEMS, 0.0, w).sent(2) for name, one in RIVALS.items()} for w in (4, 2)
    )
    assert (wide["ddp"], narrow["ddp"]) == (4 << 18, 2 << 18)
    assert wide["ddp fp16"] == narrow["ddp fp16"] == 2 << 18
    assert wide["ddp powersgd-4"] == 2 * narrow["ddp powersgd-4"]
