"""Iterative parameter mixing: every rank trains for an epoch of its own data; then all start from the mean.

Sends how far the model has moved, in float32, once per epoch: 64 (n-1)/n bits per element and epoch. Keeps one more
copy of the model, from which the ranks set out.

    x_i = one epoch over the data of rank i from x,    then    x = (1/n) sum_i x_i

It is local SGD with `every` the steps of an epoch. Where one-shot averaging can fail on separable data, this one
finds a separating perceptron.

Reference: McDonald, Hall, Mann, "Distributed training strategies for the structured perceptron", NAACL 2010, figure
3.

Departs from the paper: all ranks have the same weight, and any optimizer takes the steps.
"""

from __future__ import annotations

from thinwire.core.method import Method, method
from thinwire.core.schedule import Sync
from thinwire.exchange.all_reduce import AllReduce
from thinwire.methods._parts import MEAN
from thinwire.sync.delta import Delta, Share


@method("parameter-mixing")
def parameter_mixing(every: int = 100, buffers: Share = "leave") -> Method:
    """The mean of the models after every epoch of `every` steps.

        every     steps of an epoch, len(loader), equal on all ranks
        buffers   "mean": BatchNorm's buffers are averaged, too; "leave": each rank keeps its own

    >>> parameter_mixing(every=469).id
    'parameter-mixing:every=469'
    """
    return Method(AllReduce(), Sync(of=Delta(MEAN, buffers=buffers), every=every))
