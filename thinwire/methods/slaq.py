"""SLAQ: LAQ for gradients of mini-batches: 3 bits, and a lower bar for quantisation errors.

Sends b bits per element and 32 per chunk to every other rank in the rounds in which the rank uploads, and nothing in
the others. Keeps what LAQ keeps; the rule is LAQ's with other constants:

    |v^|^2 >= xi sum_d |dx_d|^2 / lr^2 + 1.5 (|e|^2 + |e^|^2) + n slack:   q_i = q_i + v^ is sent
    x = x - lr (1/n) sum_i q_i

Noise of the mini-batch is a change like any other: where it outweighs the change of the gradient, set `slack` to the
mean square of a change, per element, that is not worth an upload. docs/choosing.md has figures for small batches.

Reference: Sun, Chen, Giannakis, Yang, "Communication-efficient distributed learning via lazily aggregated quantized
gradients", NeurIPS 2019, arXiv 1909.07588, section 4 and the authors' code.

Departs from the paper: its code adds 0.2 to the right side, which has the unit of a squared gradient; here that is
`slack`, 0 unless given (theirs is 0.2 / 7840 per element). The rest is as for LAQ.
"""

from __future__ import annotations

from thinwire.compressors.laq_grid import LaqGrid
from thinwire.core.channel import Channel
from thinwire.core.method import Method, method
from thinwire.core.recipe import Recipe
from thinwire.exchange.all_gather import AllGather
from thinwire.memory.lazy import Lazy
from thinwire.methods.laq import NOTE


@method("slaq", Recipe(momentum=0.0, scale=2, note=NOTE))
def slaq(bits: int = 3, xi: float = 0.08, depth: int = 10, patience: int = 100, slack: float = 0.0) -> Method:
    """LAQ with constants for noisy gradients.

        bits       b, bits per element of an upload: a grid of 2^b points
        xi         weight of each of the past steps in the bar: a larger one uploads less often
        depth      past steps that count
        patience   rounds after which an upload is made in any case
        slack      mean square of a change, per element, that is not worth an upload

    >>> slaq(slack=2.5e-5).id
    'slaq:slack=2.5e-05'
    """
    return Method(AllGather(Channel(LaqGrid(bits), Lazy(xi, depth, weight=1.5, patience=patience, slack=slack))))
