"""Streaming DiLoCo: fragments of the model take turns, and travel in 4 bits while training goes on.

Sends one of P fragments every H / P steps, in 4 bits per element and a scale per block, to every other rank: the most
that is under way at a time is 1 / P of the model. Keeps the anchor and its momentum on every rank.

    d_p = (1/n) sum_i Q(anchor_p - x_i,p)                      launched in one step, used `delay` steps later
    v_p = mu v_p + d_p,    anchor_p = anchor_p - outer_lr (d_p + mu v_p)
    x_i,p = (1 - alpha) anchor_p + alpha x_i,p

Module l of the model belongs to fragment l mod P, the paper's strided pattern. With fragments=1, delay=0, alpha=0 and
compressor="identity" it is DiLoCo; with alpha=1 ranks train as if nothing had been exchanged. All ranks take the
fragment from the count of steps.

Reference: Douillard, Donchev, Rush, et al., "Streaming DiLoCo with overlapping communication: towards a distributed
free lunch", 2025, arXiv 2501.18512.

Departs from the paper: a fragment is every P-th module, where the paper's has three transformer blocks. Q has a scale
for every 128 elements. Payloads go to every rank, which adds them in float32; `exchange="scatter-gather"` sends less
on more than two ranks, and rounds the mean once more.
"""

from __future__ import annotations

from thinwire.core.compressor import Compressor
from thinwire.core.method import Method, method
from thinwire.core.schedule import Sync
from thinwire.exchange.named import Named
from thinwire.methods._parts import among_all
from thinwire.sync.delta import Delta
from thinwire.sync.merges import Mixed
from thinwire.sync.outer_steps import Sgd


@method("streaming-diloco")
def streaming_diloco(
    every: int = 100,
    fragments: int = 4,
    delay: int = 5,
    alpha: float = 0.5,
    outer_lr: float = 0.4,
    outer_momentum: float = 0.9,
    compressor: str | Compressor = "float:format=e3m0",
    feedback: bool = False,
    exchange: Named = "all-gather",
) -> Method:
    """Fragments that take turns, each exchanged once in `every` steps.

        every            H, local steps from one round of a fragment to its next
        fragments        P, parts of the model; it divides `every`
        delay            local steps while a fragment is under way (the paper: 1 to 5); at most `every`
        alpha            share of the rank's own model when a fragment arrives
        outer_lr         of the outer optimizer
        outer_momentum   mu
        compressor       what a pseudo-gradient goes through: an id such as "qsgd:bits=4", or a Compressor of
                         thinwire.compressors; "identity" is an all-reduce in float32
        feedback         whether what a round loses is added to the next one; biased compressors need it
        exchange         of compressed ones, "scatter-gather": through the owners of shards, who compress the mean
                         once more; "all-gather": every payload to every rank, compressed once

    >>> streaming_diloco(fragments=2, compressor="identity").id
    'streaming-diloco:fragments=2,compressor=identity'
    """
    of = Delta(Sgd(outer_lr, outer_momentum), Mixed(alpha), fragments=fragments, delay=delay)
    return Method(among_all("streaming_diloco", compressor, exchange, feedback=feedback), Sync(of=of, every=every))
