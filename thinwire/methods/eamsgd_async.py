"""Asynchronous EAMSGD: EASGD whose workers step with Nesterov's momentum.

Sends x_i once in `every` steps through `compressor` to the ranks that serve the centre's shards, and the centre back
in float32. Nobody waits for anybody. Training ends with the centre; `wire.anchor()` is the centre as a worker last
heard of it: test that one. Momentum is the optimizer's: write SGD(model.parameters(), lr, momentum=0.99,
nesterov=True).

    v = mu v - eta g_i(x_i + mu v),  x_i = x_i + v    `every` times; then
    d = alpha (x_i - c),  x_i = x_i - d,  c = c + d

Reference: Zhang, Choromanska, LeCun, "Deep learning with elastic averaging SGD", NeurIPS 2015, arXiv 1412.6651,
algorithm 2; the rule is in `thinwire/server/easgd.py`.

Departs from the paper: as `easgd_async` does. And torch's SGD keeps y_i = x_i + mu v in the parameters, at which it
takes gradients: its steps y_i = y_i - eta (g + mu b), b = mu b + g, are the ones above with v = -eta b. The spring is
between y_i and the centre, then: d = alpha (y_i - c).
"""

from __future__ import annotations

from thinwire.core.compressor import Compressor
from thinwire.core.method import Method, method
from thinwire.core.recipe import Recipe
from thinwire.methods._parts import served_springs


@method("eamsgd-async", recipe=Recipe(momentum=0.99, nesterov=True, scale=0.1))
def eamsgd_async(
    alpha: float = 0.1,
    every: int = 10,
    compressor: str | Compressor = "identity",
    servers: int | None = None,
) -> Method:
    """Elastic averaging of workers with momentum, at every worker's own pace.

        alpha        the share of the distance to the centre that an exchange takes away; the paper's is 0.9 / workers
        every        local steps from one exchange to the next
        compressor   what changes of x_i goes through: an id such as "qsgd:bits=4", or a Compressor of
                     thinwire.compressors; "identity" sends x_i itself in float32
        servers      how many ranks, the last ones, only serve; None: every rank serves a shard beside its training

    >>> eamsgd_async(every=4).id
    'eamsgd-async:every=4'
    """
    return served_springs(alpha, every, compressor, servers)
