"""Every method with a fixed point stays there: 10,000 steps on the clock with `--long`, on small quadratics.

Methods that keep nothing from one step to the next, and so add nothing up, take 2,000.

Where ranks have losses of their own, methods that promise the optimum of the mean must reach it. The others need not,
but do where all ranks have the same loss. What rounding adds to a sum in every step shows as an error that grows.
"""

from __future__ import annotations

from functools import partial

import pytest
import torch
from nets import Point
from torch import Tensor, nn
from torch.optim import SGD

import thinwire as tw
from thinwire.core.method import METHODS
from thinwire.optim import OneBitAdam
from thinwire.sim import Constant, Problem, simulate

D, RANKS = 8, 3
STEPS, FEW, BRIEFLY, WINDOW = 10_000, 2000, 300, 100
GENERATOR = torch.Generator().manual_seed(0)
CURVES = 1 + torch.rand(RANKS, D, generator=GENERATOR)
CENTRES = torch.arange(RANKS)[:, None] + torch.randn(RANKS, D, generator=GENERATOR)
OPTIMUM = (CURVES * CENTRES).double().sum(0) / CURVES.double().sum(0)
CLOSE = 3e-6  # some units in the last place of the largest element

AT_THE_OPTIMUM = {
    "ad-admm", "asylpg", "async-admm", "atomo", "consensus-admm", "cr-psgd", "d-admm", "dbpg", "diana", "edge-admm",
    "ef21", "lag", "laq", "marina", "pipe-sgd", "powersgd", "refining", "sgd", "sketched-sgd", "slaq", "spy",
}  # fmt: skip
"""Methods that find the optimum of the mean of losses that differ, with a constant learning rate."""
NO_FIXED_POINT = {
    "deepsqueeze": "models are sent, and what is lost of them does not fade",
    "demo": "steps have one length",
    "ecd-psgd": "what is sent grows with the steps, and so does what is lost of it",
    "signsgd": "steps have one length",
    "majority-vote": "steps have one length",
    "signum": "steps have one length",
    "strom": "what is sent has one size",
}
SETTINGS = {
    "ad-psgd": "ad-psgd:topology=star",
    "async-diloco": "async-diloco:every=10",
    "dgc": "dgc:ratio=0.5",
    "diloco": "diloco:every=10",
    "muloco": "muloco:every=10",
    "qsparse-local-sgd": "qsparse-local-sgd:ratio=0.5",
    "spy": "spy:p=0.5",
    "streaming-diloco": "streaming-diloco:every=10,fragments=1,delay=2",
}
"""Of methods whose defaults are for large models or long rounds."""
BRIEF = {"ef21"}  # also without --long


def far(name: str, steps: int) -> tuple[float, float]:
    """The largest distance of a rank's model from the optimum in the middle of a run, and at its end."""
    differ = name in AT_THE_OPTIMUM
    best, windows = OPTIMUM if differ else CENTRES[0].double(), [0.0, 0.0]

    def loss(model: nn.Module, rank: int, step: int) -> Tensor:
        assert isinstance(model, Point)
        for window, end in enumerate((steps // 2, steps)):
            if end - WINDOW <= step < end:
                windows[window] = max(windows[window], float((model.x.detach().double() - best).abs().max()))
        whose = rank if differ else 0
        value: Tensor = (CURVES[whose] * (model.x - CENTRES[whose]).square()).sum() / 2
        return value

    optimizer = partial(OneBitAdam, lr=0.05) if name == "one-bit-adam" else partial(SGD, lr=0.1)
    problem, pace = Problem(partial(Point, D), loss, optimizer), Constant({} if differ else {1: 1.5})
    simulate(tw.method(SETTINGS.get(name, name)), problem, RANKS, steps=steps, min_size=0, stragglers=pace)
    return windows[0], windows[1]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in BRIEF else pytest.mark.long)
        for name in METHODS
        if name not in NO_FIXED_POINT and METHODS[name].__module__.startswith("thinwire.")
    ],
)
def test_a_fixed_point_stays_one(name: str, long: bool) -> None:
    """EF21's error was 8e-6 after 2000 steps and grew by as much in every 2000, while its shifts were float32."""
    method = METHODS.parse(SETTINGS.get(name, name))
    keeps = method.exchange.remembers or method.exchange.served or method.sync != tw.Sync()
    halfway, end = far(name, (STEPS if keeps else FEW) if long else BRIEFLY)
    assert end < (CLOSE if long else 0.2)
    assert end <= max(halfway, CLOSE / 3) * 1.01
