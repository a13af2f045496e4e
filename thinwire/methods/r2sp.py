"""R2SP: workers push and pull one at a time, in a fixed order, so that they never share the server's link.

Sends each gradient through `compressor` to the ranks that serve the model's shards, and the model back in float32, or
through `down`. They step with an optimizer like the workers', beside their own training or, with `servers`, alone.

    x = x - eta g_i(x_then),  i = 0, 1, .., n - 1, 0, ..
    gap = (mean seconds of a step) / (spread n)       between the beginnings of two turns

Reference: Chen, Wang, Li, "Round-robin synchronization: mitigating communication bottlenecks in parameter servers",
INFOCOM 2019; the rule is in `thinwire/server/r2sp.py`.

Departs from the paper: the first steps, which find out what a step takes, keep the order too. Servers train too,
unless `servers` are set apart. Batches are the training loop's: `wire.batch(64)` says how many samples a worker
should take for all to take equally long, and its gradients then weigh in proportion.
"""

from __future__ import annotations

from thinwire.core.compressor import Compressor
from thinwire.core.method import Method, method
from thinwire.core.schedule import Sync
from thinwire.methods._parts import server
from thinwire.server.r2sp import R2sp


@method("r2sp")
def r2sp(
    profile: int = 10,
    spread: float = 1.2,
    compressor: str | Compressor = "identity",
    feedback: bool = False,
    down: str | Compressor | None = None,
    servers: int | None = None,
) -> Method:
    """Push and pull in turn.

        profile      steps of each worker before turns are spaced by what a step takes
        spread       how many times a round of turns fits into a step
        compressor   what a gradient goes through on its way up: an id such as "qsgd:bits=4", or a Compressor of
                     thinwire.compressors; "identity" is float32
        feedback     whether what a push loses is added to the next one
        down         what the model's changes go through on their way down, with error feedback: an id or a
                     Compressor; None sends the model itself in float32
        servers      how many ranks, the last ones, only serve; None: every rank serves a shard beside its training

    >>> r2sp(profile=5).id
    'r2sp:profile=5'
    """
    return Method(server(R2sp(profile, spread), compressor, feedback, down, servers), Sync(staleness=None))
