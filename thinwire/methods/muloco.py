"""MuLoCo: DiLoCo with Muon inside. Its ways are of full rank and equal length, and stand few bits well.

Sends what DiLoCo does: the way of `every` steps once, in float32 or through `compressor`. Keeps the anchor and its
momentum on every rank.

    M = mu M + g,    x_i = x_i - lr NewtonSchulz(g + mu M)    for matrices, `every` times; AdamW for the rest
    d = (1/n) sum_i C(anchor - x_i),    v = outer_momentum v + d
    anchor = anchor - outer_lr (d + outer_momentum v)

torch.optim.Muon (torch 2.9 or later) takes matrices alone. Embeddings, the output layer, gains and biases go to
AdamW, and `attach` gets both optimizers as one:

    matrices = [p for p in model.body.parameters() if p.ndim == 2]
    rest = [p for p in model.parameters() if all(p is not m for m in matrices)]
    muon = torch.optim.Muon(matrices, lr=1e-3, adjust_lr_fn="match_rms_adamw")      steps as long as AdamW's
    optimizer = tw.optim.Joined(muon, torch.optim.AdamW(rest, lr=1e-3))
    wire = tw.attach(model, optimizer, tw.methods.muloco())

Reference: Therien, Huang, Defazio, Rish, Belilovsky, "MuLoCo: Muon is a practical inner optimizer for DiLoCo", 2025,
arXiv 2505.23725.

Departs from the paper: it tunes the outer step for every size of model, and the defaults here are DiLoCo's. Its
quantisers of 2 bits are its own; any compressor of thinwire goes here, such as "k-level:k=4,block=512".
"""

from __future__ import annotations

from thinwire.core.compressor import Compressor
from thinwire.core.method import Method, method
from thinwire.core.recipe import Recipe
from thinwire.core.schedule import Sync
from thinwire.exchange.named import Named
from thinwire.methods._parts import among_all
from thinwire.sync.delta import Delta
from thinwire.sync.outer_steps import Sgd


@method("muloco", Recipe("muon", momentum=0.95, lr=1e-3))
def muloco(
    every: int = 30,
    outer_lr: float = 0.7,
    outer_momentum: float = 0.9,
    compressor: str | Compressor = "identity",
    feedback: bool = True,
    exchange: Named = "scatter-gather",
) -> Method:
    """Local steps of Muon, and an outer Nesterov step with their mean.

        every            local steps from one round to the next
        outer_lr         of the outer optimizer
        outer_momentum   of the outer optimizer
        compressor       what a pseudo-gradient goes through: an id such as "qsgd:bits=4", or a Compressor of
                         thinwire.compressors; "identity" is an all-reduce in float32
        feedback         whether what a round loses is added to the next one; biased compressors need it
        exchange         of compressed ones, "scatter-gather": through the owners of shards, who compress the mean
                         once more; "all-gather": every payload to every rank, compressed once

    >>> muloco(compressor="k-level:k=4,block=512").id
    'muloco:compressor=(k-level:k=4,block=512)'
    """
    of = Delta(Sgd(outer_lr, outer_momentum))
    return Method(among_all("muloco", compressor, exchange, feedback=feedback), Sync(of=of, every=every))
