"""Post-local SGD: the mean of the models after every step at first; from step `start` on, after every `every` steps.

Sends how far the model has moved, in float32: 64 (n-1)/n bits per element and step before `start`, 1/`every` of that
after it. Keeps one more copy of the model, from which the ranks set out.

    H_t = 1 for t < start, `every` for t >= start
    x_i = x_i - lr g_i(x_i)    H_t times, then    x_i = (1/n) sum_j x_j

The paper switches at the first decay of the learning rate, with H = 16 or 32 for 16 workers. Until then it is
synchronous SGD, also with heavy-ball or Nesterov momentum. All ranks count the same steps and switch together; the
count is part of a checkpoint.

Reference: Lin, Stich, Patel, Jaggi, "Don't use large mini-batches, use local SGD", ICLR 2020, arXiv 1808.07217.

Departs from the paper: `start` is a step and not an epoch. Momentum is each rank's own, as in the authors' code: at
the switch momenta differ, and only their mean is that of synchronous SGD. With `moments="mean"` they are equal after
every round, as where gradients are averaged before the switch.
"""

from __future__ import annotations

from thinwire.core.method import Method, method
from thinwire.core.schedule import Sync
from thinwire.exchange.all_reduce import AllReduce
from thinwire.methods._parts import MEAN
from thinwire.sync.delta import Delta, Share
from thinwire.sync.periods import After


@method("post-local-sgd")
def post_local_sgd(start: int = 1000, every: int = 16, moments: Share = "leave", buffers: Share = "leave") -> Method:
    """Local SGD from step `start` on.

        start     steps in step, after which local steps begin
        every     H, local steps from one mean to the next after that
        moments   "mean": the moments of the ranks' optimizers are averaged, too; "leave": each rank keeps its own
        buffers   "mean": so are BatchNorm's buffers; "leave": each rank keeps its own

    >>> post_local_sgd(start=500).id
    'post-local-sgd:start=500'
    """
    of = Delta(MEAN, period=After(start), moments=moments, buffers=buffers)
    return Method(AllReduce(), Sync(of=of, every=every))
