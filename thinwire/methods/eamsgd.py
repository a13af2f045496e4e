"""EAMSGD: EASGD whose local steps have Nesterov's momentum.

Sends the model in float32 once in `every` steps: at most 64 / `every` bits per element and step. Keeps the centre c
on every rank, equal on all.

    v_i = delta v_i - lr g_i(x_i + delta v_i),    x_i = x_i + v_i        `every` times, then, with a = beta / n,
    x_i = x_i - a (x_i - c),    c = c + a sum_j (x_j - c)                both with the x and the c from before

The momentum is the optimizer's: torch.optim.SGD(..., lr, momentum=delta, nesterov=True), with delta = 0.99 in the
paper. Torch keeps the point y = x + delta v at which gradients are taken, and b = -v / lr: its step

    b = delta b + g(y),    y = y - lr (g(y) + delta b)

is the one above, and x = y + lr delta b. Evaluate and keep the centre: `wire.anchor()`.

Reference: Zhang, Choromanska, LeCun, "Deep learning with elastic averaging SGD", NeurIPS 2015, arXiv 1412.6651.

Departs from the paper: springs pull y, which is the model that torch has, and not x. The rest is as for `easgd`.
"""

from __future__ import annotations

from thinwire.core.method import Method, method
from thinwire.core.recipe import Recipe
from thinwire.core.schedule import Sync
from thinwire.exchange.all_reduce import AllReduce
from thinwire.methods._parts import springs


@method("eamsgd", Recipe(momentum=0.99, nesterov=True, scale=0.1))
def eamsgd(every: int = 10, beta: float = 0.9) -> Method:
    """Ranks with momentum, and a centre.

        every   local steps from one exchange to the next
        beta    n a, how far the centre goes towards the mean of the ranks, 0 to 1

    >>> eamsgd(every=4).id
    'eamsgd:every=4'
    """
    return Method(AllReduce(), Sync(of=springs("eamsgd", beta), every=every))
