"""The mean of payloads, encoded again: what the owner of a shard in scatter-gather does between its two hops.

    m = weight v_1 + weight v_2 + ...     v_i what payload i decodes to
    codes of p = m + alpha e              with a residual, e = beta e + (m - decoded p)

These are `Kernels.decode_mean` and `Kernels.encode`, one after the other. A pass that keeps m in registers has the
same bits, and moves the payloads and the residual alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from thinwire.kernels.dispatch import select
from thinwire.kernels.table import find

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from thinwire.kernels.key import Key
    from thinwire.kernels.spec import Blocks, Quant


class Arrived(NamedTuple):
    """One payload or more of a vector, by their scales and codes, and what each counts."""

    scales: Sequence[Tensor]
    codes: Sequence[Tensor]
    quant: Quant
    blocks: Blocks
    weight: float


class Again(NamedTuple):
    """How the mean is encoded; the arguments of `Kernels.encode`."""

    quant: Quant
    blocks: Blocks
    key: Key
    scales: Tensor
    codes: Tensor
    residual: Tensor | None = None
    alpha: float = 1.0
    beta: float = 1.0
    first: int | None = None


def one_pass(x: Tensor, count: int, quant: Quant, blocks: Blocks, then: Quant, after: Blocks) -> bool:
    """Whether `mean_encode` takes one pass, and less time, where `x` is, for so many payloads of `quant`."""
    return find("mean_encode.one_pass", x, _one_pass)(x, count, quant, blocks, then, after)


def _one_pass(x: Tensor, count: int, quant: Quant, blocks: Blocks, then: Quant, after: Blocks) -> bool:
    return False


def mean_encode(arrived: Arrived, again: Again) -> int | Tensor | None:
    """Write the codes and scales of the mean, and its residual; returns what `Kernels.encode` does."""
    return find("mean_encode.mean_encode", again.codes, two_passes)(arrived, again)


def two_passes(arrived: Arrived, again: Again) -> int | Tensor | None:
    """The definition, through a mean in memory."""
    tier, mean = select(again.codes), torch.empty(again.blocks.n, device=again.codes.device)
    tier.decode_mean(arrived.scales, arrived.codes, arrived.quant, arrived.blocks, mean, arrived.weight)
    return tier.encode(
        mean,
        again.quant,
        again.blocks,
        again.key,
        again.scales,
        again.codes,
        residual=again.residual,
        alpha=again.alpha,
        beta=again.beta,
        first=again.first,
    )
