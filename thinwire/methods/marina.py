"""MARINA: ranks send compressed changes of their gradient, and now and then, all together, the gradient itself.

Sends, through an all-reduce, 32 `ratio` bits per element in most rounds, and 32 in the share p of them. Each rank
keeps its last gradient and the estimate g.

    with probability p:  g = (1/n) sum_i grad_i(x+),   else  g = g + (1/n) sum_i Q(grad_i(x+) - grad_i(x))
    x = x - lr g

Q is random-k. `p=None` takes `ratio`, with which either kind of round sends about as much over time. For L-smooth
functions lr <= 1 / (L (1 + sqrt((1 - p) omega / p))), omega = 1/ratio - 1. It is meant for full or large-batch
gradients.

Reference: Gorbunov, Burlachenko, Li, Richtarik, "MARINA: faster non-convex distributed learning with compression",
ICML 2021, arXiv 2102.07845, algorithm 1.

Departs from the paper: the gradient at the last point is remembered, not computed a second time, which is the same
for full gradients (thinwire/exchange/marina.py). All ranks draw the same places, so that their values can be summed
on the wire; the paper draws one set per rank, which divides omega by n in the bound on lr.
"""

from __future__ import annotations

from thinwire.compressors.random_k import RandomK
from thinwire.core.channel import Channel
from thinwire.core.method import Method, method
from thinwire.core.recipe import Recipe
from thinwire.exchange.all_reduce import AllReduce
from thinwire.exchange.marina import Marina

NOTE = (
    "for full gradients or large batches: changes of small ones hold the noise of two batches, times 1 / ratio; "
    "without momentum, and with small steps"
)


@method("marina", Recipe(momentum=0.0, note=NOTE))
def marina(ratio: float = 0.0625, p: float | None = None) -> Method:
    """Changes at the share `ratio` of the places, whole gradients with probability `p`.

        ratio   share of the elements that Q keeps, at random
        p       probability of a round with whole gradients; None takes `ratio`

    >>> marina(ratio=0.125).exchange.p
    0.125
    """
    return Method(Marina(AllReduce(Channel(RandomK(ratio=ratio))), ratio if p is None else p))
