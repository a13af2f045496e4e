"""Small floats in Triton have the bits of their definition."""

from __future__ import annotations

import math

import pytest
import torch
from battery import vector
from interpreted import cases
from torch import Tensor

from thinwire import Layout, compressors, kernels
from thinwire.core.compressor import encode_with_feedback
from thinwire.kernels import minifloat as definition
from thinwire.kernels.minifloat import Format

gpu = pytest.importorskip("thinwire.kernels.gpu.minifloat", reason="the GPU's kernels need Triton")
FORMS = (definition.E4M3_FORMAT, definition.E5M2_FORMAT, definition.E2M1_FORMAT, definition.E3M0_FORMAT)
names = pytest.mark.parametrize("form", FORMS, ids=["e4m3", "e5m2", "e2m1", "e3m0"])


def values(n: int) -> Tensor:
    """Normal and small values, zeros of both signs; from place 300 on also NaN, infinities and huge values."""
    x = vector(n) * 2.0 ** torch.arange(n).remainder(37).neg()
    x[3::50], x[5::50], x[128:160] = 0.0, -0.0, vector(32)[: max(0, min(32, n - 128))] * 1e-41
    for place, bad in (
        (300, math.nan),
        (340, math.inf),
        (400, -math.nan),
        (480, 3e38),
        (500, -3e38),
        (580, -math.inf),
    ):
        x[place : place + 1] = bad
    return x


def same(a: Tensor, b: Tensor) -> bool:
    """Equal bits, where any NaN equals any other."""
    a, b = a.cpu(), b.cpu()
    if a.dtype == torch.float32:
        a, b = (t.nan_to_num(nan=7e33, posinf=torch.inf, neginf=-torch.inf).view(torch.int32) for t in (a, b))
    return torch.equal(a, b)


def check(x: Tensor, form: Format, size: int, device: torch.device) -> None:
    """Write and add, with and without a residual, here and there."""
    n, count = x.numel(), -(-x.numel() // size)
    results = []
    for place, write, add in (
        (torch.device("cpu"), definition._write, definition._add),
        (device, gpu.write, gpu.add),
    ):
        scales = torch.zeros(2, count, device=place)
        room = torch.zeros(2, definition.code_bytes(form, n) // 4 * 4 + 4, dtype=torch.uint8, device=place)
        codes = [row[: definition.code_bytes(form, n)] for row in room]
        e, out = (vector(n, seed=3) * 0.1).to(place), vector(n, seed=4).to(place)
        total = write(x.to(place), form, size, scales[0], codes[0], first=9)
        write(x.to(place), form, size, scales[1], codes[1], residual=e, alpha=0.5, beta=0.75)
        mean = torch.full_like(out, math.nan)
        add([scales[0]], [codes[0]], form, size, out, 0.3)
        add(list(scales), codes, form, size, mean, 0.5, fresh=True)
        results.append((scales, room, e, out, mean))
        if total is not None:
            assert int(total.sum()) % 2**64 == kernels.get("cpu").total(codes[0].cpu(), 9)
    for what, a, b in zip(("scales", "codes", "residual", "sum", "mean"), *results, strict=True):
        assert same(a, b), f"{what} of {n} in blocks of {size}"


@pytest.mark.parametrize("size", cases([32, 64, 100, 128, 512, 1024, 1300], (32, 64, 100, 1024)))
def test_blocks(size: int, device: torch.device) -> None:
    for form in FORMS if device.type == "cuda" else (FORMS[size % 3], FORMS[3])[: 1 + (size == 64)]:
        check(values(1300), form, size, device)


def test_sizes(device: torch.device) -> None:
    for form in FORMS if device.type == "cuda" else FORMS[2:3]:
        for n in (1, 77, 512):
            check(values(n), form, min(n, 32), device)


def test_dtypes(device: torch.device) -> None:
    for form in FORMS if device.type == "cuda" else FORMS[3:]:
        for dtype in (torch.bfloat16, torch.float16):
            check(values(600).to(dtype), form, 128, device)


@names
def test_every_tie_and_everything_beside_it(form: Format, device: torch.device) -> None:
    """All numbers of the format, the middles between them, and the floats next to these."""
    every = torch.arange(1 << form.bits).to(torch.uint8)
    numbers = definition._from_table(every, form) if form.dtype is None else every.view(form.dtype).float()
    numbers = numbers[numbers.isfinite()].unique()
    middles = (numbers[1:] + numbers[:-1]) / 2
    up, down = (middles.nextafter(torch.tensor(s * math.inf)) for s in (1, -1))
    x = torch.cat([numbers, middles, up, down, torch.tensor([-0.0, 1e-45, -1e-45])])
    n, results = x.numel(), []
    for place, write in ((torch.device("cpu"), definition._write), (device, gpu.write)):
        scale, codes = torch.zeros(1, device=place), torch.zeros(1024, dtype=torch.uint8, device=place)
        write(x.to(place), form, n, scale, codes[: definition.code_bytes(form, n)])
        results.append(codes.cpu())
    assert torch.equal(*results)


@names
def test_any_bytes_decode(form: Format, device: torch.device) -> None:
    n, results = 512, []
    codes = torch.arange(definition.code_bytes(form, n)).remainder(256).to(torch.uint8)
    scales = torch.tensor([1.0, math.inf, math.nan, -3.0, 1e-45, 0.0, 3e38, -math.inf] * 2)
    for place, add in ((torch.device("cpu"), definition._add), (device, gpu.add)):
        out = torch.ones(n, device=place)
        add([scales.to(place)], [codes.to(place)], form, 32, out, -0.7)
        results.append(out)
    assert same(*results)


def test_payloads_of_the_compressor(device: torch.device) -> None:
    """The payload, with the checksum that the pass made, is the CPU's."""
    c, layout = compressors.get("float:format=e4m3,block=32"), Layout.flat(1100)
    x, here, there = vector(1100), torch.zeros(1100), torch.zeros(1100, device=device)
    with kernels.force("cpu"):
        a = encode_with_feedback(c, x, here)
    with kernels.force("gpu"):
        b = encode_with_feedback(c, x.to(device), there)
        mean = torch.empty(1100, device=device)
        c.mean([b] * 9, layout, mean, 0.125)
    assert torch.equal(b.data.cpu(), a.data)
    assert same(there, here)
    expected = torch.empty(1100)
    c.mean([a] * 9, layout, expected, 0.125)
    assert same(mean, expected)
