"""Refining quantisation: gradients on a grid around their last quantised value, whose range shrinks in every step.

Sends exactly `bits` bits per element to every other rank, every step, and no scale. Keeps the last quantised gradient
of every rank, and the mean of all on each, in float64.

    q_i = q_i + C_k(g_i - q_i),    C_k: the nearest of 2^bits - 1 points on an interval of length l_k = width kappa^k
    x = prox(x - lr (1/n) sum_i q_i)

It is proximal gradient descent with an error that falls like kappa^k. Where f is strongly convex and gradients are
full, x converges to the optimum like kappa^k too, with a constant number of bits, if two things hold. kappa is larger
than what descent itself gains in a step (1 - mu/L for lr = 1/L), so that gradients change by less than the interval
shrinks; and `width` and `bits` are large enough for every g_i - q_i to lie inside its interval. Otherwise values
saturate, and x stays behind. The prox is the optimizer's: thinwire.optim.ProximalSGD has L1 and L2 terms.

Reference: Pu, Zeilinger, Jones, "Quantization design for distributed optimization", IEEE Transactions on Automatic
Control 62(5), 2017, arXiv 1504.02317, on the inexact proximal gradient method of Schmidt, Le Roux, Bach, "Convergence
rates of inexact proximal-gradient methods for convex optimization", NeurIPS 2011, arXiv 1109.2415.

Departs from the paper: every rank has the whole model, so that gradients alone travel, to all; in the paper ranks
have parts of it, and quantise those for their neighbours, too.
"""

from __future__ import annotations

from thinwire.compressors.refining import Refining
from thinwire.core.channel import Channel
from thinwire.core.method import Method, method
from thinwire.core.recipe import Recipe
from thinwire.exchange.all_gather import AllGather
from thinwire.memory.difference import Difference

NOTE = (
    "for full gradients of strongly convex losses: the range of what can be sent shrinks by kappa in every step, "
    "whatever the gradients do"
)


@method("refining", Recipe(momentum=0.0, note=NOTE))
def refining(bits: int = 8, width: float = 16.0, kappa: float = 0.99) -> Method:
    """Changes of the gradient on 2^`bits` - 1 points of an interval that shrinks.

        bits    bits per element
        width   length of the first interval: twice the largest element of a gradient, or more
        kappa   factor by which the interval shrinks in a step

    >>> refining(bits=4, kappa=0.95).id
    'refining:bits=4,kappa=0.95'
    """
    return Method(AllGather(Channel(Refining(bits, width, kappa), Difference())))
