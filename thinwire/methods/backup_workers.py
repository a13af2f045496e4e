"""Backup workers: a step takes the first gradients that arrive, and drops those of the slowest.

Sends each gradient through `compressor` to the ranks that serve the model's shards, and the model back in float32, or
through `down`. They step with an optimizer like the workers', beside their own training or, with `servers`, alone.

    x = x - eta (1/N) (first N gradients of N + b computed at x)

Reference: Chen, Pan, Monga, Bengio, Jozefowicz, "Revisiting distributed synchronous SGD", 2016, arXiv 1604.00981.

Departs from the paper: servers train too, unless `servers` are set apart, and step with any optimizer of torch.
When workers have ended, a step takes as many as are left.
"""

from __future__ import annotations

from thinwire.core.compressor import Compressor
from thinwire.core.method import Method, method
from thinwire.core.schedule import Sync
from thinwire.methods._parts import server
from thinwire.server.backup import Backup


@method("backup-workers")
def backup_workers(
    spares: int = 1,
    compressor: str | Compressor = "identity",
    feedback: bool = False,
    down: str | Compressor | None = None,
    servers: int | None = None,
) -> Method:
    """Step with the first N of N + b gradients.

        spares       b, the gradients of a step that nobody waits for; 0 is bulk-synchronous
        compressor   what a gradient goes through on its way up: an id such as "qsgd:bits=4", or a Compressor of
                     thinwire.compressors; "identity" is float32
        feedback     whether what a push loses is added to the next one
        down         what the model's changes go through on their way down, with error feedback: an id or a
                     Compressor; None sends the model itself in float32
        servers      how many ranks, the last ones, only serve; None: every rank serves a shard beside its training

    >>> backup_workers(spares=2).id
    'backup-workers:spares=2'
    """
    return Method(server(Backup(spares), compressor, feedback, down, servers), Sync(staleness=None))
