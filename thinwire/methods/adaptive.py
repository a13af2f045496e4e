"""L-GreCo: bits, shares or ranks for each tensor by itself, smallest in all at the error of one setting for all.

Sends of tensor l what C with setting c_l makes of it. All start with the same setting u. Every `every` steps rank 0
measures each setting on the sum G_l of its gradients since the last choice, and all ranks go on with

    c = the settings with the smallest sum_l size_l(c_l) for which
        sum_l |C_c_l(G_l) - G_l|^2 <= sum_l |C_u(G_l) - G_l|^2

found by a dynamic programme over tensors and 10,000 steps of error. Memories are kept. Rank 0 keeps G; with
`kind="ratio"` and `"rank"` each rank also keeps a residual e.

It helps as far as tensors differ: about half the log2 of the arithmetic over the geometric mean of the tensors' mean
squares is what it can save, in bits per element. Where one tensor has most elements, or all are alike, it chooses the
uniform setting. With `kind="ratio"` and `"rank"` equal error is not equal loss (see docs/training.md).

Reference: Markov, Alim, Frantar, Alistarh, "L-GreCo: layerwise-adaptive gradient compression for efficient and
accurate deep learning", MLSys 2024, arXiv 2210.17357, algorithm 1.

Departs from the paper: errors are measured on the gradients of rank 0 and with this library's compressors; places of
top-k are in fields, so that sizes are known; low rank starts from random vectors in every step, as
thinwire.compressors.low_rank does, and not from the last ones as PowerSGD's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from thinwire.compressors.low_rank import LowRank
from thinwire.compressors.qsgd import Qsgd
from thinwire.compressors.topk import TopK
from thinwire.core.adapt import Adapt
from thinwire.core.channel import Channel
from thinwire.core.compressor import Compressor
from thinwire.core.config import check_choice
from thinwire.core.memory import Memory, NoMemory
from thinwire.core.method import Method, method
from thinwire.core.schedule import Sync
from thinwire.exchange.named import Named, through
from thinwire.memory import ErrorFeedback

Kind = Literal["bits", "ratio", "rank"]


class Family(NamedTuple):
    """Compressors that differ in one number."""

    make: Callable[[float], Compressor]
    usual: float  # the setting of all tensors at the start
    around: Callable[[float], list[float]]  # the settings to choose from
    memory: Memory
    exchange: Named


FAMILIES: dict[str, Family] = {
    "bits": Family(lambda b: Qsgd(bits=_whole(b)), 4, lambda b: [*range(2, 9)], NoMemory(), "scatter-gather"),
    "ratio": Family(
        lambda r: TopK(ratio=r, indices="packed"),
        0.01,
        lambda r: [min(1.0, r * 2.0**step) for step in range(-4, 5)],
        ErrorFeedback(),
        "all-gather",
    ),
    "rank": Family(
        lambda r: LowRank(rank=_whole(r)),
        4,
        lambda r: [1, 2, 3, 4, 6, 8, 12, 16, 24, 32],
        ErrorFeedback(),
        "all-gather",
    ),
}


@method("adaptive")
def adaptive(
    kind: Kind = "bits", uniform: float | None = None, every: int = 100, exchange: Named | None = None
) -> Method:
    """Choose `kind` for each tensor, at the error that `uniform` for all would have.

        kind       what is chosen: "bits" of qsgd, 2 to 8; the "ratio" of topk, from 1/16 of the uniform one to 16
                   times it; the "rank" of low-rank matrices, 1 to 32
        uniform    the setting whose error counts, and the first one; None: 4 bits, a ratio of 0.01, rank 4
        every      steps between two choices
        exchange   "scatter-gather" or "all-gather"; None: the former for bits, the latter for the others

    >>> adaptive(kind="ratio", every=500).id
    'adaptive:kind=ratio,every=500'
    """
    check_choice("adaptive", "kind", kind, tuple(FAMILIES))
    family = FAMILIES[kind]
    usual = family.usual if uniform is None else uniform
    start, options = family.make(usual), tuple(family.make(setting) for setting in family.around(usual))
    channel = Channel(start, family.memory)
    way = through("adaptive", family.exchange if exchange is None else exchange, channel)
    return Method(way, Sync(adapt=Adapt(start, options, every)))


def _whole(setting: float) -> int:
    if setting != int(setting):
        raise ValueError(f"adaptive(uniform={setting}): bits and ranks are whole numbers; write uniform=4")
    return int(setting)
