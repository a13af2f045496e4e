"""R2SP: workers push and pull one at a time, in a fixed order, so that they never share the server's link.

Sends each gradient to rank 0 through `compressor`, and the model back in float32. Rank 0 keeps the model and steps
with an optimizer like the workers', beside its own training.

    x = x - eta g_i(x_then),  i = 0, 1, .., n - 1, 0, ..
    gap = (mean seconds of a step) / (spread n)       between the beginnings of two turns

Reference: Chen, Wang, Li, "Round-robin synchronization: mitigating communication bottlenecks in parameter servers",
INFOCOM 2019; the rule is in `thinwire/server/r2sp.py`.

Departs from the paper: the first steps, which find out what a step takes, keep the order too. The model lies on one
rank, which trains too. Batches are the training loop's: a slow worker is not given a smaller one.
"""

from __future__ import annotations

from thinwire.core.compressor import Compressor
from thinwire.core.method import Method, method
from thinwire.core.schedule import Sync
from thinwire.exchange.server import Server
from thinwire.methods._parts import uplink
from thinwire.server.r2sp import R2sp


@method("r2sp")
def r2sp(
    profile: int = 10, spread: float = 1.2, compressor: str | Compressor = "identity", feedback: bool = False
) -> Method:
    """Push and pull in turn.

        profile      steps of each worker before turns are spaced by what a step takes
        spread       how many times a round of turns fits into a step
        compressor   what a gradient goes through on its way up: an id such as "qsgd:bits=4", or a Compressor of
                     thinwire.compressors; "identity" is float32
        feedback     whether what a push loses is added to the next one

    >>> r2sp(profile=5).id
    'r2sp:profile=5'
    """
    return Method(Server(uplink(compressor, feedback=feedback), R2sp(profile, spread)), Sync(staleness=None))
