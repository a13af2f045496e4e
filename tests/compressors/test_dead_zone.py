"""The entropy-coded quantiser against Shannon's bound, at its measured bits."""

from __future__ import annotations

import math

import pytest
import torch
from battery import LAYOUT, vector
from sheet import gauss

from thinwire import Key, Layout, Payload, PayloadError
from thinwire.compressors import DeadZone
from thinwire.core.compressor import scheme

N = 1 << 20


def measured(rate: float, x: torch.Tensor) -> tuple[float, float]:
    """Bits per element of the whole payload, and |C(x) - x|^2 / |x|^2."""
    c, layout = DeadZone(rate), Layout.flat(x.numel())
    payload = c.encode(x, layout)
    error = (c.decode(payload, layout) - x).double().square().sum() / x.double().square().sum()
    return 8 * payload.nbytes / x.numel(), float(error)


@pytest.mark.parametrize("rate", [2, 2.5, 3.21, 4, 5, 6.3, 7, 8])
def test_within_0_26_bit_of_shannon_from_2_bits_on(rate: float) -> None:
    bits, error = measured(rate, gauss(N))
    assert bits == pytest.approx(rate, abs=0.01)
    assert bits - 0.5 * math.log2(1 / error) <= 0.26


@pytest.mark.parametrize(
    ("rate", "gap"), [(0.1, 0.035), (0.25, 0.085), (0.5, 0.16), (1, 0.25), (1.37, 0.26), (1.9, 0.26)]
)
def test_close_below(rate: float, gap: float) -> None:
    bits, error = measured(rate, gauss(N))
    assert bits == pytest.approx(rate, abs=0.01)
    assert bits - 0.5 * math.log2(1 / error) <= gap


def test_laplace_does_better_than_the_gaussian_bound_at_low_rates() -> None:
    u = torch.rand(N, generator=torch.Generator().manual_seed(0)) - 0.5
    bits, error = measured(0.5, -u.sign() * torch.log1p(-2 * u.abs()))
    assert bits < 0.5 * math.log2(1 / error)


def test_rates_that_are_none() -> None:
    for rate in (0.05, 8.5, -1):
        with pytest.raises(ValueError, match=r"write a rate of 0.1 to 8"):
            DeadZone(rate)


@pytest.mark.parametrize("rate", [0.3, 2, 7.5])
def test_damage_is_refused_or_finite(rate: float) -> None:
    c, generator = DeadZone(rate), torch.Generator().manual_seed(0)
    body = c.encode(vector(LAYOUT.numel, "heavy"), LAYOUT).body
    for _ in range(300):
        wrong = body.clone()
        for _ in range(3):
            place = int(torch.randint(0, wrong.numel(), (), generator=generator))
            wrong[place] = int(torch.randint(0, 256, (), generator=generator))
        wrong = wrong[: int(torch.randint(0, 2 * wrong.numel(), (), generator=generator))]
        payload = Payload.new(wrong.numel())
        payload.body.copy_(wrong)
        try:
            out = c.decode(payload.seal(scheme(c, LAYOUT), Key(), checksum=False), LAYOUT)
        except PayloadError:
            continue
        assert out.shape == (LAYOUT.numel,)
