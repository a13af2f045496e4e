"""Rotations, the codes of rotated blocks, and the DCT in Triton have the bits of their definitions."""

from __future__ import annotations

import math

import pytest
import torch
from battery import vector
from torch import Tensor

from thinwire import Key, kernels
from thinwire.compressors import Drive, Eden
from thinwire.kernels import dct as cosines
from thinwire.kernels import hadamard as definition
from thinwire.kernels import rotated_codes as codes_definition
from thinwire.kernels.hadamard import Blocking

gpu = pytest.importorskip("thinwire.kernels.gpu.hadamard", reason="the GPU's kernels need Triton")
gpu_codes = pytest.importorskip("thinwire.kernels.gpu.rotated_codes", reason="the GPU's kernels need Triton")
gpu_dct = pytest.importorskip("thinwire.kernels.gpu.dct", reason="the GPU's kernels need Triton")

KEY = Key(seed=2**40 + 3, step=5, rank=7, offset=1024)
CUTS = [
    Blocking(0, 128),
    Blocking(1, 1),
    Blocking(50, 16),
    Blocking(1000, 128),
    Blocking(4700, 4096, 512),
    Blocking(16_500, 1 << 14, 512),
]


def same(a: Tensor, b: Tensor) -> bool:
    """Whether bits are equal; a NaN is a NaN."""
    whole = torch.int32 if b.dtype == torch.float32 else torch.int64
    clean = [torch.where(t.isnan(), torch.nan, t).view(whole) for t in (a.cpu(), b)]
    return a.dtype == b.dtype and torch.equal(*clean)


def spoilt(n: int) -> Tensor:
    x = vector(n, "heavy")
    x[n // 7 :: 9001] = math.nan
    x[n // 2 :: 8001] = math.inf
    return x


@pytest.mark.parametrize("k", [0, 1, 5, 13])
def test_transforms(k: int, device: torch.device) -> None:
    x = vector(1 << 13)
    got = x.to(device, copy=True)
    gpu.hadamard(got, 1 << k)
    definition._hadamard(x, 1 << k)
    assert same(got, x)


def test_large_blocks_in_parts(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "PART", 1)
    x = vector(1 << 15)
    got = x.to(device, copy=True)
    gpu.hadamard(got, 1 << 14)
    definition._hadamard(x, 1 << 14)
    assert same(got, x)


@pytest.mark.parametrize(("cut", "rotations"), list(zip(CUTS, [1, 2, 2, 1, 2, 1], strict=True)))
def test_rotations_there_and_back(cut: Blocking, rotations: int, device: torch.device) -> None:
    words = definition.streams(KEY, rotations)
    x, factor = spoilt(cut.n), 0.25 if rotations == 1 else torch.tensor(0.25, device=device)
    r = definition._rotate(x, cut, words, 0.25)
    assert same(gpu.rotate(x.to(device), cut, words, factor), r)
    r, expected = vector(cut.padded) * 1e37, vector(cut.n, seed=3)
    got = expected.to(device, copy=True)
    gpu.unrotate_add(r.to(device, copy=True), cut, words, got, 4.0, 0.3)
    definition._unrotate_add(r, cut, words, expected, 4.0, 0.3)
    assert same(got, expected)


@pytest.mark.parametrize("top", [0.0, 1e-45, 1.2e-38, 0.75, 1.0, 3.4e38, math.inf])
def test_units(top: float, device: torch.device) -> None:
    x = torch.tensor([0.0, -top, math.nan])
    assert float(gpu.unit(x.to(device))) == definition._unit(x)
    assert float(gpu.unit(x[:0].to(device))) == 1.0


@pytest.mark.parametrize("compressor", [Drive(), Eden(bits=2.5), Eden(bits=0.5)], ids=lambda c: c.id)
def test_codes_of_rotated_blocks(compressor: Eden | Drive, device: torch.device) -> None:
    cut, words, tables = Blocking(1300, 512, 512), definition.streams(KEY, 1), compressor.tables
    x = spoilt(cut.n)
    x[512:1024] = 0.0
    for biased in (False, True):
        with kernels.force("reference"):
            codes, scales = codes_definition._encode(x, cut, words, 0.5, tables, biased=biased)
        got = gpu_codes.encode(x.to(device), cut, words, 0.5, tables, biased=biased)
        assert torch.equal(got[0].cpu(), codes)
        assert same(got[1], scales)
    scales = torch.where(scales.isnan(), 0.5, scales).float()
    scales[-1] = math.inf
    expected = vector(cut.n, seed=3)
    added = expected.to(device, copy=True)
    gpu_codes.decode_add(codes.to(device), scales.to(device), cut, words, tables, added, 0.3)
    with kernels.force("reference"):
        codes_definition._decode_add(codes, scales, cut, words, tables, expected, 0.3)
    assert same(added, expected)


@pytest.mark.parametrize("shape", [(0, 8, 8), (3, 8, 8), (5, 20, 12), (1, 33, 64), (7, 1, 5), (1, 5, 100)])
def test_cosines(shape: tuple[int, int, int], device: torch.device) -> None:
    x = spoilt(math.prod(shape)).view(shape)
    left, right = cosines.basis(shape[1]), cosines.basis(shape[2]).T.contiguous()
    expected = cosines._sandwich(left, x, right)
    assert same(gpu_dct.sandwich(left.to(device), x.to(device, copy=True), right.to(device)), expected)
