"""What compressors share that send single elements with their places: decoding, and error feedback in few passes.

Elements that were not sent decode to zero, so that of most only a sum is left:

    p = x + alpha e,    e = beta e + x                  where nothing was sent
                        e = beta e + (x - decoded p)    where something was

The bits are those of `Compressor.write_with_feedback`, without a dense vector of what was sent. A vector that holds
NaN or inf decodes to NaN everywhere, and leaves the residual as it was.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, final

import torch

from thinwire.core.compressor import Compressor, keep_error
from thinwire.kernels import selection

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.types import Key, Layout


class Scattered(Compressor):
    """Say what a body holds (`read`); the rest is done here."""

    @abstractmethod
    def read(self, body: Tensor, layout: Layout, key: Key) -> tuple[Tensor, Tensor]:
        """Places (int64, all different) and values, after a check of both."""

    @final
    def add(self, body: Tensor, layout: Layout, key: Key, out: Tensor, weight: float) -> None:
        """Read and add."""
        selection.add_at(out, *self.read(body, layout, key), weight)

    @final
    def write_with_feedback(
        self, x: Tensor, layout: Layout, key: Key, body: Tensor, e: Tensor, alpha: float, beta: float
    ) -> int | Tensor | None:
        """Write, and keep the error."""
        wide = x.float()
        used = self.write_sum(wide, e, alpha, layout, key, body)
        if layout.numel:
            at, sent = self.read(body[: None if used is None else int(used)], layout, key)
            keep_error_at(e, wide, at, sent, beta)
        return used

    def write_sum(
        self, x: Tensor, e: Tensor, alpha: float, layout: Layout, key: Key, body: Tensor
    ) -> int | Tensor | None:
        """`write` for x + alpha e. A subclass that need not store the sum may replace it."""
        return self.write(corrected(x, e, alpha), layout, key, body)


def corrected(x: Tensor, e: Tensor, alpha: float) -> Tensor:
    """p = x + alpha e."""
    return x + e if alpha == 1 else (e * alpha).add_(x)


def keep_error_at(e: Tensor, x: Tensor, at: Tensor, sent: Tensor, beta: float) -> None:
    """e = beta e + x, in place, less `sent` where it was sent; where that is not finite, e stays."""
    if e.is_cpu:
        selection.keep_at(e, x, at, sent, beta)
    else:  # to look at `sent` is to wait
        whole = torch.zeros_like(x)
        selection.add_at(whole, at, sent, 1.0)
        keep_error(e, beta, x, whole)
