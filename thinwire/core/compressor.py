"""Compressor: a lossy, stateless map from a vector to a payload and back. A new one is three small methods."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import lru_cache
from typing import ClassVar, final

import torch
from torch import Tensor

from thinwire import kernels
from thinwire.core.config import Config
from thinwire.core.errors import PayloadError
from thinwire.core.payload import Payload, Tail
from thinwire.core.types import Key, Layout

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class Compressor(Config, ABC):
    """Write `nbytes`, `write` and `add`, and declare the facts; `encode` and `decode` are given.

    Subclasses are frozen dataclasses and final. They hold no state and draw noise only from the key.
    """

    linear: ClassVar[bool] = False
    """Bodies are float32 vectors whose sum decodes to the sum: they may be added on the wire."""
    fixed_size: ClassVar[bool] = True
    """`nbytes` is exact, so peers need not exchange sizes."""

    @property
    @abstractmethod
    def unbiased(self) -> bool:
        """E[C(x)] = x."""

    @abstractmethod
    def omega(self, d: int) -> float | None:
        """If unbiased: E|C(x) - x|^2 <= omega |x|^2 for every x of d elements. None: no such bound."""

    @abstractmethod
    def delta(self, d: int) -> float | None:
        """If a contraction: E|C(x) - x|^2 <= (1 - delta) |x|^2, 0 < delta <= 1. None: not a contraction."""

    @abstractmethod
    def nbytes(self, layout: Layout) -> int:
        """Bytes of the body: exact where `fixed_size`, else the most it can be."""

    @abstractmethod
    def write(self, x: Tensor, layout: Layout, key: Key, body: Tensor) -> int | None:
        """Encode `x` into `body`; return the bytes used, or None for all of them."""

    @abstractmethod
    def add(self, body: Tensor, layout: Layout, out: Tensor, weight: float) -> None:
        """`out += weight * decoded`, in place."""

    @final
    def encode(self, x: Tensor, layout: Layout | None = None, key: Key | None = None, *, crc: bool = True) -> Payload:
        """`x` as a sealed payload. Without a layout `x` is one flat vector."""
        flat = _as_vector(x)
        layout = _layout_for(flat, layout)
        key = key or Key()
        payload = Payload.new(self.nbytes(layout), flat.device)
        if isinstance(self, FusedCompressor):
            tail = self.write_fused(flat, layout, key, payload.body, checksum=crc)
            return payload.seal(scheme(self), key, crc=crc, tail=tail)
        used = self.write(flat, layout, key, payload.body)
        return payload.trim(used).seal(scheme(self), key, crc=crc)

    @final
    def decode(self, payload: Payload, layout: Layout) -> Tensor:
        """The decoded vector, float32."""
        out = torch.zeros(layout.numel, device=payload.data.device)
        self.decode_add(payload, layout, out)
        return out

    @final
    def decode_add(
        self, payload: Payload, layout: Layout, out: Tensor, weight: float = 1.0, *, key: Key | None = None
    ) -> None:
        """`out += weight * decode(payload)`, in place, after every check of the payload."""
        payload.open(scheme(self), key=key)
        if out.dtype != torch.float32 or not out.is_contiguous() or out.numel() != layout.numel:
            raise ValueError(
                f"decode_add adds into a contiguous float32 tensor of {layout.numel} elements; "
                f"got {out.dtype} of shape {tuple(out.shape)}"
            )
        expected, got = self.nbytes(layout), payload.body.numel()
        if got > expected or (self.fixed_size and got != expected):
            raise PayloadError(f"{self.id} of {layout.numel} elements has {expected} body bytes; {got} arrived")
        if layout.numel:
            self.add(payload.body, layout, out.view(-1), weight)


class FusedCompressor(Compressor):
    """A compressor whose kernel can also keep the error and checksum what it writes, in the pass that encodes."""

    @abstractmethod
    def write_fused(
        self,
        x: Tensor,
        layout: Layout,
        key: Key,
        body: Tensor,
        *,
        residual: Tensor | None = None,
        alpha: float = 1.0,
        beta: float = 1.0,
        checksum: bool = False,
    ) -> Tail | None:
        """Encode p = x + alpha e into all of `body`; with a residual set e = beta e + (x - decoded p), in place.

        With `checksum`, returns the remainder of the end of the body, if the pass computed it.
        """

    @final
    def write(self, x: Tensor, layout: Layout, key: Key, body: Tensor) -> int | None:
        """`write_fused` with nothing else in the pass."""
        self.write_fused(x, layout, key, body)
        return None


def encode_with_feedback(
    compressor: Compressor,
    x: Tensor,
    residual: Tensor,
    layout: Layout,
    key: Key,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    crc: bool = True,
) -> Payload:
    """Encode p = x + alpha e and set e = beta e + (x - decoded p), in place; fused where the compressor can."""
    if isinstance(compressor, FusedCompressor):
        flat = _as_vector(x)
        payload = Payload.new(compressor.nbytes(_layout_for(flat, layout)), flat.device)
        tail = compressor.write_fused(
            flat, layout, key, payload.body, residual=residual, alpha=alpha, beta=beta, checksum=crc
        )
        return payload.seal(scheme(compressor), key, crc=crc, tail=tail)
    wide = x.float()
    payload = compressor.encode(wide + residual * alpha, layout, key, crc=crc)
    residual.copy_(residual * beta + (wide - compressor.decode(payload, layout)))
    return payload


@lru_cache(maxsize=1024)
def scheme(compressor: Compressor) -> int:
    """A 32-bit name of the compressor and all its settings, carried in the header."""
    text = torch.frombuffer(bytearray(compressor.to_json().encode()), dtype=torch.uint8)
    return kernels.get("cpu").crc32c(text)


def _as_vector(x: Tensor) -> Tensor:
    if x.dtype not in DTYPES:
        raise ValueError(f"gradients are float32, bfloat16 or float16; got {x.dtype}: write x.float()")
    if not x.is_contiguous():
        raise ValueError(f"encode reads contiguous tensors; got strides {x.stride()}: write x.contiguous()")
    return x.detach().view(-1)


def _layout_for(x: Tensor, layout: Layout | None) -> Layout:
    if layout is None:
        return Layout.flat(x.numel())
    if layout.numel != x.numel():
        raise ValueError(f"the layout has {layout.numel} elements but the tensor has {x.numel()}")
    return layout
