"""AdaComm: local SGD whose rounds grow shorter as the loss falls: cheap progress first, precision in the end.

Sends how far the model has moved, in float32, once per round: 64 (n-1)/n bits per element and round; and the mean
loss, 4 bytes. Keeps one more copy of the model, from which the ranks set out.

    tau_l = ceil(tau_0 sqrt((lr_0 / lr_l) (F_l / F_0)))
    x_i = x_i - lr g_i(x_i)    tau_l times, then    x_i = (1/n) sum_j x_j

tau_0 is `every`, F_l the mean loss of the steps since the last round, over all ranks: call `wire.report_loss(loss)`
in every step. Ranks agree on it, so that all have the same tau_l whatever each was told.

Reference: Wang, Joshi, "Adaptive communication strategies to achieve the best error-runtime trade-off in local-update
SGD", MLSys 2019, arXiv 1810.08313.

Departs from the paper: tau follows the loss in every round, and not once in so many seconds; F_0 is the mean loss of
the first round, and not that of the first model; where the loss stops falling, tau stays as the equation has it, and
is not halved. tau_0 is given, and not searched for.
"""

from __future__ import annotations

from thinwire.core.method import Method, method
from thinwire.core.schedule import Sync
from thinwire.exchange.all_reduce import AllReduce
from thinwire.methods._parts import MEAN
from thinwire.sync.delta import Delta, Share
from thinwire.sync.periods import Shrinking


@method("adacomm")
def adacomm(every: int = 16, buffers: Share = "leave") -> Method:
    """The mean of the models, more often as the loss falls.

        every     tau_0, local steps of the first round
        buffers   "mean": BatchNorm's buffers are averaged, too; "leave": each rank keeps its own

    >>> adacomm(every=20).id
    'adacomm:every=20'
    """
    return Method(AllReduce(), Sync(of=Delta(MEAN, period=Shrinking(), buffers=buffers), every=every))
