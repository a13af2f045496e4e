"""BMUF, blockwise model-update filtering: local steps and an average; the average's way is filtered by a momentum.

Sends how far the model has moved, in float32, once in `every` steps: 64 (n-1)/n / `every` bits per element and step.
Keeps the model from which the ranks set out, and D.

    G = mean of the x_i after `every` local steps - x,    D = eta_b D + zeta G
    x = x + D,    and ranks set out from x, or with `nesterov` from x + eta_b D

It is torch's SGD on the pseudo-gradient -G, with lr = zeta and momentum = eta_b. With eta_b=0 and zeta=1 it is local
SGD; with zeta=1 it is SlowMo with alpha=1 and beta=eta_b, while the learning rate does not change. The paper takes
zeta = 1 and eta_b = 1 - 1/n for n ranks: the default of eta_b is for four.

Reference: Chen, Huo, "Scalable training of deep learning machines by incremental block training with intra-block
parallel optimization and blockwise model-update filtering", ICASSP 2016.

Departs from the paper: a block of data is `every` steps. With `nesterov` the model is that from which ranks set out,
x + eta_b D, in the end too.
"""

from __future__ import annotations

from thinwire.core.method import Method, method
from thinwire.core.schedule import Sync
from thinwire.exchange.all_reduce import AllReduce
from thinwire.sync.delta import Delta, Share
from thinwire.sync.outer_steps import Sgd


@method("bmuf")
def bmuf(
    every: int = 8, zeta: float = 1.0, eta_b: float = 0.75, nesterov: bool = False, buffers: Share = "leave"
) -> Method:
    """Block momentum over local steps.

        every      local steps of a block
        zeta       the block learning rate
        eta_b      the block momentum, 1 - 1/n for n ranks
        nesterov   set out from where the momentum leads
        buffers    "mean": BatchNorm's buffers are averaged, too; "leave": each rank keeps its own

    >>> bmuf(eta_b=0.875, nesterov=True).id
    'bmuf:eta_b=0.875,nesterov=true'
    """
    return Method(AllReduce(), Sync(of=Delta(Sgd(zeta, eta_b, nesterov), buffers=buffers), every=every))
