"""Payload: one contiguous uint8 tensor, a 32-byte header and a body. docs/wire-format.md describes it."""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from thinwire import kernels
from thinwire.core.errors import PayloadError
from thinwire.kernels.spec import CHECKED, COVERED

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.types import Key

MAGIC = b"thin"
VERSION = 2
HEADER = struct.Struct("<4sBBHIIIIHHI")  # magic version flags rank scheme step bucket body_bytes hop zero checksum
BODY_BYTES = 7  # the index of this field in the header


class Header(NamedTuple):
    """Where a payload comes from."""

    rank: int  # of the sender, modulo 2^16
    step: int
    bucket: int
    hop: int


class Tail(NamedTuple):
    """The last `nbytes` of a body, with their part of the checksum's sum, made by the pass that wrote them."""

    nbytes: int
    partial: int | Tensor


@dataclass(frozen=True, eq=False)
class Payload:
    """What crosses the network. `data` is all of it; `body` is what the compressor wrote."""

    data: Tensor  # (32 + body bytes,) uint8, contiguous

    @classmethod
    def new(cls, body_bytes: int, device: torch.device | None = None) -> Payload:
        """An unsealed payload whose body is still to be written."""
        return cls(torch.empty(HEADER.size + body_bytes, dtype=torch.uint8, device=device))

    @classmethod
    def at_start(cls, data: Tensor) -> Payload:
        """The payload at the start of a buffer that may be longer; its header says how long it is."""
        if data.numel() < HEADER.size:
            return cls(data)
        return cls(data[: HEADER.size + HEADER.unpack(_get(data, HEADER.size))[BODY_BYTES]])

    @property
    def body(self) -> Tensor:
        """A view of the bytes after the header."""
        return self.data[HEADER.size :]

    @property
    def nbytes(self) -> int:
        """Bytes in all."""
        return self.data.numel()

    def aligned(self) -> Payload:
        """The same bytes at an address where numbers can be read in place; copied only if necessary."""
        return self if self.data.data_ptr() % 8 == 0 else Payload(self.data.clone())

    def trim(self, used: int | None) -> Payload:
        """The payload with `used` body bytes; None keeps all."""
        return self if used is None else Payload(self.data[: HEADER.size + used])

    def seal(self, scheme: int, key: Key, *, checksum: bool = True, tail: Tail | None = None) -> Payload:
        """Write the header and the checksum, in place; a `tail` is not read again."""
        flags = CHECKED if checksum else 0
        size = self.data.numel() - HEADER.size
        header = HEADER.pack(
            MAGIC, VERSION, flags, key.rank & 0xFFFF, scheme, key.step, key.bucket, size, key.hop, 0, 0
        )[:COVERED]
        covered = self._covered(checksum=checksum)
        kernels.get("cpu").seal(covered, header, *(tail if checksum and tail else ()))
        if not self.data.is_cpu:
            self.data[: HEADER.size].copy_(covered[: HEADER.size])
        return self

    def open(self, scheme: int, *, key: Key | None = None) -> Header:
        """Check everything that the header says; `key` also checks that step and bucket are the expected ones."""
        data = self.data
        if data.dtype != torch.uint8 or data.dim() != 1 or not data.is_contiguous():
            raise PayloadError(
                f"a payload is a contiguous 1-D uint8 tensor; got {data.dtype} of shape {tuple(data.shape)}"
            )
        if data.numel() < HEADER.size:
            raise PayloadError(f"a payload has at least {HEADER.size} bytes; got {data.numel()}: it was cut short")
        raw = _get(data, HEADER.size)
        magic, version, flags, rank, made_by, step, bucket, body_bytes, hop, zero, _ = HEADER.unpack(raw)
        if magic != MAGIC:
            raise PayloadError(f"not a thinwire payload: it starts with {magic!r}, not {MAGIC!r}")
        if version != VERSION:
            raise PayloadError(f"payload of format {version}; this thinwire reads format {VERSION}")
        if body_bytes != data.numel() - HEADER.size:
            raise PayloadError(f"the header promises {body_bytes} bytes; {data.numel() - HEADER.size} arrived")
        if flags & ~CHECKED or zero or not kernels.get("cpu").sealed(self._covered(checksum=bool(flags & CHECKED))):
            raise PayloadError("the checksum does not match: the payload was damaged on the way")
        if made_by != scheme:
            raise PayloadError(
                f"made by another compressor or for another layout (scheme {made_by:#010x}, expected {scheme:#010x})"
            )
        if key is not None and (step, bucket, hop) != (key.step, key.bucket, key.hop):
            raise PayloadError(
                f"payload of step {step}, bucket {bucket}, hop {hop} arrived in "
                f"step {key.step}, bucket {key.bucket}, hop {key.hop}"
            )
        return Header(rank, step, bucket, hop)

    def _covered(self, *, checksum: bool) -> Tensor:
        """What the checksum covers, in host memory; no more than that is copied from a GPU."""
        return (self.data if checksum else self.data[: HEADER.size]).cpu()


def _get(data: Tensor, n: int) -> bytes:
    """Read the first bytes, without a tensor, since this happens many times per step."""
    return ctypes.string_at(data.data_ptr(), n) if data.is_cpu else data[:n].cpu().numpy().tobytes()
