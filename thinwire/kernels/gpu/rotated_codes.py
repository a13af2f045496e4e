"""The codes of DRIVE and EDEN in Triton: rotate, then one program per block finds its norm, its codes and its scale.

A program holds a block of up to 8192 rotated floats; larger blocks are coded by the definition. Sums in float64 run
by halving, as `kernels.rotated_codes` defines them. Decoding looks up centroids, then rotates back, scales and adds
in one pass.
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from thinwire.kernels import rotated_codes as definition
from thinwire.kernels.gpu.hadamard import ALONE, rotate, unrotate_add

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.kernels.hadamard import Blocking
    from thinwire.kernels.rotated_codes import Tables

TILE = 4096


@triton.jit
def _halving_sum(x, LOG: tl.constexpr):
    """The sum of 2^LOG numbers: the second half is added to the first until one is left."""
    for level in tl.static_range(LOG):
        x = tl.sum(tl.reshape(x, (2, 1 << (LOG - level - 1))), 0)
    return tl.sum(x, 0)


@triton.jit
def _nearest(v, bounds, COUNT: tl.constexpr):
    """How many of the bounds between centroids `v` is above."""
    m = tl.zeros_like(v).to(tl.int32)
    for i in tl.static_range(COUNT - 1):
        m += (v > tl.load(bounds + i)).to(tl.int32)
    return m


@triton.jit
def _encode(
    r,
    codes,
    scales,
    root,
    high,
    low,
    LOG: tl.constexpr,
    SPLIT: tl.constexpr,
    HIGH: tl.constexpr,
    LOW: tl.constexpr,
    BIASED: tl.constexpr,
):
    """A block of 2^LOG floats. A table is its centroids, then the bounds between them."""
    block = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, 1 << LOG)
    at = (block << LOG) + place
    x = tl.load(r + at)
    wide = x.to(tl.float64)
    square = _halving_sum(wide * wide, LOG)
    k = tl.where(square > 0, tl.load(root) / tl.sqrt(square), 0.0).to(tl.float32)
    v = tl.abs(x) * k
    m = _nearest(v, high + HIGH, HIGH)
    c = tl.load(high + m)
    code = m | (x < 0).to(tl.int32) * HIGH
    if SPLIT < 1 << LOG:
        first = place < SPLIT
        if LOW:
            m = _nearest(v, low + LOW, LOW)
            c = tl.where(first, c, tl.load(low + m))
            code = tl.where(first, code, m | (x < 0).to(tl.int32) * LOW)
        else:
            c = tl.where(first, c, 0.0)
            code = tl.where(first, code, 0)
    tl.store(codes + at, code.to(tl.uint8))
    inner = _halving_sum(c.to(tl.float64) * tl.abs(wide), LOG)
    if BIASED:
        scale = inner / _halving_sum(c.to(tl.float64) * c.to(tl.float64), LOG)
    else:
        scale = tl.where(square == 0, 0.0, square / inner)
    tl.store(scales + block, scale)


@triton.jit
def _look_up(
    codes,
    values,
    n,
    high,
    low,
    LOG: tl.constexpr,
    SPLIT: tl.constexpr,
    HIGH: tl.constexpr,
    LOW: tl.constexpr,
    TILE: tl.constexpr,
):
    at = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    code = tl.load(codes + at, mask=at < n, other=0).to(tl.int32)
    c = tl.load(high + code % HIGH)
    c = tl.where((code & HIGH) != 0, -c, c)
    if SPLIT < 1 << LOG:
        other = tl.zeros_like(c)
        if LOW:
            other = tl.load(low + code % LOW)
            other = tl.where((code & LOW) != 0, -other, other)
        c = tl.where(at % (1 << LOG) < SPLIT, c, other)
    tl.store(values + at, c, mask=at < n)


def encode(
    x: Tensor, cut: Blocking, words: list[list[int]], factor: float | Tensor, tables: Tables, *, biased: bool
) -> tuple[Tensor, Tensor]:
    """Codes and scales."""
    if cut.block > 1 << ALONE:
        return definition.encode_rotated(rotate(x, cut, words, factor), cut, tables, biased=biased)
    r = rotate(x, cut, words, factor)
    codes = torch.empty(cut.padded, dtype=torch.uint8, device=x.device)
    scales = torch.empty(cut.count, dtype=torch.float64, device=x.device)
    done = 0
    for part in cut.parts(r):
        count, size = part.shape
        stop = done * cut.block + part.numel()
        _encode[(count,)](
            part,
            codes[done * cut.block : stop],
            scales[done:],
            _root(size, x.device),
            *_tables(tables, x.device),
            LOG=size.bit_length() - 1,
            SPLIT=tables.split(size),
            HIGH=len(tables.high),
            LOW=len(tables.low),
            BIASED=biased,
            num_warps=4,
            enable_fp_fusion=False,
        )
        done += count
    return codes, scales


def decode_add(
    codes: Tensor, scales: Tensor, cut: Blocking, words: list[list[int]], tables: Tables, out: Tensor, weight: float
) -> None:
    """`out += weight * decoded`, in place."""
    values, at = torch.empty(cut.padded, device=out.device), 0
    for part in cut.parts(codes):
        n, size = part.numel(), part.shape[1]
        _look_up[(triton.cdiv(n, TILE),)](
            part,
            values[at:],
            n,
            *_tables(tables, out.device),
            LOG=size.bit_length() - 1,
            SPLIT=tables.split(size),
            HIGH=len(tables.high),
            LOW=len(tables.low),
            TILE=TILE,
        )
        at += n
    unrotate_add(values, cut, words, out, scales, weight)


@cache
def _tables(tables: Tables, device: torch.device) -> tuple[Tensor, Tensor]:
    """Centroids and the bounds between them, of both tables."""
    return _table(tables.high, device), _table(tables.low, device)


def _table(table: tuple[float, ...], device: torch.device) -> Tensor:
    c = torch.tensor(table or (0.0,), dtype=torch.float32)
    return torch.cat([c, (c[:-1] + c[1:]) * 0.5]).to(device)


@cache
def _root(size: int, device: torch.device) -> Tensor:
    """sqrt(size) in float64, which a kernel's argument would round to float32."""
    return torch.tensor([math.sqrt(size)], dtype=torch.float64).to(device)
