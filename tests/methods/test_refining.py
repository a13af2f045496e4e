"""Refining quantisation: a constant number of bits, and an error that falls with the range."""

from __future__ import annotations

import math

import pytest
import torch
from lockstep import Quadratics, quick
from sheet import gauss

from thinwire import Channel, Key, Layout, PayloadError, methods
from thinwire.compressors import Refining
from thinwire.exchange import AllGather
from thinwire.memory import Difference

D = 32
TASK = Quadratics(d=D)
LR = 1 / TASK.smooth


def away(steps: int, **settings: float) -> float:
    """|x - optimum| / |optimum| after so many steps."""
    method = methods.refining(width=16.0, **settings)  # type: ignore[arg-type]
    return math.sqrt(TASK.descend(quick(method.exchange, Layout.flat(D)), LR, steps))


def test_it_converges_linearly_with_a_constant_number_of_bits() -> None:
    """Like kappa^k, from 4 bits on; a range that stays the same leaves x at a distance."""
    early, late = away(50, bits=4, kappa=0.93), away(100, bits=4, kappa=0.93)
    assert early < 0.1
    assert late < early * 2 * 0.93**50
    assert away(100, bits=4, kappa=1.0) > 20 * late


def test_a_range_that_shrinks_faster_than_gradients_leaves_x_behind() -> None:
    slowest = float(torch.linalg.eigvalsh(TASK.a.mean(0)).min()) / TASK.smooth
    assert 1 - slowest > 0.8  # what descent gains in a step
    assert away(100, bits=4, kappa=0.6) > 50 * away(100, bits=4, kappa=0.93)


def test_the_error_is_bounded_by_the_range() -> None:
    """Of every rank's last value, while nothing saturates: l_k / 2^(bits + 1)."""
    c = Refining(bits=5, width=16.0, kappa=0.95)
    world = quick(AllGather(Channel(c, Difference())), Layout.flat(D))
    x = torch.zeros(D, dtype=torch.float64)
    for k in range(40):
        grads = TASK.grads(x)
        x = x - LR * world.step(grads).double()
        for g, state in zip(grads, world.states, strict=True):
            assert (state["send.shift"] - g).abs().max() <= 16.0 * 0.95**k / 2**6 * 1.001


def test_bits_and_values() -> None:
    layout, c = Layout.flat(1000), Refining(bits=6, width=8.0, kappa=0.5)
    payload = c.encode(gauss(1000), layout, Key(step=1))
    assert payload.body.numel() == 1000 * 6 / 8
    out = c.decode(payload, layout)  # the header says which step it is
    inside = gauss(1000).abs() < 2 - c.step(1) / 2
    assert (out - gauss(1000))[inside].abs().max() <= c.step(1) / 2 * 1.001
    assert out.abs().max() == pytest.approx(31 * c.step(1))  # saturated
    assert c.step(10_000) > 0


def test_wrong_settings_and_bytes_are_refused() -> None:
    with pytest.raises(ValueError, match="length of the first interval"):
        Refining(width=0)
    with pytest.raises(ValueError, match="0 < kappa <= 1"):
        Refining(kappa=1.5)
    with pytest.raises(PayloadError):
        Refining().add(torch.zeros(3, dtype=torch.uint8), Layout.flat(9), Key(), torch.zeros(9), 1.0)
