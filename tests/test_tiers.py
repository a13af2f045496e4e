"""Every tier gives the bits of the reference: encode, decode, add and feed back, on every kind of input.

Tiers take turns: every compressor meets every input and every tier, and every input every tier. With `--long`, and on
long inputs, all meet all. What the numbers mean is tested elsewhere, on the fastest tier alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import numpy as np
import pytest
import torch
from battery import INSTANCES, LAYOUT, NATIVE, SIZES, vector
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor

from thinwire import Key, Layout, kernels
from thinwire.compressors import (
    AtomoEntries,
    AtomoFourier,
    AtomoSpectral,
    Centred,
    CountSketch,
    DctTopK,
    SparseLoco,
    SparsePrecision,
    Wangni,
)
from thinwire.core.compressor import Compressor, encode_with_feedback
from thinwire.kernels import philox

each_instance = pytest.mark.parametrize("c", INSTANCES, ids=lambda c: c.id)
KINDS = ["gauss", "heavy", "one-hot", "constant", "denormal", "zero"]
TOP = torch.finfo(torch.float32).max
RAGGED = Layout(("a", "b", "c"), ((262_145,), (7, 13), (64, 33)))
"""Long enough for two threads and for blocks of several segments; tensors that end inside tiles."""
SLOW = (
    AtomoSpectral,  # a library's SVD
    AtomoEntries,
    AtomoFourier,
    Centred,
    CountSketch,
    SparsePrecision,
    Wangni,  # with these, the same torch on every tier but for short passes
)
SLOW_BLOCKS = (DctTopK(chunk=8, k=5), SparseLoco(block=100, k=7))  # thousands of them, one by one in the reference


def spoilt(bad: float, places: tuple[int, ...] = (5, 900), dtype: torch.dtype = torch.float32) -> Tensor:
    """`LAYOUT.numel` elements, of which a few are not finite."""
    x = vector(LAYOUT.numel).to(dtype)
    x[list(places)] = bad
    return x


def inputs() -> Iterator[tuple[str, Tensor, Layout]]:
    """Every kind of vector, every size, every type, and what is not finite."""
    for kind in KINDS:
        yield kind, vector(LAYOUT.numel, kind), LAYOUT
    for number, n in enumerate(SIZES):
        kind = KINDS[number % len(KINDS)]
        yield f"{n} of {kind}", vector(n, kind), Layout.flat(n)
    signed = torch.zeros(700)
    signed[::3] = -0.0
    yield "signed zeros", signed, Layout.flat(700)
    for sign in (1.0, -1.0):
        yield f"{sign * 3e38}", torch.full((700,), sign * 3e38), Layout.flat(700)
    top = torch.zeros(512)
    top[0], top[1] = TOP, -TOP / 4
    yield "the largest float", top, Layout.flat(512)
    for bad in (torch.nan, torch.inf, -torch.inf):
        yield f"{bad}", spoilt(bad), LAYOUT
    yield "nan and inf", spoilt(torch.nan) + spoilt(torch.inf, (6, 500)), LAYOUT
    for dtype in (torch.bfloat16, torch.float16):
        x = vector(1100, "heavy").to(dtype)
        x[:3] = torch.tensor([6e-8, -5e-6, 0.0]).to(dtype)  # denormals of fp16
        yield f"{dtype}", x, Layout.flat(1100)
        yield f"nan in {dtype}", spoilt(torch.nan, dtype=dtype), LAYOUT


@pytest.fixture(autouse=True, scope="module")
def drawn_once() -> Iterator[None]:
    """The noise of the definition, which is slow, is drawn once for all instances. C++ draws its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(philox, "noise", lru_cache(maxsize=64)(philox.noise))
        yield


draw = lru_cache(maxsize=64)(vector)  # to be copied before it is written to


def turn(c: Compressor, number: int, long: bool) -> list[str]:
    """The tiers of an input: another one for the next input, and for the next compressor."""
    return NATIVE if long else [NATIVE[(INSTANCES.index(c) + number) % len(NATIVE)]]


def outcome(c: Compressor, x: Tensor, layout: Layout, key: Key, weight: float) -> dict[str, Tensor]:
    """All that a compressor does with a vector: decoded, it is added to numbers, and to zeros as `decode` does."""
    payload = c.encode(x, layout, key)
    added = draw(layout.numel, seed=9).clone()
    added[1::2] = 0.0
    c.decode_add(payload, layout, added, weight, key=key)
    residual = draw(layout.numel, seed=3) * 0.1
    fed = encode_with_feedback(c, x, residual, layout, key, alpha=0.5, beta=0.75)
    return {"payload": payload.data, "added": added, "fed": fed.data, "residual": residual}


def bits(t: Tensor) -> Tensor:
    """What is compared: zeros have signs, and a NaN is a NaN."""
    return torch.where(t.isnan(), torch.nan, t).view(torch.int32) if t.is_floating_point() else t


def check(c: Compressor, tiers: list[str], name: str, x: Tensor, layout: Layout, key: Key, weight: float) -> None:
    with kernels.force("reference"):
        expected = outcome(c, x, layout, key, weight)
    for tier in tiers:
        with kernels.force(tier):
            got = outcome(c, x, layout, key, weight)
        for what, value in expected.items():
            assert torch.equal(bits(got[what]), bits(value)), f"{what} of {name} on {tier}"


@each_instance
def test_every_kind_of_input(c: Compressor, long: bool) -> None:
    keys = [Key(seed=4, step=7), Key(seed=2**64 - 1, step=2**32 - 1, rank=3, hop=1, offset=1024)]
    for number, (name, x, layout) in enumerate(inputs()):
        check(c, turn(c, number, long), name, x, layout, keys[number % 2], (1.0, 0.25)[number % 3 % 2])


@each_instance
@given(data=st.data())
@settings(max_examples=4, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_floats(c: Compressor, long: bool, data: st.DataObject) -> None:
    n = data.draw(st.one_of(st.integers(0, 40), st.integers(500, 2100)), label="n")
    floats = arrays(np.float32, n, elements=st.floats(width=32), fill=st.just(0.5))
    check(c, turn(c, n, long), f"{n} floats", torch.from_numpy(data.draw(floats)), Layout.flat(n), Key(seed=n), 1.0)


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@each_instance
def test_long_and_ragged_input(c: Compressor) -> None:
    layout = Layout.flat(5003) if isinstance(c, SLOW) or c in SLOW_BLOCKS else RAGGED
    x, key = vector(layout.numel, "heavy"), Key(seed=4)
    with kernels.force("reference"):
        expected = c.encode(x, layout, key)
        value = c.decode(expected, layout, key=key)
    for number, tier in enumerate(NATIVE):
        with kernels.force(tier), threads(1 + number % 2):
            assert torch.equal(c.encode(x, layout, key).data, expected.data), tier
            assert torch.equal(c.decode(expected, layout, key=key), value), tier
