"""The one signature that every tier of kernels implements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import torch

from thinwire.kernels import checksum
from thinwire.kernels.spec import CHECKED, COVERED, FLAGS, HEADER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from thinwire.kernels.key import Key
    from thinwire.kernels.spec import Blocks, Quant


TAME = 2.0**96
"""No exchange turns vectors of smaller magnitudes into something that is not finite, unless it has 16-bit sums."""


class Kernels(ABC):
    """Fused passes. Outputs are written into tensors that the caller allocated; no pass returns a copy."""

    name: str
    family: str
    """Whose column of the table (`kernels.table`) serves this tier: "reference", "cpu" or "gpu"."""
    vectors: int = 0
    """What C++ outside the passes may use under this tier: 2 AVX-512, 1 AVX2, 0 what every CPU has."""

    @abstractmethod
    def encode(
        self,
        x: Tensor,  # (n,) float32, bfloat16 or float16
        quant: Quant,
        blocks: Blocks,
        key: Key,
        scales: Tensor,  # (blocks * quant.scales,) float32: written, or read when given
        codes: Tensor,  # (quant.code_bytes(n),) uint8: written
        *,
        given: bool = False,
        residual: Tensor | None = None,  # (n,) float32: changed in place
        alpha: float = 1.0,
        beta: float = 1.0,
        first: int | None = None,
    ) -> int | Tensor | None:
        """Scale, round and pack `p = x + alpha e`; with a residual, also set `e = beta e + (x - decoded)`.

        `first` is the index, in the payload, of the 32-bit word where `codes` begins. With it, a tier that sums in
        the same pass returns what `total(codes, first)` would, and other tiers None.
        """

    @abstractmethod
    def scales(self, x: Tensor, quant: Quant, blocks: Blocks) -> Tensor:
        """Only the scales that `encode` would find: ranks that share scales agree on these first."""

    @abstractmethod
    def decode_add(
        self,
        scales: Tensor,
        codes: Tensor,
        quant: Quant,
        blocks: Blocks,
        out: Tensor,  # (n,) float32: changed in place
        weight: float = 1.0,
        *,
        fresh: bool = False,
    ) -> None:
        """`out += weight * decoded`; with `fresh`, `out` counts as zero and is not read."""

    def decode_mean(
        self,
        scales: Sequence[Tensor],
        codes: Sequence[Tensor],
        quant: Quant,
        blocks: Blocks,
        out: Tensor,  # (n,) float32: written
        weight: float,
    ) -> None:
        """`out = weight * decoded + weight * decoded + ...`, message by message; what was in `out` is not read."""
        for place, (side, packed) in enumerate(zip(scales, codes, strict=True)):
            self.decode_add(side, packed, quant, blocks, out, weight, fresh=place == 0)

    @abstractmethod
    def noise(self, key: Key, n: int) -> Tensor:
        """The 32-bit noise of `n` elements, as int64 in [0, 2^32)."""

    @abstractmethod
    def pack(self, codes: Tensor, width: int, out: Tensor) -> None:
        """Pack one-byte `codes` into fields of `width` bits."""

    @abstractmethod
    def unpack(self, packed: Tensor, n: int, width: int) -> Tensor:
        """The `n` fields of `packed`, one byte each."""

    @abstractmethod
    def copy(self, x: Tensor, out: Tensor) -> bool:
        """Copy `x` to `out`, both (n,) float32, and return whether every element is below `TAME` in magnitude."""

    @abstractmethod
    def difference(self, a: Tensor, b: Tensor, out: Tensor, again: Tensor | None = None) -> bool:
        """Write a - b to `out`, and to `again` too, all (n,) float32.

        Returns whether every element of it is below `TAME` in magnitude. Outputs may be inputs.
        """

    @abstractmethod
    def fold(self, codes: Tensor) -> None:
        """Signed bytes 0, -1, 1, -2, ... as symbols 0, 1, 2, 3, ..., in place."""

    @abstractmethod
    def unfold(self, symbols: Tensor) -> None:
        """The inverse of `fold`, in place."""

    @abstractmethod
    def total(self, data: Tensor, first: int = 0) -> int | Tensor:
        """The checksum's sum over contiguous bytes whose first word has the index `first`; see `checksum`.

        It is modulo 2^64: a number in [0, 2^64) for bytes on the CPU, a (1,) int64 tensor for bytes on a GPU.
        """

    @abstractmethod
    def seal(self, data: Tensor, header: bytes, tail: int = 0, partial: int | Tensor = 0) -> None:
        """Write 28 bytes of a header and their checksum to the start of a payload.

        The checksum covers the body where the header says so; the last `tail` bytes, which start at a whole word,
        enter it by their sum alone.
        """

    def seal_all(self, payloads: Sequence[Tensor], headers: Sequence[bytes]) -> None:
        """`seal` for several payloads, each with its header."""
        for data, header in zip(payloads, headers, strict=True):
            self.seal(data, header)

    @abstractmethod
    def sealed(self, data: Tensor) -> bool:
        """Whether a payload's checksum is right; waits for a GPU."""

    def damaged(self, payloads: Sequence[Tensor]) -> Tensor:
        """Which checksums are wrong: one element per payload, not 0 if so, where they are; nobody waits for it."""
        return torch.cat([self._wrong(data) for data in payloads])

    def _wrong(self, data: Tensor) -> Tensor:
        head, body = (_sum(self.total(data[start:stop], start // 4), data) for start, stop in PARTS)
        covers = (data[FLAGS : FLAGS + 1] & CHECKED).to(torch.int64)
        return checksum.finished(head + body * covers) != checksum.stored(data)


PARTS = ((0, COVERED), (HEADER, None))


def _sum(total: int | Tensor, like: Tensor) -> Tensor:
    """A sum as the reference has it, which is signed."""
    if isinstance(total, int):
        return torch.tensor([checksum.signed(total)], device=like.device)
    return total
