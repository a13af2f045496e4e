"""Staleness-aware ASGD and n-softsync: smaller steps for older gradients, or an update per several gradients.

Sends each gradient to rank 0 through `compressor`, and the model back in float32. Rank 0 keeps the model and steps
with an optimizer like the workers', beside its own training.

    x = x - eta / max(1, tau) (mean of c gradients),  c = floor(workers / splits)

Reference: Zhang, Gupta, Lian, Liu, "Staleness-aware async-SGD for distributed deep learning", IJCAI 2016, arXiv
1511.05950.

Departs from the paper: of several gradients the oldest decides; the model lies on one rank, which trains too.
"""

from __future__ import annotations

from thinwire.core.compressor import Compressor
from thinwire.core.method import Method, method
from thinwire.core.schedule import Sync
from thinwire.exchange.server import Server
from thinwire.methods._parts import uplink
from thinwire.server.asgd import Softsync


@method("softsync")
def softsync(
    splits: int = 1, aware: bool = True, compressor: str | Compressor = "identity", feedback: bool = False
) -> Method:
    """Apply the mean of some gradients, divided by their age.

        splits       n of n-softsync: updates per round of all workers; as many as workers for one per gradient
        aware        whether a step is divided by the staleness of its gradients
        compressor   what a gradient goes through on its way up: an id such as "qsgd:bits=4", or a Compressor of
                     thinwire.compressors; "identity" is float32
        feedback     whether what a push loses is added to the next one

    >>> softsync(splits=4).id
    'softsync:splits=4'
    """
    return Method(Server(uplink(compressor, feedback=feedback), Softsync(splits, aware)), Sync(staleness=None))
