"""ASGD: nobody waits for anybody; the server applies each gradient when it arrives.

Sends each gradient through `compressor` to the ranks that serve the model's shards, and the model back in float32, or
through `down`. They step with an optimizer like the workers', beside their own training or, with `servers`, alone.

    x = x - eta g(x_then)        tau updates of others may lie between then and now

Reference: Dean, Corrado, Monga, et al., "Large scale distributed deep networks", NeurIPS 2012 (Downpour SGD).

Departs from the paper: servers train too, unless `servers` are set apart, and step with any optimizer of torch.
"""

from __future__ import annotations

from thinwire.core.compressor import Compressor
from thinwire.core.method import Method, method
from thinwire.core.schedule import Sync
from thinwire.methods._parts import server
from thinwire.server.asgd import Asgd


@method("asgd")
def asgd(
    compressor: str | Compressor = "identity",
    feedback: bool = False,
    down: str | Compressor | None = None,
    servers: int | None = None,
) -> Method:
    """Apply every gradient when it arrives.

        compressor   what a gradient goes through on its way up: an id such as "qsgd:bits=4", or a Compressor of
                     thinwire.compressors; "identity" is float32
        feedback     whether what a push loses is added to the next one
        down         what the model's changes go through on their way down, with error feedback: an id or a
                     Compressor; None sends the model itself in float32
        servers      how many ranks, the last ones, only serve; None: every rank serves a shard beside its training

    >>> asgd(compressor="qsgd:bits=4").id
    'asgd:compressor=(qsgd:bits=4)'
    """
    return Method(server(Asgd(), compressor, feedback, down, servers), Sync(staleness=None))
