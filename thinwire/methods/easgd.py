"""EASGD: springs between the ranks and a centre, which pull both once in `every` steps.

Sends the model in float32 once in `every` steps: at most 64 / `every` bits per element and step. Keeps the centre c
on every rank, equal on all.

    x_i = x_i - lr g_i(x_i)    `every` times, then, with a = beta / n,
    x_i = x_i - a (x_i - c),    c = c + a sum_j (x_j - c)        both with the x and the c from before

The exchange changes no sum: sum_i x_i + c stays. With beta = n / (n + 1), a = 1 / (n + 1), it puts the centre on the
mean of ranks and centre. beta=0 leaves ranks alone. Evaluate and keep the centre: `wire.anchor()`.

Reference: Zhang, Choromanska, LeCun, "Deep learning with elastic averaging SGD", NeurIPS 2015, arXiv 1412.6651.

Departs from the paper: the exchange comes after the local steps and sees what they led to; there a gradient and the
exchange of the same step both start from x_i.
"""

from __future__ import annotations

from thinwire.core.method import Method, method
from thinwire.core.recipe import Recipe
from thinwire.core.schedule import Sync
from thinwire.exchange.all_reduce import AllReduce
from thinwire.methods._parts import springs


@method("easgd", Recipe(momentum=0.0))
def easgd(every: int = 10, beta: float = 0.9) -> Method:
    """Ranks and a centre that pull each other.

        every   local steps from one exchange to the next
        beta    n a, how far the centre goes towards the mean of the ranks, 0 to 1

    >>> easgd(every=4).id
    'easgd:every=4'
    """
    return Method(AllReduce(), Sync(of=springs("easgd", beta), every=every))
