"""Backup workers: a step takes the first gradients that arrive, and drops those of the slowest.

Sends each gradient to rank 0 through `compressor`, and the model back in float32. Rank 0 keeps the model and steps
with an optimizer like the workers', beside its own training.

    x = x - eta (1/N) (first N gradients of N + b computed at x)

Reference: Chen, Pan, Monga, Bengio, Jozefowicz, "Revisiting distributed synchronous SGD", 2016, arXiv 1604.00981.

Departs from the paper: the model lies on one rank, which trains too, and steps with any optimizer of torch.
When workers have ended, a step takes as many as are left.
"""

from __future__ import annotations

from thinwire.core.compressor import Compressor
from thinwire.core.method import Method, method
from thinwire.core.schedule import Sync
from thinwire.exchange.server import Server
from thinwire.methods._parts import uplink
from thinwire.server.backup import Backup


@method("backup-workers")
def backup_workers(
    spares: int = 1,
    compressor: str | Compressor = "identity",
    feedback: bool = False,
) -> Method:
    """Step with the first N of N + b gradients.

        spares       b, the gradients of a step that nobody waits for; 0 is bulk-synchronous
        compressor   what a gradient goes through on its way up: an id such as "qsgd:bits=4", or a Compressor of
                     thinwire.compressors; "identity" is float32
        feedback     whether what a push loses is added to the next one

    >>> backup_workers(spares=2).id
    'backup-workers:spares=2'
    """
    return Method(Server(uplink(compressor, feedback=feedback), Backup(spares)), Sync(staleness=None))
