"""ADA-LUPA: local SGD whose rounds grow longer.

Sends how far the model has moved, in float32, once per round: 64 (n-1)/n bits per element and round. Keeps one more
copy of the model, from which the ranks set out.

    tau_i = (1 + alpha i) tau_0,    i = 0, 1, ..
    x_i = x_i - lr g_i(x_i)    tau_i times, then    x_i = (1/n) sum_j x_j

tau_0 is `every`. E rounds of T steps in all take alpha = 2 (T / tau_0 - E) / (E (E - 1)).

Reference: Haddadpour, Kamani, Mahdavi, Cadambe, "Local SGD with periodic averaging: tighter analysis and adaptive
synchronization", NeurIPS 2019, arXiv 1910.13598.

Departs from the paper: tau_i is rounded down to whole steps, and training may end in the middle of a round.
"""

from __future__ import annotations

from thinwire.core.method import Method, method
from thinwire.core.schedule import Sync
from thinwire.exchange.all_reduce import AllReduce
from thinwire.methods._parts import MEAN
from thinwire.sync.delta import Delta, Share
from thinwire.sync.periods import Growing


@method("ada-lupa")
def ada_lupa(every: int = 8, alpha: float = 0.1, buffers: Share = "leave") -> Method:
    """The mean of the models, less and less often.

        every     tau_0, local steps of the first round
        alpha     by how many tau_0 a round is longer than the one before it
        buffers   "mean": BatchNorm's buffers are averaged, too; "leave": each rank keeps its own

    >>> ada_lupa(alpha=0.5).id
    'ada-lupa:alpha=0.5'
    """
    return Method(AllReduce(), Sync(of=Delta(MEAN, period=Growing(alpha), buffers=buffers), every=every))
