"""Every instance, on the fastest tier; tests/test_tiers.py finds the same bits on the others."""

from __future__ import annotations

import json

import pytest
import torch
from battery import INSTANCES, LAYOUT, SIZES, coded_and_back, vector

import thinwire
from thinwire import Key, Layout, Payload, codecs, compressors
from thinwire.compressors import AtomoFourier, AtomoSpectral, Cast, CountSketch, Identity, Rotated, Sign
from thinwire.compressors.rotated_code import RotatedCode
from thinwire.core.coded import Coded
from thinwire.core.compressor import Compressor, encode_with_feedback, scheme
from thinwire.core.config import from_json

MIXING = (AtomoFourier, AtomoSpectral, CountSketch, Rotated, RotatedCode)
"""Compressors whose elements decode with other elements' noise, of either sign."""
each_instance = pytest.mark.parametrize("c", INSTANCES, ids=lambda c: c.id)


@each_instance
def test_round_trip_through_bytes(c: Compressor) -> None:
    x = vector(LAYOUT.numel)
    payload = c.encode(x, LAYOUT, Key(seed=5, step=3, bucket=2))
    wire = payload.data.numpy().tobytes()
    arrived = Payload(torch.frombuffer(bytearray(wire), dtype=torch.uint8))
    header = arrived.open(scheme(c, LAYOUT))
    assert (header.step, header.bucket) == (3, 2)
    assert torch.equal(c.decode(arrived, LAYOUT), c.decode(payload, LAYOUT))


@each_instance
def test_sizes(c: Compressor) -> None:
    for n in SIZES:
        layout = Layout.flat(n)
        payload = c.encode(vector(n), layout)
        if c.fixed_size:
            assert payload.body.numel() == c.nbytes(layout)
        else:
            assert payload.body.numel() <= c.nbytes(layout)
        out = c.decode(payload, layout)
        assert out.shape == (n,)
        assert out.dtype == torch.float32
        assert out.isfinite().all()


@each_instance
def test_zeros_and_signed_zeros_stay_zero(c: Compressor) -> None:
    x = torch.zeros(700)
    x[::3] = -0.0
    out = coded_and_back(c, x)
    expected = torch.ones(700) if isinstance(c, Sign) else torch.zeros(700)
    assert torch.equal(out, expected)


@each_instance
def test_extreme_values_stay_finite(c: Compressor) -> None:
    assert coded_and_back(c, vector(1500, "heavy")).isfinite().all()
    x = vector(1500, "denormal")
    out = coded_and_back(c, x)
    assert out.isfinite().all()
    if not isinstance(c, Sign):
        # No block is flushed or blown up: values stay within the size of the block's own norm,
        # or of the smallest number that the format has.
        floor = {"natural": 2.0**-126, "low-precision": 0.25}.get(c.name, 0.0)
        assert out.abs().max() <= max(1.001 * x.double().norm().item(), floor)


@each_instance
def test_largest_floats_do_not_overflow(c: Compressor) -> None:
    top = torch.finfo(torch.float32).max
    x = torch.zeros(512)
    x[0], x[1] = top, -top / 4
    out = coded_and_back(c, x)
    assert out.isfinite().all()


@each_instance
def test_blocks_of_nothing_but_large_floats(c: Compressor) -> None:
    for sign in (1.0, -1.0):
        x = torch.full((700,), sign * 3e38)
        out = c.decode(c.encode(x), Layout.flat(700))
        assert out.isfinite().all(), sign
        if not isinstance(c, MIXING):
            assert (out * sign >= 0).all(), sign


@each_instance
def test_payloads_decode_at_any_address(c: Compressor) -> None:
    """A slice of one flat receive buffer may start at an odd byte."""
    x = vector(LAYOUT.numel)
    payload = c.encode(x, LAYOUT)
    buffer = torch.zeros(payload.nbytes + 8, dtype=torch.uint8)
    for shift in range(1, 8):
        buffer[shift : shift + payload.nbytes] = payload.data
        moved = Payload(buffer[shift : shift + payload.nbytes])
        assert torch.equal(c.decode(moved, LAYOUT), c.decode(payload, LAYOUT))


@each_instance
def test_parameters_and_matrices(c: Compressor) -> None:
    """A parameter with a shape encodes as its values do; nothing is recorded for autograd."""
    values = vector(60 * 20).view(60, 20)
    parameter = torch.nn.Parameter(values.clone())
    e, f = torch.zeros(60, 20), torch.zeros(1200)
    layout = Layout.of([("", values)])
    assert torch.equal(c.encode(parameter).data, c.encode(values.view(-1), layout).data)
    for residual in (e, f):
        encode_with_feedback(c, parameter, residual)
        assert not residual.requires_grad
    assert torch.equal(e.view(-1), f)


