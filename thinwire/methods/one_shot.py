"""One-shot averaging: every rank trains by itself to the end; then all models become their mean.

Sends how far the model has moved, in float32, once: 64 (n-1)/n bits per element in all. Keeps one more copy of the
model, from which the ranks set out.

    x_i = x_i - lr g_i(x_i)    in every step,    then once    x_i = (1/n) sum_j x_j

The mean is taken when training ends: in `wire.detach()`, or at the end of the `with` block. It is enough for convex
problems, and for nets that stay in one basin; elsewhere the mean of models that trained apart is of no use.

Reference: Mann, McDonald, Mohri, Silberman, Walker, "Efficient large-scale distributed training of conditional
maximum entropy models", NIPS 2009.

Departs from the paper: all ranks have the same weight, and any optimizer takes the steps.
"""

from __future__ import annotations

from thinwire.core.method import Method, method
from thinwire.core.schedule import Sync
from thinwire.exchange.all_reduce import AllReduce
from thinwire.methods._parts import MEAN
from thinwire.sync.delta import Delta, Share
from thinwire.sync.periods import AtEnd


@method("one-shot")
def one_shot(buffers: Share = "leave") -> Method:
    """The mean of the models when training ends.

        buffers   "mean": BatchNorm's buffers are averaged, too; "leave": each rank keeps its own

    >>> one_shot().id
    'one-shot'
    """
    return Method(AllReduce(), Sync(of=Delta(MEAN, period=AtEnd(), buffers=buffers)))
