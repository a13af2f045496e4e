"""DiLoCo: every rank takes `every` steps with an optimizer of its own; then an outer optimizer follows the mean way.

Sends the way of `every` steps once, in float32 or through `compressor`: at most 64 / `every` bits per element and
step. Keeps the anchor and its momentum on every rank, equal on all.

    x_i = anchor,    x_i = inner(x_i, g_i)    `every` times
    d = (1/n) sum_i (anchor - x_i)
    v = mu v + d,    anchor = anchor - outer_lr (d + mu v)

The inner optimizer is yours (the paper: AdamW with lr 4e-4, weight decay 0.1 and gradients clipped to length 1). Its
moments are neither averaged nor reset. With every=1, inner SGD and outer_lr=1 it is SGD with Nesterov's momentum on
the mean gradient; with outer_lr=1 and outer_momentum=0 it is local SGD. What error feedback holds back is in units of
the model, so a schedule of the inner learning rate does not rescale it.

Reference: Douillard, Feng, Rusu, et al., "DiLoCo: distributed low-communication training of language models", 2023,
arXiv 2311.08105, algorithm 1; OpenDiLoCo, arXiv 2407.07852, for 16-bit pseudo-gradients
(`compressor="cast:format=fp16"`).

Departs from the paper: nothing where nothing is compressed. Small tensors that `attach` spares are not compressed.
"""

from __future__ import annotations

from thinwire.core.compressor import Compressor
from thinwire.core.method import Method, method
from thinwire.core.schedule import Sync
from thinwire.exchange.named import Named
from thinwire.methods._parts import among_all
from thinwire.sync.delta import Delta
from thinwire.sync.outer_steps import Sgd


@method("diloco")
def diloco(
    every: int = 500,
    outer_lr: float = 0.7,
    outer_momentum: float = 0.9,
    compressor: str | Compressor = "identity",
    feedback: bool = True,
    exchange: Named = "scatter-gather",
    on_cpu: bool = False,
) -> Method:
    """Local steps, and an outer Nesterov step with their mean.

        every            local steps from one round to the next
        outer_lr         of the outer optimizer
        outer_momentum   mu
        compressor       what a pseudo-gradient goes through: an id such as "qsgd:bits=4", or a Compressor of
                         thinwire.compressors; "identity" is an all-reduce in float32
        feedback         whether what a round loses is added to the next one; biased compressors need it
        exchange         of compressed ones, "scatter-gather": through the owners of shards, who compress the mean
                         once more; "all-gather": every payload to every rank, compressed once
        on_cpu           whether the anchor and its momentum lie in the memory of the host

    >>> diloco(every=50, compressor="qsgd:bits=4").id
    'diloco:every=50,compressor=(qsgd:bits=4)'
    """
    of = Delta(Sgd(outer_lr, outer_momentum), on_cpu=on_cpu)
    return Method(among_all("diloco", compressor, exchange, feedback=feedback), Sync(of=of, every=every))