@each_instance
def test_a_non_finite_step_leaves_the_residual(c: Compressor) -> None:
    x, e = vector(LAYOUT.numel), vector(LAYOUT.numel, seed=3) * 0.1
    x[[5, 900]] = float("nan")
    after = e.clone()
    encode_with_feedback(c, x, after, LAYOUT, Key())
    assert after.isfinite().all()
    assert torch.equal(after[[5, 900]], e[[5, 900]])


@each_instance
def test_non_finite_elements_never_become_numbers(c: Compressor) -> None:
    for bad in (float("nan"), float("inf"), -float("inf")):
        x = vector(LAYOUT.numel)
        x[[5, 900]] = bad
        out = coded_and_back(c, x, layout=LAYOUT)
        assert not out[[5, 900]].isfinite().any(), bad


@each_instance
def test_16_bit_input_equals_the_same_values_in_float32(c: Compressor) -> None:
    for dtype in (torch.bfloat16, torch.float16):
        x = vector(1100, "heavy").to(dtype)
        x[:3] = torch.tensor([6e-8, -5e-6, 0.0]).to(dtype)  # denormals of fp16
        assert torch.equal(c.encode(x).data, c.encode(x.float()).data), dtype


@each_instance
def test_same_key_same_bits_other_key_other_bits(c: Compressor) -> None:
    x = vector(2000)
    first = c.encode(x, key=Key(seed=1, step=1))
    assert torch.equal(first.data, c.encode(x, key=Key(seed=1, step=1)).data)
    alone = getattr(c, "block", None) == 1  # a block of one element is its own maximum: nothing to round
    if c.unbiased and not isinstance(c, Identity) and not alone:
        others = [Key(seed=2, step=1), Key(seed=1, step=1, hop=1)]
        if not c.linear:  # linear compressors draw what ranks must share
            others.append(Key(seed=1, step=1, rank=1))
        for other in others:
            assert not torch.equal(first.body, c.encode(x, key=other).body)


CHUNKED = [c for c in INSTANCES if c.unbiased and isinstance(c, compressors.Qsgd) and 512 % (c.block or 7) == 0]


@pytest.mark.parametrize("c", CHUNKED, ids=lambda c: c.id)
def test_offset_continues_the_noise(c: Compressor) -> None:
    """A bucket in two chunks draws the noise that the whole bucket draws."""
    x = vector(2048)
    whole = coded_and_back(c, x)
    layout = Layout.flat(1024)
    parts = [c.decode(c.encode(x[o : o + 1024], layout, Key(seed=1, offset=o)), layout) for o in (0, 1024)]
    assert torch.equal(torch.cat(parts), whole)


@each_instance
def test_decode_add_accumulates_with_a_weight(c: Compressor) -> None:
    x = vector(1300)
    payload = c.encode(x)
    layout = Layout.flat(1300)
    out = vector(1300, seed=9)
    expected = out + c.decode(payload, layout) * 0.25
    c.decode_add(payload, layout, out, 0.25)
    assert torch.equal(out, expected)


@each_instance
def test_fused_feedback_equals_the_formula(c: Compressor) -> None:
    """e = beta e + (x - q), p = x + alpha e: the fused pass gives the bits of the plain one."""
    x, e = vector(LAYOUT.numel), vector(LAYOUT.numel, seed=3) * 0.1
    key = Key(seed=8)
    for alpha, beta in ((1.0, 1.0), (0.2, 0.9), (1.0, 0.0)):
        fused = e.clone()
        payload = encode_with_feedback(c, x, fused, LAYOUT, key, alpha=alpha, beta=beta)
        plain = c.encode(x + e * alpha, LAYOUT, key)
        assert torch.equal(payload.data, plain.data)
        assert torch.equal(fused, e * beta + (x - c.decode(plain, LAYOUT, key=key)))


@each_instance
def test_config_round_trips(c: Compressor) -> None:
    names = {**vars(codecs), **vars(compressors), **vars(thinwire), "Coded": Coded, type(c).__name__: type(c)}
    assert eval(repr(c), names) == c
    assert from_json(c.to_json()) == c
    assert json.loads(c.to_json())["type"] == type(c).__name__
    if "(" not in c.id:  # ids of parts inside parts are names, not words of the registry
        assert compressors.get(c.id) == c


@each_instance
def test_the_vector_is_left_as_it_was(c: Compressor) -> None:
    x = vector(600)
    c.encode(x)
    assert torch.equal(x, vector(600))


@each_instance
def test_noise_is_not_shared_with_torch(c: Compressor) -> None:
    state = torch.get_rng_state()
    c.encode(vector(600))
    assert torch.equal(torch.get_rng_state(), state)


def test_saturation_is_counted() -> None:
    x = torch.tensor([1e6, -2e5, 3.0, float("inf"), float("nan")])
    payload = Cast("fp16").encode(x)
    out = Cast("fp16").decode(payload, Layout.flat(5))
    assert Cast.saturated(payload) == 2
    assert out[:3].tolist() == [65504.0, -65504.0, 3.0]
    assert out[3].isinf()
    assert out[4].isnan()
