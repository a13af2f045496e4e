"""CR-PSGD: batches grow from step to step, so that a budget of samples takes few exchanges.

Sends each gradient in float32 with an all-reduce, or through `compressor` with a scatter-gather. On n ranks, with a
budget of T samples per rank:

    B_k = floor(rho^(k-1) B_1)                                samples of step k; it ends before their sum exceeds T
    x = x - lr (1/n) sum_i mean of B_k gradients of rank i

The steps are about log_rho(1 + T (rho - 1) / B_1). The training loop asks: in `while n := wire.batch(64):` a step has
n samples, the first one 64, and all ranks end in the same step. With rho=1 it is synchronous SGD.

With theta > 0 it is the Catalyst-like form, for losses that are not convex: floor(sqrt(n T)) runs of it, each with
a budget of floor(sqrt(T / n)) and batches that grow anew, on

    f(x) + theta/2 |x - y|^2          y = the model that the last run ended with; g = g + theta (x - y) in every step

Reference: Yu, Jin, "On the computation and communication complexity of parallel SGD with dynamic batch sizes for
stochastic non-convex optimization", ICML 2019, arXiv 1905.04346, algorithms 1 and 2.

Departs from the paper: any optimizer takes the steps. The pull is added to the gradients when the optimizer's step
begins, after clipping and unscaling.
"""

from __future__ import annotations

from thinwire.core.channel import Channel
from thinwire.core.compressor import Compressor
from thinwire.core.method import Method, method
from thinwire.core.recipe import Recipe
from thinwire.core.schedule import Sync
from thinwire.exchange.all_reduce import AllReduce
from thinwire.exchange.scatter_gather import ScatterGather
from thinwire.methods._parts import is_exact, made
from thinwire.sync.batches import GrowingBatches


@method("cr-psgd", recipe=Recipe(momentum=0.0))
def cr_psgd(
    rho: float = 1.1,
    budget: int | None = None,
    theta: float = 0.0,
    compressor: str | Compressor = "identity",
) -> Method:
    """The mean of gradients over batches that grow.

        rho          how much larger the batch of a step is than that of the step before; 1 for equal ones
        budget       T, the samples that a rank may take; None for no end
        theta        weight of the pull towards the start of a run, above the curvature of the loss; 0 for one run
        compressor   what gradients go through, both ways: an id such as "qsgd:bits=4", or a Compressor of
                     thinwire.compressors; "identity" is an all-reduce of float32

    >>> cr_psgd(rho=1.5, budget=100_000).id
    'cr-psgd:rho=1.5,budget=100000'
    """
    channel = Channel(made(compressor))
    exchange = AllReduce() if is_exact(compressor) else ScatterGather(channel, channel)
    return Method(exchange, Sync(batches=GrowingBatches(rho, budget, theta)))
