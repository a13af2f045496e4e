"""Advice: where a method and an optimizer do not suit each other.

Adam divides each step by the root of its second moment v, and Muon by the length of its momentum. Noise that a
compressor adds to every gradient counts as gradient there. With an unbiased one v grows by 1 + omega / n where the
payloads of n ranks are averaged, and again where the mean is compressed on its way back, and steps are shorter by the
root of it. `omega` bounds that for the worst gradient: here it is measured on a Gaussian one that all ranks have, and
it is more where they differ. What error feedback around a biased compressor sends late is no noise, and no factor
describes it; Adam learns more slowly from it all the same.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch.optim import Adadelta, Adagrad, RMSprop

from thinwire.core.gaussian import MATRIX, VECTOR, lost
from thinwire.core.signals import Grad
from thinwire.core.types import Key, Layout
from thinwire.engine.optimizers import parts_of

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from thinwire.core.channel import Channel
    from thinwire.core.compressor import Compressor
    from thinwire.core.method import Method

SHORTER = 1.1  # steps that are shorter by less are within what anybody tunes
MANY = 32  # ranks whose noise is averaged: what is left of it then does not matter
LATE = 0.1  # the share of a gradient that may be sent late


def advice(method: Method, optimizer: Optimizer | None, ranks: int) -> str:
    """Why they do not suit each other, and what to write instead; empty if they do."""
    own = [type(part).__name__ for part in (() if optimizer is None else parts_of(optimizer)) if normalises(part)]
    exchange = method.exchange
    if not own or ranks < 2 or not isinstance(method.sync.of, Grad) or not exchange.keeps_scale:
        return ""
    names, hops = " and ".join(own), exchange.channels[:1] if exchange.served else exchange.channels
    late = max((min(1.0, _lost(hop)) for hop in hops if _late(hop)), default=0.0)
    if late > LATE:
        return (
            f"{method.id} sends {late:.0%} of every gradient late, which {names} takes for noise of the gradient and "
            "learns from much more slowly; write tw.methods.int4(), which ended at DDP's loss"
        )
    noisy = tuple(hop.compressor for hop in hops if not (_late(hop) or hop.memory.skips))
    longer = max(lengthened(noisy, 1 if exchange.served else ranks, shape) for shape in (VECTOR, MATRIX))
    if longer < SHORTER:
        return ""
    return (
        f"{method.id} adds noise to every gradient, which {names} takes for its size: steps are about {longer:.1f} "
        f"times shorter with {ranks} ranks; write tw.methods.int4(), which ended at DDP's loss, or try a learning "
        f"rate up to {longer:.1f} times as large"
    )


@lru_cache(maxsize=64)
def lengthened(hops: tuple[Compressor, ...], ranks: int, shape: tuple[int, ...] = VECTOR) -> float:
    """How many times as long as a Gaussian gradient that all ranks have is what they decode of it.

    >>> from thinwire.compressors import Cast
    >>> round(lengthened((Cast("bf16"),), ranks=2), 2)
    1.0
    """
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    layout, y = Layout.of([("", x)]), x.flatten()
    for number, compressor in enumerate(hops):
        keys = [Key(seed=1 + number, rank=rank) for rank in range(1 if number else min(ranks, MANY))]
        y = torch.stack([compressor.decode(compressor.encode(y, layout, key), layout, key=key) for key in keys]).mean(
            0
        )
    return float(y.norm() / x.norm())


def normalises(optimizer: Optimizer) -> bool:
    """Whether it divides a step by the size that it takes the gradient for: Adam and its kin, and Muon."""
    if isinstance(optimizer, RMSprop | Adagrad | Adadelta) or "Muon" in type(optimizer).__name__:
        return True
    return any("betas" in group for group in optimizer.param_groups)


def _late(hop: Channel) -> bool:
    return hop.memory.remembers and not hop.memory.skips and not hop.compressor.unbiased


def _lost(hop: Channel) -> float:
    """Some look at the whole vector, and others at the rows of matrices."""
    return max(lost(hop.compressor, shape) for shape in (VECTOR, MATRIX))
