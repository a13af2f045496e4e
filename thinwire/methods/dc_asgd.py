"""DC-ASGD: asynchronous SGD that corrects a late gradient by how far the model has moved.

Sends each gradient to rank 0 through `compressor`, and the model back in float32. Rank 0 keeps the model and steps
with an optimizer like the workers', beside its own training.

    x = x - eta (g + lambda g g (x - x_sent))                      products by element
    lambda = lam, or lam / sqrt(ms + 1e-7) with ms = m ms + (1 - m) g g

Reference: Zheng, Meng, Wang, Chen, Yu, Ma, Liu, "Asynchronous stochastic gradient descent with delay compensation",
ICML 2017, arXiv 1609.08326.

Departs from the paper: the model lies on one rank, which trains too, and steps with any optimizer of torch.
"""

from __future__ import annotations

from thinwire.core.compressor import Compressor
from thinwire.core.method import Method, method
from thinwire.core.schedule import Sync
from thinwire.exchange.server import Server
from thinwire.methods._parts import uplink
from thinwire.server.dc_asgd import DcAsgd


@method("dc-asgd")
def dc_asgd(
    lam: float = 0.04, m: float | None = None, compressor: str | Compressor = "identity", feedback: bool = False
) -> Method:
    """Apply every gradient when it arrives, corrected for its delay.

        lam          lambda; lambda0 where m is given
        m            what the mean of squares keeps per gradient; None for a constant lambda
        compressor   what a gradient goes through on its way up: an id such as "qsgd:bits=4", or a Compressor of
                     thinwire.compressors; "identity" is float32
        feedback     whether what a push loses is added to the next one

    >>> dc_asgd(lam=2.0, m=0.95).id
    'dc-asgd:lam=2,m=0.95'
    """
    return Method(Server(uplink(compressor, feedback=feedback), DcAsgd(lam, m)), Sync(staleness=None))
