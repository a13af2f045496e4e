"""DC-ASGD: asynchronous SGD that corrects a late gradient by how far the model has moved.

Sends each gradient through `compressor` to the ranks that serve the model's shards, and the model back in float32, or
through `down`. They step with an optimizer like the workers', beside their own training or, with `servers`, alone.

    x = x - eta (g + lambda g g (x - x_sent))                      products by element
    lambda = lam, or lam / sqrt(ms + 1e-7) with ms = m ms + (1 - m) g g

Reference: Zheng, Meng, Wang, Chen, Yu, Ma, Liu, "Asynchronous stochastic gradient descent with delay compensation",
ICML 2017, arXiv 1609.08326.

Departs from the paper: servers train too, unless `servers` are set apart, and step with any optimizer of torch.
"""

from __future__ import annotations

from thinwire.core.compressor import Compressor
from thinwire.core.method import Method, method
from thinwire.core.schedule import Sync
from thinwire.methods._parts import server
from thinwire.server.dc_asgd import DcAsgd


@method("dc-asgd")
def dc_asgd(
    lam: float = 0.04,
    m: float | None = None,
    compressor: str | Compressor = "identity",
    feedback: bool = False,
    down: str | Compressor | None = None,
    servers: int | None = None,
) -> Method:
    """Apply every gradient when it arrives, corrected for its delay.

        lam          lambda; lambda0 where m is given
        m            what the mean of squares keeps per gradient; None for a constant lambda
        compressor   what a gradient goes through on its way up: an id such as "qsgd:bits=4", or a Compressor of
                     thinwire.compressors; "identity" is float32
        feedback     whether what a push loses is added to the next one
        down         what the model's changes go through on their way down, with error feedback: an id or a
                     Compressor; None sends the model itself in float32
        servers      how many ranks, the last ones, only serve; None: every rank serves a shard beside its training

    >>> dc_asgd(lam=2.0, m=0.95).id
    'dc-asgd:lam=2,m=0.95'
    """
    return Method(server(DcAsgd(lam, m), compressor, feedback, down, servers), Sync(staleness=None))
