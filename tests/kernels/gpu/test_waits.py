"""What a GPU encodes and decodes without a wait of the host: torch raises where one waits. The bits are the CPU's.

A wait at the desk (`core/desk.py`) does not count: meanwhile other threads queue their work.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from battery import vector

from thinwire import Key, Layout
from thinwire.compressors import BlockTopK, CountSketch, DgcTopK, LowRank, Modulo, Sbc, TopK
from thinwire.compressors.low_rank import Piece, draw, multiply, orthonormal
from thinwire.core.compressor import Compressor

LAYOUT = Layout(("w", "b"), ((40, 60), (30,)))
KEY = Key(seed=3)


@contextmanager
def no_waits(device: torch.device) -> Iterator[None]:
    try:
        if device.type == "cuda":
            with warnings.catch_warnings(action="ignore"):  # the mode is a prototype, torch says
                torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        if device.type == "cuda":
            torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize(
    "c",
    [
        TopK(k=40, indices="packed"),
        TopK(values="bf16", indices="packed"),
        DgcTopK(ratio=0.1, warmup=8, indices="packed"),
        BlockTopK(256, 5),
        LowRank(),
        CountSketch(rows=3, cols=64),
        Modulo(bits=4),
        Modulo(bits=8, rounding="shared"),
        *(TopK(k=40), DgcTopK(ratio=0.1), Sbc(ratio=0.1)),  # gaps are coded on the host, where the desk is left
    ],
    ids=lambda c: c.id,
)
def test_encode_and_decode(c: Compressor, device: torch.device) -> None:
    n = LAYOUT.numel
    expected, here = torch.zeros(n), vector(n)
    c.add(c.encode(here, LAYOUT, KEY).body.clone(), LAYOUT, KEY, expected, 0.3)
    x, body = here.to(device), torch.empty(c.nbytes(LAYOUT), dtype=torch.uint8, device=device)
    used = c.write(x, LAYOUT, KEY, body)
    body = body[: None if used is None else int(used)]
    c.add(body, LAYOUT, KEY, torch.zeros(n, device=device), 0.3)  # kernels are compiled
    with no_waits(device):
        out = torch.zeros(n, device=device)
        c.write(x, LAYOUT, KEY, body)
        c.add(body, LAYOUT, KEY, out, 0.3)
    assert torch.equal(out.cpu(), expected)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="on the CPU such a body is refused at once")
@pytest.mark.parametrize("at", [0, -1])
def test_a_damaged_count_or_place_is_nan(at: int, device: torch.device) -> None:
    c, out = TopK(k=40, indices="packed"), torch.zeros(LAYOUT.numel, device=device)
    body = c.encode(vector(LAYOUT.numel).to(device), LAYOUT, KEY).body.clone()
    body[at] = 255
    with no_waits(device):
        c.add(body, LAYOUT, KEY, out, 1.0)
    assert bool(out.isnan().all())


def test_the_factors_of_power_sgd(device: torch.device) -> None:
    matrix, piece = vector(2400).view(40, 60), Piece(0, 2400, 40, 60, 3)
    draw(KEY, piece, 2400, matrix.to(device))
    factors = []
    for m in (matrix, matrix.to(device)):
        with no_waits(device):
            p = orthonormal(m[:, :3])
            factors.append([draw(KEY, piece, 2400, m), p, multiply(p, p)])
    for a, b in zip(*factors, strict=True):
        assert torch.equal(a, b.cpu())
