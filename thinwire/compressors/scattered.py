"""What compressors share that send single elements with their places: decoding, and error feedback in few passes.

Elements that were not sent decode to zero, so that the new residual of most is p itself where alpha = beta:

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
        p = corrected(x, e, alpha)
        used = self.write(p, layout, key, body)
        if layout.numel:
            at, sent = self.read(body[: None if used is None else int(used)], layout, key)
            keep_error_at(e, p, x.float(), at, sent, alpha, beta)
        return used


def corrected(x: Tensor, e: Tensor, alpha: float) -> Tensor:
    """p = x + alpha e."""
    return x + e if alpha == 1 else (e * alpha).add_(x)


def keep_error_at(e: Tensor, p: Tensor, x: Tensor, at: Tensor, sent: Tensor, alpha: float, beta: float) -> None:
    """e = beta e + x, in place, less `sent` where it was sent; where that is not finite, e stays."""
    if not e.is_cpu:  # to look at `sent` is to wait
        whole = torch.zeros_like(x)
        selection.add_at(whole, at, sent, 1.0)
        keep_error(e, beta, x, whole)
    elif bool(sent.isfinite().all()):
        there = e[at] * beta + (x[at] - sent)
        if alpha == beta:
            e.copy_(p)
        else:
            e.mul_(beta).add_(x)
        e.index_copy_(0, at, there)
