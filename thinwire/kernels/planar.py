"""Planar packing in plain torch: tiles of 8 rows and 64 lanes (see `spec`), and the narrow last tile."""

from __future__ import annotations

import torch
from torch import Tensor

from thinwire.kernels.spec import LANES, ROWS, TILE


def narrow(wide: Tensor, n: int) -> Tensor:
    """Elements 0 .. n-1 from full tiles (tiles, 512); the last tile has rows of ceil(m/8) lanes."""
    full, rest = divmod(n, TILE)
    if not rest:
        return wide[:full].reshape(-1)
    lanes = -(-rest // ROWS)
    last = wide[full].view(ROWS, LANES)[:, :lanes].reshape(-1)[:rest]
    return torch.cat([wide[:full].reshape(-1), last])


def widen(x: Tensor) -> Tensor:
    """The inverse of `narrow`: full tiles, with zeros in the lanes that the last tile does not have."""
    full, rest = divmod(x.numel(), TILE)
    wide = x.new_zeros(full + (rest > 0), TILE)
    wide[:full] = x[: full * TILE].view(full, TILE)
    if rest:
        lanes = -(-rest // ROWS)
        last = x.new_zeros(ROWS * lanes)
        last[:rest] = x[full * TILE :]
        wide[full].view(ROWS, LANES)[:, :lanes] = last.view(ROWS, lanes)
    return wide


def pack(codes: Tensor, width: int) -> Tensor:
    """One-byte codes to planar fields (see `spec`)."""
    n = codes.numel()
    wide = widen(codes.to(torch.int64) & ((1 << width) - 1)).view(-1, ROWS, LANES)
    shift = torch.arange(ROWS, device=codes.device)[:, None] * width
    planes = torch.arange(width, device=codes.device)[:, None] * 8
    # 8 fields of up to 8 bits fit 64 bits exactly; arithmetic shifts are masked to bytes.
    number = (wide << shift).sum(1, keepdim=True)
    out = ((number >> planes) & 0xFF).to(torch.uint8)  # (tiles, width, lanes)
    full, rest = divmod(n, TILE)
    last = out[full, :, : -(-rest // ROWS)].reshape(-1) if rest else out.new_empty(0)
    return torch.cat([out[:full].reshape(-1), last])


def unpack(packed: Tensor, n: int, width: int) -> Tensor:
    """Planar fields to one-byte codes."""
    full, rest = divmod(n, TILE)
    lanes = -(-rest // ROWS)
    out = torch.zeros(full + (rest > 0), width, LANES, dtype=torch.int64, device=packed.device)
    out[:full] = packed[: full * LANES * width].view(full, width, LANES)
    if rest:
        out[full, :, :lanes] = packed[full * LANES * width :][: lanes * width].view(width, lanes)
    planes = torch.arange(width, device=packed.device)[:, None] * 8
    number = (out << planes).sum(1, keepdim=True)
    shift = torch.arange(ROWS, device=packed.device)[:, None] * width
    codes = ((number >> shift) & ((1 << width) - 1)).to(torch.uint8)
    return narrow(codes.view(-1, TILE), n)


def pack_natural(codes: Tensor, sign: Tensor) -> Tensor:
    """Tiles of 8 exponent rows and one row of packed signs."""
    n = codes.numel()
    exponents, signs = pack(codes, 8), pack(sign, 1)
    full, rest = divmod(n, TILE)
    lanes = -(-rest // ROWS)
    tiles = [
        torch.cat([exponents[: full * TILE].view(full, TILE), signs[: full * LANES].view(full, LANES)], 1).view(-1),
        exponents[full * TILE :],
        signs[full * LANES :][:lanes],
    ]
    return torch.cat(tiles)


def unpack_natural(codes: Tensor, n: int) -> Tensor:
    """The values of such tiles: a sign, an exponent, no mantissa; exponent 255 is NaN."""
    full, rest = divmod(n, TILE)
    lanes = -(-rest // ROWS)
    body = codes[: full * (TILE + LANES)].view(full, TILE + LANES)
    tail = codes[full * (TILE + LANES) :]
    exponents = unpack(torch.cat([body[:, :TILE].reshape(-1), tail[: lanes * ROWS]]), n, 8).to(torch.int32)
    signs = unpack(torch.cat([body[:, TILE:].reshape(-1), tail[lanes * ROWS :][:lanes]]), n, 1).to(torch.int32)
    value = ((exponents << 23) | (signs << 31)).view(torch.float32)
    return torch.where(exponents == 255, torch.nan, value)
