"""Every tier gives the bits of the reference: encode, decode, add and feed back, on every kind of input.

Tiers take turns: every compressor meets every tier, its class every kind of input, and every input every tier. With
`--long`, and on long inputs, all meet all. What the numbers mean is tested elsewhere, on the fastest tier alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import numpy as np
import pytest
import torch
from battery import INSTANCES, LAYOUT, NATIVE, SIZES, vector
from battery import KINDS as FIRSTS
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
from thinwire.core.compressor import Compressor, FusedCompressor, encode_with_feedback
from thinwire.kernels import philox

each_instance = pytest.mark.parametrize("c", INSTANCES, ids=lambda c: c.id)
KINDS = ["gauss", "heavy", "one-hot", "constant", "denormal", "zero"]
ROUNDED = ("denormal", "ties")  # elements in the middle between two points
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


def halves() -> Tensor:
    """Exact middles between the points of grids of 4 bits, then of 8: the largest of every 32 is 7, then 127."""
    i = torch.arange(700)
    top = torch.where(i < 352, 7, 127)
    x = (i * 37 % (2 * top) - top) + 0.5
    x[::32] = top[::32].float()
    return x


def sizes() -> Iterator[tuple[str, Tensor, Layout]]:
    for number, n in enumerate(SIZES):
        kind = KINDS[number % len(KINDS)]
        yield f"{n} of {kind}", vector(n, kind), Layout.flat(n)


def kinds() -> Iterator[tuple[str, Tensor, Layout]]:
    """Every kind of vector, every type, and what is not finite."""
    for kind in KINDS:
        yield kind, vector(LAYOUT.numel, kind), LAYOUT
    yield "ties", halves(), Layout.flat(700)
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


@lru_cache
def inputs() -> list[tuple[str, Tensor, Layout]]:
    """Sizes first, which are of two halves; to be read only."""
    assert len(SIZES) % 2 == 0
    return [*sizes(), *kinds()]


PLACES = {c.id: place for place, c in enumerate(INSTANCES)}


def turn(c: Compressor, number: int, long: bool) -> list[str]:
    """The tiers of an input: another one for the next input, and for the next compressor."""
    return NATIVE if long else [NATIVE[(PLACES[c.id] + number) % len(NATIVE)]]


def fuses(c: Compressor) -> bool:
    """Whether feedback has a pass of its own; otherwise it is encoding, decoding, and torch that knows no tier."""
    return isinstance(c, FusedCompressor) or type(c).write_with_feedback is not Compressor.write_with_feedback


def outcome(
    c: Compressor, x: Tensor, layout: Layout, key: Key, weight: float, *, feedback: bool
) -> dict[str, Tensor]:
    """All that a compressor does with a vector: decoded, it is added to numbers, and to zeros as `decode` does."""
    payload = c.encode(x, layout, key)
    added = draw(layout.numel, seed=9).clone()
    added[1::2] = 0.0
    c.decode_add(payload, layout, added, weight, key=key)
    if not feedback:
        return {"payload": payload.data, "added": added}
    residual = draw(layout.numel, seed=3) * 0.1
    fed = encode_with_feedback(c, x, residual, layout, key, alpha=0.5, beta=0.75)
    return {"payload": payload.data, "added": added, "fed": fed.data, "residual": residual}


def bits(t: Tensor) -> Tensor:
    """What is compared: zeros have signs, and a NaN is a NaN."""
    return torch.where(t.isnan(), torch.nan, t).view(torch.int32) if t.is_floating_point() else t


def check(
    c: Compressor,
    tiers: list[str],
    name: str,
    x: Tensor,
    layout: Layout,
    key: Key,
    weight: float,
    *,
    feedback: bool = True,
) -> None:
    with kernels.force("reference"):
        expected = outcome(c, x, layout, key, weight, feedback=feedback)
    for tier in tiers:
        with kernels.force(tier):
            got = outcome(c, x, layout, key, weight, feedback=feedback)
        for what, value in expected.items():
            assert torch.equal(bits(got[what]), bits(value)), f"{what} of {name} by {c.id} on {tier}"


@each_instance
def test_every_kind_of_input(c: Compressor, long: bool) -> None:
    """Without `--long`, compressors take turns with the sizes, and feedback that is not fused with the inputs.

    One of each class meets every kind; others of the class, which differ in their numbers, every other one and those
    on which the numbers depend.
    """
    keys = [Key(seed=4, step=7), Key(seed=2**64 - 1, step=2**32 - 1, rank=3, hop=1, offset=1024)]
    place, some = PLACES[c.id], len(SIZES) if c in FIRSTS else len(inputs())
    for number, (name, x, layout) in enumerate(inputs()):
        if not long and number < some and (number + place) % 2 and name not in ROUNDED:
            continue
        feedback = long or fuses(c) or (number + place) % 5 == 0
        weight = (1.0, 0.25)[number % 3 % 2]
        check(c, turn(c, number, long), name, x, layout, keys[number % 2], weight, feedback=feedback)


@given(data=st.data())
@settings(max_examples=4, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_floats(long: bool, data: st.DataObject) -> None:
    n = data.draw(st.one_of(st.integers(0, 40), st.integers(500, 2100)), label="n")
    x = torch.from_numpy(data.draw(arrays(np.float32, n, elements=st.floats(width=32), fill=st.just(0.5))))
    for c in INSTANCES:
        check(c, turn(c, n, long), f"{n} floats", x, Layout.flat(n), Key(seed=n), 1.0, feedback=long or fuses(c))


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@each_instance
def test_long_and_ragged_input(c: Compressor, long: bool) -> None:
    """One of each class with threads and segments; with `--long` every instance, whose passes are the same."""
    short = isinstance(c, SLOW) or c in SLOW_BLOCKS or not (long or c in FIRSTS)
    layout = Layout.flat(5003) if short else RAGGED
    x, key = vector(layout.numel, "heavy"), Key(seed=4)
    with kernels.force("reference"):
        expected = c.encode(x, layout, key)
        value = c.decode(expected, layout, key=key)
    for number, tier in enumerate(NATIVE):
        with kernels.force(tier), threads(1 + number % 2):
            assert torch.equal(c.encode(x, layout, key).data, expected.data), tier
            assert torch.equal(c.decode(expected, layout, key=key), value), tier
