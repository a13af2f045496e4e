"""Advice: the factor is that by which Adam's steps become shorter, and the word is said where it should be."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import thinwire as tw
from thinwire.core.types import Key, Layout
from thinwire.engine.advice import advice, lengthened
from thinwire.server import Asgd

D = 1 << 14


def optimizer(kind: type[torch.optim.Optimizer] = torch.optim.AdamW) -> torch.optim.Optimizer:
    return kind([nn.Parameter(torch.ones(2, 2))], lr=0.1)  # type: ignore[call-arg]


@pytest.mark.parametrize(("ranks", "back"), [(2, True), (4, True), (4, False)])
def test_steps_are_shorter_by_the_factor(ranks: int, back: bool) -> None:
    """Of AdamW on one gradient that all ranks have, through ECQ-SGD's quantiser, beside AdamW without it."""
    compressor, layout = tw.compressors.get("qsgd:levels=4,norm=l2"), Layout(("w",), ((D,),))
    g = torch.randn(D, generator=torch.Generator().manual_seed(0))

    def through(x: torch.Tensor, number: int) -> torch.Tensor:
        key = Key(seed=number)
        return compressor.decode(compressor.encode(x, layout, key), layout, key=key)

    lengths, sizes = [], []
    for lossy in (False, True):
        x = nn.Parameter(torch.zeros(D))
        adam = torch.optim.AdamW([x], lr=1.0, betas=(0.99, 0.99), weight_decay=0.0)
        for step in range(200):
            mean = g if not lossy else torch.stack([through(g, 8 * step + rank) for rank in range(ranks)]).mean(0)
            x.grad = through(mean, 8 * step + 7) if lossy and back else mean
            before = x.detach().clone()
            adam.step()
        lengths.append(float((x.detach() - before) @ g))
        sizes.append(float(adam.state[x]["exp_avg_sq"].sum()) ** 0.5)
    factor = lengthened((compressor,) * (1 + back), ranks)
    assert sizes[1] / sizes[0] == pytest.approx(factor, rel=0.05)
    assert 0.9 * factor < lengths[0] / lengths[1] < 1.5 * factor  # more for small elements, less for large ones


@pytest.mark.parametrize(
    ("method", "told"),
    [
        ("ecq-sgd", "steps are about 2.7 times shorter with 2 ranks; write tw.methods.int4()"),
        ("ef-signsgd", "sends 37% of every gradient late"),
        ("topk", "sends 92% of every gradient late"),
        ("powersgd", "sends 97% of every gradient late"),
        ("sketched-sgd", "sends 100% of every gradient late"),
        *(
            (name, "")
            for name in ("sgd", "int4", "int8", "bf16", "qsgd", "natural", "one-bit-adam", "diloco", "signsgd")
        ),
    ],
)
def test_what_is_said(method: str, told: str) -> None:
    found = advice(tw.method(method), optimizer(), 2)
    assert told in found if told else not found
    assert not advice(tw.method(method), optimizer(torch.optim.SGD), 2)
    assert not advice(tw.method(method), optimizer(), 1)


def test_which_optimizers_divide_by_the_size_of_the_gradient() -> None:
    method = tw.methods.ecq_sgd()

    class Muon(torch.optim.SGD):
        """Of somebody else."""

    for kind in (torch.optim.Adam, torch.optim.RMSprop, torch.optim.Adagrad, Muon):
        assert kind.__name__ in advice(method, optimizer(kind), 2)
    both = tw.optim.Joined(optimizer(Muon), optimizer())
    assert "which Muon and AdamW takes for its size" in advice(method, both, 2)
    one = tw.optim.Joined(optimizer(torch.optim.SGD), optimizer())
    assert "which AdamW takes for its size" in advice(method, one, 2)
    assert not advice(method, None, 2)
    served = tw.methods.asgd()
    assert isinstance(served.exchange.rule, Asgd)  # type: ignore[attr-defined]
    assert not advice(served, optimizer(), 2)
