"""Asynchronous EASGD: workers train by themselves, with a spring to a common centre.

Sends x_i once in `every` steps through `compressor` to the ranks that serve the centre's shards, and the centre back
in float32. Nobody waits for anybody. Training ends with the centre; `wire.anchor()` is the centre as a worker last
heard of it: test that one.

    x_i = x_i - eta g_i(x_i)                          `every` times; then
    d = alpha (x_i - c),  x_i = x_i - d,  c = c + d

What an exchange takes from a worker it gives to the centre: x_1 + ... + x_n + c stays what it was. With alpha=0 the
workers are independent. On a quadratic with workers in turn, every=1 and steps eta in units of the curvature, it is
stable for 0 <= eta <= 2 and 0 <= alpha <= (4 - 2 eta) / (4 - eta).

Reference: Zhang, Choromanska, LeCun, "Deep learning with elastic averaging SGD", NeurIPS 2015, arXiv 1412.6651,
algorithm 1; the rule is in `thinwire/server/easgd.py`. The paper writes tau for `every`, and beta = n alpha = 0.9.

Departs from the paper: the centre is served in shards. x_i goes up and c comes down in one exchange, in place of c
down and d up in two, so that the centre moves by the d of its present state. With a compressor, how far x_i is from
what the server knows of it is sent, which the paper does not consider.
"""

from __future__ import annotations

from thinwire.core.compressor import Compressor
from thinwire.core.method import Method, method
from thinwire.core.recipe import Recipe
from thinwire.methods._parts import served_springs


@method("easgd-async", recipe=Recipe(momentum=0.0))
def easgd_async(
    alpha: float = 0.1,
    every: int = 10,
    compressor: str | Compressor = "identity",
    servers: int | None = None,
) -> Method:
    """Elastic averaging with a server, at every worker's own pace.

        alpha        the share of the distance to the centre that an exchange takes away; the paper's is 0.9 / workers
        every        local steps from one exchange to the next
        compressor   what changes of x_i goes through: an id such as "qsgd:bits=4", or a Compressor of
                     thinwire.compressors; "identity" sends x_i itself in float32
        servers      how many ranks, the last ones, only serve; None: every rank serves a shard beside its training

    >>> easgd_async(every=4).id
    'easgd-async:every=4'
    """
    return served_springs(alpha, every, compressor, servers)
