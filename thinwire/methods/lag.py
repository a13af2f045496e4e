"""LAG: a rank uploads its gradient only when it has changed by more than the parameters have moved lately.

Sends 32 bits per element to every other rank in the rounds in which the rank uploads, and nothing in the others.
Keeps the last upload q_i on every rank and the mean of all uploads on each, in float64.

    |g_i - q_i|^2 >= xi sum_{d=1..depth} |x_{k+1-d} - x_{k-d}|^2 / lr^2:   q_i = g_i is sent
    x = x - lr (1/n) sum_i q_i

It is meant for full or large-batch gradients: noise is a change like any other (docs/choosing.md has the figures).
The right side is that of plain gradient descent, dx = -lr q; momentum makes it larger. The optimizer's steps are
measured, so `ddp_hook` needs the optimizer. A GradScaler makes gradients larger than the steps show, and so uploads
more.

Reference: Chen, Giannakis, Sun, Yin, "LAG: lazily aggregated gradient for communication-efficient distributed
learning", NeurIPS 2018, arXiv 1805.09965, algorithm 1 (LAG-WK).

Departs from the paper: there is no server, so every rank keeps the mean. The rule is restated for means of gradients,
and applied to each chunk of a bucket with its share of the right side (thinwire/memory/lazy.py).
"""

from __future__ import annotations

from thinwire.compressors.identity import Identity
from thinwire.core.channel import Channel
from thinwire.core.method import Method, method
from thinwire.core.recipe import Recipe
from thinwire.exchange.all_gather import AllGather
from thinwire.memory.lazy import Lazy

NOTE = (
    "for full gradients or large batches: the noise of small ones is a change like any other, so that nearly all "
    "rounds are uploaded; momentum makes steps outgrow gradients, and rounds are left out that are needed"
)


@method("lag", Recipe(momentum=0.0, scale=10, note=NOTE))
def lag(xi: float = 0.1, depth: int = 10) -> Method:
    """Whole gradients, when they have changed; `xi` weighs each of the last `depth` steps.

        xi      weight of each of the past steps in the bar: a larger one uploads less often
        depth   past steps that count

    >>> lag(xi=0.05).id
    'lag:xi=0.05'
    """
    return Method(AllGather(Channel(Identity(), Lazy(xi, depth, patience=None))))
