"""LAQ: a rank uploads the quantised change of its gradient, and only when it is worth it.

Sends b bits per element and 32 per chunk to every other rank in the rounds in which the rank uploads, and nothing in
the others. Keeps the last upload q_i on every rank, what it lost, and the mean of all uploads on each; uploads are
kept in float64.

    v^ = Q(g_i - q_i), the nearest of 2^b points on [-R, R], R = max |g_i - q_i|;   e = (g_i - q_i) - v^
    |v^|^2 >= xi sum_{d=1..depth} |x_{k+1-d} - x_{k-d}|^2 / lr^2 + 3 (|e|^2 + |e^|^2), or `patience` silent rounds:
        q_i = q_i + v^ is sent, e^ = e
    x = x - lr (1/n) sum_i q_i

With full gradients of strongly convex functions it converges to the optimum at a linear rate. With small batches it
does not pay: docs/choosing.md has the figures. The right side is that of plain gradient descent, dx = -lr q; momentum
makes it larger. The optimizer's steps are measured, so `ddp_hook` needs the optimizer. A GradScaler makes gradients
larger than the steps show, and so uploads more.

Reference: Sun, Chen, Giannakis, Yang, "Communication-efficient distributed learning via lazily aggregated quantized
gradients", NeurIPS 2019, arXiv 1909.07588, algorithm 2.

Departs from the paper: there is no server, so every rank keeps the mean. The rule is restated for means of gradients,
and applied to each chunk of a bucket with its share of the right side (thinwire/memory/lazy.py). While fewer than
`depth` steps have been taken, each keeps the weight `xi`; the authors' code gives them 0.8 / k.
"""

from __future__ import annotations

from thinwire.compressors.laq_grid import LaqGrid
from thinwire.core.channel import Channel
from thinwire.core.method import Method, method
from thinwire.core.recipe import Recipe
from thinwire.exchange.all_gather import AllGather
from thinwire.memory.lazy import Lazy

NOTE = (
    "for full gradients or large batches, and messages of a few thousand elements: noise is a change like any other, "
    "and the error of a grid with one range for many elements raises the bar, so that old gradients stay in use"
)


@method("laq", Recipe(momentum=0.0, scale=2, note=NOTE))
def laq(bits: int = 4, xi: float = 0.08, depth: int = 10, patience: int = 100) -> Method:
    """Changes of the gradient on a grid of 2^`bits` points, when they are worth it.

        bits       b, bits per element of an upload: a grid of 2^b points
        xi         weight of each of the past steps in the bar: a larger one uploads less often
        depth      past steps that count
        patience   rounds after which an upload is made in any case

    >>> laq(bits=3).id
    'laq:bits=3'
    """
    return Method(AllGather(Channel(LaqGrid(bits), Lazy(xi, depth, patience=patience))))
