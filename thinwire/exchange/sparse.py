"""What the exchanges of sparse sums share: k-sparse vectors as (places ascending, values), and their checks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from thinwire.compressors.topk import TopK

if TYPE_CHECKING:
    from torch import Tensor

Sparse = tuple["Tensor", "Tensor"]


def check_top(exchange: str, compressor: object) -> None:
    """Refuse a compressor that is not an exact top-k."""
    # `most`, `seal` and `open` are TopK's own
    if not isinstance(compressor, TopK) or compressor.values != "fp32":
        raise ValueError(
            f"{exchange} merges the float32 sums of its ranks, and {compressor!r} does not send those; "
            f"write {exchange}(TopK(ratio=0.001))"
        )


def among(places: Tensor, others: Tensor) -> Tensor:
    """Which of `places` are in `others`; both are ascending.

    >>> among(torch.tensor([1, 5, 9]), torch.tensor([0, 5]))
    tensor([False,  True, False])
    """
    if not others.numel():
        return torch.zeros_like(places, dtype=torch.bool)
    at = torch.searchsorted(others, places).clamp_(max=others.numel() - 1)
    return others[at] == places


def settle(total: Sparse, kept: Tensor, p: Tensor, residual: Tensor, ranks: int) -> Tensor:
    """The mean from the sum, with the residual set to p except at `kept`, the places that this rank gave to the sum.

    If the sum is not finite the mean is NaN everywhere, and the residual stays as it was; with a GPU, the host does
    not wait to know.
    """
    places, values = total
    out, good = torch.zeros_like(p), values.isfinite().all()
    if good.is_cpu and not bool(good):
        return out.fill_(torch.nan)
    out[places] = values / ranks
    left = p.index_fill(0, kept, 0.0)
    residual.copy_(left if good.is_cpu else torch.where(good, left, residual))
    return out if good.is_cpu else torch.where(good, out, torch.nan)
