"""Selection in Triton has the bits of its definition."""

from __future__ import annotations

import math

import pytest
import torch
from battery import vector
from torch import Tensor

from thinwire.kernels import selection as definition

select = pytest.importorskip("thinwire.kernels.gpu.select", reason="the GPU's kernels need Triton")
gpu = pytest.importorskip("thinwire.kernels.gpu.selection", reason="the GPU's kernels need Triton")


def cases(n: int) -> dict[str, Tensor]:
    spoilt = vector(n).round()
    spoilt[n // 2 :: 11] = math.nan
    spoilt[n // 3 :: 17] = -math.inf
    return {"gauss": vector(n), "zero": torch.zeros(n), "ties, nan and inf": spoilt}


def check(got: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor], what: str) -> None:
    for a, b in zip(got, expected, strict=True):
        assert a.dtype == b.dtype, what
        assert torch.equal(a.cpu().view(torch.int32), b.view(torch.int32)), what


@pytest.mark.parametrize("n", [1, 5000])
def test_the_largest(n: int, device: torch.device) -> None:
    for kind, x in cases(n).items():
        for k in (n // 50, n) if kind != "zero" else (n // 50,):
            check(gpu.top(x.to(device), k), definition._top(x, k), f"{k} of {kind}")


@pytest.mark.parametrize("n", [0, 4097])
def test_those_over_a_threshold(n: int, device: torch.device) -> None:
    for kind, x in cases(n).items():
        for floor in (0, 0x3F800000):
            check(gpu.over(x.to(device), floor), definition._over(x, floor), f"{kind} over {floor}")


@pytest.mark.parametrize(("block", "k"), [(64, 3), (4096, 64), (10, 20)])
@pytest.mark.parametrize("n", [0, 4100])
def test_the_largest_of_every_block(n: int, block: int, k: int, device: torch.device) -> None:
    for kind, x in cases(n).items():
        count = definition.block_entries(n, block, k)
        check(gpu.top_blocks(x.to(device), block, k, count), definition._top_blocks(x, block, k, count), kind)


def test_blocks_that_no_program_holds(device: torch.device) -> None:
    x = vector(20_000, "heavy")
    check(gpu.top_blocks(x.to(device), 16_385, 9, 18), definition._top_blocks(x, 16_385, 9, 18), "heavy")


@pytest.mark.parametrize("bad", [0.0, math.nan, -math.inf])
def test_sparse_sums(bad: float, device: torch.device) -> None:
    expected, indices, values = vector(5000), torch.arange(3, 5000, 3), vector(1666, seed=2) * 1e-38
    values[7] = bad
    got = expected.to(device, copy=True)
    gpu.add_at(got, indices.to(device), values.to(device), 0.3)
    definition._add_at(expected, indices, values, 0.3)
    assert torch.equal(got.cpu().view(torch.int32), expected.view(torch.int32))


@pytest.mark.parametrize("kind", ["gauss", "misled", "ties", "far", "few", "clustered"])
def test_the_largest_by_a_sample(kind: str, device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the sample is a good guide or not."""
    monkeypatch.setattr(select, "LONG", 4096)
    monkeypatch.setattr(select, "SAMPLE", 1024)
    monkeypatch.setattr(select, "WORDS", 64)
    monkeypatch.setattr(select, "MARKED", 2048)
    x = vector(5001)
    if kind == "misled":
        number = torch.arange(1024)
        x[number * 4 + (number * 0x9E3779B1 % 2**32 >> 8) % 4] *= 1e-3
    elif kind == "ties":
        x = x.round()
    elif kind == "far":
        x[5::128] = 1e30
    elif kind == "few":  # fewer than k are not 0
        x[7:] = 0
    elif kind == "clustered":
        x[3000:] *= 1e-3
    k, found = 50, select.find(x.to(device), 50)
    monkeypatch.setattr(gpu, "find", lambda x, k: found)
    check(gpu.top(x.to(device), k), definition._top(x, k), kind)
    usable = k <= int(found.state[1]) <= found.kept.numel()
    assert found.sampled
    assert usable == (kind in {"gauss", "far", "clustered"})
