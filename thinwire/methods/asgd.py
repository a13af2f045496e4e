"""ASGD: nobody waits for anybody; the server applies each gradient when it arrives.

Sends each gradient to rank 0 through `compressor`, and the model back in float32. Rank 0 keeps the model and steps
with an optimizer like the workers', beside its own training.

    x = x - eta g(x_then)        tau updates of others may lie between then and now

Reference: Dean, Corrado, Monga, et al., "Large scale distributed deep networks", NeurIPS 2012 (Downpour SGD).

Departs from the paper: the model lies on one rank, which trains too, and steps with any optimizer of torch.
"""

from __future__ import annotations

from thinwire.core.compressor import Compressor
from thinwire.core.method import Method, method
from thinwire.core.schedule import Sync
from thinwire.exchange.server import Server
from thinwire.methods._parts import uplink
from thinwire.server.asgd import Asgd


@method("asgd")
def asgd(
    compressor: str | Compressor = "identity",
    feedback: bool = False,
) -> Method:
    """Apply every gradient when it arrives.

        compressor   what a gradient goes through on its way up: an id such as "qsgd:bits=4", or a Compressor of
                     thinwire.compressors; "identity" is float32
        feedback     whether what a push loses is added to the next one

    >>> asgd(compressor="qsgd:bits=4").id
    'asgd:compressor=(qsgd:bits=4)'
    """
    return Method(Server(uplink(compressor, feedback=feedback), Asgd()), Sync(staleness=None))
