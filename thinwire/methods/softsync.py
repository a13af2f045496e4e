"""Staleness-aware ASGD and n-softsync: smaller steps for older gradients, or an update per several gradients.

Sends each gradient through `compressor` to the ranks that serve the model's shards, and the model back in float32, or
through `down`. They step with an optimizer like the workers', beside their own training or, with `servers`, alone.

    x = x - eta / max(1, tau) (mean of c gradients),  c = floor(workers / splits)

Reference: Zhang, Gupta, Lian, Liu, "Staleness-aware async-SGD for distributed deep learning", IJCAI 2016, arXiv
1511.05950.

Departs from the paper: of several gradients the oldest decides; servers train too, unless `servers` are set apart.
"""

from __future__ import annotations

from thinwire.core.compressor import Compressor
from thinwire.core.method import Method, method
from thinwire.core.schedule import Sync
from thinwire.methods._parts import server
from thinwire.server.asgd import Softsync


@method("softsync")
def softsync(
    splits: int = 1,
    aware: bool = True,
    compressor: str | Compressor = "identity",
    feedback: bool = False,
    down: str | Compressor | None = None,
    servers: int | None = None,
) -> Method:
    """Apply the mean of some gradients, divided by their age.

        splits       n of n-softsync: updates per round of all workers; as many as workers for one per gradient
        aware        whether a step is divided by the staleness of its gradients
        compressor   what a gradient goes through on its way up: an id such as "qsgd:bits=4", or a Compressor of
                     thinwire.compressors; "identity" is float32
        feedback     whether what a push loses is added to the next one
        down         what the model's changes go through on their way down, with error feedback: an id or a
                     Compressor; None sends the model itself in float32
        servers      how many ranks, the last ones, only serve; None: every rank serves a shard beside its training

    >>> softsync(splits=4).id
    'softsync:splits=4'
    """
    return Method(server(Softsync(splits, aware), compressor, feedback, down, servers), Sync(staleness=None))
